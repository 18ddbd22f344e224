"""A network of namespaces: one for each node, and a router between them that can drop packets.

::

    this process ──veth── router ──veth── node 1's namespace      10.x.N.2, …
                            │ ──veth── node 2's namespace         N from 1 on; this process: N = 0
                            └ ip rule from A to B blackhole: drops A's packets to B silently

Packets are lost in the router's kernel, as on a real network: TCP retransmits, no error is
reported.  It needs root, iproute2 and util-linux.  Probes in a namespace of their own find what a
machine lacks: at the beginning, and after a failed ``shape`` or ``reset``, which not all kernels
support.  A probe that fails raises ScenarioSkipped with its command.  Any other command that fails,
and each that takes too long, fails the story.  Names contain this process's id; namespaces that a
killed process left are removed by the next.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, final

import attrs

from hastore_scenarios.story.world import ScenarioFailed, ScenarioSkipped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NODES_MAX: Final = 200
_NAME: Final = "hastore-{pid}-{what}"
_OWN: Final = re.compile(r"hastore-(\d+)-\w+")
_TIMEOUT_S: Final = 120.0
_SUBNETS: Final = 128  # 10.64.0.0/16 to 10.191.0.0/16
# The commands of the probes.
_FORWARD: Final = ("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
_NAMESPACES: Final = (
    ("ip", "link", "add", "one", "type", "veth", "peer", "name", "other"),
    _FORWARD,
    ("ip", "rule", "add", "from", "10.0.0.1", "to", "10.0.0.2", "blackhole"),
)
_RATE: Final = ("root", "tbf", "rate", "1mbit", "burst", "64kb", "latency", "1s")
_SHAPES: Final = (("tc", "qdisc", "add", "dev", "lo", *_RATE),)
_KILLS: Final = (("ss", "-K", "-H", "dst", "10.0.0.1"),)


class AddressPair(NamedTuple):
    """The direction from one address to another."""

    source: str
    target: str


@final
@attrs.define(eq=False)
class NetnsNetwork:
    """One router and its nodes; ``remove`` removes everything."""

    pid: int
    subnet: int  # the second octet, of 10.x.0.0/16
    hosts: int = 0
    _dropped: dict[AddressPair, None] = attrs.field(factory=dict)

    @classmethod
    def make(cls) -> NetnsNetwork:
        """Make a router and connect this process to it.  Raises ScenarioSkipped."""
        _probe("no network namespaces here", _NAMESPACES)
        remove_leftovers()
        network = cls(os.getpid(), _free_subnet())
        try:
            network._build()
        except ScenarioFailed:
            network.remove()
            raise
        return network

    @property
    def router(self) -> str:
        """The router's namespace."""
        return _NAME.format(pid=self.pid, what="r")

    def _build(self) -> None:
        run("ip", "netns", "add", self.router)
        # Two worlds of one process would share this name; a run has one world at a time.
        own = f"hs{self.pid}"
        run("ip", "link", "add", own, "type", "veth", "peer", "name", "core", "netns", self.router)
        run("ip", "addr", "add", f"10.{self.subnet}.0.2/24", "dev", own)
        run("ip", "link", "set", own, "up")
        run("ip", "route", "add", f"10.{self.subnet}.0.0/16", "via", f"10.{self.subnet}.0.1")
        self._in_router("ip", "addr", "add", f"10.{self.subnet}.0.1/24", "dev", "core")
        self._in_router("ip", "link", "set", "core", "up")
        self._in_router(*_FORWARD)

    def add_host(self) -> tuple[str, str]:
        """Make a namespace; return its name and its address."""
        self.hosts += 1
        number = self.hosts
        assert number <= NODES_MAX, f"at most {NODES_MAX} nodes"
        name = _NAME.format(pid=self.pid, what=str(number))
        gateway, address = f"10.{self.subnet}.{number}.1", f"10.{self.subnet}.{number}.2"
        run("ip", "netns", "add", name)
        command = ("ip", "link", "add", f"n{number}", "type", "veth", "peer", "name", "eth0")
        self._in_router(*command, "netns", name)
        self._in_router("ip", "addr", "add", f"{gateway}/24", "dev", f"n{number}")
        self._in_router("ip", "link", "set", f"n{number}", "up")
        run(*inside(name), "ip", "link", "set", "lo", "up")
        run(*inside(name), "ip", "addr", "add", f"{address}/24", "dev", "eth0")
        run(*inside(name), "ip", "link", "set", "eth0", "up")
        run(*inside(name), "ip", "route", "add", "default", "via", gateway)
        return name, address

    # -- faults

    def drop(self, way: AddressPair) -> None:
        """Drop all packets from a source to a target."""
        if way not in self._dropped:
            self._rule("add", way)
            self._dropped[way] = None

    def pass_again(self, way: AddressPair) -> None:
        """Stop dropping packets from a source to a target."""
        if way in self._dropped:
            self._rule("del", way)
            del self._dropped[way]

    def _rule(self, verb: str, way: AddressPair) -> None:
        self._in_router("ip", "rule", verb, "from", way.source, "to", way.target, "blackhole")

    def shape(self, number: int, bytes_per_s: int | None) -> None:
        """Limit the rate at which a host receives; None: no limit."""
        device = f"n{number}"
        if bytes_per_s is None:
            self._in_router("tc", "qdisc", "del", "dev", device, "root")
            return
        rate = ("rate", f"{bytes_per_s}bps", "burst", "64kb", "latency", "2s")
        with _skip_without(_SHAPES):
            self._in_router("tc", "qdisc", "replace", "dev", device, "root", "tbf", *rate)

    def reset(self, number: int, peer: str) -> None:
        """Kill a host's connections with a peer, as an RST does (ss -K)."""
        name = _NAME.format(pid=self.pid, what=str(number))
        with _skip_without(_KILLS):
            run(*inside(name), "ss", "-K", "-H", "dst", peer)

    # -- the end

    def remove(self) -> None:
        """Remove all namespaces; the interfaces go with them."""
        for number in range(1, self.hosts + 1):
            _delete(_NAME.format(pid=self.pid, what=str(number)))
        _delete(self.router)
        # The kernel removes interfaces a little later, but the next world needs the name at once.
        with contextlib.suppress(ScenarioFailed):
            run("ip", "link", "del", f"hs{self.pid}")

    def _in_router(self, *command: str) -> None:
        run(*inside(self.router), *command)


def inside(namespace: str) -> tuple[str, ...]:
    """Return the prefix that runs a command in a namespace.

    Not ``ip netns exec``: it copies all mounts, so a disk that is unmounted meanwhile stays mounted
    for as long as the command runs.
    """
    return ("nsenter", f"--net=/var/run/netns/{namespace}")


class _TooLong(ScenarioFailed):
    """A command did not end in time, which does not mean that the machine does not support it."""


def run(*command: str) -> str:
    """Return a command's output.  Raises ScenarioFailed with its error output."""
    line = " ".join(command)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise _TooLong(f"{line}: {error}") from error
    except OSError as error:
        raise ScenarioFailed(f"{line}: {error}") from error
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit {done.returncode}"
        raise ScenarioFailed(f"{line}: {reason}")
    return done.stdout


@contextlib.contextmanager
def _skip_without(commands: Sequence[Sequence[str]]) -> Iterator[None]:
    """Skip the story if the block fails and these commands fail on this machine, too."""
    try:
        yield
    except _TooLong:
        raise
    except ScenarioFailed:
        _probe("this machine cannot", commands)
        raise


def _probe(lacking: str, commands: Sequence[Sequence[str]]) -> None:
    """Run commands in a new namespace.  Raises ScenarioSkipped if one fails."""
    name = _NAME.format(pid=os.getpid(), what="probe")
    _delete(name)
    try:
        run("ip", "netns", "list")
        run("ip", "netns", "add", name)
        for command in commands:
            run(*inside(name), *command)
    except _TooLong:
        raise
    except ScenarioFailed as failed:
        raise ScenarioSkipped(f"{lacking}: {failed}") from failed
    finally:
        _delete(name)


def _free_subnet() -> int:
    """Return a second octet without routes; several worlds may exist at once."""
    taken = {int(octet) for octet in re.findall(r"\b10\.(\d+)\.", run("ip", "route"))}
    first = os.getpid() % _SUBNETS
    for step in range(_SUBNETS):
        subnet = 64 + (first + step) % _SUBNETS
        if subnet not in taken:
            return subnet
    raise ScenarioFailed("every 10.x.0.0/16 is taken")


def _delete(name: str) -> None:
    with contextlib.suppress(ScenarioFailed):
        run("ip", "netns", "del", name)


def remove_leftovers(over: int | None = None) -> list[str]:
    """Remove the namespaces of ended processes and of process ``over``; return their names."""
    removed = []
    for line in run("ip", "netns", "list").splitlines():
        own = _OWN.match(line)
        if own is None:
            continue
        if int(own[1]) == over or is_gone(own[1]):
            _delete(own[0])
            removed.append(own[0])
    return removed


def is_gone(process_id: str) -> bool:
    """Whether a process has ended; a zombie has, too."""
    try:
        stat = Path("/proc", process_id, "stat").read_text()
    except OSError:
        return True
    return stat.rpartition(") ")[2][0] in "ZX"
