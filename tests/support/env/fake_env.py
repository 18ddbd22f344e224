"""The rest of the environment in memory: memory, wall clock, threads; ``fake_env`` has all."""

from __future__ import annotations

import mmap
import random
import time
from typing import TYPE_CHECKING, NoReturn, TypeVar

import attrs
import trio

from hastore.env.interface import Env
from hastore.env.real import RealDisk, real_env
from tests.support.env.fake_disk import START_MS, FakeDisk
from tests.support.env.scripted_disk import ScriptedDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.env.interface import Disk, DiskFile, Memory, Offload, WallClock

T = TypeVar("T")


@attrs.frozen(eq=False)
class FakeKeptMemory:
    """Bytes that ``FakeMachineMemory`` keeps."""

    buffer: bytearray

    def close(self) -> None:
        """Do nothing."""


@attrs.frozen(eq=False)
class FakeMachineMemory:
    """Keeps bytes by name as long as it lives."""

    kept: dict[str, bytearray] = attrs.field(factory=dict)

    def hold(self, name: str, size: int) -> FakeKeptMemory:
        """Return the bytes of a name."""
        return FakeKeptMemory(self.kept.setdefault(name, bytearray(size)))


@attrs.define(eq=False)
class FakeMemory:
    """Does each call unless ``refusal`` gives a reason not to; ``calls`` records the calls."""

    refusal: str | None = None
    populate_refusal: str | None = None
    calls: list[tuple[str, *tuple[int, ...]]] = attrs.field(factory=list)
    locked: list[mmap.mmap] = attrs.field(factory=list)

    def anonymous(self, size: int) -> mmap.mmap:
        """Make a buffer."""
        self.calls.append(("anonymous", size))
        return mmap.mmap(-1, size)

    def lock(self, buffer: mmap.mmap) -> str | None:
        """Lock a buffer."""
        self.calls.append(("lock", len(buffer)))
        if self.refusal is None:
            self.locked.append(buffer)
        return self.refusal

    def unlock(self, buffer: mmap.mmap) -> None:
        """Unlock a buffer."""
        self.calls.append(("unlock", len(buffer)))
        self.locked.remove(buffer)

    def will_need(self, buffer: mmap.mmap) -> str | None:
        """Read a buffer ahead."""
        self.calls.append(("will_need", len(buffer)))
        return self.refusal

    def populate(self, buffer: mmap.mmap, position: int, size: int) -> str | None:
        """Populate a part of a buffer's pages."""
        self.calls.append(("populate", position, size))
        return self.populate_refusal


@attrs.define(eq=False)
class FakeClock:
    """A wall clock that a test sets."""

    ms: int = START_MS

    def now_s(self) -> float:
        """Return the time in s."""
        return self.ms / 1000

    def now_ms(self) -> int:
        """Return the time in ms."""
        return self.ms

    def boot_s(self) -> float:
        """Return the time in s."""
        return self.ms / 1000

    def local_name(self, ms: int) -> str:
        """Return a time as a name, on a machine in UTC."""
        return _utc_name(ms)


@attrs.define(eq=False)
class TrioClock:
    """A wall clock that follows trio's clock and that a test sets by ``off_by_ms``."""

    off_by_ms: int = 0
    reads: int = 0  # how often a program has read it

    def now_s(self) -> float:
        """Return the time in s."""
        return self.now_ms() / 1000

    def now_ms(self) -> int:
        """Return the time in ms."""
        self.reads += 1
        return START_MS + self.off_by_ms + round(trio.current_time() * 1000)

    def boot_s(self) -> float:
        """Return trio's time, which no setting moves."""
        return trio.current_time()

    def local_name(self, ms: int) -> str:
        """Return a time as a name, on a machine in UTC."""
        return _utc_name(ms)


def _utc_name(ms: int) -> str:
    seconds, rest = divmod(ms, 1000)
    return f"{time.strftime('%Y%m%d%H%M%S', time.gmtime(seconds))}{rest:03d}"


@attrs.define(eq=False)
class FakeOffload:
    """Runs a call after one pass of the loop; ``hang`` keeps it from starting until ``go_on``."""

    gate: trio.Event | None = None
    running: int = 0
    runs: int = 0

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call; as in a worker thread, it is not cancelled."""
        self.running += 1
        self.runs += 1
        try:
            with trio.CancelScope(shield=True):
                if self.gate is not None:
                    await self.gate.wait()
                await trio.lowlevel.checkpoint()
            return call()
        finally:
            self.running -= 1

    def sync_thread(self) -> FakeSyncThread:
        """Return one whose syncs are calls, too."""
        return FakeSyncThread(self)

    def hang(self) -> None:
        """Keep calls from starting."""
        self.gate = trio.Event()

    def go_on(self) -> None:
        """Let them start."""
        assert self.gate is not None
        self.gate.set()
        self.gate = None


@attrs.define(eq=False)
class FakeSyncThread:
    """Syncs files as a call of ``offload``, once somebody waits."""

    offload: FakeOffload
    files: Sequence[DiskFile] = ()
    is_closed: bool = False

    def start(self, files: Sequence[DiskFile]) -> None:
        """Begin a request."""
        assert not self.files, "one request at a time"
        assert not self.is_closed, "a closed thread was asked for a sync"
        self.files = files

    async def wait(self) -> None:
        """Sync the files."""
        try:
            await self.offload.run(self._sync)
        finally:
            self.files = ()

    def _sync(self) -> None:
        for file in self.files:
            file.sync()

    def close(self) -> None:
        """End it."""
        self.is_closed = True


async def _send_file(sock: object, file: object, position: int, size: int) -> NoReturn:
    raise AssertionError("a fake disk's files cannot be sent by descriptor")


def _send_now(sock: object, buffers: object) -> NoReturn:
    raise AssertionError("there is no socket in a fake environment")


async def _send_while(sock: object, data: object, may_leave: object) -> NoReturn:
    raise AssertionError("there is no socket in a fake environment")


async def _receive(sock: object, buffer: object) -> NoReturn:
    raise AssertionError("there is no socket in a fake environment")


def _second_receiver(sock: object) -> NoReturn:
    raise AssertionError("there is no socket in a fake environment")


def _poll(sock: object, buffer: object, until: float) -> NoReturn:
    raise AssertionError("there is no socket in a fake environment")


def fake_env(
    disk: Disk | None = None,
    clock: WallClock | None = None,
    offload: Offload | None = None,
    memory: Memory | None = None,
) -> Env:
    """Return an environment in memory."""
    return Env(
        disk=disk or FakeDisk(),
        memory=memory or FakeMemory(),
        machine_memory=FakeMachineMemory(),
        wall_clock=clock or FakeClock(),
        randomness=random.Random(0),
        offload=offload or FakeOffload(),
        send_file=_send_file,
        send_now=_send_now,
        send_while=_send_while,
        receive=_receive,
        second_receiver=_second_receiver,
        poll=_poll,
        process_id=4711,
        boot_id="boot-0",
        start_id="start-0",
    )


@attrs.frozen
class RealFiles:
    """The real environment, with a test's script around its disk and its threads."""

    disk: ScriptedDisk = attrs.field(factory=lambda: ScriptedDisk(RealDisk()))
    offload: FakeOffload = attrs.field(factory=FakeOffload)

    @property
    def env(self) -> Env:
        """The environment."""
        return attrs.evolve(real_env(), disk=self.disk, offload=self.offload)
