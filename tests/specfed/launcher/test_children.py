"""What is left of processes that have ended: their last words, and signals that come late."""

import importlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError, PortError, SpecfedError, UnreachableError
from specfed.launcher import children, supervisor
from specfed.launcher.children import Process


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        ("one\ntwo\n\n", "two"),
        ("usage: x\nx: error: unrecognized arguments: --y\n", "x: error: unrecognized arguments: --y"),
        (
            "\x1b[92mINFO \x1b[0m:      up\nSystemExit: Port in server address 1 is already in use.\n"
            "2026-11-29T20:17:52.940Z ERROR [uvicorn.error] Application startup failed. Exiting.\n",
            "SystemExit: Port in server address 1 is already in use.",
        ),
        ("2026-11-29T20:17:52.940Z ERROR [uvicorn.error] no such file\nbye\n", "no such file"),
    ],
)
def test_the_last_words_of_a_log(tmp_path: Path, log: str, words: str) -> None:
    (tmp_path / "log").write_text(log, encoding="utf-8")
    assert children.last_line(tmp_path / "log") == words


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Error: no such table", UnreachableError),
        ("OperationalError: database or disk is full", ConfigError),
        ("OSError: [Errno 28] No space left on device", ConfigError),
        ("Error: the port is in use", PortError),
    ],
)
def test_a_process_that_ends_by_itself_is_noticed(
    tmp_path: Path, words: str, kind: type[SpecfedError]
) -> None:
    log = tmp_path / "log"
    log.write_text(f"{words}\n", encoding="utf-8")
    popen = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    popen.wait()
    with pytest.raises(SpecfedError, match=re.escape(f"site-1 ended by itself: {words}")) as caught:
        children.require_running(Process("site-1", popen, log))
    assert caught.type is kind


def test_a_node_that_its_servers_error_throws_out_ends_though_its_http_server_goes_on() -> None:
    code = """
import sys, threading, time
import flwr.supernode.cli as flower
from specfed.launcher import supervisor
flower.flower_supernode = lambda: threading.Thread(target=time.sleep, args=(600,)).start()
sys.argv = ["supervisor", "supernode"]
sys.exit(supervisor.main())
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=120, check=False)
    assert done.returncode == supervisor.LOST


def test_the_servers_database_waits_a_minute_for_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixin: Any = importlib.import_module("flwr.supercore.sql_mixin")
    monkeypatch.setattr(mixin, "SQLITE_PRAGMAS", mixin.SQLITE_PRAGMAS)
    supervisor._wait_for_the_disk()
    with closing(sqlite3.connect(tmp_path / "db")) as database:
        mixin._set_sqlite_pragmas(database, None)
        assert database.execute("PRAGMA busy_timeout").fetchone() == (60_000,)


def test_a_signal_that_comes_just_after_a_process_was_buried_harms_nobody() -> None:
    gone = subprocess.Popen([sys.executable, "-IS", "-c", ""])
    gone.wait()
    supervisor._sender(gone.pid, signal.SIGTERM)(signal.SIGTERM, None)


def test_flowers_processes_reach_each_other_past_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "a.org")
    environment = children.flower_environment(tmp_path)
    assert environment["no_proxy"] == "a.org,127.0.0.1,localhost,::1"
    assert "127.0.0.1" in environment["NO_PROXY"]


def test_a_full_disk_and_a_lost_terminal_end_nobody(tmp_path: Path) -> None:
    """The output is read on: who writes into a pipe that nobody reads is ended."""
    heard: list[str] = []

    def relay(line: str) -> None:
        heard.append(line)
        raise OSError(5, "the terminal is gone")

    talk = [sys.executable, "-c", "for i in range(3): print(i, flush=True)"]
    popen = subprocess.Popen(talk, stdout=subprocess.PIPE)
    children._read(popen, Path("/dev/full"), relay)
    assert popen.wait() == 0 and heard == ["0", "1", "2"]


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"test_a_log.* cannot be written: "), children.open_log(tmp_path):
        pass


def test_the_log_of_the_last_start_stays_beside_the_new_one(tmp_path: Path) -> None:
    for start in range(3):
        with children.open_log(tmp_path / "server.log") as log:
            assert log is not None
            log.write(b"%d" % start)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "server.log": "2",
        "server.log.1": "1",
    }


def test_a_call_that_fails_in_a_thread_is_a_line_and_any_other_error_a_traceback() -> None:
    script = """
import logging, socket, threading, grpc
from specfed.launcher import supervisor
logging.basicConfig(format="%(message)s")
threading.excepthook = supervisor._in_a_line
with socket.create_server(("127.0.0.1", 0)) as nobody:
    address = f"127.0.0.1:{nobody.getsockname()[1]}"
def call():
    with grpc.insecure_channel(address) as channel:
        channel.unary_unary("/a/b")(b"", timeout=5)
def slip():
    raise KeyError("x")
for work in (call, slip):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""
    errors = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr
    first, *rest = errors.splitlines()
    assert first.startswith("a call to the server failed: UNAVAILABLE: ")
    assert rest[0].startswith("Exception in thread") and rest[-1] == "KeyError: 'x'"


def test_a_second_sigterm_does_not_kill_what_takes_its_leave() -> None:
    script = """
import os, signal, time
from specfed.launcher import supervisor
supervisor._leave_in_peace("flwr.supernode.start_client_internal")
from flwr.supernode import start_client_internal as node
def leave():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    print("left well", flush=True)
node.register_signal_handlers(event_type=node.EventType.RUN_SUPERNODE_LEAVE, exit_handlers=[leave])
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0"}
    left = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert (left.returncode, left.stdout) == (0, "left well\n"), left.stderr


def test_what_the_other_end_sent_is_one_visible_line_of_the_log() -> None:
    program = """
import logging
from specfed.launcher import supervisor
logging.basicConfig(format="%(message)s")
supervisor._log_visibly()
logging.warning("no app %s for %d", "x\\nINFO : site-a was revoked\\x1b]0;pwn\\x07", 3)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "no app x INFO : site-a was revoked\ufffd]0;pwn\ufffd for 3\n"
