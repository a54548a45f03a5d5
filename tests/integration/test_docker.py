"""A federation in containers, on a real Docker engine: certificates, a server and three nodes, by docker compose.

The image is built here, with the build arguments that the environment holds, or is the one in SPECFED_IMAGE.
"""

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from common.ledger import ClientRecord, End, Header, Record, RoundRecord, read
from tests.integration.test_readme import command

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PROJECT = "specfed-test"
SITES = ["site-1", "site-2", "site-3"]
BUILD_ARGUMENTS = ["BASE", "VARIANT", "TORCH_VERSION"]  # beside the README's; unset ones keep their defaults


def docker(*arguments: str, fails: bool = False) -> str:
    """Run a docker command to its end; what it printed."""
    return finish(["docker", *arguments], fails=fails)


def finish(
    words: list[str], folder: Path = ROOT, fails: bool = False, timeout: float = 240, **more: str
) -> str:
    done = subprocess.run(
        words,
        cwd=folder,
        env=os.environ | more,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert (done.returncode != 0) == fails, f"{' '.join(words)}\n{done.stdout}"
    return done.stdout


def composers() -> list[list[str]]:
    """The compose programs of this machine, the newer one first."""
    found = subprocess.run("docker compose version", shell=True, capture_output=True, check=False)
    newer = [["docker", "compose"]] if found.returncode == 0 else []
    return newer + ([["docker-compose"]] if shutil.which("docker-compose") else [])


@pytest.fixture(scope="module")
def image() -> str:
    """The image as the README builds it."""
    if "SPECFED_IMAGE" in os.environ:
        return os.environ["SPECFED_IMAGE"]
    words = shlex.split(command("docker build"))
    arguments = [f"--build-arg={name}" for name in BUILD_ARGUMENTS]
    buildx = subprocess.run("docker buildx version", shell=True, capture_output=True, check=False)
    older = {} if buildx.returncode == 0 else {"DOCKER_BUILDKIT": "0"}
    finish([*words[:-1], "--quiet", *arguments, words[-1]], timeout=800, **older)
    return words[words.index("-t") + 1]


@dataclass(frozen=True)
class Cluster:
    """The containers of one compose project."""

    composer: list[str]
    environment: dict[str, str]

    def words(self, line: str, *more: str) -> list[str]:
        """A command of the README, for the compose program that is there."""
        return [*self.composer, *shlex.split(line)[2:], *more]

    def compose(self, line: str, *more: str) -> str:
        return finish(self.words(line, *more), ROOT / "docker", **self.environment)

    def container(self, service: str) -> str:
        return self.compose(f"docker compose ps -q {service}").strip()

    def inside(self, service: str, *words: str, fails: bool = False) -> str:
        return docker("exec", self.container(service), *words, fails=fails)

    def health(self, service: str) -> str:
        return docker("inspect", "--format", "{{.State.Health.Status}}", self.container(service)).strip()

    def fetch(self, name: str, folder: Path) -> Path:
        """The run called so, copied out of its volume."""
        line = command("docker compose cp")
        assert line.endswith(" server:/runs .")
        if self.composer == ["docker-compose"]:  # which cannot copy
            docker("cp", f"{self.container('server')}:/runs", str(folder))
        else:
            self.compose(line.removesuffix(".") + str(folder))
        (found,) = (folder / "runs").glob(f"*-{name}-*")
        return found

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
    cluster = Cluster(composers()[0], {"SPECFED_IMAGE": image, "COMPOSE_PROJECT_NAME": PROJECT})
    down = command("docker compose down")
    cluster.compose(down)
    try:
        cluster.compose(command("docker compose up"))
        yield cluster
        print(cluster.compose("docker compose logs --tail 60"))  # shown if a test failed
    finally:
        cluster.compose(down)
    assert left() == []


def records(folder: Path) -> list[Record]:
    return list(read(folder / "ledger.jsonl"))


@pytest.mark.parametrize("composer", composers(), ids=" ".join)
@pytest.mark.parametrize("overlay", [[], ["--file", "compose.gpu.yaml"]], ids=["plain", "gpu"])
def test_each_compose_program_understands_the_files(composer: list[str], overlay: list[str]) -> None:
    finish([*composer, "--file", "compose.yaml", *overlay, "config", "--quiet"], ROOT / "docker")


def test_a_run_of_three_nodes_ends_with_a_model_on_the_host(cluster: Cluster, tmp_path: Path) -> None:
    shown = cluster.compose(command("docker compose run"), "run-name=whole")
    assert "3/3" in shown and "completed in" in shown

    folder = cluster.fetch("whole", tmp_path)
    header, *_, end = records(folder)
    assert isinstance(header, Header) and isinstance(end, End) and end.status == "completed"
    trained = [r.client for r in records(folder) if isinstance(r, ClientRecord) and r.status == "accepted"]
    assert sorted(trained) == sorted(SITES * 3)
    assert load_file(folder / "model.safetensors")
    assert (folder / "report.html").stat().st_size > 10_000
    for service in ["server", *SITES]:
        assert cluster.health(service) == "healthy", service


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
    # A round takes long enough that the node is still training when the engine gets to stop it.
    words = ["rounds=4", "run-name=lost", "min-replies=2", "round-timeout=30", "local-epochs=60"]
    run = subprocess.Popen(
        cluster.words("docker compose run --rm run", *words),
        cwd=ROOT / "docker",
        env=os.environ | cluster.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 180
    while cluster.rounds("lost") < 1:
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.5)
    cluster.compose("docker compose stop site-2")
    shown, _ = run.communicate(timeout=240)
    assert run.returncode == 0, shown

    seen = records(cluster.fetch("lost", tmp_path))
    end = seen[-1]
    assert isinstance(end, End) and (end.status, end.rounds) == ("completed-degraded", 4)
    missing = {r.client for r in seen if isinstance(r, ClientRecord) and r.status == "missing"}
    assert missing == {"site-2"}
    accepted = [r.accepted for r in seen if isinstance(r, RoundRecord)]
    assert (accepted[0], accepted[-1]) == (3, 2)
