"""Disks that fail under a running node: fsync, write and read errors, a limit, a read-only remount.

    fault                       what must happen
    fsync                       fail-stop: no more PUT_OK, exit code 1 and one line with the reason;
                                the next start does not trust the page cache
    write of the log            it is reported, and the same bytes are written again
    read                        only the reader of those bytes gets the error
    no more files, files        puts are refused cleanly, the node stays up, and goes on when the
      too large                 limit is gone

Some faults are the kernel's own: a thin disk without room behind a loop device gives the real
"fsync fails once, then claims success" of Linux; strace fails system calls of the product as users
run it; the others come from ``faulty_node``, which replaces functions of ``os``.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
import trio

from hastore.env.real import real_env
from hastore.errors import FlushFailedError
from hastore.status import BrokerRole, FlushDiskType, PutMessageStatus
from hastore.store.recovery.trim import write_again
from hastore_scenarios.story.world import NodeFailed
from hastore_scenarios.worlds.process.child_process import hastore_command
from hastore_scenarios.worlds.process.world import ProcessWorld
from tests.integration.fail_stop import fails_stop
from tests.integration.faulty_node import FaultControl
from tests.integration.kept_messages import keys_in, put_ok
from tests.patience import PROCESS_WITHIN_S
from tests.support.waiting import eventually
from tests.support.worlds.checked import checked_world
from tests.support.worlds.loop_disk import LoopDisk, loop_disks, thin_disk

__all__ = ["loop_disks", "thin_disk"]

FILE_SIZE = 256 * 1024
PAGE_SIZE = 4_096
LOG = "*/commitlog/*"
SYNC_FLUSH = FlushDiskType.SYNC_FLUSH
FLUSHES = [SYNC_FLUSH, pytest.param(FlushDiskType.ASYNC_FLUSH, marks=pytest.mark.soak)]


@contextlib.contextmanager
def started_as(command: Callable[..., list[str]]) -> Iterator[None]:
    """Start the block's nodes with another command line than ``hastore ARGUMENTS``."""
    with mock.patch("hastore_scenarios.worlds.process.node_process.hastore_command", command):
        yield


@pytest.fixture
def control(tmp_path: Path) -> FaultControl:
    """Return the control with which the test chooses what fails."""
    return FaultControl(tmp_path / "fault")


def faulty(control: FaultControl) -> contextlib.AbstractContextManager[None]:
    """Start the block's nodes under ``control``."""
    return started_as(lambda *arguments: control.command(arguments))


# -- fsync -------------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", FLUSHES)
async def test_a_master_stops_when_its_log_cannot_be_synced(
    tmp_path: Path, control: FaultControl, flush: FlushDiskType
) -> None:
    """An EIO of fdatasync is fail-stop with both flush types; the next start has every PUT_OK."""
    async with checked_world(tmp_path) as world:
        with faulty(control):
            master = await world.start_master(
                "a",
                role=BrokerRole.ASYNC_MASTER,
                flush=flush,
                mapped_file_size=FILE_SIZE,
                flush_interval_ms=20,
            )
        async with world.load(master, in_flight=32):
            await world.wait_until(master, "some are in", lambda s: s.max_offset > 100_000)
            control.set("fdatasync", LOG, once=True)
            await fails_stop(world, master, "Input/output error")
        assert control.was_hit
        await world.restart(master)
        assert put_ok(world) <= keys_in(master.directory).keys()
        await world.put_many(master, 50)


async def test_a_slave_stops_when_its_log_cannot_be_synced(
    tmp_path: Path, control: FaultControl
) -> None:
    """At an EIO of fdatasync a SYNC_FLUSH slave acknowledges no more; it can be started again."""
    async with checked_world(tmp_path) as world:
        master = await world.start_master("a", mapped_file_size=FILE_SIZE)
        with faulty(control):
            slave = await world.start_slave(
                "b", master=master, flush=SYNC_FLUSH, direct=True, mapped_file_size=FILE_SIZE
            )
        await world.wait_healthy(slave)
        async with world.load(master, in_flight=16):
            await world.wait_until(slave, "some are in", lambda s: s.max_offset > 100_000)
            control.set("fdatasync", LOG, once=True)
            await fails_stop(world, slave, "Input/output error")
            await world.restart(slave)
            await world.wait_healthy(slave)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("when", [pytest.param(3, marks=pytest.mark.soak), 40])
async def test_unmodified_process_stops_when_fdatasync_fails(tmp_path: Path, when: int) -> None:
    """Its n-th fdatasync and all later ones are failed by strace."""
    inject = f"inject=fdatasync:error=EIO:when={when}+"
    strace = ["strace", "-D", "-f", "-qq", "-o", str(tmp_path / "strace"), "-e", "trace=fdatasync"]
    probe = subprocess.run([*strace, "-e", inject, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"strace cannot trace here: {probe.stderr.decode().strip()}")
    async with checked_world(tmp_path) as world:
        with started_as(lambda *args: [*strace, "-e", inject, *hastore_command(*args)]):
            master = await world.start_master(
                "a", role=BrokerRole.ASYNC_MASTER, flush=SYNC_FLUSH, mapped_file_size=FILE_SIZE
            )
        async with world.load(master, in_flight=32):
            await fails_stop(world, master, "Input/output error")
        await world.restart(master)
        await world.put_many(master, 50)


@pytest.mark.parametrize("flush", FLUSHES)
async def test_start_after_a_failed_sync_does_not_trust_the_page_cache(
    tmp_path: Path, thin_disk: Callable[[Path], LoopDisk], flush: FlushDiskType
) -> None:
    """fsyncgate: the next start writes to disk what a failed sync has left only in the cache.

    The disk under the loop device has no room for the rest of the log's file: the kernel fails one
    fdatasync, drops the pages' dirty marks, and would call the next one a success.  The disk is
    repaired, the node started again; then a power cut drops the cache.
    """
    disk = thin_disk(tmp_path / "a")
    async with ProcessWorld.open(tmp_path) as world:
        master = await world.start_master(
            "a",
            role=BrokerRole.ASYNC_MASTER,
            flush=flush,
            mapped_file_size=1024 * 1024,
            flush_interval_ms=20,
            flush_least_pages=0,
        )
        await world.put_many(master, 30)
        await world.wait_until(master, "all is synced", lambda s: s.flushed_offset == s.max_offset)
        log_file = disk.path / "commitlog" / f"{0:020d}"
        disk.run_out_under(log_file)
        async with world.load(master, in_flight=32):
            await fails_stop(world, master, "fdatasync of")
        sure = put_ok(world) if flush is SYNC_FLUSH else set()
        disk.write_back_in_vain(log_file)
        disk.find_room()
        await world.restart(master)
        end = (await world.status(master)).max_offset
        assert end > 30_000
        served = keys_in(master.directory)
        assert sure <= served.keys()
        if flush is SYNC_FLUSH:
            assert (await world.put_many(master, 50)).all_are(PutMessageStatus.PUT_OK)
            served = keys_in(master.directory)
        await world.kill(master)
        disk.cut_power()
        disk.power_on()
        there = keys_in(master.directory)
        gone = [offset for key, offset in served.items() if key not in there]
        assert not gone, f"{len(gone)} of {len(served)} are gone: {min(gone)} to {max(gone)}"


def test_bytes_written_where_a_sync_has_failed_reach_the_disk(
    tmp_path: Path, thin_disk: Callable[[Path], LoopDisk]
) -> None:
    """A log ends before the bytes whose sync failed; later ones are written in their place.

    Without ``write_again``, although it has no bytes to write there, they are lost: fdatasync
    returns 0, and after a power cut there are zeros.
    """
    disk, end, size = thin_disk(tmp_path / "b"), 4 * PAGE_SIZE, FILE_SIZE
    path = disk.path / "file"
    files = real_env().disk
    file = files.create_file(str(path), size)
    file.pwrite(b"a" * end, 0)
    file.sync()
    disk.run_out_under(path)
    file.pwrite(b"b" * PAGE_SIZE, end)
    with pytest.raises(FlushFailedError):
        file.sync()
    file.close()
    disk.write_back_in_vain(path)
    disk.find_room()
    file = files.open_file(str(path), writable=True)
    write_again(file, end, end)
    file.sync()
    assert file.buffer is not None
    file.buffer[end : end + 2 * PAGE_SIZE] = b"c" * 2 * PAGE_SIZE
    file.sync()
    file.close()
    disk.cut_power()
    disk.power_on()
    assert path.read_bytes() == b"a" * end + b"c" * 2 * PAGE_SIZE + bytes(
        size - end - 2 * PAGE_SIZE
    )


async def test_a_disk_that_turns_read_only_stops_the_node(
    tmp_path: Path, loop_disks: Callable[..., LoopDisk]
) -> None:
    """An error in ext4 itself remounts it read-only: fail-stop; after e2fsck every PUT_OK is there.

    The files are warmed up: ext4 may lose a sync of blocks that were never written at the moment
    of the remount (docs/assumptions.md).
    """
    disk = loop_disks(tmp_path / "a", "-e", "remount-ro")
    async with checked_world(tmp_path) as world:
        master = await world.start_master(
            "a",
            role=BrokerRole.ASYNC_MASTER,
            flush=SYNC_FLUSH,
            mapped_file_size=FILE_SIZE,
            warm_mapped_file_enable=True,
        )
        async with world.load(master, in_flight=32):
            await world.wait_until(master, "some are in", lambda s: s.max_offset > 300_000)
            disk.turn_read_only()
            # The first error is the log's sync, with EIO or EROFS, or the checkpoint's write.
            await fails_stop(world, master, "fdatasync of", "checkpoint: Read-only file system")
        with pytest.raises(NodeFailed, match="Read-only file system"):
            await world.restart(master)
        disk.check_and_mount()
        await world.restart(master)
        await world.put_many(master, 50)


# -- write -------------------------------------------------------------------------------------


async def test_slave_that_cannot_write_its_log_reports_it_and_recovers(
    tmp_path: Path, control: FaultControl
) -> None:
    """An EIO breaks its link, with a reason; the next successful write repairs it."""
    async with checked_world(tmp_path) as world:
        master = await world.start_master(
            "a", role=BrokerRole.ASYNC_MASTER, mapped_file_size=FILE_SIZE
        )
        with faulty(control):
            slave = await world.start_slave("b", master=master, mapped_file_size=FILE_SIZE)
        await world.wait_healthy(slave)
        async with world.load(master, in_flight=16) as load:
            await world.wait_until(slave, "some are in", lambda s: s.max_offset > 100_000)
            control.set("pwrite", LOG)
            await world.wait_until(
                slave, "it says why", lambda s: "Input/output" in str(s.master_link)
            )
            done = len(load.operations)
            await world.wait_until(master, "puts go on", lambda _: len(load.operations) > done + 50)
            control.heal()
        await world.wait_healthy(slave)


# -- read --------------------------------------------------------------------------------------


async def test_unreadable_log_fails_the_start_and_is_not_changed(
    tmp_path: Path, control: FaultControl
) -> None:
    """An EIO during the start is exit code 1; once reads work, the node starts."""
    async with checked_world(tmp_path) as world:
        with faulty(control):
            master = await world.start_master(
                "a", role=BrokerRole.ASYNC_MASTER, flush=SYNC_FLUSH, mapped_file_size=FILE_SIZE
            )
            await world.put_many(master, 700)
            await world.kill(master)
            before = image_of(master.directory / "commitlog")
            control.set("pread", LOG)
            with pytest.raises(NodeFailed, match="Input/output error"):
                await world.restart(master)
            assert control.was_hit
            assert image_of(master.directory / "commitlog") == before
            control.heal()
            await world.restart(master)
        await world.put_many(master, 50)


def image_of(directory: Path) -> dict[str, bytes]:
    """Return the contents of all files of a directory, by name."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


async def test_unreadable_part_of_the_log_stops_one_slave_only(
    tmp_path: Path, control: FaultControl
) -> None:
    """An EIO under a lagging slave's stream drops that link; puts and the other slave go on."""
    async with checked_world(tmp_path) as world:
        with faulty(control):
            master = await world.start_master("a", mapped_file_size=FILE_SIZE)
        good = await world.start_slave("good", master=master, mapped_file_size=FILE_SIZE)
        await world.wait_healthy(good)
        await world.put_many(master, 700)
        control.set("sendfile pread", f"*/commitlog/{0:020d}")
        late = await world.start_slave("late", master=master, mapped_file_size=FILE_SIZE)
        await eventually(lambda: control.was_hit, "the fault", within_s=PROCESS_WITHIN_S)
        tally = await world.put_many(master, 300, in_flight=16)
        assert tally.all_are(PutMessageStatus.PUT_OK), str(tally)
        assert (await world.status(late)).max_offset == 0
        control.heal()
        await world.wait_healthy(late)


# -- limits ------------------------------------------------------------------------------------


async def check_refusals_at_limit(
    world: ProcessWorld, limit: int, *, soft: Callable[[int], int], file_size: int = FILE_SIZE
) -> None:
    """Lower a limit of a running master, check that it refuses puts and lives, then raise it."""
    master = await world.start_master(
        "a",
        role=BrokerRole.ASYNC_MASTER,
        flush=SYNC_FLUSH,
        mapped_file_size=file_size,
        mapped_file_size_consume_queue=20 * 100,  # so that consume queues need new files too
        flush_consume_queue_interval_ms=20,
    )
    slave = await world.start_slave("b", master=master, mapped_file_size=file_size)
    await world.wait_healthy(slave)
    await world.put_many(master, 50)
    assert master.process is not None
    pid = master.process.process.pid
    before = resource.prlimit(pid, limit)
    resource.prlimit(pid, limit, (soft(pid), before[1]))
    tally = await world.put_many(master, 2_000, in_flight=32)
    assert set(tally.counts) <= {
        "PUT_OK",
        "CREATE_MAPPED_FILE_FAILED",
        "OS_PAGE_CACHE_BUSY",
    }, (str(tally), {put.error for put in tally.operations}, master.output())
    assert tally.counts["CREATE_MAPPED_FILE_FAILED"] > 100
    assert tally.counts["PUT_OK"] > 50, "the current file was filled first"
    resource.prlimit(pid, limit, before)
    async with world.load(master, in_flight=16) as load:
        await world.wait_until(
            master, "puts succeed again", lambda _: load.counts.get("PUT_OK", 0) > 500
        )
    assert master.is_running


async def test_master_out_of_descriptors_refuses_puts_until_it_has_more(tmp_path: Path) -> None:
    """EMFILE at the next file is CREATE_MAPPED_FILE_FAILED; the node stays up and recovers."""
    async with checked_world(tmp_path) as world:
        await check_refusals_at_limit(
            world,
            resource.RLIMIT_NOFILE,
            soft=lambda pid: len(list(Path(f"/proc/{pid}/fd").iterdir())),
            file_size=32 * 1024,  # more files than clients that are shed leave descriptors
        )


async def test_idle_clients_are_shed_for_the_next_log_file(tmp_path: Path) -> None:
    """Out of descriptors, a master closes clients that do nothing, and no put fails."""
    async with checked_world(tmp_path) as world:
        master = await world.start_master(
            "a",
            role=BrokerRole.ASYNC_MASTER,
            flush=SYNC_FLUSH,
            mapped_file_size=32 * 1024,  # each takes a descriptor: more files than are spare
        )
        await world.put_many(master, 50)
        assert master.process is not None
        pid = master.process.process.pid
        address = master.address()
        assert address is not None
        idle = [await trio.open_tcp_stream(*address) for _ in range(60)]
        await trio.sleep(1.5)  # long enough to count as idle
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, before[1]))
        tally = await world.put_many(master, 2_000, in_flight=32)
        assert tally.all_are(PutMessageStatus.PUT_OK), (str(tally), master.output())
        assert "no descriptor is left" in master.output()
        for client in idle:
            await trio.aclose_forcefully(client)


async def test_master_at_a_file_size_limit_refuses_puts_until_it_is_raised(tmp_path: Path) -> None:
    """EFBIG (RLIMIT_FSIZE) at the next file has the same effect as EMFILE."""
    async with checked_world(tmp_path) as world:
        await check_refusals_at_limit(world, resource.RLIMIT_FSIZE, soft=lambda _: FILE_SIZE // 2)


def test_short_writes_are_completed(tmp_path: Path) -> None:
    """A kernel may take only a part of the bytes; the rest follows, in order."""
    data = bytes(range(256)) * 3
    sizes: list[int] = []
    pwrite = os.pwrite

    def short(descriptor: int, piece: memoryview, position: int) -> int:
        sizes.append(pwrite(descriptor, piece[:100], position))
        return sizes[-1]

    file = real_env().disk.open_sparse_file(str(tmp_path / "f"), 4_096)
    with mock.patch("os.pwrite", short):
        file.pwrite(memoryview(data), 7)
    assert sizes == [100] * 7 + [68]
    assert file.pread(len(data) + 14, 0) == bytes(7) + data + bytes(7)
    file.close()
