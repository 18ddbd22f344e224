"""After a promotion a RocketMQ slave is served only where its bytes can be this master's."""

from __future__ import annotations

import contextlib
import json
import shutil

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

import hastore
from hastore.env.real import real_env
from hastore.ha.refused_slaves import (
    FILE_NAME,
    RefusedBecause,
    RefusedSlave,
    RefusedSlaves,
    RefusedSlavesFile,
)
from hastore.ha.served_slaves import (
    PER_PEER_MAX,
    QUESTIONS_MAX,
    SERVED_MAX,
    Admission,
    ServedSlaves,
)
from hastore.status import PutMessageStatus
from tests.support.env.crash_points import DyingDisk, Killed
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeOffload, fake_env
from tests.support.env.scripted_disk import ScriptedDisk, disk_full
from tests.support.nodes.configs import QUICK
from tests.support.nodes.harness import log_bytes, master_config, messages, raw_slave, slave_config
from tests.support.waiting import eventually

HA = attrs.evolve(QUICK, slave_timeout_ms=200)
HERE = "127.0.0.1"
START = 10_000  # of a promotion


def config(directory, **changes):
    return master_config(directory, ha=changes.pop("ha", HA), **changes)


async def put_past(master, end):
    """Put messages until the log extends beyond ``end``."""
    while master.max_offset <= end:
        await master.put(messages(1)[0])


@attrs.frozen
class Former:
    """A former master with a tail that its slave never got."""

    start: int  # of the tail, and of the slave's promotion
    end: int


@pytest.fixture
async def former(tmp_path):
    """Write both directories, ``former`` and ``new``."""
    async with hastore.open_master(config(tmp_path / "former")) as master:
        settings = slave_config(tmp_path / "new", master.ha_address)
        async with hastore.open_slave(settings) as slave:
            for message in messages(20):
                await master.put(message)
            await eventually(lambda: slave.max_offset == master.max_offset)
            start = slave.max_offset
        for message in messages(10):
            await master.put(message)
        return Former(start, master.max_offset)


@contextlib.asynccontextmanager
async def promoted(tmp_path, former, **changes):
    """Open the former slave's directory as a master, with more messages than the former has."""
    async with hastore.open_master(config(tmp_path / "new", **changes)) as master:
        await put_past(master, former.end + 5_000)
        yield master


async def ended(master):
    await eventually(lambda: not master.ha_service.connections)


async def is_served(master, offset, *, reported=None):
    """Play a stock slave that ends at ``offset``; return whether it gets bytes."""
    async with raw_slave(master) as peer:
        await peer.report(offset if reported is None else reported)
        begin, body = await peer.frame()
        served = bool(body)
        assert served or begin == offset + 1, "a heartbeat that asks"
    await ended(master)
    return served


async def catch_up(peer, master):
    """Receive all, and report it."""
    end = None
    while end != master.max_offset:
        offset, body = await peer.frame()
        end = offset + len(body)
        await peer.report(end)
    connections = master.ha_service.connections.values()
    await eventually(lambda: any(link.progress.ack_offset == end for link in connections))


def stored(directory):
    """Return the file's content."""
    return json.loads((directory / FILE_NAME).read_bytes())


async def test_stock_former_master_with_a_tail_is_refused(tmp_path, former):
    """It is sent no byte, asked once whether it compares, then named with both next steps."""
    async with promoted(tmp_path, former) as master:
        assert not await is_served(master, former.end)
        assert not master.status().refused, "it was asked only"
        assert not await is_served(master, former.end)
        (row,) = master.status().refused
        assert row.reported_offset == former.end
        assert f"its own from {former.start} on" in row.reason
        assert f"--trust {HERE}@{former.end}" in row.hint
        assert "empty directory" in row.hint
        result = await master.put(messages(1)[0])
        assert result.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
    (pair,) = stored(tmp_path / "new")["refused"]
    assert (pair["offset"], pair["master_end"], pair["because"]) == (
        former.end,
        former.start,
        "promotion",
    )


async def test_former_master_stays_refused_over_restarts_and_promotions(tmp_path, former):
    """A later promotion starts beyond its tail, which is still not this log's."""
    async with promoted(tmp_path, former) as master:
        for _ in range(2):
            assert not await is_served(master, former.end)
    async with promoted(tmp_path, former) as master:
        (row,) = master.status().refused
        assert f"--trust {HERE}@{former.end}" in row.hint
        assert not await is_served(master, former.end)
        settings = slave_config(tmp_path / "other", master.ha_address)
        async with hastore.open_slave(settings) as other:
            await eventually(lambda: other.max_offset == master.max_offset)
    async with hastore.open_master(config(tmp_path / "other")) as other:
        settings = slave_config(tmp_path / "new", other.ha_address)
        async with hastore.open_slave(settings) as slave:
            await eventually(lambda: slave.max_offset == other.max_offset)
    async with promoted(tmp_path, former) as master:
        assert master.ha_service.refused_slaves.served.start > former.end
        for _ in range(2):
            assert not await is_served(master, former.end)
        assert await is_served(master, former.end - 1), "the same address at another offset"


async def test_slaves_that_end_before_the_promotion_are_served(tmp_path, former):
    """Their bytes are a prefix: the former master's siblings, and new ones."""
    async with promoted(tmp_path, former) as master:
        for offset in (former.start, former.start - 100, 3):
            assert await is_served(master, offset)
        for request in (0, 1, 2):
            async with raw_slave(master) as peer:
                await peer.report(request)
                _begin, body = await peer.frame()
                assert body
            await ended(master)
        assert not master.status().refused


async def test_served_slave_comes_back_after_either_restarts(tmp_path, former):
    """What it has beyond the start came from this master."""
    async with promoted(tmp_path, former) as master:
        async with raw_slave(master) as peer:
            await peer.report(former.start)
            await catch_up(peer, master)
            end = master.max_offset
        await ended(master)
        await put_past(master, end)
        assert await is_served(master, end)
        (row,) = master.ha_service.refused_slaves.served
        assert (row.address, row.ack_offset) == (HERE, end)
    assert stored(tmp_path / "new")["served"][0]["ack_offset"] == end
    async with promoted(tmp_path, former) as master:
        await put_past(master, end)
        assert await is_served(master, end)
        assert not master.status().refused


async def test_slave_is_durably_known_before_it_is_sent_a_byte(tmp_path, former):
    """A master that is killed at the first byte still serves the slave that has it."""
    async with promoted(tmp_path, former) as master, raw_slave(master) as peer:
        assert not stored(tmp_path / "new")["served"]
        await peer.report(former.start)
        _offset, body = await peer.frame()
        assert body
        assert [row["address"] for row in stored(tmp_path / "new")["served"]] == [HERE]


async def test_slave_is_sent_nothing_while_the_file_is_written(tmp_path, former):
    """Otherwise a kill could leave it with bytes that nobody knows of."""
    env = real_env()
    disk = ScriptedDisk(env.disk)
    sent = []

    def look(_write):
        sent.extend(
            link.progress.next_transfer_from_where
            for link in masters[0].ha_service.connections.values()
        )

    masters = []
    async with hastore.open_master(
        config(tmp_path / "new"), env=attrs.evolve(env, disk=disk)
    ) as master:
        masters.append(master)
        await put_past(master, former.end)
        disk.before("write_file", look, path=FILE_NAME)
        assert await is_served(master, former.start)
        assert sent[0] is None


async def test_full_disk_stops_no_slave(tmp_path, former, caplog):
    """It is served; only a restart would not know it."""
    env = real_env()
    disk = ScriptedDisk(env.disk)
    disk.fail("write_file", disk_full, path=FILE_NAME)
    async with hastore.open_master(
        config(tmp_path / "new"), env=attrs.evolve(env, disk=disk)
    ) as master:
        await put_past(master, former.end)
        async with raw_slave(master) as peer:
            await peer.report(former.start)
            await catch_up(peer, master)
            end = master.max_offset
        assert "refused_slaves_not_written" in caplog.text
        await ended(master)
        await put_past(master, end)
        assert await is_served(master, end)
        disk.heal()


async def test_hastore_slave_that_this_master_does_not_know_is_served(tmp_path, former):
    """It compares its bytes itself: a copy of a directory, or a slave at a new address."""
    async with promoted(tmp_path, former) as master:
        settings = slave_config(tmp_path / "slave", master.ha_address)
        async with hastore.open_slave(settings) as slave:
            await eventually(lambda: slave.max_offset == master.max_offset)
    content = stored(tmp_path / "new")
    content["served"] = []
    (tmp_path / "new" / FILE_NAME).write_text(json.dumps(content))
    async with promoted(tmp_path, former) as master:
        settings = slave_config(tmp_path / "slave", master.ha_address)
        async with hastore.open_slave(settings) as slave:
            await eventually(lambda: slave.status().state == "streaming")
            await eventually(lambda: bool(master.status().followers))
            result = await master.put(messages(1)[0])
            assert result.status is PutMessageStatus.PUT_OK
            (row,) = master.status().followers
            assert row.note is None
        assert not master.status().refused
        assert log_bytes(tmp_path / "slave", master.max_offset) == log_bytes(
            tmp_path / "new", master.max_offset
        )


async def test_hastore_former_master_with_a_tail_is_still_diverged(tmp_path, former):
    """It answers the question, compares, and keeps its log."""
    before = log_bytes(tmp_path / "former")
    async with promoted(tmp_path, former) as master:
        settings = slave_config(tmp_path / "former", master.ha_address)
        async with hastore.open_slave(settings) as slave:
            await eventually(lambda: slave.status().state == "diverged")
            assert "different bytes" in slave.status().master_link.reason
    assert log_bytes(tmp_path / "former", former.end) == before[: former.end]


async def test_trusted_slave_is_served_once(tmp_path, former):
    """From then on this master knows it; its next offsets need no trust."""
    async with promoted(tmp_path, former) as master:
        for _ in range(2):
            assert not await is_served(master, former.end)
    trusting = attrs.evolve(HA, trust=((HERE, former.end),))
    async with promoted(tmp_path, former, ha=trusting) as master:
        assert not master.status().refused
        async with raw_slave(master) as peer:
            await peer.report(former.end)
            await catch_up(peer, master)
            end = master.max_offset
            assert not await served_beside(master, former.end), "once"
        await ended(master)
    async with promoted(tmp_path, former) as master:
        await put_past(master, end)
        assert await is_served(master, end)


async def served_beside(master, offset):
    """Play a stock slave twice, beside another; return whether it gets bytes."""
    for _ in range(2):
        async with raw_slave(master) as peer:
            await peer.report(offset)
            _begin, body = await peer.frame()
            if body:
                return True
            await peer.closed_by_master()
    return False


async def test_each_slave_of_an_address_is_known_by_itself(tmp_path, former):
    """A former master is refused beside a served slave of its host, but not for good."""
    async with promoted(tmp_path, former) as master:
        async with raw_slave(master) as known, raw_slave(master) as second:
            await known.report(former.start)
            await catch_up(known, master)
            assert not await served_beside(master, former.end)
            assert master.status().refused
            await second.report(1)
            _begin, body = await second.frame()
            assert body, "a new one is served"
        await ended(master)
        assert len(master.ha_service.refused_slaves.served) == 2
        assert not len(master.ha_service.refused_slaves.table)


async def test_slave_returns_before_its_old_link_is_known_to_be_dead(tmp_path, former):
    """It ends where the old link has acknowledged, or was sent more."""
    async with promoted(tmp_path, former) as master, raw_slave(master) as old:
        await old.report(former.start)
        await catch_up(old, master)
        end = master.max_offset
        await put_past(master, end)
        async with raw_slave(master) as peer:
            await peer.report(end)
            offset, body = await peer.frame()
            assert offset == end
            assert body
        assert len(master.ha_service.refused_slaves.served) == 1


async def test_removing_the_file_allows_all_slaves(tmp_path, former):
    """The operator need not stop the master."""
    async with promoted(tmp_path, former) as master:
        for _ in range(2):
            assert not await is_served(master, former.end)
        await eventually(lambda: stored(tmp_path / "new")["refused"])
        (tmp_path / "new" / FILE_NAME).unlink()
        assert await is_served(master, former.end)


async def test_restart_of_a_master_is_no_promotion(tmp_path):
    """Its slaves may be any: nobody else wrote this log."""
    async with hastore.open_master(config(tmp_path)) as master:
        await put_past(master, 3_000)
    async with hastore.open_master(config(tmp_path)) as master:
        await put_past(master, 9_000)
        assert await is_served(master, 6_000)
        assert master.ha_service.refused_slaves.served.start is None
    assert not (tmp_path / FILE_NAME).exists()


PROMOTED = '"promotion": {"start": 5, "time_ms": 1}'


@pytest.mark.parametrize(
    "rest",
    [
        '"promotion": 5',
        '"promotion": {"start": -1}',
        PROMOTED + ', "served": {}',
        PROMOTED + ', "served": [{"address": 5}, {"address": "x"}]',
        "torn",
    ],
)
async def test_damaged_table_is_named_and_stops_nothing(tmp_path, former, rest, caplog):
    """Whoever ends before the promotion is served."""
    shutil.copytree(tmp_path / "new", tmp_path / "copy")
    content = f'{{"schema": "hastore.refused-slaves/1", "refused": [], {rest}}}'
    (tmp_path / "copy" / FILE_NAME).write_text(content)
    async with hastore.open_master(config(tmp_path / "copy")) as master:
        assert "refused_slaves_unreadable" in caplog.text
        await put_past(master, former.end)
        assert await is_served(master, 3)


# -- the table -------------------------------------------------------------------------------------


@attrs.define
class Link:
    """A slave's link."""

    ack_offset: int | None = None
    next_transfer_from_where: int | None = None
    counts_as_ack: bool = True
    ended_because: str | None = None


def promotion(start=START):
    table = ServedSlaves()
    table.promote(start, 1)
    return table


def serve(table, address, until, begin=1):
    """Serve a slave up to ``until``; return its link, which has ended."""
    link = Link(until, until)
    table.hold(address, begin, link, 1)
    link.ended_because = "closed"
    table.release(link, 2)
    return link


def test_without_a_promotion_all_are_served():
    """And nothing is kept."""
    table = ServedSlaves()
    assert table.admit("a", 1 << 40) is Admission.SERVE
    assert not table.hold("a", 1 << 40, Link(), 1)
    assert not len(table)


def test_start_is_the_last_offset_that_needs_no_proof():
    """One byte more is this master's, or another's."""
    table = promotion()
    assert table.admit("a", START) is Admission.SERVE
    assert table.admit("a", START + 1) is Admission.ASK


def test_promotion_of_an_empty_log_serves_new_slaves():
    """0, 1 and 2 are requests."""
    table = promotion(0)
    for request in (0, 1, 2):
        assert table.admit("a", request) is Admission.SERVE
    assert table.admit("a", 3) is Admission.ASK


def test_only_the_answer_to_its_question_admits_a_slave_that_compares():
    """It is asked again at its next link, whose beginning may be another."""
    table = promotion()
    assert table.admit("a", START + 50) is Admission.ASK
    assert table.admit("b", START + 51) is Admission.ASK
    assert table.admit("a", START + 51) is Admission.COMPARES
    assert table.admit("a", START + 51) is Admission.ASK
    assert table.admit("a", START + 50) is Admission.ASK
    assert table.admit("a", START + 50) is Admission.REFUSE


def test_questions_are_limited():
    """The oldest is forgotten: its slave is asked again."""
    table = promotion()
    for number in range(QUESTIONS_MAX + 1):
        assert table.admit("a", START + 1 + 2 * number) is Admission.ASK
    assert table.admit("a", START + 1) is Admission.ASK
    assert table.admit("a", START + 1 + 2 * QUESTIONS_MAX) is Admission.REFUSE


def test_refused_slave_is_served_only_if_it_compares_or_is_trusted():
    """A remembered refusal outlives the promotion that it is from."""
    table = ServedSlaves()
    assert table.admit("a", 500, is_refused=True) is Admission.ASK
    assert table.admit("a", 500, is_refused=True) is Admission.REFUSE
    table.trusted.add(("a", 500))
    assert table.admit("a", 500, is_refused=True) is Admission.SERVE_TRUSTED
    table.hold("a", 500, Link(), 1)
    assert not table.trusted


def test_another_promotion_forgets_who_was_served():
    """What they have from then on is not proven."""
    table = promotion()
    serve(table, "a", START + 100)
    assert not table.promote(START, 5)
    assert table.admit("a", START + 100) is Admission.SERVE
    assert table.promote(START + 50, 5)
    assert table.admit("a", START + 100) is Admission.ASK


def test_slave_without_our_bytes_is_not_known():
    """Its link ended before the start was passed."""
    table = promotion()
    serve(table, "a", START)
    assert not len(table)
    serve(table, "a", START + 1)
    assert len(table) == 1


def test_slave_whose_acknowledgement_was_lost_is_known():
    """It was sent bytes beyond the start."""
    table = promotion()
    link = Link(START - 10, START + 500)
    table.hold("a", START - 10, link, 1)
    link.ended_because = "link broken"
    table.release(link, 2)
    assert table.admit("a", START + 500) is Admission.SERVE


def test_new_slave_takes_no_place_of_a_known_one():
    """Both come back."""
    table = promotion()
    serve(table, "a", START + 100)
    new = Link(1, 1)
    assert table.hold("a", 1, new, 3)
    assert table.admit("a", START + 100) is Admission.SERVE
    assert len(table) == 2


def test_nearest_place_is_taken():
    """The last that a slave has acknowledged is at or below its end."""
    table = promotion()
    links = [Link(START + 100, START + 100), Link(START + 900, START + 900)]
    for link in links:
        table.hold("a", 1, link, 1)
    for link in links:
        link.ended_because = "x"
        table.release(link, 1)
    again = Link(START + 500, START + 500)
    table.hold("a", START + 500, again, 3)
    assert [row.link for row in table] == [again, None]


def test_rows_are_limited_and_scanners_go_first():
    """Those that have acknowledged something stay, and so do those that are connected."""
    table = promotion()
    serve(table, "10.0.0.1", START + 100)
    connected = Link(1, 1)
    table.hold("10.0.0.1", 0, connected, 1)
    scanners = [Link(None, START + 9, counts_as_ack=False) for _ in range(2 * PER_PEER_MAX)]
    for link in scanners[:-1]:
        table.hold("10.0.0.1", 0, link, 1)
    assert len(table) == PER_PEER_MAX
    assert not table.hold("10.0.0.1", 0, scanners[-1], 1), "all but one are connected"
    assert table.admit("10.0.0.1", START + 100) is Admission.ASK, "and that one has gone"
    for link in scanners:
        link.ended_because = "closed"
        table.release(link, 1)
    assert len(table) == PER_PEER_MAX
    for number in range(2 * SERVED_MAX):
        serve(table, f"10.1.{number >> 8}.{number & 255}", START + 5)
    assert len(table) == SERVED_MAX
    assert connected in [row.link for row in table]
    assert sum(row.ack_offset is None for row in table) == 1


def test_addresses_have_one_spelling():
    """IPv4 through an IPv6 socket is the same host."""
    table = promotion()
    serve(table, "::ffff:10.0.0.7", START + 100)
    assert table.admit("10.0.0.7", START + 100) is Admission.SERVE
    assert table.knows("::FFFF:a00:7")


def test_rows_read_as_they_were_written():
    """In their order; links are of a process."""
    table = promotion()
    serve(table, "10.0.0.8", START + 3)
    table.hold("10.0.0.7", 0, Link(), 1)
    again, wrong = ServedSlaves.from_json(json.loads(json.dumps(table.to_json())))
    assert wrong is None
    assert again.start == START
    assert [(row.address, row.ack_offset) for row in again] == [
        ("10.0.0.8", START + 3),
        ("10.0.0.7", None),
    ]
    assert ServedSlaves().to_json() == {}


def test_rows_of_a_file_are_limited():
    """Another program may have written it."""
    rows = [
        {"address": f"10.0.{n >> 8}.{n & 255}", "ack_offset": 1, "time_ms": 1} for n in range(1030)
    ]
    rows += [{"address": "10.9.9.9", "ack_offset": True, "time_ms": 1}, []]
    value = {"promotion": {"start": 5, "time_ms": 1}, "served": rows}
    table, wrong = ServedSlaves.from_json(value)
    assert len(table) == SERVED_MAX
    assert wrong == "8 of 1032 served slaves cannot be used"


# -- the file --------------------------------------------------------------------------------------


def load(disk):
    return RefusedSlavesFile.load(fake_env(disk), "/d")


def test_promotion_survives_a_power_cut():
    """Its start is durable when the directory has been opened, and it is not made twice."""
    disk = FakeDisk()
    disk.make_dirs("/d")
    load(disk).begin_slave()
    disk = disk.cut_power()
    load(disk).begin_master(START, epoch_start=None)
    disk = disk.cut_power()
    file = load(disk)
    assert (file.served.start, file.is_slave) == (START, False)
    file.begin_master(START + 500, epoch_start=None)
    assert file.served.start == START, "a restart"
    file.begin_slave()
    file.begin_master(START + 500, epoch_start=None)
    assert load(disk.cut_power()).served.start == START + 500


def test_promotion_moves_with_a_log_that_was_cut_below_its_start():
    """What a slave has beyond the new end was never this log's."""
    disk = FakeDisk()
    disk.make_dirs("/d")
    load(disk).begin_master(START, epoch_start=START)
    load(disk).begin_master(START - 1, epoch_start=None)
    assert load(disk).served.start == START - 1
    load(disk).begin_master(START + 1, epoch_start=None)
    assert load(disk).served.start == START - 1


@given(st.sampled_from([0, 1, None]), st.integers(0, 200), st.booleans())
def test_a_crash_while_the_file_is_replaced_leaves_one_of_the_two(dies_at, size, is_kill):
    """Before it is promoted the directory is a slave's; afterwards the start stands."""
    disk = FakeDisk()
    disk.make_dirs("/d")
    load(disk).begin_slave()
    dying = DyingDisk.of(disk, dies_at=dies_at, bytes_written=size)
    with contextlib.suppress(Killed):
        load(dying).begin_master(START, epoch_start=None)
    left = FakeDisk(disk=dying.disk)
    file = load(left.kill() if is_kill else left.cut_power())
    assert file.is_slave is (file.served.start is None)
    assert not file.is_torn
    assert dies_at == 0 or not file.is_slave


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from(["served", "dies before the write", "dies in the write"]),
            st.booleans(),
        ),
        max_size=12,
    ),
    st.integers(0, 300),
)
def test_slave_that_may_have_our_bytes_is_known_after_any_crash(steps, size):
    """And one that cannot have any is not; whatever crashed, kill or power cut."""
    disk = FakeDisk()
    disk.make_dirs("/d")
    load(disk).begin_master(START, epoch_start=START)
    served = set()
    for number, how, is_kill in steps:
        address = f"10.0.0.{number}"
        dies_at = {"served": None, "dies before the write": 0, "dies in the write": 0}[how]
        dying = DyingDisk.of(disk, dies_at, size if how == "dies in the write" else 0)
        file = load(dying)
        with contextlib.suppress(Killed):
            trio.run(file.hold, address, 0, Link())
            served.add(address)
        left = FakeDisk(disk=dying.disk)
        disk = left.kill() if is_kill else left.cut_power()
        file = load(disk)
        assert not file.is_torn
        known = {f"10.0.0.{each}" for each in range(5) if file.served.knows(f"10.0.0.{each}")}
        assert known == served
        for each in served:
            assert file.admit(each, START + 77) is Admission.SERVE


async def test_link_waits_for_the_disk_and_no_cancellation_tears_the_file():
    """What is being written when the link is cancelled is written."""
    disk, offload = FakeDisk(), FakeOffload()
    disk.make_dirs("/d")
    file = RefusedSlavesFile.load(fake_env(disk, offload=offload), "/d")
    file.begin_master(START, epoch_start=START)
    offload.hang()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.hold, "10.0.0.7", 0, Link())
        await trio.testing.wait_all_tasks_blocked()
        assert offload.running
        assert not len(load(disk).served)
        nursery.cancel_scope.cancel()
        offload.go_on()
    assert len(load(disk).served) == 1


def test_epoch_of_a_group_is_a_promotion():
    """Its start is the entry's, also where the directory was never a classic slave's."""
    disk = FakeDisk()
    disk.make_dirs("/d")
    load(disk).begin_master(START + 9, epoch_start=START)
    assert load(disk).served.start == START


def test_refusals_of_both_kinds_are_kept():
    """The file says which rule each is from; one without that is from an older version."""
    table = RefusedSlaves()
    for offset, because in ((9, RefusedBecause.AHEAD), (11, RefusedBecause.PROMOTION)):
        table.add(
            RefusedSlave(address="a", offset=offset, master_end=5, time_ms=1, because=because)
        )
    value = json.loads(json.dumps(table.to_json()))
    assert list(RefusedSlaves.from_json(value, "x")[0]) == list(table)
    del value["refused"][0]["because"]
    assert list(RefusedSlaves.from_json(value, "x")[0]) == list(table)
