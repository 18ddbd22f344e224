"""A stream follows a real master that writes, rolls files, is killed and restarts."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("pyspark")

from hastore.env.real import real_env
from hastore.status import BrokerRole
from hastore.store.record.record_check import RecordKind
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_walker import LogWalker
from tests.pipeline.stream_sink import StreamSink, has_started_too_slowly
from tests.support.worlds.checked import checked_world

pytestmark = pytest.mark.xdist_group("spark")
FILE_SIZE = 256 * 1024
BATCH_SIZE = 4 * 1024 * 1024
QUERY_STOPS = 3


async def follow(spark: Any, directory: Path, count: int) -> str:
    """Write ``count`` messages while a stream reads them; return a summary in numbers.

    The master is killed after about a third and two thirds, and the query is stopped three times
    within a batch; each continues where it was.
    """
    in_thread = trio.to_thread.run_sync
    began_s = trio.current_time()
    async with checked_world(directory / "world") as world:
        master = await world.start_master(
            "a", role=BrokerRole.ASYNC_MASTER, mapped_file_size=FILE_SIZE
        )
        sink = StreamSink(spark, directory / "out", [master.directory])
        sink.options["maxBytesPerTrigger"] = BATCH_SIZE

        def start() -> Any:
            return sink.start(available_now=False)

        async def running(query: Any) -> Any:
            if query.isActive:
                return query
            assert has_started_too_slowly(query.exception()), query.exception()
            return await in_thread(start)

        async def restart_query() -> None:
            for number in range(1, QUERY_STOPS + 1):
                query = await in_thread(start)
                written = sink.written
                while sink.written == written or len(load.operations) < count * number / 4:
                    query = await running(query)
                    await trio.sleep(0.05)
                begun = sink.begun
                while sink.begun == begun:
                    query = await running(query)
                    await trio.sleep(0.01)
                await in_thread(query.stop)

        async with world.load(master, size=100, in_flight=64) as load, trio.open_nursery() as both:
            both.start_soon(restart_query)
            for place in (count / 3, count * 2 / 3, count):
                while len(load.operations) < place:
                    await trio.sleep(0.05)
                if place < count:
                    await world.kill(master)
                    await world.restart(master)
        written_s = trio.current_time() - began_s
    live = sum(table.num_rows for table in sink.tables())
    await in_thread(sink.run)
    rows = check(sink, master.directory)
    assert rows >= count * 0.99  # a kill leaves some puts unanswered
    assert 0 < live < rows
    files = len(find_log(real_env().disk, str(master.directory)).files)
    return (
        f"{rows:,} rows of {files} files in {len(list(sink.tables()))} batches,"
        f" {live:,} while it was written in {written_s:.0f} s,"
        f" {trio.current_time() - began_s:.0f} s in all"
    )


def check(sink: StreamSink, store: Path) -> int:
    """Compare all rows with a walk: each message once and in order; return their number."""
    disk = real_env().disk
    walker = LogWalker(disk, find_log(disk, str(store)))
    written = [offset for offset, check in walker.walk() if check.kind is RecordKind.MESSAGE]
    places = defaultdict(list)
    keys = set()
    offsets = []
    for table in sink.tables():
        assert table["record_ok"].to_pylist() == [True] * table.num_rows
        offsets += table["physic_offset"].to_pylist()
        keys.update(table["uniq_key"].to_pylist())
        queues, places_of = table["queue_id"].to_pylist(), table["queue_offset"].to_pylist()
        for queue_id, place in zip(queues, places_of, strict=True):
            places[queue_id].append(place)
    assert offsets == written
    assert len(keys) == len(offsets)
    assert len(places) > 1
    for found in places.values():
        assert found == list(range(len(found)))
    return len(offsets)


async def test_stream_reads_each_message_once_despite_kills(spark: Any, tmp_path: Path) -> None:
    """There are two kills of the master and three stops of the query."""
    print(await follow(spark, tmp_path, 10_000))


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_stream_reads_200_000_messages_once_despite_kills(spark: Any, tmp_path: Path) -> None:
    """The same test with more messages."""
    print(await follow(spark, tmp_path, 200_000))
