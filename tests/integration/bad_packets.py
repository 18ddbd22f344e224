"""A link that loses, doubles, delays and so reorders packets: real TCP through a TUN device.

::

    connect to FAR:port ──> TUN device ──> read here: lost, doubled, held back
    bind to NEAR:port   <── TUN device <── written back with its two addresses swapped

A packet sent to ``far`` arrives at ``near`` as if ``far`` had sent it, and so does each answer:
both ends are in this process, and every packet between them goes through ``BadPackets``.  The
checksums of IP and TCP are sums, so swapped addresses leave them right.

It needs root and ``/dev/net/tun``; without either, ``bad_packets`` skips the test and prints what
failed.
"""

import contextlib
import fcntl
import heapq
import itertools
import os
import random
import struct

import attrs
import pytest
import trio

from hastore_scenarios.story.world import ScenarioFailed
from hastore_scenarios.worlds.netns.network import run

_SET_INTERFACE = 0x400454CA  # TUNSETIFF
_TUN, _NO_PACKET_INFO = 0x0001, 0x1000
_PACKET_MAX = 65_536


@attrs.define(eq=False)
class BadPackets:
    """Decides at random what happens to each packet; shares are of 1."""

    near: str
    far: str
    _device: int
    rng: random.Random
    loss: float = 0.03
    doubling: float = 0.03
    delaying: float = 0.2
    delay_max_s: float = 0.02
    passed: int = 0
    lost: int = 0
    doubled: int = 0
    reordered: int = 0
    _held: list[tuple[float, int, bytes]] = attrs.field(factory=list)
    _numbers: itertools.count = attrs.field(factory=itertools.count)
    _last: int = -1
    _more: trio.Event = attrs.field(factory=trio.Event)

    async def run(self):
        """Pass packets on until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pass_on)
            while True:
                await trio.lowlevel.wait_readable(self._device)
                packet = os.read(self._device, _PACKET_MAX)
                if packet[0] >> 4 == 4:
                    self._take(packet[:12] + packet[16:20] + packet[12:16] + packet[20:])

    def _take(self, packet):
        if self.rng.random() < self.loss:
            self.lost += 1
            return
        copies = 1
        if self.rng.random() < self.doubling:
            self.doubled += 1
            copies = 2
        for _ in range(copies):
            is_late = self.rng.random() < self.delaying
            delay_s = self.rng.uniform(0, self.delay_max_s) if is_late else 0.0
            at = trio.current_time() + delay_s
            heapq.heappush(self._held, (at, next(self._numbers), packet))
        self._more.set()

    async def _pass_on(self):
        while True:
            due = self._held[0][0] if self._held else float("inf")
            with trio.move_on_at(due):
                await self._more.wait()
            self._more = trio.Event()
            while self._held and self._held[0][0] <= trio.current_time():
                _, number, packet = heapq.heappop(self._held)
                self.reordered += number < self._last
                self._last = max(self._last, number)
                self.passed += 1
                os.write(self._device, packet)


@contextlib.asynccontextmanager
async def bad_packets(seed):
    """Yield a link whose faults ``seed`` decides, or skip the test."""
    net = os.getpid() * 4 % 65_536  # four addresses for each process
    near, far = (f"198.18.{net >> 8}.{net % 256 + host}" for host in (1, 2))
    name = f"hst{os.getpid()}"
    with contextlib.ExitStack() as stack:
        try:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            stack.callback(os.close, device)
            request = struct.pack("16sH22x", name.encode(), _TUN | _NO_PACKET_INFO)
            fcntl.ioctl(device, _SET_INTERFACE, request)
            run("ip", "addr", "add", f"{near}/30", "dev", name)
            run("ip", "link", "set", name, "up")
        except (OSError, ScenarioFailed) as error:
            pytest.skip(f"no TUN device here: {error}")
        link = BadPackets(near, far, device, random.Random(seed))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            yield link
            nursery.cancel_scope.cancel()
