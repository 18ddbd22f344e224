"""One truth about health: whatever fails in a node, all that judge it say so, and agree again."""

from __future__ import annotations

import errno
import os

import pytest

import hastore
from hastore.broker.delay import schedule_message_service
from hastore.broker.node.master import Master
from hastore.broker.observe.findings import Level, Limits, findings
from hastore.broker.observe.health import health
from hastore.broker.observe.metrics_text import metrics_text
from hastore.env.real import RealDisk, _disk_error
from hastore.errors import DiskError, DiskFullError
from hastore.message import PROPERTY_DELAY_TIME_LEVEL, Message
from hastore.status import PutMessageStatus
from hastore.wire.remoting_command import RemotingCommand
from tests.support.commands.in_process import at, call, call_json
from tests.support.env.fake_env import RealFiles
from tests.support.nodes.group_nodes import node_config
from tests.support.nodes.raw_client import raw_client
from tests.support.nodes.reading import open_master, open_slave, put
from tests.support.waiting import eventually

FILE_SIZE = 64 * 1024


def refusal(number):
    """What the real disk raises where the kernel refuses with ``number``."""
    return lambda path: _caused(_disk_error("write", path, OSError(number, os.strerror(number))))


def _caused(error: DiskError) -> DiskError:
    error.__cause__ = OSError()
    return error


async def judged(node):
    """Return whether each judge finds a node in order."""
    status = node.status()
    checked, _, _ = await call("check", at(node), "--warn-disk", "100", "--crit-disk", "100")
    waited, _, _ = await call("wait", at(node), "--healthy", "--timeout", "0s")
    _, doctored = await call_json("doctor", at(node))
    bad = {
        each["check"]
        for each in doctored["findings"]
        if each["result"] == "bad" and each["check"] != "disk"
    }
    ready = health("/ready", {}, status)
    found = {"check": checked, "wait": waited, "doctor": bad, "ready": ready.ok}
    if isinstance(node, Master):
        found["master"] = health("/master", {}, status).ok
        found["refused"] = b"hastore_put_refused 1.0" in metrics_text(status)
    return found


IN_ORDER = {"check": 0, "wait": 0, "doctor": set(), "ready": True, "master": True, "refused": False}
REFUSES = {"check": 2, "wait": 5, "doctor": {"puts"}, "ready": False, "master": False}
REFUSES["refused"] = True
NOT_STORED = {**IN_ORDER, "check": 2, "wait": 5, "doctor": {"stored"}}


async def fill(master):
    """Put until the log's file is full; return the last status."""
    while True:
        result = await master.put(Message("T", bytes(10_000)))
        if result.status is not PutMessageStatus.PUT_OK:
            return result.status


@pytest.mark.parametrize(
    "number",
    [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EROFS, errno.EIO],
    ids=errno.errorcode.get,
)
async def test_a_master_without_its_next_file_is_not_healthy(tmp_path, number):
    """Whatever the reason, before another put fails; and healthy again without a put."""
    files = RealFiles()
    store = {"mapped_file_size": FILE_SIZE, "max_message_size": FILE_SIZE // 2}
    async with open_master(tmp_path, store, env=files.env) as master:
        await put(master)
        assert await judged(master) == IN_ORDER
        files.disk.fail("create_file", refusal(number))
        assert await fill(master) is PutMessageStatus.CREATE_MAPPED_FILE_FAILED
        assert await judged(master) == REFUSES
        why = master.status().puts_refused_because
        assert os.strerror(number) in why
        files.disk.heal()
        await eventually(lambda: health("/master", {}, master.status()).ok)
        assert (await master.put(Message("T", b"x"))).status is PutMessageStatus.PUT_OK


async def test_a_next_file_that_cannot_be_made_is_a_warning_while_this_one_has_room(tmp_path):
    """Puts are taken; an operator has until the file is full."""
    files = RealFiles()
    async with open_master(tmp_path, {"mapped_file_size": FILE_SIZE}, env=files.env) as master:
        files.disk.fail("create_file", refusal(errno.ENOSPC))
        await put(master, bodies=[bytes(40_000)])
        await eventually(lambda: master.status().next_file_fault is not None)
        found = await judged(master)
        assert found == {**IN_ORDER, "check": 1}


async def test_a_put_that_fails_counts_until_another_succeeds(tmp_path):
    """The disk refused an append; nothing else shows whether the next one will succeed."""
    files = RealFiles()
    store = {"transient_store_pool_enable": False}
    async with open_master(tmp_path, store, env=files.env) as master:
        await put(master)
        files.disk.fail("pwrite", refusal(errno.EDQUOT), path="/commitlog/")
        large = Message("T", bytes(100_000))
        for _ in range(3):
            assert (await master.put(large)).status is PutMessageStatus.UNKNOWN_ERROR
        failure = master.status().put_failure
        assert (failure.count, failure.is_over) == (3, False)
        assert await judged(master) == REFUSES
        files.disk.heal()
        assert (await master.put(large)).status is PutMessageStatus.PUT_OK
        assert master.status().put_failure.is_over
        assert await judged(master) == {**IN_ORDER, "check": 1}  # for a minute


# -- what is kept beside the log -------------------------------------------------------------------


async def change_topics(master, client):
    fields = {"topic": "N", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    assert (await client.ask(RemotingCommand(code=17, ext_fields=fields))).code == 1


async def change_groups(master, client):
    body = b'{"groupName": "G"}'
    assert (await client.ask(RemotingCommand(code=200, body=body))).code == 1


async def change_offsets(master, client):
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
    assert (await client.ask(RemotingCommand(code=15, ext_fields=fields))).code == 0


async def change_delay_offsets(master, client):
    await put(master, properties={PROPERTY_DELAY_TIME_LEVEL: "1"})


@pytest.mark.parametrize(
    ("name", "change", "number"),
    [
        ("topics.json", change_topics, errno.ENOSPC),
        ("topics.json", change_topics, errno.EACCES),
        ("subscriptionGroup.json", change_groups, errno.EDQUOT),
        ("consumerOffset.json", change_offsets, errno.EROFS),
        ("delayOffset.json", change_delay_offsets, errno.ENOSPC),
    ],
)
async def test_a_table_that_is_not_stored_is_not_healthy(
    tmp_path, monkeypatch, name, change, number
):
    """Puts are taken, and an unclean stop would lose what consumers have committed."""
    monkeypatch.setattr(schedule_message_service, "PERSIST_INTERVAL_S", 0.1)
    files = RealFiles()
    async with (
        open_master(tmp_path, env=files.env, flush_consumer_offset_interval_ms=10) as master,
        raw_client(master.address) as client,
    ):
        await put(master)
        files.disk.fail("write_file", refusal(number), path=f"/config/{name}")
        await change(master, client)
        await eventually(lambda: master.status().failed_writes)
        (row,) = master.status().failed_writes
        assert row.path == f"config/{name}"
        assert await judged(master) == NOT_STORED
        assert "stored" in health("/master", {}, master.status()).why
        files.disk.heal()
        await eventually(lambda: not master.status().failed_writes)
        assert await judged(master) == IN_ORDER


async def test_a_slave_that_cannot_store_its_copies_is_not_healthy(tmp_path):
    """It would begin elsewhere after a failover."""
    files = RealFiles()
    async with open_master(tmp_path / "m") as master:
        await put(master)
        async with open_slave(tmp_path / "s", master, env=files.env) as slave:
            assert await judged(slave) == {
                key: IN_ORDER[key] for key in ("check", "wait", "doctor", "ready")
            }
            files.disk.fail("write_file", refusal(errno.EACCES), path="/config/")
            await put(master, topic="N")
            await eventually(lambda: slave.status().failed_writes)
            found = await judged(slave)
            assert (found["check"], found["wait"], found["doctor"]) == (2, 5, {"stored"})
            files.disk.heal()
            await eventually(lambda: not slave.status().failed_writes)


async def test_a_slave_without_its_next_file_is_not_healthy(tmp_path):
    """What its master sends cannot be stored."""
    files = RealFiles()
    store = {"mapped_file_size": FILE_SIZE, "max_message_size": FILE_SIZE // 2}
    async with open_master(tmp_path / "m", store) as master:
        await put(master)
        async with open_slave(tmp_path / "s", master, store, env=files.env) as slave:
            files.disk.fail("create_file", refusal(errno.EMFILE))
            await put(master, bodies=[bytes(30_000)] * 4)
            await eventually(lambda: slave.status().log_is_full)
            await eventually(lambda: not health("/ready", {}, slave.status()).ok)
            found = await judged(slave)
            assert (found["check"], found["wait"]) == (2, 5)
            assert {"link", "next file"} <= found["doctor"]
            files.disk.heal()
            await eventually(lambda: health("/ready", {}, slave.status()).ok)


async def test_the_checkpoint_is_written_again_without_a_put(tmp_path):
    """The next start reads more of the log meanwhile: a warning."""
    files = RealFiles()
    async with open_master(tmp_path, env=files.env) as master:
        await put(master)
        await eventually(lambda: master.commit_log.flushed_offset == master.max_offset)
        for name in ("write_file", "open_sparse_file", "pwrite"):
            files.disk.fail(name, refusal(errno.ENOSPC), path="/checkpoint")
        await put(master)
        await eventually(lambda: master.status().failed_writes)
        assert await judged(master) == {**IN_ORDER, "check": 1}
        files.disk.heal()
        await eventually(lambda: not master.status().failed_writes)


async def test_an_opened_store_has_nothing_that_is_not_stored(tmp_path):
    """A failure of an earlier opening by the same process is not one of this."""
    files = RealFiles()
    async with open_master(tmp_path, env=files.env) as master:
        master.env.failed_writes.failed(f"{tmp_path}/config/topics.json", "full")
        assert master.status().failed_writes
    async with open_master(tmp_path, env=files.env) as master:
        assert not master.status().failed_writes


async def test_a_reserve_that_cannot_be_allocated_is_a_warning(tmp_path, monkeypatch):
    """By a quota, for example: the node could not change its role on a full disk."""
    async with hastore.open_node(node_config(tmp_path, 1, (1,))) as node:
        await node.become_master()
        master = node.role_node

        def refuse(_disk, path, _size):
            raise DiskFullError("over quota", path=path)

        def none_is_left():
            (tmp_path / "reserve").unlink(missing_ok=True)
            return master.keep_reserve() == 0

        with monkeypatch.context() as patch:
            patch.setattr(RealDisk, "create_file", refuse)
            await eventually(none_is_left)  # the node's first look at its disk may allocate one
            (first,) = master.env.failed_writes.now
            patch.setattr(master.env.failed_writes, "now_ms", lambda: first.first_ms + 60_000)
            assert master.keep_reserve() == 0
            assert master.env.failed_writes.now == (first,)  # since then
        (row,) = master.status().failed_writes
        assert (row.path, row.reason) == ("reserve", "no space for 2.0 MiB or a part of it")
        found = {each.subject: each for each in findings(master.status(), Limits())}
        assert found["stored"].level is Level.WARNING
        assert "it could not change its role" in found["stored"].sentence
        assert master.keep_reserve()
        assert master.status().failed_writes == ()
