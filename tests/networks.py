"""Networks of several hosts on one Linux machine: network namespaces, links, NAT, and a bad line. Needs root.

A bad line is a pair of TUN devices with a process between them that holds packets back and loses some. It does
what ``tc netem`` does, which many kernels are built without.
"""

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

_numbers = count(1)

_CONNECT = """\
import socket, sys, time
started = time.monotonic()
socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3]))
print(time.monotonic() - started)
"""
_LISTEN = """\
import socket, sys
with socket.create_server(("", int(sys.argv[1]))):
    print("ready", flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True)
class Host:
    """A network namespace. It shares files and process ids with this machine, and no address."""

    namespace: str

    @property
    def inside(self) -> tuple[str, ...]:
        """The words before a command that is to run here."""
        return ("ip", "netns", "exec", self.namespace)

    def run(self, *words: str) -> str:
        """A command to its end; what it printed."""
        return _run(*self.inside, *words)

    def forward(self) -> None:
        """Be a router: hand on packets that are for others."""
        self.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")

    def hide(self, outside: str) -> None:
        """Be a router with NAT, as at home or in an office: who is behind it can only dial out."""
        self.run("iptables", "-t", "nat", "-A", "POSTROUTING", "-o", outside, "-j", "MASQUERADE")
        new = ("-m", "conntrack", "--ctstate", "NEW", "-j", "DROP")
        self.run("iptables", "-A", "FORWARD", "-i", outside, *new)

    def gateway(self, address: str) -> None:
        """Send what is for nobody near by to this address."""
        self.run("ip", "route", "add", "default", "via", address)

    def dial(self, address: str, port: int, patience: float = 3.0) -> float | None:
        """Seconds that it took to open a TCP connection to there from here; None if it could not be opened."""
        command = [*self.inside, sys.executable, "-IS", "-c", _CONNECT, address, str(port), str(patience)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return float(done.stdout) if done.returncode == 0 else None

    def reaches(self, address: str, port: int) -> bool:
        """Whether a TCP connection to there can be opened from here."""
        return self.dial(address, port) is not None

    @contextmanager
    def listens(self, port: int) -> Iterator[None]:
        """Something takes TCP connections at this port, at every address."""
        command = [*self.inside, sys.executable, "-IS", "-c", _LISTEN, str(port)]
        listener = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert listener.stdout is not None and listener.stdout.readline() == "ready\n"
            yield
        finally:
            listener.communicate()  # it ends with its input

    def listening(self) -> list[tuple[str, int]]:
        """Addresses and ports at which something takes TCP connections."""
        local = [line.split()[3].rpartition(":") for line in self.run("ss", "-Hltn").splitlines()]
        return [(host.strip("[]"), int(port)) for host, _, port in local]


@dataclass(frozen=True)
class Link:
    """A cable between two hosts; the ends have the same name in both."""

    router: Host
    name: str

    def cut(self) -> None:
        """Nothing passes any more, and neither end is told more than that."""
        _run("ip", "-n", self.router.namespace, "link", "set", "dev", self.name, "down")

    def restore(self) -> None:
        """Everything passes again."""
        _run("ip", "-n", self.router.namespace, "link", "set", "dev", self.name, "up")


@dataclass(frozen=True)
class Networks:
    """Hosts and what connects them; whatever is made is destroyed by ``ends``."""

    ends: ExitStack
    prefix: str = field(default_factory=lambda: f"fed{os.getpid()}-{next(_numbers)}")

    def host(self, name: str) -> Host:
        """A new machine, with loopback and nothing else."""
        host = Host(f"{self.prefix}-{name}")
        _run("ip", "netns", "add", host.namespace)
        self.ends.callback(_run, "ip", "netns", "delete", host.namespace)
        _run("ip", "-n", host.namespace, "link", "set", "lo", "up")
        return host

    def link(self, router: Host, other: Host, name: str, subnet: str) -> Link:
        """A good line. The router is ``subnet.1``, the other ``subnet.2`` and sends everything to the router."""
        ends = ("type", "veth", "peer", "name", name, "netns", other.namespace)
        _run("ip", "-n", router.namespace, "link", "add", "name", name, *ends)
        return _addressed(router, other, name, subnet)

    def bad_link(
        self, router: Host, other: Host, name: str, subnet: str, delay: float, loss: float, seed: int = 0
    ) -> Link:
        """As ``link``, with ``delay`` seconds each way and a share ``loss`` of the packets lost."""
        line = {"ends": [router.namespace, other.namespace], "name": name, "delay": delay, "loss": loss}
        wire = subprocess.Popen(
            [sys.executable, "-IS", __file__, json.dumps({**line, "seed": seed})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ends.callback(wire.communicate)  # it ends with its input, so also if this process is killed
        assert wire.stdout is not None and wire.stdout.readline() == "ready\n"
        return _addressed(router, other, name, subnet)


@contextmanager
def networks() -> Iterator[Networks]:
    """Networks that are gone afterwards, however that is reached; processes in them must have ended."""
    with ExitStack() as ends:
        yield Networks(ends)


def _addressed(router: Host, other: Host, name: str, subnet: str) -> Link:
    for host, last in ((router, 1), (other, 2)):
        _run("ip", "-n", host.namespace, "address", "add", f"{subnet}.{last}/24", "dev", name)
        _run("ip", "-n", host.namespace, "link", "set", "dev", name, "up")
    other.gateway(f"{subnet}.1")
    return Link(router, name)


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


# --- the process between the ends of a bad line --------------------------------------------------------

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_LONGEST = 65536


def wire(ends: list[int], delay: float, loss: float, seed: int) -> None:
    """Carry packets between two TUN devices, in order, each ``delay`` seconds late if at all.

    Ends when the standard input does.
    """
    chance = random.Random(seed)
    under_way: list[tuple[float, int, int, bytes]] = []  # due time, number, where to, packet
    numbers = count()
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        ready = select.select([*ends, sys.stdin], [], [], wait)[0]
        if sys.stdin in ready:
            return
        for end in ready:
            packet = os.read(end, _LONGEST)
            if chance.random() >= loss:
                other = ends[1 - ends.index(end)]
                heapq.heappush(under_way, (time.monotonic() + delay, next(numbers), other, packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, other, packet = heapq.heappop(under_way)
            with suppress(OSError):  # an end that is down takes nothing
                os.write(other, packet)


def _tun(namespace: str, name: str) -> int:
    """A new TUN device in that namespace; this process must have one thread only."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open() as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"namespace {namespace} cannot be entered")
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


if __name__ == "__main__":
    line = json.loads(sys.argv[1])
    devices = [_tun(end, line["name"]) for end in line["ends"]]
    print("ready", flush=True)
    wire(devices, line["delay"], line["loss"], line["seed"])
