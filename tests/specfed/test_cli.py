"""The command line: what a mistake costs, where values come from, and a TLS federation by hand."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.config import RunConfig, Value
from common.datasets import load
from common.errors import ConfigError
from common.ledger import End, Header, read
from specfed.commands.options import run_folders
from specfed.settings import parse_overrides, read_run
from tests import disks
from tests.commands import Command, commands, in_this_process

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
    from common.config import RunConfig
    from specfed import __version__

    assert invoke("--version") == (0, f"specfed {__version__}\n", "")
    code, output, _ = invoke("config")
    assert code == 0
    listed = {line.split()[0] for line in output.splitlines() if line and not line.startswith(" ")}
    assert {name.replace("_", "-") for name in RunConfig.model_fields} <= listed


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a=1", 1),
        ("a=0.5", 0.5),
        ("a=true", True),
        ("a=fft", "fft"),
        ('a="x y"', "x y"),
        ("a=my.module:make", "my.module:make"),
        ("a=", ""),
        ("a=b=c", "b=c"),
        ("a=2026-12-01", "2026-12-01"),
        ("a=[1, 2]", "[1, 2]"),
    ],
)
def test_values_on_the_command_line(word: str, value: object) -> None:
    (back,) = parse_overrides([word]).values()
    assert back == value
    assert type(back) is type(value)


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text('rounds = 7\nmodel = "mlp4"\n', encoding="utf-8")
    config = read_run(["rounds=3", str(file), "seed=5"])
    assert (config.rounds, config.model, config.seed) == (3, "mlp4", 5)


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("rounds = 3\n\nlocal-epoch = 2\n", [], 'unknown key "local-epoch" in FILE, line 3. Did you mean'),
        ("rounds = 0\n", [], '"rounds" in FILE, line 1: '),
        ("rounds = 3\n", ["rounds=0"], '"rounds" in the command line: '),
        ("[server]\nport = 1\n", [], '"server" in FILE is a table or list'),
        ("rounds 3\n", [], "experiment file FILE is not TOML"),
        ("rounds = 3\nmicro-batches = 64\n", [], "in FILE, line 2"),  # more than there are rows in a batch
        ("rounds = 3\n", ["micro-batches=64"], "in the command line"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_line(
    tmp_path: Path, text: str, words: list[str], message: str
) -> None:
    file = tmp_path / "exp.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(message.replace("FILE", str(file)))):
        read_run([str(file), *words])


def stored(folder: Path, **keys: Value) -> RunConfig:
    """The configuration of a run, which stands in its folder."""
    config = RunConfig.read({key.replace("_", "-"): value for key, value in keys.items()}, "the test")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.as_dict()), encoding="utf-8")
    return config


def test_a_run_to_resume_has_its_own_settings_where_its_folder_is(tmp_path: Path) -> None:
    before = stored(tmp_path / "old", model="mlp4", weighting="cgsv", seed=3, rounds=7)
    defaults: dict[str, Value] = {"run-name": "lab", "eval-data": "digits"}
    more = read_run(["resume=old", "rounds=9", "alignment=raw"], defaults, tmp_path)
    assert more == before.model_copy(update={"resume": "old", "rounds": 9, "alignment": "raw"})
    for words, runs in ((["resume=new"], tmp_path), (["resume=old"], None), ([], tmp_path)):
        assert read_run(words, defaults, runs).eval_data == "digits"


def test_the_configuration_in_a_run_folder_is_an_experiment_file(tmp_path: Path) -> None:
    before = stored(tmp_path / "old", model="mlp4", seed=3)
    file = tmp_path / "old/config.json"
    assert read_run([str(file)], {"eval-data": "digits"}) == before
    assert read_run([str(file), "seed=4"]).seed == 4
    file.write_text('{"sed": 4}')
    with pytest.raises(ConfigError, match=re.escape(f'unknown key "sed" in {file}. Did you mean "seed"?')):
        read_run([str(file)])
    with pytest.raises(ConfigError, match=r'there is no experiment file "nowhere\.json"'):
        read_run(["nowhere.json"])


def test_a_servers_run_folders_are_where_its_file_says(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('insecure = true\nruns = "mine"\n')
    assert run_folders(file) == tmp_path / "mine"
    assert run_folders(None) == Path("runs")


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


def test_one_experiment_file_is_enough() -> None:
    with pytest.raises(ConfigError, match=r"got a\.toml and b\.toml"):
        read_run(["a.toml", "b.toml"])


# --- a federation by hand ----------------------------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts a command in the background; none outlives the test."""
    with commands(tmp_path) as starter:
        yield starter


def certificates(folder: Path) -> tuple[str, str, str]:
    """A CA, and a certificate of 127.0.0.1 with its key, as files."""
    from datetime import UTC, datetime, timedelta
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    keys = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in ("ca", "server")]
    now = datetime.now(UTC)

    def issue(subject: int, extension: x509.ExtensionType) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[subject])
            .issuer_name(names[0])
            .public_key(keys[subject].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(extension, critical=True)
        )
        return builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    ca, certificate, key = folder / "ca.pem", folder / "server.pem", folder / "server.key"
    ca.write_bytes(issue(0, x509.BasicConstraints(ca=True, path_length=None)))
    certificate.write_bytes(issue(1, x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])))
    key.write_bytes(
        keys[1].private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return str(ca), str(certificate), str(key)


@pytest.fixture
def ports() -> Iterator[tuple[str, str]]:
    from specfed.addresses import reserve_port

    with reserve_port() as fleet, reserve_port() as control:
        yield str(fleet), str(control)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_server_nodes_and_run_over_tls(
    tmp_path: Path, ports: tuple[str, str], start: Callable[..., Command]
) -> None:
    ca, certificate, key = certificates(tmp_path)
    fleet, control = ports
    tls = ["--tls-ca", ca, "--tls-cert", certificate, "--tls-key", key]
    host = ["--host", "127.0.0.1", "--port", fleet, "--control-port", control]
    server = start("server", *host, *tls, "--any-node")
    server.wait_for("run folders go to")
    stranger = start(
        "node", "--server", f"127.0.0.1:{fleet}", "--data", "digits", "--name", "x", "--insecure"
    )
    assert stranger.end() == 5
    assert "does not speak gRPC without TLS" in stranger.output
    nodes = [
        start(
            *("node", "--server", f"127.0.0.1:{fleet}", "--data", "digits", "--name", f"site-{i}"),
            *("--part", f"{i}/2", "--tls-ca", ca, "--threads", "1", "--device", "cpu"),
        )
        for i in (1, 2)
    ]
    run = start(
        *("run", "rounds=1", "min-nodes=2", "model=mlp4", "tensorboard=false", "run-name=tls"),
        *("--server", f"127.0.0.1:{control}", "--tls-ca", ca),
    )
    assert run.end(seconds=400) == 0, run.output
    (folder,) = (tmp_path / "runs").glob("*-tls-*")
    header, *_, end = read(folder / "ledger.jsonl")
    assert isinstance(header, Header)
    assert [node.name for node in header.nodes] == ["site-1", "site-2"]
    assert isinstance(end, End)
    assert end.status == "completed"
    assert "completed in" in run.output
    assert "1/1" in run.output
    assert [node.end(signal.SIGINT) for node in nodes] == [130, 130]
    assert server.end(signal.SIGTERM) == 143


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_stops_a_run_on_its_server(
    tmp_path: Path, ports: tuple[str, str], start: Callable[..., Command]
) -> None:
    """Without nodes a run waits; Ctrl-C ends it there, and the server takes the next one, which a person
    leaves, comes back to, and stops."""
    fleet, control = ports
    host = ["--host", "127.0.0.1", "--port", fleet, "--control-port", control, "--insecure"]
    server = start("server", *host)
    server.wait_for("run folders go to")
    there = ("--server", f"127.0.0.1:{control}", "--insecure")

    def done(*words: str) -> str:
        command = start(*words, *there)
        assert command.end(seconds=120) == 0, command.output
        return command.output

    assert f"no run yet on 127.0.0.1:{control}" in done("status")
    run = start("run", *there, "tensorboard=false")
    run.wait_for("· run ")
    time.sleep(3.0)
    assert run.end(signal.SIGINT) == 130
    first = re.search(r"stopping run (\w{4})", run.output)
    assert first is not None, run.output

    second = re.search(r"'specfed stop (\w{4})' ends it", done("run", "--detach", "wait-timeout=600"))
    assert second is not None
    watch = start("watch", *there)
    watch.wait_for(f"run {second[1]} on ")
    time.sleep(3.0)
    assert watch.end(signal.SIGINT) == 130
    assert f"run {second[1]} goes on: 'specfed stop {second[1]}' ends it" in watch.output
    assert states(done("status")) == {first[1]: "stopped", second[1]: "running"}
    nobody = start("stop", "", *there)
    assert nobody.end(seconds=120) == 2 and "RUN is empty" in nobody.output
    watch = start("watch", *there)
    watch.wait_for(f"run {second[1]} on ")
    assert f"run {second[1]}: stopped" in done("stop", second[1])
    assert watch.end(seconds=120) == 130 and f"run {second[1]} was stopped" in watch.output, watch.output
    ended = f"run {second[1]} has ended already: stopped"
    assert ended in done("stop", second[1])
    named = done("stop", f"2026-12-01-run-{second[1]}")
    assert ended in named and "has a mark of its own" in named
    assert states(done("status", "--limit", "1")) == {second[1]: "stopped"}
    lost = start("stop", "nowhere", *there)
    assert lost.end(seconds=120) == 2 and 'the server knows no run "nowhere"' in lost.output
    assert server.end(signal.SIGTERM) == 143


def states(output: str) -> dict[str, str]:
    """The marks and states that 'specfed status' lists."""
    return dict(re.findall(r"(?m)^(\w{4}) +(\w+) +\d{4}-\d\d-\d\d ", output))


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
