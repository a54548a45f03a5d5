"""What is handed to Flower's nodes, and why they end. Flower's own parser is the oracle."""

import shutil
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args
from hypothesis import given
from hypothesis import strategies as st

from common.config import NodeConfig
from common.errors import ConfigError
from specfed.addresses import Address, reserve_port
from specfed.certs import making
from specfed.launcher import children, probe, start
from specfed.launcher.children import Process
from specfed.launcher.start import node_config
from specfed.settings import toml

PRINTABLE = st.text(st.characters(categories=("L", "M", "N", "P", "S", "Zs")))


@given(PRINTABLE.filter(lambda text: text.isprintable() and not ("'" in text and '"' in text)))
def test_flower_reads_a_nodes_texts_back(text: str) -> None:
    config = {"name": "site-a", "data": text, "validation": 0.1, "threads": 2}
    assert parse_config_args([node_config(config)]) == config


def test_flower_reads_a_whole_node_configuration_back() -> None:
    config = NodeConfig(name="site-1", data=r"C:\my data\a='b'.npz", rows="/tmp/a b/x=1.npy").as_dict()
    assert parse_config_args([node_config(config)]) == config


@pytest.mark.parametrize("text", ["a\nb", "tab\there", """both ' and " quotes"""])
def test_texts_that_flower_could_not_read_back_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="data"):
        node_config({"data": text})


@given(st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text()))
def test_toml_values_come_back(value: bool | int | float | str) -> None:
    if value in (float("inf"), float("-inf")):
        with pytest.raises(ValueError, match="float"):
            toml(value)
        return
    try:
        str(value).encode()
    except UnicodeEncodeError:  # a lone surrogate is no text
        return
    back = tomllib.loads(f"value = {toml(value)}")["value"]
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("log", "parting"),
    [
        ("INFO : up\n", None),
        ("[code: 2001] SuperNode authentication is enabled. All SuperNodes must be registered.\n", "refused"),
        ("[code: 2004] Failed to activate SuperNode.\n", "refused"),
        ("SuperLink version 1.39.0 detected a runtime version mismatch: expected\n", "version"),
        ("INFO : SuperNode ID: 1\nINFO : SuperNode terminated gracefully.\n", "forgotten"),
        ("INFO : SuperNode ID: 1\nINFO : SuperExec terminated gracefully.\n", None),  # its parent was killed
    ],
)
def test_why_a_server_sent_a_node_away(tmp_path: Path, log: str, parting: str | None) -> None:
    (tmp_path / "log").write_text(log, encoding="utf-8")
    popen = subprocess.Popen([sys.executable, "-c", ""])
    popen.wait()
    assert start.parting(Process("site-1", popen, tmp_path / "log")) == parting


def test_the_patched_part_of_flower_is_still_what_it_was() -> None:
    """The shorter polling replaces ``time`` in one of Flower's modules, which must use nothing else of it."""
    import re

    import flwr.supernode.start_client_internal as node

    used = set(re.findall(r"\btime\.(\w+)", Path(node.__file__).read_text(encoding="utf-8")))
    assert used == {"sleep"}


def environment_of(process: Process) -> dict[str, str]:
    entries = Path(f"/proc/{process.popen.pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if entry)


def test_what_trains_keeps_its_memory_unless_the_user_has_settings_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What hands messages on gives it back: it has some for a moment, and lives for days."""
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    with reserve_port() as fleet, reserve_port() as runtime:
        node = start.spawn_node(
            tmp_path, Address("127.0.0.1", fleet), runtime, {"name": "site-a"}, log=tmp_path / "node.log"
        )
        warm, _ = start.spawn_warm(tmp_path, log=tmp_path / "warm.log")
        try:
            (trains,) = (environment_of(process) for process in warm)
            assert trains["MALLOC_TRIM_THRESHOLD_"] == "1073741824"
            assert trains["MALLOC_MMAP_THRESHOLD_"] == "65536"
            assert "MALLOC_TRIM_THRESHOLD_" not in environment_of(node)
        finally:
            children.stop([node, *warm])


def test_where_apps_are_listed_no_unguarded_program_is_found_even_if_ours_is_deleted(tmp_path: Path) -> None:
    assert shutil.which("flwr-clientapp", path=children.flower_environment(tmp_path)["PATH"])
    warm, environment = start.spawn_warm(tmp_path, log=tmp_path / "warm.log", guarded=True)
    children.stop(warm)
    found = shutil.which("flwr-clientapp", path=environment["PATH"])
    assert found == str(tmp_path / "warm" / "flwr-clientapp")
    Path(found).unlink()  # as those do who tidy up /tmp
    assert shutil.which("flwr-clientapp", path=environment["PATH"]) is None


def test_a_server_refuses_nodes_of_another_flower_and_names_both(tmp_path: Path) -> None:
    def said_to(version: str) -> str:
        node = {"package-name": "flwr", "package-version": version, "component-name": "SuperNode"}
        metadata = [(f"flwr-{key}", value) for key, value in node.items()]
        with probe.fleet(server.fleet, None) as channel:
            return probe.refusal(channel, making.new_key(), 0.0, *metadata)

    with reserve_port() as fleet, reserve_port() as control, ExitStack() as stack:
        addresses = Address("127.0.0.1", fleet), Address("127.0.0.1", control)
        server = start.spawn_server(tmp_path, *addresses, log=tmp_path / "server.log")
        stack.callback(children.stop, [server.process])
        start.wait_ready(server)
        theirs, ours = said_to("1.38.0"), said_to("1.39.9")
    assert "SuperLink version 1.39." in theirs and "received SuperNode version 1.38.0" in theirs
    assert "version" not in ours and "activat" in ours  # an unknown key, and of no wrong version
