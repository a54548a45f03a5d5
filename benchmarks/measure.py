"""How the benchmarks measure: CPU seconds, variants in turn, medians.

Wall time on a shared machine tells of its neighbours. CPU seconds hardly do, and what the machine's speed
does to them over minutes hits all variants alike when they take turns.
"""

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results"
LOOK = 0.02  # seconds between two looks at a command's processes


def in_turn(variants: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """The median over ``repeats`` calls of what each variant returns; the variants take turns."""
    results: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, variant in variants.items():
            results[name].append(variant())
    return {name: median(values) for name, values in results.items()}


def of_call(work: Callable[..., object], *arguments: object) -> float:
    """CPU seconds of this process for one call."""
    start = time.process_time()
    work(*arguments)
    return time.process_time() - start


def of_command(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """CPU seconds of a command and of all processes that descend from it, detached ones too (Linux).

    What a process did after the last look at it, and processes that lived between two looks, are missed: the
    result is a lower bound. Raises subprocess.CalledProcessError if the command fails.
    """
    spent: dict[int, int] = {}
    with subprocess.Popen(command, env={**os.environ, **environment}) as process:
        spent[process.pid] = 0
        while process.poll() is None:
            time.sleep(LOOK)
            spent |= descendants(spent)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command))
    return sum(spent.values()) / os.sysconf("SC_CLK_TCK")


def descendants(known: Iterable[int]) -> dict[int, int]:
    """Clock ticks, by process id, of the processes that are known or descend from one that is."""
    table = dict(filter(None, map(_parent_and_ticks, Path("/proc").glob("[0-9]*"))))
    members = set(known) & table.keys()
    while young := {pid for pid, (parent, _) in table.items() if parent in members} - members:
        members |= young
    return {pid: table[pid][1] for pid in members}


def _parent_and_ticks(entry: Path) -> tuple[int, tuple[int, int]] | None:
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it ended meanwhile
        return None
    return int(entry.name), (int(fields[1]), int(fields[11]) + int(fields[12]))


def save(name: str, result: Mapping[str, object], folder: Path = RESULTS) -> None:
    """Write ``FOLDER/NAME.json``, with what it was measured on, and print it."""
    text = json.dumps({"benchmark": name, **result, "measured-on": _machine()}, indent=2) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(text, encoding="utf-8")
    print(text, end="")


def _machine() -> dict[str, object]:
    versions = {name: _version(name) for name in ("flwr", "torch", "numpy", "ray")}
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: number for name, number in versions.items() if number},
    }


def _cpu_model() -> str:
    """The first processor of Linux's list."""
    first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    facts = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in first.splitlines())}
    return ", ".join(
        f"{name} {facts[name]}" for name in ("model name", "cpu family", "model") if name in facts
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
