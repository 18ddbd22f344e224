"""A node that the kernel kills for its memory loses no more than at a kill -9.

The node's process is put into a memory cgroup with little more room than it has; clients then send
requests of 4 MiB that never end.  Skipped where no memory cgroup (version 1) can be made.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from hastore.status import BrokerRole, FlushDiskType
from hastore_scenarios.judge.history import EventKind
from hastore_scenarios.worlds.process.node import ProcessNode
from hastore_scenarios.worlds.process.world import ProcessWorld
from tests.integration.kept_messages import keys_in, put_ok
from tests.patience import PROCESS_WITHIN_S
from tests.support.worlds.checked import checked_world

CGROUPS = Path("/sys/fs/cgroup/memory")
HEAD_ROOM = 24 * 1024 * 1024
SIGKILLED = -9


@contextlib.contextmanager
def memory_cgroup(name: str) -> Iterator[Path]:
    """Make a memory cgroup of version 1, for the length of the block."""
    path = CGROUPS / name
    try:
        path.mkdir()
        (path / "memory.limit_in_bytes").read_text()
    except OSError as error:
        with contextlib.suppress(OSError):
            path.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield path
    finally:
        path.rmdir()


def anonymous_size(pid: int) -> int:
    """Return the bytes of a process's anonymous memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) * 1024


async def send_half_requests(address: tuple[str, int]) -> None:
    """Send requests of 4 MiB, which a message may have, without their last byte: 64 MiB in all."""
    header = b'{"code":310}'
    size = 4 * 1024 * 1024
    stream = struct.pack("!II", size, len(header)) + header + bytes(size - 5 - len(header))

    async def one() -> None:
        with trio.socket.socket() as sock, contextlib.suppress(OSError):
            await sock.connect(address)
            left = memoryview(stream)
            while left:
                left = left[await sock.send(left) :]
            await sock.recv(1)

    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(one)


async def wait_until_killed(world: ProcessWorld, node: ProcessNode) -> None:
    """Wait until the kernel has killed a node."""
    assert node.process is not None
    begun_s = world._disturb(node)
    with trio.fail_after(PROCESS_WITHIN_S):
        code = await node.process.process.wait()
    assert code == SIGKILLED, (code, node.output())
    world._ended(node, EventKind.KILL, f"{node.name}: killed for its memory", begun_s, code)


@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_oom_kill_of_a_master_loses_no_put_ok(tmp_path: Path, flush: FlushDiskType) -> None:
    """The next start works, and every PUT_OK message is there."""
    with memory_cgroup(f"hastore-{os.getpid()}-{flush.value}") as cgroup:
        async with checked_world(tmp_path) as world:
            master = await world.start_master(
                "a", role=BrokerRole.ASYNC_MASTER, flush=flush, mapped_file_size=1024 * 1024
            )
            assert master.process is not None
            pid = master.process.process.pid
            async with world.load(master, in_flight=16):
                await world.wait_until(master, "some are in", lambda s: s.max_offset > 100_000)
                (cgroup / "cgroup.procs").write_text(str(pid))
                # Memory that was allocated before still counts for the old cgroup.
                (cgroup / "memory.limit_in_bytes").write_text(str(HEAD_ROOM))
                assert anonymous_size(pid)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(send_half_requests, master.process.address)
                    await wait_until_killed(world, master)
                    nursery.cancel_scope.cancel()
            assert "oom_kill 1" in (cgroup / "memory.oom_control").read_text()
            await world.restart(master)
            assert put_ok(world) <= keys_in(master.directory).keys()
            await world.put_many(master, 50)
