"""A network of namespaces: one for each node, and a router between them that can be told to drop.

::

    this process ──veth── router ──veth── node 1's namespace      10.x.N.2, …
                            │ ──veth── node 2's namespace         N from 1 on; this process: N = 0
                            └ ip rule from A to B blackhole: nothing of A reaches B, silently

Packets are lost in the kernel of the router, as on a real network: TCP sends again, nobody is told.
It needs root and iproute2: ``NetnsNetwork.make`` raises ScenarioSkipped with the command that
failed, and so does what not every kernel can (``shape``, ``reset``); a command that fails later on
fails the story.  Names hold this process's id; what a killed one left is removed by the next.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, final

import attrs

from scenarios.world import ScenarioFailed, ScenarioSkipped

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES_MAX: Final = 200
_NAME: Final = "hastore-{pid}-{what}"
_OWN: Final = re.compile(r"hastore-(\d+)-\w+")
_TIMEOUT_S: Final = 10.0
_SUBNETS: Final = 128  # 10.64.0.0/16 to 10.191.0.0/16


class Way(NamedTuple):
    """From one address to another."""

    source: str
    target: str


@final
@attrs.define(eq=False)
class NetnsNetwork:
    """One router and its nodes; ``remove`` leaves nothing."""

    pid: int
    subnet: int  # the second octet, of 10.x.0.0/16
    hosts: int = 0
    _dropped: dict[Way, None] = attrs.field(factory=dict)

    @classmethod
    def make(cls) -> NetnsNetwork:
        """Make a router that this process is connected to."""
        try:
            _remove_leftovers()
            network = cls(os.getpid(), _free_subnet())
        except ScenarioFailed as failed:
            raise ScenarioSkipped(f"no network namespaces here: {failed}") from failed
        try:
            network._build()
        except ScenarioFailed as failed:
            network.remove()
            raise ScenarioSkipped(f"no network namespaces here: {failed}") from failed
        return network

    @property
    def router(self) -> str:
        """The router's namespace."""
        return _NAME.format(pid=self.pid, what="r")

    def _build(self) -> None:
        run("ip", "netns", "add", self.router)
        # Two worlds of one process share the name of this end; a run has one world at a time.
        own = f"hs{self.pid}"
        run("ip", "link", "add", own, "type", "veth", "peer", "name", "core", "netns", self.router)
        run("ip", "addr", "add", f"10.{self.subnet}.0.2/24", "dev", own)
        run("ip", "link", "set", own, "up")
        run("ip", "route", "add", f"10.{self.subnet}.0.0/16", "via", f"10.{self.subnet}.0.1")
        self._in_router("ip", "addr", "add", f"10.{self.subnet}.0.1/24", "dev", "core")
        self._in_router("ip", "link", "set", "core", "up")
        self._in_router("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        # Dropping is tried before a story depends on it.
        probe = Way(f"10.{self.subnet}.250.2", f"10.{self.subnet}.251.2")
        self.drop(probe)
        self.pass_again(probe)

    def add_host(self) -> tuple[str, str]:
        """Make a namespace; gives its name and its address."""
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
        inside = ("ip", "netns", "exec", name, "ip")
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "addr", "add", f"{address}/24", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "route", "add", "default", "via", gateway)
        return name, address

    # -- faults

    def drop(self, way: Way) -> None:
        """Let nothing of a source reach a target."""
        if way not in self._dropped:
            self._rule("add", way)
            self._dropped[way] = None

    def pass_again(self, way: Way) -> None:
        """Let it pass."""
        if way in self._dropped:
            self._rule("del", way)
            del self._dropped[way]

    def _rule(self, verb: str, way: Way) -> None:
        self._in_router("ip", "rule", verb, "from", way.source, "to", way.target, "blackhole")

    def shape(self, number: int, bytes_per_s: int | None) -> None:
        """Let a host receive at this rate only; None: at any."""
        device = f"n{number}"
        if bytes_per_s is None:
            self._in_router("tc", "qdisc", "del", "dev", device, "root")
            return
        rate = ("rate", f"{bytes_per_s}bps", "burst", "64kb", "latency", "2s")
        with _not_everywhere():
            self._in_router("tc", "qdisc", "replace", "dev", device, "root", "tbf", *rate)

    def reset(self, number: int, peer: str) -> None:
        """Kill a host's connections with a peer, as an RST does (ss -K)."""
        name = _NAME.format(pid=self.pid, what=str(number))
        with _not_everywhere():
            run("ip", "netns", "exec", name, "ss", "-K", "-H", "dst", peer)

    # -- the end

    def remove(self) -> None:
        """Remove all namespaces; the interfaces go with them."""
        for number in range(1, self.hosts + 1):
            _delete(_NAME.format(pid=self.pid, what=str(number)))
        _delete(self.router)
        # The kernel takes interfaces away a little later; the name is wanted again at once.
        with contextlib.suppress(ScenarioFailed):
            run("ip", "link", "del", f"hs{self.pid}")

    def _in_router(self, *command: str) -> None:
        run("ip", "netns", "exec", self.router, *command)


def run(*command: str) -> str:
    """Run a command; ScenarioFailed with what it said where it fails."""
    told = " ".join(command)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ScenarioFailed(f"{told}: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit {done.returncode}"
        raise ScenarioFailed(f"{told}: {said}")
    return done.stdout


@contextlib.contextmanager
def _not_everywhere() -> Iterator[None]:
    """Skip the story where this kernel or this machine cannot do something."""
    try:
        yield
    except ScenarioFailed as failed:
        raise ScenarioSkipped(f"this machine cannot: {failed}") from failed


def _free_subnet() -> int:
    """Give a second octet under which no route leads anywhere; several worlds may live at once."""
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


def _remove_leftovers() -> None:
    """Remove the namespaces of processes that are no more."""
    for line in run("ip", "netns", "list").splitlines():
        own = _OWN.match(line)
        if own is not None and not Path("/proc", own[1]).exists():
            _delete(own[0])
