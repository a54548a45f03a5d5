"""Every command of the README, run as it stands there; only addresses and the run's name are filled in."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from specfed.addresses import reserve_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
MAKE = ["make demo", "make test", "make check"]
BIN = str(Path(sys.executable).parent)


def commands(page: str = "README.md") -> list[str]:
    blocks = re.findall(r"^```bash\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def command(*words: str) -> str:
    """The README's command that begins with these words."""
    (found,) = [c for c in commands() if c.startswith(" ".join(words))]
    return found


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"} | more


def finish(line: str, folder: Path, code: int = 0, **env: str) -> str:
    """Run a command line to its end; what it printed."""
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == code, f"{line}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stdout + done.stderr
    return done.stdout


@contextmanager
def started(line: str, folder: Path, says: str) -> Iterator[None]:
    """A command that stays: it has said so when this yields, and ends cleanly on SIGTERM."""
    output = folder / f"{len(list(folder.iterdir()))}.out"
    with output.open("wb") as file:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=folder, env=environment(), stdout=file, stderr=file
        )
    try:
        deadline = time.monotonic() + 120
        while says not in output.read_text():
            assert process.poll() is None and time.monotonic() < deadline, output.read_text()
            time.sleep(0.2)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
    assert code == 128 + signal.SIGTERM, output.read_text()


def test_make_runs_what_the_readme_says(tmp_path: Path) -> None:
    makefile, ci = (ROOT / "Makefile").read_text(), (ROOT / ".ci" / "run").read_text()
    for line in MAKE:
        assert line in commands()
        assert re.search(rf"^{line.removeprefix('make ')}:", makefile, re.MULTILINE)
    assert "make test\n" in ci and "make check\n" in ci
    assert "$(BIN)/specfed demo\n" in makefile
    shown = finish("specfed demo", tmp_path)
    assert "completed in" in shown and "10/10" in shown and "report.html" in shown
    (report,) = tmp_path.glob("runs/*-demo-*/report.html")
    assert report.stat().st_size > 10_000


def test_separate_terminals_and_flowers_own_command(tmp_path: Path) -> None:
    with ExitStack() as stack:
        port, control = stack.enter_context(reserve_port()), stack.enter_context(reserve_port())

        def filled(line: str) -> str:
            ports = (
                line.replace("server.example.org", "127.0.0.1")
                .replace("9092", str(port))
                .replace("8000", str(control))
            )
            return ports

        server = filled(command("specfed server --insecure"))
        stack.enter_context(started(server, tmp_path, "nodes dial"))
        for line in [c for c in commands() if c.startswith("specfed node --insecure")]:
            stack.enter_context(started(filled(line), tmp_path, "examples of digits"))

        shown = finish(f"{command('specfed run --insecure')} --server 127.0.0.1:{control}", tmp_path)
        assert "3/3" in shown and "site-a" in shown and "completed in" in shown
        (folder,) = tmp_path.glob("runs/*-run-*")
        (folder / "report.html").unlink()
        finish(command("specfed report").replace("RUN", folder.name), tmp_path)
        assert (folder / "report.html").exists()

        home = tmp_path / "flwr"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink.trial]\naddress = "127.0.0.1:{control}"\ninsecure = true\n'
        )
        shown = finish(command("flwr run"), ROOT, FLWR_HOME=str(home), FLWR_TELEMETRY_ENABLED="0")
        assert '"status":"completed"' in shown


def test_separate_machines_with_certificates(tmp_path: Path) -> None:
    def filled(line: str) -> str:
        return line.replace("server.example.org", "127.0.0.1")

    def every(start: str) -> list[str]:
        return [filled(c) for c in commands() if c.startswith(start)]

    with ExitStack() as stack:
        port, control = stack.enter_context(reserve_port()), stack.enter_context(reserve_port())
        finish(*every("specfed certs init"), tmp_path)
        file = tmp_path / "certs" / "server" / "server.toml"
        file.write_text(file.read_text().replace("9092", str(port)).replace("8000", str(control)))
        finish(*every("specfed certs issue"), tmp_path)
        assert "in 365 days" in finish(*every("specfed certs show"), tmp_path)
        stack.enter_context(started(*every("specfed server --config"), tmp_path, "run folders go to"))
        for line in every("specfed enroll"):
            assert "enrolled site-" in finish(line, tmp_path)
        assert "never seen" in finish(*every("specfed nodes"), tmp_path)
        at_site, with_data = every("specfed doctor")[:2]
        assert "no data are named" in finish(at_site, tmp_path / "certs", code=2)
        assert "node: all is well" in finish(with_data, tmp_path / "certs")
        assert "our running server answers" in finish(every("specfed doctor")[2], tmp_path)
        for line in every("specfed node --config"):
            stack.enter_context(started(line, tmp_path / "certs", "SuperNode ID"))
        shown = finish(*every("specfed run --config"), tmp_path)
        assert "2/2" in shown and "site-b" in shown and "completed in" in shown


def test_one_process(tmp_path: Path) -> None:
    shown = finish(command("specfed lab"), tmp_path)
    assert "3/3" in shown and "completed in" in shown
    assert list(tmp_path.glob("runs/*/report.html"))


def test_the_ml_engineers_page(tmp_path: Path) -> None:
    run, drift, sweep = commands("docs/ml-engineer.md")
    assert "5/5" in finish(run, tmp_path)
    assert "paired gain, points" in finish(drift, tmp_path)
    assert "| filter | learning-rate |" in finish(sweep, tmp_path)


def test_keys_and_a_small_demo(tmp_path: Path) -> None:
    assert "kalman-beta" in finish("specfed config", tmp_path)
    shown = finish(command("specfed demo --nodes"), tmp_path)
    assert "2/2" in shown and "SpectralFed" in shown


def test_no_command_is_left_out() -> None:
    run_here = ["specfed server", "specfed node", "specfed run", "specfed report", "specfed lab", "flwr run"]
    run_here += ["specfed certs", "specfed enroll", "specfed nodes", "specfed doctor"]
    run_here += ["specfed config", "specfed demo --nodes"]
    run_here += ["docker ", "cd docker"]  # test_docker.py runs these
    for line in commands():
        assert line in MAKE or any(line.startswith(start) for start in run_here), line
