"""A replica group of real nodes on loopback: epochs, the SyncStateSet, a failover by hand."""

import contextlib
import random
import socket

import attrs
import pytest
import trio
import trio.testing

import hastore
from hastore.broker.node.master_store import Promotion, open_master_store
from hastore.config import NO_MASTER, HAConfig
from hastore.env.real import real_env
from hastore.epoch_history import EpochEntry, EpochHistory
from hastore.errors import EpochFileError, StaleEpochError, WrongNodeError
from hastore.flush.flush_manager import FlushManager
from hastore.status import BrokerRole, HAProtocol
from hastore.status import PutMessageStatus as Status
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.message_store import lock_store
from hastore.store.node_identity import (
    IDENTITY_FILE,
    ConfirmMark,
    NodeIdentity,
    read_identity,
)
from hastore.store.recovery.cut import cut_store
from hastore.store.sync_state_file import SYNC_STATE_FILE, StoredSet, SyncStateFile
from tests.patience import WITHIN_S
from tests.support.nodes.autoswitch_master import epochs_in, history, make_member
from tests.support.nodes.harness import log_bytes, master_config, messages, slave_config
from tests.support.waiting import eventually

GROUP = HAConfig(
    protocol=HAProtocol.AUTOSWITCH,
    ha_reconnect_backoff_min_ms=10,
    ha_reconnect_backoff_max_ms=50,
)


def group_master(data_dir, node_id=1, ids=(1, 2, 3), *, ha=None, **changes):
    """Return the configuration of a master of group g1."""
    return master_config(
        data_dir,
        ha=attrs.evolve(GROUP, **(ha or {})),
        node_id=node_id,
        replica_group="g1",
        group_ids=ids,
        **changes,
    )


def group_slave(data_dir, master, node_id=2, **changes):
    """Return the configuration of one of its slaves."""
    return slave_config(
        data_dir, master.ha_address, ha=GROUP, node_id=node_id, replica_group="g1", **changes
    )


def stored_set(data_dir):
    return SyncStateFile(real_env().disk, f"{data_dir}/{SYNC_STATE_FILE}").load()


async def put(node, body=b"body"):
    (message,) = messages(1)
    with trio.fail_after(WITHIN_S):
        return (await node.put(attrs.evolve(message, body=body))).status


async def in_set(master, *node_ids):
    group = master.ha_service.sync_state_set
    await eventually(lambda: group.accepted == frozenset(node_ids), str(node_ids))


async def connected(master):
    group = master.ha_service.sync_state_set
    await eventually(lambda: not group.missing(), "all members connected")


@contextlib.asynccontextmanager
async def three_nodes(tmp_path, **changes):
    """Run a group of three, all connected."""
    async with (
        hastore.open_master(group_master(tmp_path / "1", **changes)) as master,
        hastore.open_slave(group_slave(tmp_path / "2", master, 2)) as two,
        hastore.open_slave(group_slave(tmp_path / "3", master, 3)) as three,
    ):
        await connected(master)
        yield master, two, three


async def test_a_group_copies_log_and_epochs(tmp_path):
    """Three nodes end with the same bytes; consumers of a slave see what all have."""
    async with three_nodes(tmp_path) as (master, two, three):
        statuses = [await put(master, b"%d" % number) for number in range(20)]
        assert statuses == [Status.PUT_OK] * 20
        end = master.max_offset
        assert (two.max_offset, three.max_offset) == (end, end)
        assert master.status().confirm_offset == end
        last = await put(master)
        assert last is Status.PUT_OK
        await eventually(lambda: two.status().confirm_offset >= end)
        end = master.max_offset
    assert log_bytes(tmp_path / "1", end) == log_bytes(tmp_path / "2", end)
    assert log_bytes(tmp_path / "1", end) == log_bytes(tmp_path / "3", end)
    for name in "123":
        assert epochs_in(tmp_path / name) == history((1, 0))


async def test_a_put_waits_for_every_member(tmp_path):
    """Two of three are not enough for "all"; a majority remains after the timeout."""
    async with (
        hastore.open_master(
            group_master(tmp_path / "1", ha={"sync_state_timeout_ms": 1_000_000})
        ) as master,
        hastore.open_slave(group_slave(tmp_path / "2", master, 2)),
    ):
        await eventually(lambda: master.ha_service.sync_state_set.missing() == {3})
        request = master.submit(messages(1)[0])
        end = request.append_result.next_offset
        group = master.ha_service.sync_state_set
        await eventually(lambda: group.acknowledged_by(end) == {1, 2})
        assert request.status is None
        async with hastore.open_slave(group_slave(tmp_path / "3", master, 3)):
            with trio.fail_after(WITHIN_S):
                assert await request.wait() is Status.PUT_OK


async def test_too_few_members_refuse_puts_before_they_are_written(tmp_path):
    """IN_SYNC_REPLICAS_NOT_ENOUGH: nothing is stored."""
    config = group_master(tmp_path / "1", ids=None, ha={"min_in_sync_replicas": 2})
    async with hastore.open_master(config) as master:
        request = master.submit(messages(1)[0])
        assert request.status is Status.IN_SYNC_REPLICAS_NOT_ENOUGH
        assert master.max_offset == 0
        async with hastore.open_slave(group_slave(tmp_path / "2", master, 2)):
            await in_set(master, 1, 2)
            assert await put(master) is Status.PUT_OK


async def test_a_restart_begins_another_epoch_with_the_same_members(tmp_path):
    """An epoch has one start of its master's process; the set that it had left stays."""
    config = group_master(tmp_path / "1", ids=None)
    async with hastore.open_master(config) as master:
        async with hastore.open_slave(group_slave(tmp_path / "2", master, 2)):
            await in_set(master, 1, 2)
            assert await put(master) is Status.PUT_OK
            end = master.max_offset
    async with hastore.open_master(config) as master:
        assert epochs_in(tmp_path / "1") == history((1, 0), (2, end))
        assert master.ha_service.sync_state_set.accepted == {1, 2}
        assert await put(master) is Status.SLAVE_NOT_AVAILABLE  # node 2 must have it
        async with hastore.open_slave(group_slave(tmp_path / "2", master, 2)):
            await connected(master)
            assert await put(master) is Status.PUT_OK
    assert stored_set(tmp_path / "1") == StoredSet(2, frozenset({1, 2}))
    assert epochs_in(tmp_path / "2") == history((1, 0), (2, end))


async def test_slaves_that_stop_with_their_master_stay_in_the_set(tmp_path, monkeypatch):
    """A whole group that is stopped begins again with all that had everything."""
    async with three_nodes(tmp_path) as (master, _, three):
        assert await put(master) is Status.PUT_OK
        is_flushing, may_end = trio.Event(), trio.Event()
        flush_all = FlushManager.flush_all

        async def slowly(manager):
            is_flushing.set()
            await may_end.wait()
            await flush_all(manager)

        monkeypatch.setattr(FlushManager, "flush_all", slowly)
        master.stop()
        await is_flushing.wait()
        service = master.ha_service
        monkeypatch.setattr(FlushManager, "flush_all", flush_all)
        three.stop()
        await eventually(lambda: service.sync_state_set.missing() == {3})
        await trio.testing.wait_all_tasks_blocked()
        assert service.sync_state_set.proposal is None
        may_end.set()
    assert stored_set(tmp_path / "1") == StoredSet(1, frozenset({1, 2, 3}))


async def test_three_starts_without_a_message_leave_one_entry(tmp_path):
    """The entry of an epoch that wrote nothing is replaced by the next one's."""
    config = group_master(tmp_path / "1", ids=None)
    for _ in range(3):
        async with hastore.open_master(config):
            pass
    assert epochs_in(tmp_path / "1") == history((3, 0))


async def test_a_former_master_comes_back_with_a_tail_of_its_own(tmp_path):
    """Node 2 becomes master; what node 1 alone had was never PUT_OK, and goes to trimmed/."""
    first = group_master(tmp_path / "1", ids=None)
    async with hastore.open_master(first) as master:
        async with hastore.open_slave(group_slave(tmp_path / "2", master, 2)):
            await in_set(master, 1, 2)
            assert [await put(master, b"%d" % n) for n in range(5)] == [Status.PUT_OK] * 5
            common = master.max_offset
        assert await put(master, b"lost") is Status.SLAVE_NOT_AVAILABLE
        assert master.max_offset > common
    second = group_master(tmp_path / "2", 2, ids=None)
    async with hastore.open_master(second) as master:
        assert epochs_in(tmp_path / "2") == history((1, 0), (2, common))
        async with hastore.open_slave(group_slave(tmp_path / "1", master, 1)) as former:
            await in_set(master, 1, 2)
            assert await put(master, b"kept") is Status.PUT_OK
            assert former.last_cut.physic_offset == common
            assert former.last_cut.messages == {"orders": 1}
            end = master.max_offset
    assert log_bytes(tmp_path / "1", end) == log_bytes(tmp_path / "2", end)
    assert b"lost" not in log_bytes(tmp_path / "1")
    trimmed = b"".join(path.read_bytes() for path in (tmp_path / "1/trimmed").iterdir())
    assert b"lost" in trimmed


async def test_an_unclean_election_is_refused_by_the_former_master(tmp_path):
    """Node 3 lacks what all members of the set had: what was PUT_OK is not cut unnoticed."""
    async with three_nodes(tmp_path) as (master, two, three):
        assert await put(master) is Status.PUT_OK
        common = three.max_offset
        three.stop()
        await in_set(master, 1, 2)
        assert await put(master, b"lost") is Status.PUT_OK
        end = master.max_offset
        assert two.max_offset == end
    first = tmp_path / "1"
    identity = read_identity(real_env().disk, str(first))
    assert identity.confirm_mark == ConfirmMark(epoch=1, offset=end, master_uuid=identity.uuid)
    async with hastore.open_master(group_master(tmp_path / "3", 3)) as master:
        assert master.max_offset == common
        async with hastore.open_slave(group_slave(first, master, 1)) as former:
            await eventually(lambda: former.status().state == "failed")
            reason = former.ha_client.reason
            assert reason.startswith(f"alarm: the log in {first} must not be cut at {common}")
            assert f"hastore log cat {first} --from-offset {common}" in former.ha_client.error.hint
            assert former.max_offset == end
            assert former.status().cuts == 0
        wiped = tmp_path / "1 again"
        async with hastore.open_slave(group_slave(wiped, master, 1)) as former:
            await eventually(lambda: former.max_offset == common)
    assert b"lost" in log_bytes(first)


async def test_what_a_power_cut_took_from_a_master_is_not_cut_off_its_slave(tmp_path):
    """It was PUT_OK: a person makes the slave master, and the former one gets it back."""
    first, second = tmp_path / "1", tmp_path / "2"
    address = "127.0.0.1", consecutive_ports()[0]
    config = group_master(first, ids=(1, 2), ha_listen=address)
    follower = slave_config(second, address, ha=GROUP, node_id=2, replica_group="g1")
    async with hastore.open_slave(follower) as slave:
        async with hastore.open_master(config) as master:
            await connected(master)
            assert [await put(master) for _ in range(3)] == [Status.PUT_OK] * 3
            left = master.max_offset
            assert [await put(master) for _ in range(2)] == [Status.PUT_OK] * 2
            end = master.max_offset
            await eventually(lambda: slave.ha_client.framing.kept_offset == end)
        env = real_env()
        lock = lock_store(env, config.store)
        cut_store(env, config.store, lock, left, reason="a power cut")
        lock.release(clean=True)
        async with hastore.open_master(config) as master:
            assert (master.max_offset, master.epoch) == (left, 2)
            await eventually(lambda: slave.status().state == "failed")
            assert slave.ha_client.reason.startswith(f"alarm: the log in {second} must not be cut")
            assert slave.max_offset == end
    assert read_identity(real_env().disk, str(second)).confirm_mark.offset == end
    async with hastore.open_master(group_master(second, 2, ids=(1, 2))) as master:
        assert (master.max_offset, master.epoch) == (end, 3)
        async with hastore.open_slave(group_slave(first, master, 1)) as former:
            await eventually(lambda: former.max_offset == end)
    assert log_bytes(first, end) == log_bytes(second, end)


async def test_a_slave_writes_its_confirm_mark_while_it_runs(tmp_path):
    """A kill leaves the newest mark on the disk, but for what came in the last seconds."""
    second, disk = tmp_path / "2", real_env().disk
    async with (
        hastore.open_master(group_master(tmp_path / "1", ids=(1, 2))) as master,
        hastore.open_slave(group_slave(second, master, 2)) as slave,
    ):
        await connected(master)
        assert await put(master) is Status.PUT_OK
        first_end = master.max_offset
        assert await put(master) is Status.PUT_OK

        def marked():
            mark = read_identity(disk, str(second)).confirm_mark
            return mark is not None and mark.offset >= first_end

        await eventually(marked)
        assert read_identity(disk, str(second)).confirm_mark.offset <= slave.flushed_offset


@pytest.mark.parametrize("is_master", [True, False])
async def test_a_confirm_mark_above_the_log_is_lowered(tmp_path, is_master):
    """What a disk has lost is written again, and may be cut: it is not confirmed yet."""
    async with hastore.open_master(group_master(tmp_path / "1", ids=(1,))) as master:
        assert await put(master) is Status.PUT_OK
        end = master.max_offset
    env = real_env()
    identity = read_identity(env.disk, str(tmp_path / "1"))
    mark = identity.confirm_mark
    assert mark.offset == end
    file = NodeIdentity(env.disk, str(tmp_path / "1" / IDENTITY_FILE), identity)
    file.raise_confirm_mark(attrs.evolve(mark, offset=end + 500))
    if is_master:
        open_as(tmp_path / "1", Promotion())
    else:
        config = slave_config(tmp_path / "1", NO_MASTER, ha=GROUP, node_id=1, replica_group="g1")
        async with hastore.open_slave(config):
            pass
    assert read_identity(env.disk, str(tmp_path / "1")).confirm_mark == mark


async def test_the_roles_of_a_group_are_fixed_by_its_identity(tmp_path):
    """The classic protocol, another id and another group are refused, and change nothing."""
    async with hastore.open_master(group_master(tmp_path / "1")):
        pass
    before = epochs_in(tmp_path / "1"), read_identity(real_env().disk, str(tmp_path / "1"))
    others = [
        master_config(tmp_path / "1"),
        group_master(tmp_path / "1", 2),
        attrs.evolve(group_master(tmp_path / "1"), replica_group="g2"),
    ]
    for config in others:
        with pytest.raises(WrongNodeError) as caught:
            async with hastore.open_master(config):
                raise AssertionError("it serves")
        assert "--node-id" in caught.value.hint or "--node-group" in caught.value.hint
    assert before == (
        epochs_in(tmp_path / "1"),
        read_identity(real_env().disk, str(tmp_path / "1")),
    )


def open_as(data_dir, promotion, **changes):
    """Open a directory as master, and close it again; return the term."""
    config = group_master(data_dir, **changes)
    opened = open_master_store(real_env(), config, ("127.0.0.1", 10911), promotion=promotion)
    opened.message_store.close(clean=True)
    return opened.term


def see(data_dir, epoch):
    """Let a directory's node have seen an epoch."""
    disk = real_env().disk
    current = read_identity(disk, str(data_dir))
    NodeIdentity(disk, f"{data_dir}/{IDENTITY_FILE}", current).see(epoch)


@pytest.mark.parametrize("epoch", [0, 6, 7, 2**31])
def test_an_epoch_that_was_seen_never_begins_again(tmp_path, epoch):
    """It might have had another master, or another start of this one."""
    assert open_as(tmp_path, Promotion(epoch=7)).entry == EpochEntry(7, 0)
    files = (EPOCH_FILE, SYNC_STATE_FILE)
    before = [(tmp_path / name).read_bytes() for name in files]
    with pytest.raises(StaleEpochError, match=f"cannot become master of epoch {epoch}") as caught:
        open_as(tmp_path, Promotion(epoch=epoch))
    assert caught.value.seen_epoch == 7
    assert [(tmp_path / name).read_bytes() for name in files] == before
    assert open_as(tmp_path, Promotion(epoch=8)).entry == EpochEntry(8, 0)


def test_a_new_identity_has_seen_the_epochs_of_its_log(tmp_path):
    """A directory that RocketMQ wrote has epochs before it has an identity."""
    make_member(tmp_path, history((4, 0)), node_id=1)
    assert open_as(tmp_path, None).entry == EpochEntry(5, 0)


def test_an_epoch_from_the_future_begins_no_term(tmp_path):
    """Its slaves would cut what they have of the epochs before."""
    open_as(tmp_path, None)
    file = EpochFile(real_env().disk, f"{tmp_path}/{EPOCH_FILE}")
    file.store(history((9, 0)))
    with pytest.raises(EpochFileError, match="ends with epoch 9, and identity"):
        open_as(tmp_path, None)
    assert file.load() == history((9, 0))


def test_the_members_that_a_term_begins_with(tmp_path):
    """Those named; else those of its own last term, if nobody was master since; else all ids."""
    assert open_as(tmp_path, None).members == {1, 2, 3}
    assert open_as(tmp_path, Promotion(members=frozenset({1, 3}))).members == {1, 3}
    assert open_as(tmp_path, None).members == {1, 3}
    disk = real_env().disk
    see(tmp_path, 9)
    EpochFile(disk, f"{tmp_path}/{EPOCH_FILE}").store(EpochHistory((EpochEntry(9, 0),)))
    assert open_as(tmp_path, None).members == {1, 2, 3}  # node 1 was not the master of epoch 9
    assert open_as(tmp_path, None, ids=None).members == {1, 2, 3}
    assert stored_set(tmp_path) == StoredSet(11, frozenset({1, 2, 3}))


def test_a_start_that_was_killed_forgets_no_member(tmp_path):
    """Between the three files that it writes; the members had what was acknowledged."""
    members = frozenset({1, 2})
    open_as(tmp_path, Promotion(members=members), ids=None)
    disk = real_env().disk
    files = [tmp_path / name for name in (EPOCH_FILE, SYNC_STATE_FILE)]
    before = [file.read_bytes() for file in files]
    open_as(tmp_path, None, ids=None)
    for kept in range(3):  # of the two files, after the seen epoch
        for file, data in list(zip(files, before, strict=True))[: 2 - kept]:
            disk.write_file(str(file), data)
        assert open_as(tmp_path, None, ids=None).members == members


async def test_a_history_without_room_is_refused(tmp_path):
    """A handshake has room for 1,000 epochs; older ones must expire first."""
    async with hastore.open_master(group_master(tmp_path)) as master:
        master.submit(messages(1, size=2_000)[0])
    full = history(*((epoch, epoch) for epoch in range(1, 1_001)))
    see(tmp_path, 1_000)
    file = EpochFile(real_env().disk, f"{tmp_path}/{EPOCH_FILE}")
    file.store(full)
    with pytest.raises(EpochFileError, match="has 1000 epochs, and a handshake has room for 1000"):
        open_as(tmp_path, None)
    assert file.load() == full


async def test_an_asynchronous_master_of_a_group_waits_for_nobody(tmp_path):
    """Its consumers still see only what the whole set has."""
    config = group_master(tmp_path / "1", ids=(1, 2), role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as master:
        assert await put(master) is Status.PUT_OK
        end = master.max_offset
        assert master.status().confirm_offset == 0
        async with hastore.open_slave(group_slave(tmp_path / "2", master, 2)):
            await eventually(lambda: master.status().confirm_offset == end)


# -- two nodes with one id -------------------------------------------------------------------------


def asking_slave(data_dir, master, node_id):
    """Return the configuration of a slave that asks its master's client port."""
    return group_slave(data_dir, master, node_id, file_size=None)


async def says(slave, text):
    """Wait until a slave's status says why its master refuses it; return the next step."""
    await eventually(lambda: text in (slave.status().master_link.reason or ""), text)
    return slave.status().master_link.hint


async def test_a_slave_with_the_masters_id_is_refused_and_told(tmp_path):
    """Both ends name it: no frame says so, but the master's client port does."""
    ports = consecutive_ports()
    config = group_master(
        tmp_path / "1", ids=None, listen=("127.0.0.1", ports[0]), ha_listen=("127.0.0.1", ports[1])
    )
    async with hastore.open_master(config) as master:
        async with hastore.open_slave(asking_slave(tmp_path / "2", master, 1)) as slave:
            hint = await says(slave, "the slave says that it is node 1, which is this master")
            assert "[node] id" in hint
        reasons = [row.reason for row in master.status().refused]
        assert any("which is this master" in reason for reason in reasons)


@pytest.mark.parametrize("is_idle", [False, True])
async def test_the_second_slave_with_an_id_tries_again(tmp_path, is_idle):
    """Refused, it copies nothing, and the member loses no link; it follows once that has left."""
    ports = consecutive_ports()
    config = group_master(
        tmp_path / "1", ids=None, listen=("127.0.0.1", ports[0]), ha_listen=("127.0.0.1", ports[1])
    )
    async with (
        hastore.open_master(config) as master,
        trio.open_nursery() as members,
        trio.open_nursery() as nursery,
    ):
        leave = trio.Event()
        config = asking_slave(tmp_path / "2", master, 2)
        member = await members.start(follow_until, leave, config)
        await eventually(lambda: master.status().sync_state.members == (1, 2))
        statuses = []
        if not is_idle:
            nursery.start_soon(keep_putting, master, statuses)
        async with hastore.open_slave(asking_slave(tmp_path / "3", master, 2)) as double:
            hint = await says(double, "two slaves say that they are node 2: that at 127.0.0.1:")
            assert "--node-id" in hint

            def taken():
                return [row for row in master.status().refused if row.is_id_taken]

            await eventually(lambda: len(taken()) > 3, "a refusal that is not the last one")
            assert double.status().state != "failed"
            assert double.max_offset == 0
            assert is_idle or set(statuses) == {Status.PUT_OK}
            assert member.status().master_link.connections == 1
            assert master.status().sync_state.members == (1, 2)
            nursery.cancel_scope.cancel()
            leave.set()
            assert await put(master) is Status.PUT_OK
            await eventually(lambda: double.max_offset == master.max_offset, "it follows")


async def follow_until(leave, config, task_status):
    async with hastore.open_slave(config) as slave:
        task_status.started(slave)
        await leave.wait()


async def keep_putting(master, statuses):
    while True:
        statuses.append(await put(master))
        await trio.sleep(0.02)


def consecutive_ports():
    """Return a free port and the next one: a client port is found one below the HA port.

    Both are below those that the kernel gives to others meanwhile.
    """
    while True:
        port = 20_000 + 2 * random.randrange(6_000)
        with (
            contextlib.suppress(OSError),
            socket.create_server(("127.0.0.1", port)),
            socket.create_server(("127.0.0.1", port + 1)),
        ):
            return port, port + 1
