"""A slave of a replica group: handshake, cut, epochs, confirm offset, and what it refuses."""

import attrs
import pytest
import trio
import trio.testing

import hastore
from hastore.broker.node import slave as node_slave
from hastore.broker.node.slave import run_slave
from hastore.broker.node.slave_store import cut_slave_store, open_slave_store
from hastore.broker.observe.metrics_server import MetricsServer
from hastore.env.real import real_env
from hastore.errors import (
    DiskError,
    EpochFileError,
    IdentityFileError,
    WrongNodeError,
    WrongPortError,
)
from hastore.ha.client_port import ClientPort, PortKind
from hastore.ha.slave_appender import CutNeededError
from hastore.status import FlushDiskType, HAProtocol, SlaveStart
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.node_identity import IDENTITY_FILE, ConfirmMark, read_identity
from hastore.store.recovery import cut as recovery_cut
from tests.ha.asking import slave_that_asks
from tests.patience import WITHIN_S
from tests.support.nodes.autoswitch_master import (
    autoswitch_master,
    epochs_in,
    forked,
    history,
    make_member,
    member_config,
    write_log,
)
from tests.support.nodes.harness import FILE_SIZE, flushed_by, log_bytes, raw_master, slave_config
from tests.support.waiting import eventually


async def log_of(tmp_path, count=60, size=200):
    """Return a log's bytes."""
    end = await write_log(tmp_path / "source", count, size=size)
    return log_bytes(tmp_path / "source", end)


async def reaches(slave, end):
    await eventually(lambda: slave.max_offset == end, f"the log's end {end}")


async def gives_up(slave, state="failed"):
    await eventually(lambda: slave.status().state == state, state)
    return slave.status().master_link


# -- following -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_java", [False, True], ids=["own labels", "RocketMQ's labels"])
async def test_an_empty_slave_copies_log_and_epochs(tmp_path, is_java):
    """Both ways to label frames lead to the master's epochs, the oldest included."""
    log = await log_of(tmp_path)
    entries = [(1, 0), (2, 4_000), (3, 9_001), (5, len(log) - 100)]
    options = {"is_java": is_java, "split_answer": True}
    async with autoswitch_master(log, *entries, **options) as master:
        async with hastore.open_slave(member_config(tmp_path / "s", master.address)) as slave:
            await reaches(slave, len(log))
            await eventually(lambda: master.connections[0].reports[-1] == len(log))
        (connection,) = master.connections
        assert (connection.handshake.node_id, connection.reports[0]) == (2, 0)
        assert not connection.handshake.is_learner
        assert not connection.handshake.from_last_file
    assert log_bytes(tmp_path / "s", len(log)) == log
    assert epochs_in(tmp_path / "s") == history(*entries)
    assert read_identity(real_env().disk, str(tmp_path / "s")).seen_epoch == 5


async def test_the_end_of_an_epoch_is_not_the_end_of_the_masters_log(tmp_path, caplog):
    """A frame ends there, smaller than a batch; "in step" is logged at the log's end only."""
    caplog.set_level("INFO", logger="hastore")
    log = await log_of(tmp_path)
    options = {"batch_size": 1 << 20, "has_heartbeats": False, "hold_at": 4_000}

    def in_step():
        return [each.msg["at"] for each in caplog.records if each.msg["event"] == "ha_in_step"]

    async with autoswitch_master(log, (1, 0), (2, 4_000), **options) as master:
        async with hastore.open_slave(member_config(tmp_path / "s", master.address)) as slave:
            await reaches(slave, 4_000)
            await eventually(lambda: master.connections[0].reports[-1] == 4_000)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert not in_step()
            master.grew()
            await reaches(slave, len(log))
            await eventually(in_step)
    assert in_step() == [len(log)]


async def test_a_slave_goes_on_after_an_overlap(tmp_path):
    """The first report of the second link is below its end: these bytes are compared."""
    log = await log_of(tmp_path)
    async with autoswitch_master(log[:9_000], (1, 0)) as master:
        async with hastore.open_slave(member_config(tmp_path / "s", master.address)) as slave:
            await reaches(slave, 9_000)
            master.become(log, (1, 0), (2, 9_000))
            await reaches(slave, len(log))
            assert slave.last_cut is None
            assert 0 < master.connections[1].reports[0] <= 9_000 - 4_096
            await eventually(lambda: master.connections[1].reports[-1] == len(log))
    assert epochs_in(tmp_path / "s") == history((1, 0), (2, 9_000))
    assert log_bytes(tmp_path / "s", len(log)) == log


async def test_a_learner_that_begins_at_the_last_file_says_so(tmp_path):
    """In its handshake; its epochs are those of the bytes that it has."""
    log = await log_of(tmp_path, size=3_000)
    assert len(log) > 2 * FILE_SIZE
    begin = 2 * FILE_SIZE
    async with autoswitch_master(log, (1, 0), (2, 5_000), (3, 140_000)) as master:
        master.min_offset = begin  # as a master that was asked for the last file
        config = member_config(
            tmp_path / "s", master.address, slave_from=SlaveStart.LAST_FILE, is_learner=True
        )
        async with hastore.open_slave(config) as slave:
            await reaches(slave, len(log))
            assert slave.commit_log.min_offset == begin
        handshake = master.connections[0].handshake
        assert handshake.from_last_file
        assert handshake.is_learner
    assert epochs_in(tmp_path / "s") == history((2, 5_000), (3, 140_000))
    assert log_bytes(tmp_path / "s", len(log) - begin) == log[begin:]


async def test_an_empty_master_is_followed(tmp_path):
    """Its heartbeats have no offset; its first message follows on the same link."""
    log = await log_of(tmp_path)
    async with autoswitch_master(b"", (1, 0)) as master:
        async with hastore.open_slave(member_config(tmp_path / "s", master.address)) as slave:
            await eventually(lambda: slave.status().state == "streaming")
            master.log = log
            master.grew()
            await reaches(slave, len(log))
            assert len(master.connections) == 1
    assert epochs_in(tmp_path / "s") == history((1, 0))


async def test_dispatch_stops_at_the_masters_confirm_offset(tmp_path):
    """A heartbeat that raises it is enough; it survives a restart, and does not fall."""
    log = await log_of(tmp_path)
    async with autoswitch_master(log, (1, 0), confirm_offset=0) as master:
        config = member_config(tmp_path / "s", master.address)
        async with hastore.open_slave(config) as slave:
            await reaches(slave, len(log))
            assert slave.status().confirm_offset == 0
            assert slave.reput_message_service.committed_offset == 0
            record = int.from_bytes(log[:4])
            master.confirm_offset = record + 5
            master.grew()
            await eventually(lambda: slave.status().confirm_offset == record + 5)
            await eventually(lambda: slave.reput_message_service.committed_offset == record)
        master.confirm_offset = 0
        async with hastore.open_slave(config) as slave:
            await eventually(lambda: slave.status().state == "streaming")
            assert slave.status().confirm_offset == record
            master.confirm_offset = len(log)
            master.grew()
            await eventually(lambda: slave.reput_message_service.committed_offset == len(log))


async def test_frames_alone_raise_the_confirm_offset(tmp_path):
    """No heartbeat has to follow them."""
    log = await log_of(tmp_path)
    async with autoswitch_master(log[:-1_000], (1, 0), has_heartbeats=False) as master:
        async with hastore.open_slave(member_config(tmp_path / "s", master.address)) as slave:
            await reaches(slave, len(log) - 1_000)
            master.log = log
            master.grew()
            await eventually(lambda: slave.reput_message_service.committed_offset == len(log))
            assert len(master.connections) == 1


# -- the cut ---------------------------------------------------------------------------------------


async def test_a_former_master_is_cut_and_follows(tmp_path):
    """The recorded failover's history, over a real socket; the node and its port stay the same."""
    fork = await forked(tmp_path)
    entries = [(1, 0), (2, fork.point)]
    make_member(fork.former, history((1, 0)))
    async with autoswitch_master(fork.successor, *entries) as master:
        config = member_config(fork.former, master.address, listen=("127.0.0.1", 0))
        async with hastore.open_slave(config) as slave:
            address = slave.address
            await reaches(slave, len(fork.successor))
            assert slave.address == address
            cut = slave.last_cut
            assert (cut.physic_offset, cut.end_offset) == (fork.point, fork.former_end)
            assert cut.messages == {"lost": 10}
            assert str(master.address[1]) in cut.reason
            status = slave.status()
            size = fork.former_end - fork.point
            assert (status.cuts, status.cut_bytes, status.last_cut) == (1, size, cut.to_json())
            assert status.cut_refused_because is None
            assert (status.epoch, status.epoch_start_offset) == (2, fork.point)
            assert (status.seen_epoch, status.master_link.masters_epoch) == (2, 2)
            await eventually(lambda: slave.status().confirm_offset == len(fork.successor))
            first, second = master.connections
            assert first.reports[0] < fork.point
            await eventually(lambda: second.reports[-1] > fork.point)  # it is read a little later
            assert second.reports[0] < fork.point
    assert log_bytes(fork.former, len(fork.successor)) == fork.successor
    assert epochs_in(fork.former) == history(*entries)
    assert read_identity(real_env().disk, str(fork.former)).starts == 2
    async with hastore.open_slave(attrs.evolve(config, master=("127.0.0.1", 1))) as slave:
        status = slave.status()
        assert (status.last_cut, status.cuts, status.cut_bytes) == (cut.to_json(), 0, 0)


async def test_a_start_does_not_need_the_description_of_a_cut(tmp_path):
    """It is for people: a damaged one is left out, as is one that the disk does not return."""
    fork = await forked(tmp_path)
    make_member(fork.former, history((1, 0)))
    file = fork.former / "trimmed/cut-00000000000000000007-7.json"
    file.parent.mkdir()
    file.write_bytes(b"[]")
    config = member_config(fork.former, ("127.0.0.1", 1))
    async with hastore.open_slave(config) as slave:
        assert slave.last_cut is None
    env = attrs.evolve(real_env(), disk=NoTrimmedDisk(real_env().disk))
    async with hastore.open_slave(config, env=env) as slave:
        assert slave.last_cut is None


async def test_nothing_is_cut_if_the_bytes_below_the_point_differ(tmp_path):
    """Two groups that both began with epoch 1 at 0: their epochs cannot tell them apart."""
    fork = await forked(tmp_path)
    make_member(fork.former, history((1, 0)))
    foreign = bytearray(fork.successor)
    foreign[fork.point - 30] ^= 1
    async with autoswitch_master(bytes(foreign), (1, 0), (2, fork.point)) as master:
        async with hastore.open_slave(member_config(fork.former, master.address)) as slave:
            link = await gives_up(slave, "diverged")
            assert "hold different bytes" in link.reason
            assert slave.max_offset == fork.former_end
            assert slave.last_cut is None
    assert not (fork.former / "trimmed").exists()
    assert epochs_in(fork.former) == history((1, 0))


async def test_nothing_is_cut_below_the_confirm_mark(tmp_path):
    """An alarm: every member had acknowledged these bytes."""
    fork = await forked(tmp_path)
    identity = make_member(fork.former, history((1, 0)))
    mark = ConfirmMark(epoch=1, offset=fork.former_end, master_uuid=identity.current.uuid)
    identity.raise_confirm_mark(mark)
    async with autoswitch_master(fork.successor, (1, 0), (2, fork.point)) as master:
        async with hastore.open_slave(member_config(fork.former, master.address)) as slave:
            link = await gives_up(slave)
            assert link.reason.startswith("alarm: the log in")
            ways = ("hastore cluster failover --to", "hastore log cat", "empty --data directory")
            assert [link.hint.index(way) for way in ways] == sorted(map(link.hint.index, ways))
            assert slave.status().cut_refused_because == link.reason
            assert slave.status().cuts == 0
            assert slave.max_offset == fork.former_end
            assert len(master.connections) == 1
            assert master.connections[0].reports == []


async def test_a_point_inside_a_record_is_refused(tmp_path):
    """The recorded truncate_not_aligned: RocketMQ tries again every 7 s, for ever."""
    fork = await forked(tmp_path)
    make_member(fork.former, history((1, 0)))
    async with autoswitch_master(fork.successor[: fork.point - 7], (1, 0)) as master:
        async with hastore.open_slave(member_config(fork.former, master.address)) as slave:
            link = await gives_up(slave)
            assert str(fork.point - 7) in link.reason
            assert slave.max_offset == fork.former_end
            assert len(master.connections) == 1
    assert epochs_in(fork.former) == history((1, 0))


async def test_a_stop_during_the_cut_is_a_stop(tmp_path):
    """The slave that was asked to stop serves no more once its store is open again."""
    fork = await forked(tmp_path)
    make_member(fork.former, history((1, 0)))
    async with autoswitch_master(fork.successor, (1, 0), (2, fork.point)) as master:
        with trio.fail_after(WITHIN_S):
            async with hastore.open_slave(member_config(fork.former, master.address)):
                pass
        async with hastore.open_slave(member_config(fork.former, master.address)) as slave:
            await reaches(slave, len(fork.successor))
    assert log_bytes(fork.former, len(fork.successor)) == fork.successor


async def test_the_store_is_closed_cleanly_for_the_cut(tmp_path, monkeypatch):
    """All is flushed, so the next opening checks no tail; the metrics port says that it is closed.

    A failover under a living slave: its new master's log goes on differently.
    """
    fork = await forked(tmp_path)
    former_log = log_bytes(fork.former, fork.former_end)
    path = tmp_path / "s"
    seen, served = [], []

    def cut(*args):
        seen.append([(path / "abort").exists(), log_bytes(path, fork.former_end) == former_log])
        return cut_slave_store(*args)

    monkeypatch.setattr(node_slave, "cut_slave_store", cut)
    serve = MetricsServer.serve
    monkeypatch.setattr(
        MetricsServer, "serve", lambda self, node: (served.append(node), serve(self, node))
    )
    async with autoswitch_master(former_log, (1, 0)) as master:
        config = member_config(path, master.address, store=flushed_by(FlushDiskType.ASYNC_FLUSH))
        async with hastore.open_slave(config) as slave:
            await reaches(slave, fork.former_end)
            assert slave.flushed_offset < fork.former_end
            master.become(fork.successor, (1, 0), (2, fork.point))
            await reaches(slave, len(fork.successor))
            assert served == [slave, None, slave]
            assert slave.last_cut.messages == {"lost": 10}
    assert seen == [[False, True]]
    assert log_bytes(path, len(fork.successor)) == fork.successor


async def test_a_directory_that_another_process_had_meanwhile_is_not_cut(tmp_path):
    """It counted a start of its own, and may have voted."""
    fork = await forked(tmp_path)
    identity = make_member(fork.former, history((1, 0)))
    make_member(fork.former, history((1, 0)))
    config = member_config(fork.former, ("h", 1))
    needed = CutNeededError(fork.point, fork.former_end)
    with pytest.raises(WrongNodeError, match="has changed while this process had the store closed"):
        cut_slave_store(real_env(), config, identity, needed, "a test")
    with pytest.raises(WrongNodeError, match="has changed"):
        open_slave_store(real_env(), config, ("127.0.0.1", 1), identity)
    assert not (fork.former / "trimmed").exists()


STEPS = ("_lower_checkpoint", "_cut_log", "cut_queues", "_cut_index")


@pytest.mark.parametrize("step", STEPS)
async def test_a_cut_that_the_disk_interrupted_is_finished_by_the_next_start(
    tmp_path, monkeypatch, step
):
    """The node ends with the disk's error; nothing is cut twice."""
    fork = await forked(tmp_path)
    make_member(fork.former, history((1, 0)))

    def fail(*_args):
        msg = "the disk went away"
        raise DiskError(msg, path=str(fork.former))

    async with autoswitch_master(fork.successor, (1, 0), (2, fork.point)) as master:
        config = member_config(fork.former, master.address)
        monkeypatch.setattr(recovery_cut, step, fail)
        with pytest.raises(DiskError, match="went away"):
            await run_slave(config, real_env())
        monkeypatch.undo()
        assert (fork.former / "cut.json").exists()
        async with hastore.open_slave(config) as slave:
            assert slave.last_cut.physic_offset == fork.point
            await reaches(slave, len(fork.successor))
    assert log_bytes(fork.former, len(fork.successor)) == fork.successor
    assert epochs_in(fork.former) == history((1, 0), (2, fork.point))
    assert len(list((fork.former / "trimmed").glob("cut-*.json"))) == 1


async def test_without_room_for_the_copy_nothing_is_cut(tmp_path):
    """The node serves what it has, says how much room is missing, and tries again later."""
    fork = await forked(tmp_path)
    make_member(fork.former, history((1, 0)))
    env = attrs.evolve(real_env(), disk=FullDisk(real_env().disk))
    async with autoswitch_master(fork.successor, (1, 0), (2, fork.point)) as master:
        async with hastore.open_slave(member_config(fork.former, master.address), env=env) as slave:
            await eventually(lambda: "no room in" in (slave.status().master_link.reason or ""))
            link = slave.status().master_link
            assert "on that file system" in link.hint
            assert slave.status().cut_refused_because == link.reason
            assert slave.max_offset == fork.former_end
    assert epochs_in(fork.former) == history((1, 0))


class NoTrimmedDisk:
    """A disk that does not list ``trimmed/``."""

    def __init__(self, disk):
        self._disk = disk

    def __getattr__(self, name):
        return getattr(self._disk, name)

    def list_dir(self, path):
        if path.endswith("trimmed"):
            raise DiskError("input/output error", path=path)
        return self._disk.list_dir(path)


class FullDisk:
    """A disk on which next to nothing is free."""

    def __init__(self, disk):
        self._disk = disk

    def __getattr__(self, name):
        return getattr(self._disk, name)

    def space(self, path):
        return attrs.evolve(self._disk.space(path), free_bytes=100)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("masters", [[(5, 0)], [(1, 500)]])
async def test_a_foreign_group_is_given_up(tmp_path, masters):
    """The recorded no_common_epoch: nothing changed, not even the seen epoch."""
    fork = await forked(tmp_path)
    make_member(fork.former, history((1, 0)))
    async with autoswitch_master(fork.successor, *masters) as master:
        async with hastore.open_slave(member_config(fork.former, master.address)) as slave:
            link = await gives_up(slave, "diverged")
            assert link.reason.startswith("foreign group: this slave's epochs 1-0")
            await eventually(lambda: master.connections[-1].refusal)  # told by a last report
            assert not any(connection.reports for connection in master.connections)
            assert slave.max_offset == fork.former_end
    assert read_identity(real_env().disk, str(fork.former)).seen_epoch == 1


async def test_a_log_without_epochs_is_refused(tmp_path):
    """RocketMQ's slave goes on at its end, without a question."""
    fork = await forked(tmp_path)
    make_member(fork.former, history())
    async with autoswitch_master(fork.successor, (1, 0)) as master:
        async with hastore.open_slave(member_config(fork.former, master.address)) as slave:
            link = await gives_up(slave, "diverged")
            assert "no epoch says who wrote it" in link.reason


async def test_a_deposed_master_is_not_followed(tmp_path):
    """Not reported to, either; the slave waits for a master of a newer epoch."""
    log = await log_of(tmp_path)
    make_member(tmp_path / "source", history((1, 0))).see(7)
    async with autoswitch_master(log, (1, 0), (6, len(log))) as master:
        async with hastore.open_slave(member_config(tmp_path / "source", master.address)) as slave:
            await eventually(lambda: len(master.connections) >= 2)
            link = slave.status().master_link
            assert "is in epoch 6, and this node has seen epoch 7" in link.reason
            assert not any(connection.reports for connection in master.connections)
            master.become(log + log[:500], (1, 0), (7, len(log)))
            await reaches(slave, len(log) + 500)


async def test_an_epoch_that_begins_on_a_live_link_ends_it(tmp_path):
    """The next handshake brings the entry."""
    log = await log_of(tmp_path)
    async with autoswitch_master(log[:9_000], (1, 0)) as master:
        async with hastore.open_slave(member_config(tmp_path / "s", master.address)) as slave:
            await reaches(slave, 9_000)
            before = master.epochs
            assert before == history((1, 0))
            # The link that is open sends with the new list.
            master.epochs = before.begin(history((2, 9_000)).entries[0])
            master.connections[0].sock.close()
            master.log = log
            await reaches(slave, len(log))
    assert epochs_in(tmp_path / "s") == history((1, 0), (2, 9_000))


async def test_a_master_that_does_not_answer_is_named(tmp_path):
    """A classic master takes the handshake for reports."""
    async with raw_master() as master:
        config = member_config(tmp_path / "s", master.address, ha={"ha_connect_timeout_ms": 50})
        async with hastore.open_slave(config) as slave:
            await master.accept()
            await eventually(lambda: slave.status().master_link.reason)
            link = slave.status().master_link
            assert "has not answered the handshake within 50 ms: it may speak the cl" in link.reason
            assert "enableControllerMode" in link.hint
            assert (await master.accept()) is not None  # it tries again


@pytest.mark.parametrize("own", HAProtocol)
async def test_a_master_of_the_other_protocol_is_named(tmp_path, own):
    """Its client port knows; the slave ends with exit code 2, and nothing was written."""
    (other,) = set(HAProtocol) - {own}
    async with raw_master() as master:
        found = ClientPort(kind=PortKind.NODE, ha_port=master.address[1], ha_protocol=other)
        is_group = own is HAProtocol.AUTOSWITCH
        config = (member_config if is_group else slave_config)(tmp_path / "s", master.address)

        async def ask(address):
            assert address != master.address  # it would take the questions for another bad peer
            return found

        with pytest.RaisesGroup(WrongPortError) as caught:
            async with slave_that_asks(config, ask) as slave:
                sock = await master.accept()
                await sock.recv(16 if is_group else 8)
                sock.close()
                await trio.sleep_forever()
        error = caught.value.exceptions[0]
        assert f"speaks {other.value}, and this slave {own.value}" in str(error)
        assert f"--ha-protocol {other.value}" in error.hint
        assert error.exit_code == 2
        assert slave.max_offset == 0


async def test_a_master_of_another_group_is_named(tmp_path):
    """No handshake says so, and an empty log has nothing to compare; the slave ends."""
    log = await log_of(tmp_path)
    async with autoswitch_master(log, (1, 0)) as master:
        found = ClientPort(kind=PortKind.NODE, ha_port=master.address[1], replica_group="g2")

        async def ask(_address):
            return found

        with pytest.RaisesGroup(WrongPortError) as caught:
            async with slave_that_asks(member_config(tmp_path / "s", master.address), ask):
                await trio.sleep_forever()
        error = caught.value.exceptions[0]
        assert "is of replica group g2, and this node of g1" in str(error)
        assert "name a master of g1" in error.hint
        assert error.exit_code == 2
        assert not any((tmp_path / "s" / "commitlog").iterdir())
        assert not epochs_in(tmp_path / "s")


async def test_a_master_that_group_ids_lacks_is_logged(tmp_path, caplog):
    """A new group that was given an old group's name would copy that one's log silently."""
    log = await log_of(tmp_path)
    async with autoswitch_master(log, (1, 0)) as master:
        port = master.address[1]
        found = ClientPort(kind=PortKind.NODE, ha_port=port, replica_group="g1", node_id=1)

        async def ask(_address):
            return found

        for name, ids, count in (("a", (2, 8), 1), ("b", (1, 2), 0), ("c", None, 0)):
            caplog.clear()
            config = member_config(tmp_path / name, master.address, group_ids=ids)
            async with slave_that_asks(config, ask) as slave:
                await eventually(lambda slave=slave: slave.max_offset == len(log))
            lines = [each.msg for each in caplog.records if each.msg["event"] == "group_ids_differ"]
            assert len(lines) == count
            assert all("node 1, and [node] group_ids" in line["reason"] for line in lines)


# -- the directory ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "flag"),
    [({"node_id": 3}, "--node-id 2"), ({"replica_group": "g2"}, "--node-group g1")],
)
async def test_a_directory_belongs_to_one_node(tmp_path, changes, flag):
    """Another id or group is refused before anything is opened."""
    make_dir(tmp_path / "s")
    make_member(tmp_path / "s", history((1, 0)))
    with pytest.raises(WrongNodeError, match=r"belongs to node 2 of replica group g1") as caught:
        async with hastore.open_slave(member_config(tmp_path / "s", ("h", 1), **changes)):
            pass
    assert flag in caught.value.hint
    assert caught.value.exit_code == 6


def make_dir(path):
    (path / "commitlog").mkdir(parents=True)


async def test_a_log_of_no_node_is_not_taken(tmp_path):
    """It may be anyone's."""
    await write_log(tmp_path / "s", 5)
    with pytest.raises(WrongNodeError, match="belongs to no node of a replica group") as caught:
        async with hastore.open_slave(member_config(tmp_path / "s", ("h", 1))):
            pass
    assert caught.value.hint.startswith("give node 2 of g1 an empty directory")


async def test_a_classic_slave_does_not_write_into_a_groups_log(tmp_path):
    """No epoch would say who wrote what it appends."""
    make_dir(tmp_path / "s")
    make_member(tmp_path / "s", history((1, 0)))
    with pytest.raises(WrongNodeError, match="the classic protocol knows none") as caught:
        async with hastore.open_slave(slave_config(tmp_path / "s", ("h", 1))):
            pass
    assert "--ha-protocol autoswitch --node-id 2 --node-group g1" in caught.value.hint


@pytest.mark.parametrize(
    ("file", "error"), [(EPOCH_FILE, EpochFileError), (IDENTITY_FILE, IdentityFileError)]
)
async def test_a_damaged_file_of_the_node_is_refused(tmp_path, file, error):
    """Exit code 4, and the lock is free again."""
    log = await log_of(tmp_path)
    make_member(tmp_path / "source", history((1, 0)))
    path = tmp_path / "source" / file
    good = path.read_bytes()
    path.write_bytes(good[:-3])
    async with autoswitch_master(log, (1, 0)) as master:
        config = member_config(tmp_path / "source", master.address)
        with pytest.raises(error) as caught:
            async with hastore.open_slave(config):
                pass
        assert caught.value.exit_code == 4
        path.write_bytes(good)
        async with hastore.open_slave(config) as slave:
            assert slave.max_offset == len(log)


@pytest.mark.parametrize("later", [(9, 7), (9, 5_000)])
async def test_an_epoch_from_the_future_cuts_nothing(tmp_path, later):
    """The file is another node's, or the identity was restored; exit code 4."""
    log = await log_of(tmp_path)
    make_member(tmp_path / "source", history((1, 0)))
    path, epochs = tmp_path / "source", history((1, 0), later)
    EpochFile(real_env().disk, f"{path}/{EPOCH_FILE}").store(epochs)
    async with autoswitch_master(log, (1, 0)) as master:
        with pytest.raises(EpochFileError, match="ends with epoch 9, and identity") as caught:
            async with hastore.open_slave(member_config(path, master.address)):
                pass
    assert "has seen none after 1" in str(caught.value)
    assert caught.value.exit_code == 4
    assert log_bytes(path, len(log)) == log
    assert epochs_in(path) == epochs
    assert not (path / "abort").exists()
