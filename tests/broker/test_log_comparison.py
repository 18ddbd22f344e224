"""A member whose log a repair has filled compares it with its master's until all is equal."""

import contextlib
import json

import attrs
import pytest
import trio

import hastore
from hastore.broker.node import log_comparison
from hastore.broker.node.log_comparison import LogComparison
from hastore.broker.node.master_store import Promotion
from hastore.broker.observe.findings import Level, Limits, findings
from hastore.broker.port import admin_processors
from hastore.broker.port.admin_processors import AdminProcessors
from hastore.client.admin import AdminClient
from hastore.config import StoreConfig
from hastore.env.real import real_env
from hastore.errors import DiskError, RequestFailedError
from hastore.status import PutMessageStatus as Status
from hastore.store.node_identity import IDENTITY_FILE, NodeIdentity, Unverified, read_identity
from hastore.store.queue.confirmed_records import ConfirmedRecords
from hastore.store.record.record_check import RecordKind
from hastore.store.recovery.trim import Range
from hastore.store.tools.derived_verify import verify_derived
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_walker import LogWalker
from hastore.store.tools.repair.log_repair import _blank_units, apply_repair
from hastore.store.tools.repair.plan import plan_repair
from hastore.store.tools.repair.source import DirectorySource
from hastore.wire.remoting_codes import RequestCode
from hastore.wire.remoting_command import json_response
from tests.support.nodes.group_nodes import group, node_config, set_of
from tests.support.nodes.harness import FILE_SIZE, log_bytes, messages
from tests.support.waiting import eventually

FOUND = Unverified(begin=0, end=10, why="a test says so")


async def lead(master, slave):
    """Make one node the master; the other follows it, and knows its client port."""
    serving = await master.become_master(Promotion())
    await slave.follow(master.ha_address, serving.epoch, client_port=master.address)
    members = {master.config.node_id, slave.config.node_id}
    in_sync = set_of(serving)
    # A set may begin with a node that is not connected yet; a put would not wait for it.
    await eventually(lambda: in_sync.accepted - in_sync.missing() >= members, "both connected")
    return serving


async def all_dispatched(slave, master):
    """Wait until consumers of a slave can read the whole log of its master.

    ``behind`` does not say so: it is 0, too, before the slave hears that the end is confirmed.
    """
    await eventually(lambda: slave.max_offset == master.max_offset, "all copied")
    reput = slave.reput_message_service
    await eventually(lambda: reput.committed_offset == master.max_offset, "all dispatched")


async def filled(tmp_path, count=600):
    """Let a group of two store messages; return where the records begin."""
    async with group(tmp_path, 2) as nodes:
        master = await lead(nodes[0], nodes[1])
        for message in messages(count):
            assert (await master.put(message)).status is Status.PUT_OK
        slave = nodes[1].role_node
        await all_dispatched(slave, master)
    disk = real_env().disk
    walker = LogWalker(disk, find_log(disk, str(tmp_path / "2")))
    return [offset for offset, check in walker.walk() if check.kind is RecordKind.MESSAGE]


def flip(tmp_path, offset, size=1, node_id=2):
    """Change bytes of a node's log."""
    base = offset - offset % FILE_SIZE
    with (tmp_path / str(node_id) / "commitlog" / f"{base:020d}").open("r+b") as file:
        file.seek(offset - base)
        data = file.read(size)
        file.seek(offset - base)
        file.write(bytes(byte ^ 0x5A for byte in data))


def repair(tmp_path):
    """Repair node 2's log without a replica."""
    path = str(tmp_path / "2")
    plan = plan_repair(real_env().disk, path)
    assert not plan.is_empty
    return apply_repair(real_env(), plan)


def mark(tmp_path, node_id=2, found=FOUND):
    path = tmp_path / str(node_id)
    disk = real_env().disk
    identity = NodeIdentity(disk, str(path / IDENTITY_FILE), read_identity(disk, str(path)))
    identity.mark_unverified(found)


def unverified(tmp_path, node_id=2):
    return read_identity(real_env().disk, str(tmp_path / str(node_id))).unverified


def is_whole(tmp_path, node_id=2):
    """Whether log, consume queues and index of a stopped node agree."""
    path = str(tmp_path / str(node_id))
    config = StoreConfig(data_dir=path)
    report = verify_derived(real_env().disk, path, find_log(real_env().disk, path), config)
    return report.is_whole, report.findings


def bodies(node, topic="orders"):
    """Return the bodies that consumers can read, by queue."""
    store = node.message_store
    return {
        queue.queue_id: [
            (index, unit.physic_offset, unit.size)
            for index, unit in enumerate(queue.units(queue.min_offset, 10_000), queue.min_offset)
            if not unit.is_blank
        ]
        for queue in store.consume_queues
        if queue.topic == topic
    }


@contextlib.asynccontextmanager
async def both(tmp_path):
    """Run the two nodes again, node 1 as the master."""
    async with group(tmp_path, 2) as nodes:
        master = await lead(nodes[0], nodes[1])
        yield nodes, master


@pytest.mark.parametrize("places", [[5], [0], [5, 6, 200], [300], [599], [1, 250, 251, 598]])
async def test_filled_messages_come_back_and_the_log_is_verified(tmp_path, places):
    """The logs are the same bytes at the end, and consumers read what was lost, in its place."""
    offsets = await filled(tmp_path)
    for place in places:
        flip(tmp_path, offsets[place] + 100)
    report = repair(tmp_path)
    assert unverified(tmp_path) == report.unverified is not None
    async with both(tmp_path) as (nodes, master):
        slave = nodes[1].role_node
        assert nodes[1].status().unverified is not None
        assert (await master.put(messages(1)[0])).status is Status.PUT_OK
        await eventually(lambda: nodes[1].identity.current.unverified is None, "verified")
        assert nodes[1].status().unverified is None
        await all_dispatched(slave, master)
        assert bodies(slave) == bodies(master)
    assert unverified(tmp_path) is None
    assert log_bytes(tmp_path / "2") == log_bytes(tmp_path / "1")
    assert is_whole(tmp_path)[0], is_whole(tmp_path)[1]


async def test_an_equal_log_is_verified_without_a_write(tmp_path):
    """Its files keep their bytes."""
    await filled(tmp_path, 50)
    mark(tmp_path)
    async with both(tmp_path) as (nodes, _):
        await eventually(lambda: nodes[1].identity.current.unverified is None, "verified")
        assert nodes[1].role_node.log_comparison.rewritten == 0


async def test_damage_that_no_repair_has_seen_is_found_by_the_comparison(tmp_path):
    """A start does not read the older files; a digest of the log does."""
    offsets = await filled(tmp_path, 1200)
    mark(tmp_path)
    flip(tmp_path, offsets[20] + 90, 3)
    flip(tmp_path, offsets[100] + 90, 700)
    async with both(tmp_path) as (nodes, _):
        await eventually(lambda: nodes[1].identity.current.unverified is None, "verified")
        assert nodes[1].role_node.log_comparison.rewritten > 3
    assert log_bytes(tmp_path / "2") == log_bytes(tmp_path / "1")


async def test_an_unverified_master_verifies_nobody(tmp_path):
    """Two of them never agree on what was lost; the status says why."""
    await filled(tmp_path, 50)
    mark(tmp_path)
    mark(tmp_path, 1)
    async with both(tmp_path) as (nodes, _):
        comparison = await compares(nodes[1])
        await eventually(
            lambda: "is not verified either" in (comparison.reason or ""), "the reason"
        )
        assert "is not verified either" in nodes[1].status().unverified.waits_because
        assert nodes[0].status().unverified.why == FOUND.why
    assert unverified(tmp_path) == unverified(tmp_path, 1) == FOUND


async def compares(node):
    await eventually(lambda: node.role_node.log_comparison is not None, "it compares")
    comparison = node.role_node.log_comparison
    assert isinstance(comparison, LogComparison)
    return comparison


async def test_it_waits_for_a_master(tmp_path):
    """Without one nothing says what is right."""
    await filled(tmp_path, 50)
    mark(tmp_path)
    config = node_config(tmp_path / "2", 2, (1, 2))
    async with hastore.open_node(config) as node:
        comparison = await compares(node)
        assert comparison.reason == node.status().unverified.waits_because
        assert "follows no master" in comparison.reason
    assert unverified(tmp_path) == FOUND


async def test_a_former_unverified_master_compares_as_a_slave(tmp_path):
    """An operator had made it master; after a switchover it is verified."""
    offsets = await filled(tmp_path)
    flip(tmp_path, offsets[7] + 100)
    repair(tmp_path)
    async with group(tmp_path, 2) as nodes:
        await lead(nodes[0], nodes[1])
        await eventually(lambda: nodes[1].identity.current.unverified is None, "verified")
        await lead(nodes[1], nodes[0])
    assert log_bytes(tmp_path / "2") == log_bytes(tmp_path / "1")


async def test_a_comparison_goes_on_after_the_link_has_changed(tmp_path, monkeypatch):
    """What was compared before is not compared again by the same process."""
    monkeypatch.setattr(log_comparison, "DIGEST_SIZE_MAX", 4096)
    await filled(tmp_path)
    mark(tmp_path)
    compared = []
    compare_piece = LogComparison._compare_piece

    async def slowly(self, port, piece, epoch):
        compared.append((epoch, piece.start))
        if len(compared) == 20:
            await trio.sleep_forever()
        await compare_piece(self, port, piece, epoch)

    monkeypatch.setattr(LogComparison, "_compare_piece", slowly)
    async with both(tmp_path) as (nodes, _):
        await eventually(lambda: len(compared) == 20, "in the middle")
        status = nodes[1].status().unverified
        assert status.compared_to == 19 * 4096
        await nodes[1].step_down("a test wants it")
        await lead(nodes[0], nodes[1])
        await eventually(lambda: nodes[1].identity.current.unverified is None, "verified")
    starts = [start for _, start in compared]
    assert starts == [*range(0, 20 * 4096, 4096), *range(19 * 4096, starts[-1] + 1, 4096)]
    assert compared[0][0] < compared[-1][0]


async def test_the_mark_is_removed_once_the_flushed_log_is_equal(tmp_path, monkeypatch):
    """Log and queues are flushed before it."""
    offsets = await filled(tmp_path)
    flip(tmp_path, offsets[7] + 100)
    repair(tmp_path)
    order = []
    compare, clear = LogComparison._compare, NodeIdentity.clear_unverified

    async def noted(self, link, address):
        async def flushed(do=self.flush):
            await do()
            order.append("flushed")

        self.flush = flushed
        await compare(self, link, address)

    def cleared(self, found):
        order.append(("cleared", log_bytes(tmp_path / "2") == log_bytes(tmp_path / "1")))
        return clear(self, found)

    monkeypatch.setattr(LogComparison, "_compare", noted)
    monkeypatch.setattr(NodeIdentity, "clear_unverified", cleared)
    async with both(tmp_path) as (nodes, _):
        await eventually(lambda: nodes[1].identity.current.unverified is None, "verified")
    assert order == ["flushed", ("cleared", True)]


def blank_units(tmp_path, begin, end):
    """Leave node 2 as a kill does that comes after the log was rewritten, before its units."""
    assert _blank_units(real_env().disk, str(tmp_path / "2"), [Range(begin, end)])
    mark(tmp_path, found=Unverified(begin=begin, end=end, why="a test says so"))


@pytest.mark.parametrize("places", [(7, 8), (0, 3), (597, 600), (240, 260), (0, 600)])
async def test_units_that_a_killed_run_had_not_put_are_put_by_the_next(
    tmp_path, monkeypatch, places
):
    """The logs are equal then, and consumers would never get those messages."""
    monkeypatch.setattr(log_comparison, "_UNITS_READ_SIZE", 5_000)
    monkeypatch.setattr(log_comparison, "_UNITS_MAX", 3)
    offsets = await filled(tmp_path)
    blank_units(tmp_path, *([*offsets, offsets[-1] + 1][place] for place in places))
    assert not is_whole(tmp_path)[0]
    async with both(tmp_path) as (nodes, master):
        slave = nodes[1].role_node
        await eventually(lambda: nodes[1].identity.current.unverified is None, "verified")
        assert slave.log_comparison.rewritten == 0
        await all_dispatched(slave, master)
        assert bodies(slave) == bodies(master)
    assert is_whole(tmp_path)[0], is_whole(tmp_path)[1]


async def test_units_are_put_with_one_list_of_the_queues(tmp_path, monkeypatch):
    """A piece of the log does not list all queues again, nor search where its records begin."""
    monkeypatch.setattr(log_comparison, "_UNITS_READ_SIZE", 5_000)
    offsets = await filled(tmp_path)
    blank_units(tmp_path, offsets[0], offsets[-1] + 1)
    made, searched = [], []
    make, last_before = ConfirmedRecords.__init__, ConfirmedRecords.last_before

    def noted(self, *args):
        made.append(args)
        make(self, *args)

    def searching(self, *args):
        searched.append(args)
        return last_before(self, *args)

    monkeypatch.setattr(ConfirmedRecords, "__init__", noted)
    monkeypatch.setattr(ConfirmedRecords, "last_before", searching)
    async with both(tmp_path) as (nodes, _):
        await eventually(lambda: nodes[1].identity.current.unverified is None, "verified")
    assert len(made) == 1
    assert len(searched) <= 1 + offsets[-1] // FILE_SIZE  # once a file
    monkeypatch.undo()
    assert is_whole(tmp_path)[0], is_whole(tmp_path)[1]


async def test_units_are_put_though_a_disk_failed_after_the_log_was_rewritten(
    tmp_path, monkeypatch
):
    """Without a restart: the next comparison finds that piece equal."""
    offsets = await filled(tmp_path)
    flip(tmp_path, offsets[7] + 100)
    repair(tmp_path)
    compare, records = LogComparison._compare, LogComparison._records
    failed = []

    async def once_dispatched(self, link, address):
        end = self.message_store.commit_log.max_offset
        await eventually(lambda: self.reput.committed_offset == end, "dispatched")
        await compare(self, link, address)

    def failing(self, part, *more):
        if not failed:
            failed.append(part)
            raise DiskError("no record", path="x")
        return records(self, part, *more)

    monkeypatch.setattr(LogComparison, "_compare", once_dispatched)
    monkeypatch.setattr(LogComparison, "_records", failing)
    async with both(tmp_path) as (nodes, master):
        slave = nodes[1].role_node
        await eventually(lambda: nodes[1].identity.current.unverified is None, "verified")
        await all_dispatched(slave, master)
        assert len(failed) == 1
        assert bodies(slave) == bodies(master)
    assert is_whole(tmp_path)[0], is_whole(tmp_path)[1]


# -- a master whose log is damaged ---------------------------------------------------------------


def saved(tmp_path):
    """Return the bytes that node 2 has kept, by offset."""
    return {
        int(path.name.partition("-")[0]): path.read_bytes()
        for path in sorted((tmp_path / "2" / "trimmed").glob("0*"))
    }


async def waits_for_repair(node, master):
    """Wait until a node says that the master's log is damaged; return what both show."""
    comparison = await compares(node)
    await eventually(lambda: "is damaged at" in (comparison.reason or ""), "the damage is met")
    await eventually(lambda: master.status().log_damage is not None, "the master shows it")
    return node.status(), master.status()


@pytest.mark.parametrize("piece", [4 << 20, 4096, 1000, 100])
async def test_an_intact_record_is_not_replaced_by_the_masters_damaged_one(
    tmp_path, monkeypatch, piece
):
    """Neither by a bit that rots in an old file; both nodes say which machine's log it is."""
    monkeypatch.setattr(log_comparison, "DIGEST_SIZE_MAX", piece)
    offsets = await filled(tmp_path, 1200)
    before = log_bytes(tmp_path / "2")
    flip(tmp_path, offsets[20] + 100, node_id=1)
    flip(tmp_path, offsets[1000] + 100)
    repair(tmp_path)
    async with both(tmp_path) as (nodes, master):
        slave, damaged = await waits_for_repair(nodes[1], master)
        because = slave.unverified.waits_because
        assert f"the log of its master {slave.master_link.address} is damaged at" in because
        assert f"{offsets[20]} (bad-body-crc), and its own record there is intact" in because
        assert damaged.log_damage.physic_offset == offsets[20]
        found = [each for each in findings(damaged, Limits()) if each.subject == "log"]
        assert [each.level for each in found] == [Level.CRITICAL]
        assert f"damaged at {offsets[20]}" in found[0].what
        assert "hastore log verify" in found[0].hint
        assert because in next(
            e.hint for e in findings(slave, Limits()) if e.subject == "unverified"
        )
        assert nodes[1].role_node.log_comparison.rewritten == 0
    assert unverified(tmp_path) is not None
    assert log_bytes(tmp_path / "2")[: offsets[1000]] == before[: offsets[1000]]


@pytest.mark.parametrize("lost", [[1000], [2, 1000], [19, 21, 1000], [2, 15, 16, 23]])
async def test_once_the_masters_log_is_repaired_the_comparison_ends(tmp_path, lost):
    """By the bytes of the node that has the last intact copy, wherever else it lost some."""
    offsets = await filled(tmp_path, 1200)
    before = log_bytes(tmp_path / "2")
    flip(tmp_path, offsets[20] + 100, node_id=1)
    for place in lost:
        flip(tmp_path, offsets[place] + 100)
    repair(tmp_path)
    async with both(tmp_path) as (nodes, master):
        await waits_for_repair(nodes[1], master)
    source = DirectorySource(real_env().disk, str(tmp_path / "2"))
    plan = plan_repair(real_env().disk, str(tmp_path / "1"), source=source)
    assert not plan.is_lossy
    apply_repair(real_env(), plan, source=source)
    async with both(tmp_path) as (nodes, master):
        await eventually(lambda: nodes[1].identity.current.unverified is None, "verified")
        assert master.status().log_damage is None
    assert log_bytes(tmp_path / "2") == log_bytes(tmp_path / "1")
    assert log_bytes(tmp_path / "2")[: len(before)] == before


async def test_a_record_that_is_damaged_on_both_sides_is_left_alone(tmp_path):
    """Neither side's bytes are better; the operator hears of both."""
    offsets = await filled(tmp_path, 1200)
    mark(tmp_path)
    flip(tmp_path, offsets[7] + 100, node_id=1)
    flip(tmp_path, offsets[7] + 110)
    before = log_bytes(tmp_path / "2")
    async with both(tmp_path) as (nodes, master):
        slave, _ = await waits_for_repair(nodes[1], master)
        assert "its own log has no message there" in slave.unverified.waits_because
    assert log_bytes(tmp_path / "2")[: offsets[1199]] == before[: offsets[1199]]


@pytest.mark.parametrize("piece", [4 << 20, 1000])
async def test_replaced_bytes_are_kept_in_trimmed(tmp_path, monkeypatch, piece):
    """As those of a cut."""
    monkeypatch.setattr(log_comparison, "DIGEST_SIZE_MAX", piece)
    offsets = await filled(tmp_path, 1200)
    mark(tmp_path)
    flip(tmp_path, offsets[7] + 100, 3)
    before = log_bytes(tmp_path / "2")
    async with both(tmp_path) as (nodes, _):
        await eventually(lambda: nodes[1].identity.current.unverified is None, "verified")
    kept = saved(tmp_path)
    assert sum(map(len, kept.values())) == 3
    for offset, data in kept.items():
        assert data == before[offset : offset + len(data)]


async def test_bytes_without_the_digest_that_the_master_has_named_are_not_written(
    tmp_path, monkeypatch
):
    """A disk that returns other bytes at each read is no reference."""
    offsets = await filled(tmp_path, 1200)
    mark(tmp_path)
    flip(tmp_path, offsets[7] + 100)
    before = log_bytes(tmp_path / "2")
    read = AdminProcessors._pieces

    def other(self, begin, end):
        for data in read(self, begin, end):
            yield data[:-1] + b"!"

    async def log_bytes_of(self, request):
        monkeypatch.setattr(AdminProcessors, "_pieces", other)
        try:
            return await log_bytes_request(self, request)
        finally:
            monkeypatch.setattr(AdminProcessors, "_pieces", read)

    log_bytes_request = AdminProcessors.log_bytes
    monkeypatch.setattr(AdminProcessors, "log_bytes", log_bytes_of)
    async with both(tmp_path) as (nodes, _):
        comparison = await compares(nodes[1])
        await eventually(lambda: "do not have the digest" in (comparison.reason or ""), "why")
        assert comparison.rewritten == 0
    assert log_bytes(tmp_path / "2")[: offsets[1199]] == before[: offsets[1199]]
    assert unverified(tmp_path) == FOUND


async def test_a_suspect_that_is_intact_is_not_shown_as_damage(tmp_path):
    """A node believes its own disk, not who asks."""
    offsets = await filled(tmp_path, 50)
    async with both(tmp_path) as (nodes, master):
        group, epoch = nodes[0].identity.current.group, str(master.epoch)
        async with AdminClient.connect(nodes[0].address) as admin:
            for suspect in (offsets[3], offsets[3] + 5, master.max_offset, -1, 1 << 60):
                fields = {"from": "0", "to": "0", "epoch": epoch, "group": group}
                await admin._client.invoke(
                    RequestCode.LOG_DIGEST, fields | {"suspect": str(suspect)}
                )
        assert master.status().log_damage is None


async def test_damage_is_shown_while_it_is_in_the_log(tmp_path):
    """Its file expires, or a cut removes it before other records come there."""
    await filled(tmp_path, 1200)
    async with both(tmp_path) as (nodes, master):
        log = master.commit_log
        master.found_damage(FILE_SIZE - 100, "bad-body-crc")
        assert master.status().log_damage.physic_offset == FILE_SIZE - 100
        files = log.mapped_file_queue.files
        first = files.pop(0)
        try:
            assert log.min_offset == FILE_SIZE
            assert master.status().log_damage is None
        finally:
            files.insert(0, first)
        end = nodes[1].max_offset
        for offset, is_kept in ((end, False), (end - 100, True)):
            await nodes[1].step_down("a test wants it")
            nodes[1].store_health.bad_record = offset, "bad-body-crc"
            await lead(nodes[0], nodes[1])
            slave = nodes[1].role_node
            assert (slave.status().log_damage is not None) == is_kept
            assert (slave.store_health.bad_record is not None) == is_kept


# -- whose log it is compared with ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min": 1 << 40}, "nothing can be compared"),
        ({"group": "another"}, "another group or epoch: ('another', "),
        ({"epoch": 77}, "another group or epoch"),
        ({"group": None}, "an older version"),
        ({"epochs": [[1, 0], [2, 5]]}, "another one from 5 on, by its epochs"),
        ({"epochs": [[77, 0]]}, "another one from 0 on, by its epochs"),
        ({"epochs": []}, "another one from 0 on, by its epochs"),
    ],
)
async def test_another_log_verifies_nothing(tmp_path, monkeypatch, changes, message):
    """Whoever answers at the address of the master's client port."""
    await filled(tmp_path, 50)
    mark(tmp_path)
    group_log = AdminProcessors.group_log

    async def other(self, request):
        answer = await group_log(self, request)
        return json_response(request, json.loads(answer.body) | changes)

    monkeypatch.setattr(AdminProcessors, "group_log", other)
    async with both(tmp_path) as (nodes, _):
        comparison = await compares(nodes[1])
        await eventually(lambda: message in (comparison.reason or ""), "why")
        assert comparison.identity.compared_to == 0
    assert unverified(tmp_path) == FOUND


async def test_a_reference_answers_its_own_group_alone(tmp_path):
    """Two groups may share an epoch, and a port."""
    await filled(tmp_path, 50)
    async with both(tmp_path) as (nodes, master):
        group, epoch = nodes[0].identity.current.group, str(master.epoch)
        async with AdminClient.connect(nodes[0].address) as admin:
            for code in (RequestCode.LOG_DIGEST, RequestCode.LOG_BYTES, RequestCode.GROUP_LOG):
                fields = {"from": "0", "to": "10", "epoch": epoch}
                await admin._client.invoke(code, fields)
                await admin._client.invoke(code, fields | {"group": group})
                with pytest.raises(RequestFailedError, match="not of replica group other, but"):
                    await admin._client.invoke(code, fields | {"group": "other"})
                with pytest.raises(RequestFailedError, match="not the master of epoch 77"):
                    await admin._client.invoke(code, fields | {"epoch": "77", "group": group})
            log = await admin.group_log()
            assert log.min_offset == 0


# -- the requests --------------------------------------------------------------------------------


async def test_only_the_verified_master_of_an_epoch_answers(tmp_path):
    """A slave, another epoch and a range outside the log are refused by name."""
    await filled(tmp_path, 50)
    async with both(tmp_path) as (nodes, master):
        data = log_bytes(tmp_path / "1")
        async with AdminClient.connect(nodes[0].address) as admin:
            assert await admin.log_bytes(0, 1000, master.epoch) == data[:1000]
            assert await admin.log_bytes(5, 5, master.epoch) == b""
            for begin, end, epoch, message in (
                (0, 10, master.epoch + 1, "not the master of epoch"),
                (0, 10, master.epoch - 1, "not the master of epoch"),
                (0, master.max_offset + 1, master.epoch, "no answer about the bytes"),
                (10, 9, master.epoch, "no answer about the bytes"),
                (-1, 9, master.epoch, "no answer about the bytes"),
            ):
                with pytest.raises(RequestFailedError, match=message):
                    await admin.log_bytes(begin, end, epoch)
        async with AdminClient.connect(nodes[1].address) as admin:
            with pytest.raises(RequestFailedError, match="not the master of epoch"):
                await admin.log_bytes(0, 10, master.epoch)


def test_an_answer_is_small():
    """A node answers others meanwhile."""
    assert admin_processors.BYTES_SIZE_MAX <= 1 << 20
    assert attrs.fields(LogComparison).rewritten.default == 0
