"""The environment of one boot of one simulated host."""

from __future__ import annotations

import mmap
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar, final

import attrs
import trio

from hastore.env.interface import Env
from hastore.env.sync_thread import sync_named
from hastore.sim.sockets import (
    SimSecondReceiver,
    sim_poll,
    sim_receive,
    sim_send_file,
    sim_send_now,
    sim_send_while,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from hastore.env.interface import DiskFile
    from hastore.sim.disk import SimDisk

T = TypeVar("T")

START_MS: Final = 1_700_000_000_000
_OFFLOAD_MIN_S: Final = 0.0001
_OFFLOAD_MAX_S: Final = 0.002
# When within its time a call takes effect: a thread may be early or late, and bytes that arrive
# meanwhile count neither as synced nor as lost.
_EFFECT_AT: Final = (0.0, 0.5, 1.0)


@final
@attrs.define(eq=False)
class SimWallClock:
    """Wall time: virtual time plus the jumps so far."""

    jump_ms: int = 0
    rate: float = 1.0  # of this machine's clock: seconds a second of virtual time

    def now_s(self) -> float:
        """Return seconds."""
        return self.now_ms() / 1000

    def now_ms(self) -> int:
        """Return milliseconds; Linux takes no time before 1970."""
        return max(0, START_MS + self.jump_ms + int(trio.current_time() * 1000))

    def boot_s(self) -> float:
        """Return virtual time as this machine's clock counts it."""
        return trio.current_time() * self.rate

    def local_name(self, ms: int) -> str:
        """Return a time as 17 digits, on a machine in UTC."""
        return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y%m%d%H%M%S}{ms % 1000:03d}"


@final
@attrs.define(eq=False)
class SimOffload:
    """Runs blocking calls on the loop; like a worker thread, a call takes time, uncancelled.

    It takes effect at one instant: at the beginning, in the middle or at the end of its time.
    """

    choices: random.Random
    slow_s: float = 0.0  # how much longer a call takes

    async def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` within a simulated duration; return its result at the end of it."""
        return await self.times().run(call)

    def times(self) -> CallTimes:
        """Return when a call that begins now takes effect, and when it ends."""
        took_s = self.choices.uniform(_OFFLOAD_MIN_S, _OFFLOAD_MAX_S) + self.slow_s
        begins_at = trio.current_time()
        before_s = took_s * self.choices.choice(_EFFECT_AT)
        return CallTimes(begins_at + before_s, begins_at + took_s)

    def sync_thread(self) -> SimSyncThread:
        """Return one whose syncs take time likewise."""
        return SimSyncThread(self)


@final
@attrs.frozen
class CallTimes:
    """When a call takes effect, and when it ends: trio's times."""

    effect_at: float
    ends_at: float

    async def run(self, call: Callable[[], T]) -> T:
        """Run ``call`` at its time; return its result at the end."""
        await _wait_until(self.effect_at)
        try:
            return call()
        finally:
            if self.effect_at < self.ends_at:
                await _wait_until(self.ends_at)


@final
@attrs.define(eq=False)
class SimSyncThread:
    """Syncs while somebody waits: a sync that nobody waits for takes no effect."""

    offload: SimOffload
    _files: Sequence[DiskFile] = attrs.field(default=(), init=False)
    _times: CallTimes = attrs.field(init=False)

    def start(self, files: Sequence[DiskFile]) -> None:
        """Begin a request: its time begins now."""
        assert not self._files, "one request at a time"
        self._files, self._times = files, self.offload.times()

    async def wait(self) -> None:
        """Sync the files at their time."""
        try:
            await self._times.run(self._sync)
        finally:
            self._files = ()

    def _sync(self) -> None:
        for file in self._files:
            sync_named(file)

    def close(self) -> None:
        """Do nothing."""


async def _wait_until(deadline: float) -> None:
    with trio.CancelScope(shield=True, deadline=deadline):
        await trio.sleep_forever()


@final
class SimMemory:
    """Memory without limits: locks and hints do nothing."""

    def anonymous(self, size: int) -> mmap.mmap:
        """Return ``size`` zeros."""
        return mmap.mmap(-1, size)

    def lock(self, buffer: mmap.mmap) -> str | None:  # noqa: ARG002 - nothing is swapped here
        """Do nothing."""
        return None

    def unlock(self, buffer: mmap.mmap) -> str | None:  # noqa: ARG002 - likewise
        """Do nothing."""
        return None

    def will_need(self, buffer: mmap.mmap) -> str | None:  # noqa: ARG002 - likewise
        """Do nothing."""
        return None

    def populate(self, buffer: mmap.mmap, position: int, size: int) -> str | None:  # noqa: ARG002
        """Do nothing."""
        return None


@final
@attrs.frozen(eq=False)
class SimKeptMemory:
    """Bytes of a host's memory."""

    buffer: bytearray

    def close(self) -> None:
        """Do nothing: a killed process releases them, too."""


@final
@attrs.frozen(eq=False)
class SimMachineMemory:
    """The memory of a host's boot, which the disk knows: a power cut empties it."""

    disk: SimDisk

    def hold(self, name: str, size: int) -> SimKeptMemory:
        """Return the bytes kept under ``name``."""
        return SimKeptMemory(self.disk.machine_memory.setdefault(name, bytearray(size)))


def sim_env(
    disk: SimDisk,
    wall_clock: SimWallClock,
    offload: SimOffload,
    process_id: int,
    machine: str = "machine",
) -> Env:
    """Return the environment of one boot of a machine."""
    return Env(
        disk=disk,
        memory=SimMemory(),
        machine_memory=SimMachineMemory(disk),
        wall_clock=wall_clock,
        randomness=offload.choices,
        offload=offload,
        send_file=sim_send_file,
        send_now=sim_send_now,
        send_while=sim_send_while,
        receive=sim_receive,
        second_receiver=SimSecondReceiver,
        poll=sim_poll,
        process_id=process_id,
        boot_id=f"{machine}-boot-{disk.power_cuts}",
        start_id=f"start-{process_id}",
    )
