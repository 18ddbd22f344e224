"""A slave logs that it is copying, how far it has come, and when it is in step."""

import pytest

from hastore.config import HAConfig
from hastore.ha import copy_progress
from hastore.ha.client_port import ClientPort, PortKind
from hastore.ha.copy_progress import BEHIND_AFTER_S, FIRST_LINE_AFTER_S, LINE_EVERY_S, CopyEvent
from hastore.ha.copy_progress import CopyProgress as Progress
from hastore.wire.ha_frames import HEADER
from tests.ha.asking import Asked, slave_that_asks
from tests.support.nodes.harness import raw_master, read_report, slave_config
from tests.support.store.log_builder import LogBuilder
from tests.support.waiting import eventually


def lines(progress, reads):
    """Return the news and their times; `reads` are (time, whether the master had no more)."""
    all_news = [
        (now, progress.record(now, brought_bytes=True, reached_end=all_)) for now, all_ in reads
    ]
    return [(now, news) for now, news in all_news if news is not None]


def test_copy_is_logged_after_1_s_then_every_5_s():
    """A shorter copy is logged only at its end; the end is logged once."""
    full = [(now / 10, False) for now in range(125)]
    logged = lines(Progress(0.0), [*full, (12.5, True), (12.6, True), (12.7, False)])
    first = FIRST_LINE_AFTER_S
    assert logged == [
        (first, CopyEvent.COPYING),
        (first + LINE_EVERY_S, CopyEvent.COPYING),
        (first + 2 * LINE_EVERY_S, CopyEvent.COPYING),
        (12.5, CopyEvent.IN_STEP),
    ]
    assert lines(Progress(0.0), [(0.1, False), (0.5, True)]) == [(0.5, CopyEvent.IN_STEP)]


def test_slave_that_falls_behind_logs_copying_again():
    """Full batches for a short while are no lag; for ten seconds they are."""
    busy = [(1 + now / 10, False) for now in range(150)]
    logged = lines(Progress(0.0), [(1.0, True), *busy, (16.5, True)])
    assert logged == [
        (1.0, CopyEvent.IN_STEP),
        (1.0 + BEHIND_AFTER_S, CopyEvent.COPYING),
        (16.5, CopyEvent.IN_STEP),
    ]


def test_two_heartbeats_in_a_row_mean_in_step():
    """One heartbeat precedes the log's bytes; a batch between two starts the count again."""
    progress = Progress(0.0)
    steps = [(0.0, False), (0.1, True), (5.0, False), (10.0, False), (15.0, False)]
    all_news = [progress.record(now, brought_bytes=got, reached_end=False) for now, got in steps]
    assert all_news == [None, None, None, CopyEvent.IN_STEP, None]


BATCH = HAConfig().ha_transfer_batch_size


@pytest.fixture
def logged(monkeypatch, caplog):
    """Return the logged lines of an event; every full batch logs a line here."""
    monkeypatch.setattr(copy_progress, "FIRST_LINE_AFTER_S", 0.0)
    monkeypatch.setattr(copy_progress, "LINE_EVERY_S", 0.0)
    caplog.set_level("INFO", logger="hastore")
    return lambda event: [each.msg for each in caplog.records if each.msg.get("event") == event]


async def send(sock, log, start, end):
    data = HEADER.pack(start, end - start) + bytes(log.data)[start:end]
    while data:
        data = data[await sock.send(data) :]


async def test_slave_logs_its_progress_and_when_it_is_in_step(tmp_path, logged):
    """The end comes from the master's client port; after a reconnect the slave is in step again."""
    log = LogBuilder(file_size=1024 * 1024).fill(400)
    assert 2 * BATCH < log.end < 3 * BATCH
    async with raw_master() as master:
        port = master.address[1]
        ask = Asked(ClientPort(kind=PortKind.NODE, ha_port=port, max_offset=log.end))
        config = slave_config(tmp_path, master.address, file_size=log.file_size)
        async with slave_that_asks(config, ask):
            sock = await master.accept()
            assert await read_report(sock) == 1
            for count in (1, 2):
                await send(sock, log, (count - 1) * BATCH, count * BATCH)
                await eventually(lambda: len(logged("ha_copying")) == count)  # noqa: B023
            await send(sock, log, 2 * BATCH, log.end)
            await eventually(lambda: logged("ha_in_step"))
            sock.close()
            sock = await master.accept()
            await send(sock, log, await read_report(sock), log.end)
            await eventually(lambda: len(logged("ha_in_step")) == 2)
            sock.close()
    first, second = logged("ha_copying")
    assert (first["at"], second["at"]) == (BATCH, 2 * BATCH)
    assert first["end"] == first["total_bytes"] == second["end"] == log.end
    assert first["copied_bytes"] == BATCH
    assert second["percent"] == 2 * BATCH * 100 // log.end
    assert [line["at"] for line in logged("ha_in_step")] == [log.end, log.end]


async def test_slave_logs_copied_bytes_if_the_masters_end_is_unknown(tmp_path, logged):
    """It asks the client port once per link, not once per line."""
    log = LogBuilder(file_size=1024 * 1024).fill(400)
    ask = Asked(None)
    async with raw_master() as master:
        config = slave_config(tmp_path, master.address, file_size=log.file_size)
        async with slave_that_asks(config, ask):
            sock = await master.accept()
            assert await read_report(sock) == 1
            for count in (1, 2):
                await send(sock, log, (count - 1) * BATCH, count * BATCH)
                await eventually(lambda: len(logged("ha_copying")) == count)  # noqa: B023
            sock.close()
    copying = logged("ha_copying")
    assert [line["copied_bytes"] for line in copying] == [BATCH, 2 * BATCH]
    assert all(line["end"] is line["percent"] is None for line in copying)
    assert not logged("ha_in_step")
    assert len(ask.addresses) == 2  # for the size of the files, and for the end
