"""A warm start for app processes: fork instead of starting Python anew.

Flower starts a process for every message and every run, and such a process spends most of its time
importing Flower and PyTorch. ``serve`` imports them once and then forks a process for each start: as fresh
and as separate as Flower's own, with the same arguments, environment, folder and output, but there at once.
Flower finds it through small programs of the same names that ``install`` writes; put their folder first on
the PATH. Where nothing listens yet, or any more, they start Flower's own.

The app's code is not imported here. It comes with each run and may differ from what is installed.
"""

import gc
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.errors import ConfigError
from common.patience import ask_soon
from specfed.launcher import naps
from specfed.launcher.guard import APPS, forget_our_own, guard

COMMANDS = {  # what Flower starts -> the function that it is
    "flwr-clientapp": "flwr.supernode.cli.flwr_clientapp:flwr_clientapp",
    "flwr-serverapp": "flwr.superlink.cli.flwr_serverapp:flwr_serverapp",
}
# What every start needs and no app brings along. An optimiser would import torch._dynamo in its first step.
# Flower's HTTP client imports half of itself in its first request.
IMPORTS = (
    *(place.partition(":")[0] for place in COMMANDS.values()),
    *("flwr.clientapp", "httpcore", "torch._dynamo"),
)
LONGEST = 100  # characters in the path of a Unix socket, a little less than Linux allows

PROOF = "--specfed-proof"  # asks a program for its address, which only ours knows

_PROGRAM = """\
import json, os, socket, sys
if sys.argv[1:] == [{proof!r}]:
    sys.exit(print({address!r}))
try:
    with socket.socket(socket.AF_UNIX) as warm:
        warm.connect({address!r})
        socket.send_fds(warm, [b"+"], [0, 1, 2])
        start = {{"command": {name!r}, "arguments": sys.argv[1:], "folder": os.getcwd()}}
        warm.sendall(json.dumps({{**start, "environment": {{**os.environ}}}}).encode())
except OSError:
    if {apps!r} in os.environ:
        os.execv({python!r}, [{python!r}, "-m", "specfed.launcher.guard", {name!r}, *sys.argv[1:]])
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
"""


def install(folder: Path) -> Path:
    """Write the programs into ``folder``, which must belong to this user alone.

    Returns the address to ``serve``; whoever reaches it can start processes. Raises ConfigError where a Unix
    socket cannot have it, Flower's own programs are not there, or ours cannot be executed.
    """
    address = folder / "warm.sock"
    if len(str(address)) > LONGEST:
        raise ConfigError(f"{folder} is too long a path; set TMPDIR to a shorter one")
    beside = Path(sys.executable).parent
    real = {name: shutil.which(name, path=str(beside)) for name in COMMANDS}
    if None in real.values():
        raise ConfigError(f"Flower's programs are not in {beside}; install specfed anew")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    address.unlink(missing_ok=True)
    for name, program in real.items():
        text = _PROGRAM.format(
            python=sys.executable, address=str(address), name=name, real=program, apps=APPS, proof=PROOF
        )
        naps.write_program(folder / name, ["-IS", "-c", text])
        _prove(folder, name, str(address))
    return address


def _prove(folder: Path, name: str, address: str) -> None:
    """Raises ConfigError if the program that is found as Flower finds it, by its name, is not ours."""
    try:
        # Nothing else on this PATH: the name must not find another program.
        only = {**os.environ, "PATH": str(folder)}
        said = subprocess.run(
            [name, PROOF], env=only, capture_output=True, text=True, timeout=60, check=False
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    if said != address:
        raise ConfigError(
            f"programs in {folder} cannot be executed ({said or 'they say nothing'}); set TMPDIR to a folder "
            'without ":" on a file system that is not mounted with noexec'
        )


def without_unguarded(path: str) -> str:
    """This PATH without the folders that hold Flower's own program for nodes' apps, which guards nothing."""
    return os.pathsep.join(
        folder
        for folder in path.split(os.pathsep)
        if not os.path.lexists(os.path.join(folder, "flwr-clientapp"))
    )


def serve(address: Path) -> None:
    """Import what app processes need, then fork one for each start that arrives. Does not return."""
    for name in IMPORTS:
        importlib.import_module(name)
    ask_soon()
    gc.freeze()  # what is shared with the forks stays shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks are buried by the kernel
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    _run(connection)


def _run(connection: socket.socket) -> None:
    """Become the process that was asked for, and end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        _become(connection)()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # what Python would print: nothing here comes after us to do it
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)  # Flower's SuperExec does not ask for the exit code


def _become(connection: socket.socket) -> Callable[[], None]:
    """Take over output, folder, environment and arguments; the function to call."""
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    with connection.makefile("rb") as sent:
        start: dict[str, Any] = json.load(sent)
    os.environ.clear()
    os.environ.update(start["environment"])
    # Python reads it once, when it starts: without this no model or data of the user's own would be found.
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder for folder in folders if folder and folder not in sys.path]
    os.chdir(start["folder"])
    sys.argv = [start["command"], *start["arguments"]]
    guard()
    forget_our_own()
    return flower_function(start["command"])


def flower_function(command: str) -> Callable[[], None]:
    """What Flower's program of this name calls."""
    module, _, function = COMMANDS[command].partition(":")
    main: Callable[[], None] = getattr(importlib.import_module(module), function)
    return main
