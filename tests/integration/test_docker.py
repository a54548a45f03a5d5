"""A federation in containers, on a real Docker engine: certificates, a server and three nodes, by docker compose.

The image is built here, with the build arguments that the environment holds, or is the one in SPECFED_IMAGE.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from common.ledger import ClientRecord, End, Header, Record, RoundRecord, read

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PROJECT = "specfed-test"
SITES = ["site-1", "site-2", "site-3"]
BUILD_ARGUMENTS = ["BASE", "VARIANT", "TORCH_VERSION", "TORCH_INDEX"]


def docker(*arguments: str, fails: bool = False, timeout: float = 120) -> str:
    """Run a docker command to its end; what it printed."""
    return finish(["docker", *arguments], {}, fails, timeout)


def finish(command: list[str], more: dict[str, str], fails: bool = False, timeout: float = 120) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT / "docker",
        env=os.environ | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert (done.returncode != 0) == fails, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


def composers() -> list[list[str]]:
    """The compose programs of this machine, the newer one first."""
    found = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    newer = [["docker", "compose"]] if found.returncode == 0 else []
    return newer + ([["docker-compose"]] if shutil.which("docker-compose") else [])


@pytest.fixture(scope="module")
def image() -> str:
    if "SPECFED_IMAGE" in os.environ:
        return os.environ["SPECFED_IMAGE"]
    arguments = [word for name in BUILD_ARGUMENTS for word in ("--build-arg", name)]
    buildx = subprocess.run(["docker", "buildx", "version"], capture_output=True, check=False)
    kit = {} if buildx.returncode == 0 else {"DOCKER_BUILDKIT": "0"}
    build = ["docker", "build", "--quiet", "-f", "docker/Dockerfile", *arguments, "-t", "specfed", ".."]
    build[build.index("docker/Dockerfile")] = "Dockerfile"
    finish(build, kit, timeout=800)
    return "specfed"


class Cluster:
    """The containers of one compose project."""

    def __init__(self, image: str) -> None:
        self.image, self.composer = image, composers()[0]

    def command(self, *words: str) -> list[str]:
        return [*self.composer, "--project-name", PROJECT, "--file", "compose.yaml", *words]

    def compose(self, *words: str, fails: bool = False, timeout: float = 240) -> str:
        return finish(self.command(*words), {"SPECFED_IMAGE": self.image}, fails, timeout)

    def container(self, service: str) -> str:
        return self.compose("ps", "-q", service).strip()

    def inside(self, service: str, *words: str, fails: bool = False) -> str:
        return docker("exec", self.container(service), *words, fails=fails)

    def state(self, service: str) -> dict[str, object]:
        (found,) = json.loads(docker("inspect", self.container(service)))
        state: dict[str, object] = found["State"]
        return state

    def fetch(self, name: str, folder: Path) -> Path:
        """The newest run called so, copied out of its volume."""
        docker("cp", f"{self.container('server')}:/runs", str(folder))
        return max((folder / "runs").glob(f"*-{name}-*"))

    def rounds(self, name: str) -> int:
        """Rounds that the ledger of the run called so holds by now."""
        line = f"cat /runs/*-{name}-*/ledger.jsonl 2>/dev/null || true"
        return self.inside("server", "sh", "-c", line).count('"kind":"round"')


def left() -> list[str]:
    """Containers, networks and volumes of the project."""
    label = f"label=com.docker.compose.project={PROJECT}"
    kinds = (["ps", "-aq"], ["network", "ls", "-q"], ["volume", "ls", "-q"])
    return [line for kind in kinds for line in docker(*kind, "--filter", label).split()]


@pytest.fixture(scope="module")
def cluster(image: str) -> Iterator[Cluster]:
    cluster = Cluster(image)
    cluster.compose("down", "--volumes", "--remove-orphans")
    try:
        cluster.compose("up", "--detach")
        yield cluster
    except BaseException:
        print(cluster.compose("logs", "--tail", "60"))
        raise
    finally:
        cluster.compose("down", "--volumes", "--remove-orphans")
    assert left() == []


def records(folder: Path) -> list[Record]:
    return list(read(folder / "ledger.jsonl"))


@pytest.mark.parametrize("composer", composers(), ids=" ".join)
@pytest.mark.parametrize("overlay", [[], ["--file", "compose.gpu.yaml"]], ids=["plain", "gpu"])
def test_each_compose_program_understands_the_files(composer: list[str], overlay: list[str]) -> None:
    finish([*composer, "--file", "compose.yaml", *overlay, "config", "--quiet"], {})


def test_a_run_of_three_nodes_ends_with_a_model_on_the_host(cluster: Cluster, tmp_path: Path) -> None:
    shown = cluster.compose("run", "--rm", "-T", "run", "rounds=3", "run-name=whole")
    assert "3/3" in shown and "completed in" in shown

    folder = cluster.fetch("whole", tmp_path)
    header, *_, end = records(folder)
    assert isinstance(header, Header) and isinstance(end, End) and end.status == "completed"
    trained = [r.client for r in records(folder) if isinstance(r, ClientRecord) and r.status == "accepted"]
    assert sorted(trained) == sorted(SITES * 3)
    assert load_file(folder / "model.safetensors")
    assert (folder / "report.html").stat().st_size > 10_000
    for service in ["server", *SITES]:
        assert cluster.state(service)["Health"]["Status"] == "healthy", service  # type: ignore[index]


def test_a_container_can_do_no_more_than_it_must(cluster: Cluster) -> None:
    assert cluster.inside("site-1", "id", "-u").strip() != "0"
    assert "Read-only" in cluster.inside("site-1", "touch", "/opt/specfed/x", fails=True)
    assert cluster.inside("site-1", "sh", "-c", "ls /certs").split() == [
        "ca.crt",
        "node.toml",
        "site-1.key",
        "site-1.pub",
    ]
    compilers = "command -v cc gcc g++ make; ls /opt/venv/bin/pip* 2>/dev/null; true"
    assert cluster.inside("site-1", "sh", "-c", compilers) == ""
    dial = "import socket; socket.create_connection(('server', {}), 5)"
    cluster.inside("site-1", "python", "-c", dial.format(9092))
    refused = cluster.inside("site-1", "python", "-c", dial.format(8000), fails=True)
    assert "refused" in refused


def test_a_node_that_stops_is_missed_and_the_run_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    words = ["rounds=6", "run-name=lost", "min-replies=2", "round-timeout=15"]
    run = subprocess.Popen(
        cluster.command("run", "--rm", "-T", "run", *words),
        cwd=ROOT / "docker",
        env=os.environ | {"SPECFED_IMAGE": cluster.image},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 180
    while cluster.rounds("lost") < 1:
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.5)
    docker("kill", cluster.container("site-2"))
    shown, _ = run.communicate(timeout=240)
    assert run.returncode == 0, shown

    seen = records(cluster.fetch("lost", tmp_path))
    end = seen[-1]
    assert isinstance(end, End) and (end.status, end.rounds) == ("completed-degraded", 6)
    missing = {r.client for r in seen if isinstance(r, ClientRecord) and r.status == "missing"}
    assert missing == {"site-2"}
    assert [r.accepted for r in seen if isinstance(r, RoundRecord)][0] == 3
