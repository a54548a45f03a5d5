"""The command line: what a mistake costs, what it prints, and how lightly it comes and goes."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.config import RunConfig
from common.datasets import load
from common.ledger import End, Header, read
from tests import disks
from tests.commands import in_this_process

Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture
def invoke(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Invoke]:
    """Runs a command in this process, in an empty folder: exit code, output, errors."""
    with in_this_process(tmp_path, monkeypatch) as command:
        yield lambda *words: (command(*words), *capsys.readouterr())


MISTAKES = {
    "unknown option": (["demo", "--roundz", "3"], 2, "--rounds"),
    "unknown command": (["dmo"], 2, "demo"),
    "unknown key": (["demo", "local-epoch=2"], 2, 'Did you mean "local-epochs"?'),
    "not a key": (["demo", "fast"], 2, "KEY=VALUE"),
    "wrong type": (["demo", "rounds=ten"], 2, '"rounds" in the command line'),
    "out of range": (["demo", "--rounds", "0"], 2, '"rounds"'),
    "wrong choice": (["demo", "--weighting", "spectralfus"], 2, 'Did you mean "spectralfuse"?'),
    "one node": (["demo", "--nodes", "1"], 2, "at least 2"),
    "more nodes awaited than a lab has": (
        ["lab", "run", "--nodes", "2", "min-nodes=3", "wait-timeout=1"],
        2,
        "min-nodes (3) exceeds --nodes (2)",
    ),
    "more nodes awaited than a demo has": (
        ["demo", "--nodes", "2", "min-nodes=3", "wait-timeout=1"],
        2,
        "min-nodes (3) exceeds --nodes (2)",
    ),
    "a demo resumed": (["demo", "resume=some-run"], 2, "'specfed lab run' takes resume"),
    "one container": (["compose", "--nodes", "1"], 2, "at least 2"),
    "no place for a file": (["compose", "--out", "nowhere/compose.yaml"], 2, "nowhere/compose.yaml"),
    "missing data": (["demo", "--data", "nowhere.npz"], 3, "nowhere.npz"),
    "unknown partition": (["demo", "--partition", "dirichle"], 2, 'Did you mean "dirichlet"?'),
    "unknown model": (["demo", "--model", "cnn6"], 4, 'Did you mean "cnn5"?'),
    "unknown layer": (["demo", "entropy-layer=fc2.weigth"], 4, 'Did you mean "fc2.weight"?'),
    "no protection chosen": (["server"], 2, "--insecure"),
    "both protections": (["run", "--insecure", "--tls-ca", __file__], 2, "both were given"),
    "half of TLS": (["server", "--tls-ca", __file__], 2, "--tls-cert and --tls-key"),
    "no such certificate": (["run", "--tls-ca", "nowhere.pem"], 2, "nowhere.pem"),
    "no certificate at all": (["run", "--tls-ca", __file__], 2, "holds no certificate in PEM form"),
    "two ways to a server": (
        ["nodes", "--config", "server.toml", "--insecure"],
        2,
        "leave out --insecure and --tls-ca",
    ),
    "no such configuration": (["server", "--config", "nowhere.toml"], 2, "nowhere.toml"),
    "no certificates": (["certs", "show"], 2, "'specfed certs init' makes them"),
    "no host": (["certs", "init", "--host", "a b"], 2, '"a b" is not a host'),
    "no CA to issue from": (["certs", "issue", "site-a"], 2, "ca.crt"),
    "bad health address": (["server", "--insecure", "--health", "9100"], 2, "HOST:PORT"),
    "state in a file": (["server", "--insecure", "--state", __file__], 2, "state"),
    "bad log format": (["server", "--insecure", "--log-format", "jsn"], 2, 'Did you mean "json"?'),
    "one port for two": (["server", "--insecure", "--port", "8000"], 2, "a port each"),
    "not our host": (["server", "--insecure", "--host", "192.0.2.1"], 2, "192.0.2.1"),
    "bad address": (["node", "--server", "x", "--data", "d", "--name", "a", "--insecure"], 2, "HOST:PORT"),
    "bad name": (["node", "--server", "x:1", "--data", "d", "--name", "a b", "--insecure"], 2, '"name"'),
    "bad part": (
        ["node", "--server", "x:1", "--data", "digits", "--name", "a", "--part", "4/3", "--insecure"],
        2,
        '"4/3"',
    ),
    "missing option": (["node", "--data", "digits"], 2, "--server"),
    "node's data missing": (
        ["node", "--server", "x:1", "--data", "nowhere.npz", "--name", "a", "--insecure"],
        3,
        "nowhere.npz",
    ),
    "no server for a node": (
        ["node", "--server", "127.0.0.1:1", "--data", "digits", "--name", "a", "--insecure"],
        5,
        "127.0.0.1:1",
    ),
    "no server for a run": (["run", "--insecure", "--server", "127.0.0.1:1"], 5, "specfed server"),
    "no experiment": (["run", "nowhere.toml", "--insecure"], 2, "nowhere.toml"),
    "two experiments": (["run", "a.toml", "b.toml", "--insecure"], 2, "one experiment file is enough"),
    "one key for two sites": (
        ["certs", "issue", "site-a", "site-b", "--public-key", "site-a.pub"],
        2,
        "--public-key takes one site; got site-a, site-b",
    ),
    "no folder to write to": (["compose", "--out", "nowhere/compose.yaml"], 2, "cannot be written"),
    "no run": (["report", "nowhere"], 3, 'no run folder "nowhere" here or in runs'),
    "a key that an experiment sets": (
        ["lab", "reproduce", "contribution-correlation", "rounds=3"],
        2,
        '"rounds" is what the experiment itself sets',
    ),
    "unknown experiment": (["lab", "reproduce", "contribution"], 2, "contribution-correlation"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_ends_in_one_sentence_and_its_exit_code(invoke: Invoke, case: str) -> None:
    words, code, hint = MISTAKES[case]
    left, _, errors = invoke(*words)
    lines = [line for line in errors.splitlines() if not line.startswith("warning: --insecure")]
    assert left == code, errors
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert hint in lines[0]


def test_a_port_in_use_is_named(invoke: Invoke) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, errors = invoke("server", "--insecure", "--host", "127.0.0.1", "--port", str(port))
    assert code == 6
    assert f"port {port} on 127.0.0.1 is in use; choose another with --port" in errors


def test_the_shell_sees_the_same() -> None:
    """Once through the real entry point: no traceback, nothing on the standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "specfed.cli", "demo", "rouns=3"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == 'error: unknown key "rouns" in the command line. Did you mean "rounds"?\n'


def test_a_deleted_folder_is_told(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$1" && rmdir "$1" && exec "$2" -m specfed.cli --version'
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(gone), sys.executable],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 2
    assert done.stderr == "error: the current folder was deleted; change into another one\n"


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_is_closed_ends_a_command_unless_nohup_was_meant(
    ignored: bool,
) -> None:
    waits = (
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGHUP, signal.{'SIG_IGN' if ignored else 'SIG_DFL'})\n"
        "from specfed import cli\n"
        "def app(**_):\n"
        "    try:\n"
        "        print('waits', flush=True)\n"
        "        time.sleep(60)\n"
        "    finally:\n"
        "        print('cleaned up', flush=True)\n"
        "cli.app = app\n"
        "cli.main()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", waits], stdout=subprocess.PIPE, text=True, env=environment
    ) as command:
        assert command.stdout is not None and command.stdout.readline() == "waits\n"
        command.send_signal(signal.SIGHUP)
        if ignored:
            with pytest.raises(subprocess.TimeoutExpired):
                command.wait(1)
            command.send_signal(signal.SIGTERM)
        assert command.wait(30) == 128 + (signal.SIGTERM if ignored else signal.SIGHUP)
        assert command.stdout.read() == "cleaned up\n"


def test_without_a_command_there_is_help(invoke: Invoke) -> None:
    code, output, errors = invoke()
    assert (code, errors) == (0, "")
    assert "demo" in output


def test_an_experiment_prints_its_table_and_keeps_it(invoke: Invoke, tmp_path: Path) -> None:
    sizes = ("--nodes", "2", "--rounds", "1", "--seeds", "1", "--rows", "60", "--alpha", "1")
    code, output, _ = invoke("lab", "reproduce", "contribution-correlation", *sizes, "model=mlp4")
    (file,) = tmp_path.glob("runs/*-contribution-correlation-*/result.md")
    assert code == 0
    assert file.read_text() in output
    assert "site-1 alone" in output and str(file.relative_to(tmp_path)) in output


def test_version_and_keys(invoke: Invoke) -> None:
    from specfed import __version__

    assert invoke("--version") == (0, f"specfed {__version__}\n", "")
    code, output, _ = invoke("config")
    assert code == 0
    listed = {line.split()[0] for line in output.splitlines() if line and not line.startswith(" ")}
    assert {name.replace("_", "-") for name in RunConfig.model_fields} <= listed


def test_a_lab_run_is_resumed_by_its_name_alone(invoke: Invoke, tmp_path: Path) -> None:
    keys = ("model=mlp4", "weighting=cgsv", "seed=3", "tensorboard=false", "run-name=x")
    assert invoke("lab", "run", "--nodes", "2", "rounds=1", *keys)[0] == 0
    (folder,) = tmp_path.glob("runs/*-x-*")
    code, _, errors = invoke("lab", "run", "--nodes", "2", f"resume={folder.name}")
    assert code == 2 and "rounds=2 or more" in errors
    code, output, _ = invoke("lab", "run", "--nodes", "2", "rounds=2", f"resume={folder.name}")
    assert code == 0 and "2/2" in output
    header, *_, end = read(folder / "ledger.jsonl")
    assert isinstance(header, Header) and isinstance(end, End) and end.rounds == 2
    code, output, _ = invoke("explain", folder.name, "--round", "1", "--client", "site-2")
    assert code == 0 and output.startswith("site-2 in round 1: accepted\n") and "weights by cgsv" in output
    assert (header.config["weighting"], header.config["seed"]) == ("cgsv", 3)
    code, _, errors = invoke("lab", "run", "--nodes", "2", "rounds=3", "seed=4", f"resume={folder.name}")
    assert code == 2 and "seed: stored 3, got 4" in errors


def test_compose_files_go_to_the_terminal_or_a_file(invoke: Invoke, tmp_path: Path) -> None:
    code, shown, _ = invoke("compose", "--nodes", "8")
    assert code == 0 and "site-8:" in shown and "site-9:" not in shown
    assert invoke("compose", "--nodes", "8", "--out", "mine.yaml")[:2] == (0, "")
    assert (tmp_path / "mine.yaml").read_text() == shown
    (tmp_path / "link.yaml").symlink_to("mine.yaml")
    assert invoke("compose", "--nodes", "2", "--out", "link.yaml")[0] == 0
    assert (tmp_path / "link.yaml").is_symlink() and "site-8:" not in (tmp_path / "mine.yaml").read_text()
    assert invoke("compose", "--out", "/dev/null")[0] == 0 and Path("/dev/null").is_char_device()
    assert "capabilities: [gpu]" in invoke("compose", "--gpu")[1]


def test_the_command_line_itself_is_light() -> None:
    """A node's own process lives as long as the node, and a mistyped word should not take seconds."""
    script = (
        "import sys, specfed.cli\n"
        "print({'torch', 'numpy', 'flwr', 'grpc', 'datasets', 'cryptography'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_command_leaves_without_a_search_for_garbage() -> None:
    script = (
        "import atexit, gc, specfed.cli\n"
        "atexit.register(lambda: print('at the exit:', gc.get_freeze_count() > 0))\n"
        "print(gc.get_freeze_count())\n"
        "specfed.cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[0] == "0" and done.stdout.splitlines()[-1] == "at the exit: True"


@pytest.mark.parametrize(
    "words",
    [
        ["app-hash"],
        pytest.param(
            ["lab", "run", "rounds=1", "model=mlp4", "--runs", "runs"], marks=pytest.mark.slow, id="lab"
        ),
    ],
)
@pytest.mark.parametrize(
    ("way", "room"), [(way, {"a quota": 1, "a full disk": 4}[way]) for way in disks.WAYS]
)
def test_a_full_disk_is_a_sentence_for_any_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, room: int, words: list[str]
) -> None:
    monkeypatch.setenv("SPECFED_CACHE", str(tmp_path / "cache"))
    for split in ("train", "test"):  # so that only what is tried meets the full disk
        load("digits", split)
    script = f"import sys; sys.argv[1:] = {words}; from specfed.cli import main; main()"
    folder = tmp_path / "disk"
    done = disks.run(way, room, folder, script, TMPDIR=str(folder))
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(r"error: [^\n]*(No space left on device|File too large)[^\n]*\n", done.stderr)
