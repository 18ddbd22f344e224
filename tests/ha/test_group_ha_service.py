"""A replica group's acknowledgements over real sockets: one ack a node, all nodes of the set."""

import contextlib
from types import SimpleNamespace

import attrs
import pytest
import trio
import trio.testing

from hastore.broker.puts.confirm_offset import ConfirmOffset
from hastore.concurrency.group_commit_request import GroupCommitRequest, Part
from hastore.config import StoreConfig
from hastore.errors import DiskError, DiskFullError
from hastore.ha import group_ha_service, mark_keeper, send_rounds
from hastore.ha.set_proposal import Answer
from hastore.status import FlushDiskType
from hastore.status import PutMessageStatus as Status
from hastore.store.sync_state_file import StoredSet
from hastore.wire.autoswitch_frames import Handshake
from tests.patience import WITHIN_S
from tests.support.env.fake_env import RealFiles
from tests.support.nodes.configs import IMPATIENT, QUICK
from tests.support.nodes.group import group_master, raw_node
from tests.support.store.open_log import flush
from tests.support.waiting import eventually

AN_HOUR = 3600.0
LOG = bytes(range(251)) * 40  # 10,040 bytes


@pytest.fixture
def clock(autojump_clock):
    """Let virtual time jump, but only after loopback traffic has arrived."""
    autojump_clock.autojump_threshold = 0.02
    return autojump_clock


async def follow(node, request):
    """Receive a put's bytes and acknowledge them."""
    end = request.append_result.next_offset
    await node.bytes_up_to(end)
    await node.report(end)


async def status_of(request):
    with trio.fail_after(WITHIN_S):
        return await request.wait()


async def joined(master, *nodes_ids):
    await eventually(lambda: master.group.accepted == frozenset(nodes_ids), str(nodes_ids))


@contextlib.asynccontextmanager
async def living(node, begin=0):
    """Let a node answer every frame with a report, as a hastore slave does."""

    async def answer_frames():
        end = begin
        while (found := await node.frame()) is not None:
            header, body = found
            end = max(end, (header.physic_offset or 0) + len(body))
            await node.report(end)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_frames)
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_learner", [False, True])
@pytest.mark.parametrize("is_idle", [False, True])
async def test_a_second_node_with_a_members_id_is_refused(tmp_path, clock, is_learner, is_idle):
    """It is not answered, and no ack counts but the member's, which serves on; also if idle."""
    async with (
        group_master(tmp_path / "m", log=LOG, members={1, 2}, ids={1, 2}) as master,
        raw_node(master) as member,
        raw_node(master) as double,
    ):
        await member.begin(2, 5_000)
        await member.bytes_up_to(len(LOG))
        await member.report(len(LOG))
        async with living(member, len(LOG)):
            await eventually(lambda: master.group.ack_limit == len(LOG))
            counting = master.group.acks.get(2).connection_id
            began = trio.current_time()
            await double.send(Handshake(node_id=2, is_learner=is_learner).encode())
            if not is_idle:
                for _ in range(5):
                    assert await status_of(master.put()) is Status.PUT_OK
            assert await double.closed() == b""
            assert trio.current_time() - began < 2 * group_ha_service.REPLACED_LINK_S + 0.5
            assert master.group.acks.get(2).connection_id == counting
            assert master.group.acks.observers == []
            assert await status_of(master.put()) is Status.PUT_OK
        (row,) = master.service.refusals
        assert row.is_id_taken
        assert row.address == double.sock.getsockname()
        assert row.reason.startswith("two slaves say that they are node 2: that at 127.0.0.1:")
        assert "--node-id" in row.hint


async def test_a_node_takes_the_place_of_its_former_link_as_that_ends(tmp_path):
    """A slave that connects again closes its former link: it waits for nothing else."""
    async with (
        group_master(tmp_path / "m", members={1, 2}, ids={1, 2}) as master,
        raw_node(master) as former,
        raw_node(master) as two,
    ):
        await former.begin(2)
        await eventually(lambda: master.group.missing() == frozenset())
        await two.send(Handshake(node_id=2).encode())
        await eventually(lambda: master.service._claims.next_deadline() is not None)
        await former.report(0)
        former.sock.close()
        began = trio.current_time()
        await two.answer()
        assert trio.current_time() - began < group_ha_service.REPLACED_LINK_S
        await two.report(0)
        await follow(two, request := master.put())
        assert await status_of(request) is Status.PUT_OK
        assert not master.service.refusals


async def test_the_newest_of_two_claimants_takes_the_place(tmp_path, clock):
    """A slave whose handshake was not answered in time connects once more."""
    async with (
        group_master(tmp_path / "m", members={1, 2}, ids={1, 2}) as master,
        raw_node(master) as former,
        raw_node(master) as impatient,
        raw_node(master) as two,
    ):
        await former.begin(2)
        await eventually(lambda: master.group.missing() == frozenset())
        await impatient.send(Handshake(node_id=2).encode())
        await eventually(lambda: master.service._claims.next_deadline() is not None)
        began = trio.current_time()
        await two.begin(2)
        assert trio.current_time() - began <= 2 * group_ha_service.REPLACED_LINK_S
        assert await impatient.closed() == b""
        await follow(two, request := master.put())
        assert await status_of(request) is Status.PUT_OK
        assert not master.service.refusals


async def test_a_slave_that_was_silent_and_goes_on_is_refused(tmp_path, clock):
    """Another one has taken its place; that stays a member."""
    async with (
        group_master(tmp_path / "m", members={1, 2}, ids={1, 2}) as master,
        raw_node(master) as silent,
        raw_node(master) as two,
    ):
        await silent.begin(2)
        await two.begin(2)
        for _ in range(2):
            await trio.sleep(group_ha_service.REPLACED_LINK_S)
            await silent.report(0)
        await silent.closed()
        (row,) = master.service.refusals
        assert row.is_id_taken
        assert row.address == silent.sock.getsockname()
        await follow(two, request := master.put())
        assert await status_of(request) is Status.PUT_OK


async def test_what_an_old_link_still_delivers_refuses_nobody(tmp_path, clock):
    """A slave connects again after a pause of its network; old reports are sent again by TCP."""
    async with group_master(tmp_path / "m", ids={1, 2}) as master, raw_node(master) as former:
        await former.begin(2)
        async with raw_node(master) as two:
            await two.begin(2)
            await trio.sleep(group_ha_service.REPLACED_LINK_S)
            for _ in range(3):
                await former.report(0)
            former.sock.close()
            await eventually(lambda: len(master.service.connections) == 1)
            await joined(master, 1, 2)
            assert not master.service.refusals
            request = master.put()
            await follow(two, request)
            assert await status_of(request) is Status.PUT_OK


async def test_put_is_ok_only_when_all_members_have_it(tmp_path):
    """Three nodes: the second ack decides, and a learner's or an observer's never does."""
    async with (
        group_master(tmp_path / "m", members={1, 2, 3}) as master,
        raw_node(master) as two,
        raw_node(master) as three,
        raw_node(master) as four,
    ):
        for node, node_id in ((two, 2), (three, 3), (four, 4)):
            await node.begin(node_id)
        await eventually(lambda: master.group.missing() == frozenset())
        request = master.put()
        end = request.append_result.next_offset
        await follow(two, request)
        await follow(four, request)
        await eventually(lambda: master.service.ack_table.push2_slave_max_offset == end)
        await eventually(lambda: master.group.acknowledged_by(end) == {1, 2})
        assert request.status is None
        assert master.service.confirm_offset() == 0
        await follow(three, request)
        assert await status_of(request) is Status.PUT_OK
        assert master.service.confirm_offset() == end
        assert four.header.confirm_offset == 0


async def test_two_connections_of_one_node_count_once(tmp_path):
    """The newest counts; the other's acks do nothing, before and after it has acknowledged."""
    async with (
        group_master(tmp_path / "m", members={1, 2, 3}) as master,
        raw_node(master) as old,
        raw_node(master) as new,
        raw_node(master) as three,
    ):
        await old.begin(2)
        await eventually(lambda: master.group.missing() == {3})
        await new.begin(2)
        await three.begin(3)
        await eventually(lambda: master.group.missing() == frozenset())
        await eventually(lambda: len(master.service.rounds.idle) == 3)
        request = master.put()
        end = request.append_result.next_offset
        await follow(old, request)
        await follow(three, request)
        await eventually(lambda: master.group.acknowledged_by(end) == {1, 3})
        await eventually(lambda: master.service.ack_table.push2_slave_max_offset == end)
        assert request.status is None
        await follow(new, request)
        assert await status_of(request) is Status.PUT_OK
        old.sock.close()
        await eventually(lambda: len(master.service.connections) == 2)
        assert master.group.missing() == frozenset()


@pytest.mark.parametrize("is_learner", [False, True])
async def test_a_short_link_with_a_members_id_costs_the_member_its_link_only(tmp_path, is_learner):
    """None of its links counts any more, so it connects again; nobody is refused for that."""
    async with (
        group_master(tmp_path / "m", members={1, 2}, ids={1, 2}) as master,
        raw_node(master) as member,
    ):
        await member.begin(2)
        await eventually(lambda: master.group.missing() == frozenset())
        async with raw_node(master) as passing:
            await passing.begin(2, is_learner=is_learner)
            await eventually(lambda: len(master.service.connections) == 2)
        await member.closed()
        await eventually(lambda: not master.service.connections)
        assert "took its place, and has ended" in master.service.departure.reason
        assert not master.service.refusals
        async with raw_node(master) as again:
            await again.begin(2)
            await eventually(lambda: master.group.missing() == frozenset())


async def test_acks_of_two_connections_of_one_node_are_not_two_nodes(tmp_path):
    """With a number it is the same: in_sync_replicas = 3 takes three nodes."""
    async with (
        group_master(tmp_path / "m", members={1, 2, 3}, in_sync_replicas=3) as master,
        raw_node(master) as old,
        raw_node(master) as new,
        raw_node(master) as three,
    ):
        await old.begin(2)
        await new.begin(2)
        await three.begin(3)
        await eventually(lambda: master.group.missing() == frozenset())
        request = master.put()
        end = request.append_result.next_offset
        await follow(old, request)
        await follow(new, request)
        await eventually(lambda: master.group.acknowledged_by(end) == {1, 2})
        assert request.status is None
        await follow(three, request)
        assert await status_of(request) is Status.PUT_OK


async def test_an_ack_of_the_earlier_connection_is_forgotten(tmp_path):
    """The node may have lost bytes between the two."""
    async with (
        group_master(tmp_path / "m", log=LOG, members={1, 2}, ids={1, 2}) as master,
        raw_node(master) as old,
        raw_node(master) as new,
    ):
        await old.begin(2, 5_000)
        await old.bytes_up_to(len(LOG))
        await old.report(len(LOG))
        await eventually(lambda: master.group.ack_limit == len(LOG))
        await new.begin(2, 5_000)
        await eventually(lambda: master.group.ack_limit == 0)
        await new.bytes_up_to(len(LOG))
        await new.report(len(LOG))
        await eventually(lambda: master.group.ack_limit == len(LOG))


async def test_a_frozen_member_is_shrunk_after_the_timeout(tmp_path, clock):
    """The put that waits for it is PUT_OK then; the set is on disk before that."""
    ha = attrs.evolve(QUICK, slave_timeout_ms=30_000)
    async with (
        group_master(tmp_path / "m", members={1, 2, 3}, ha=ha, env=RealFiles().env) as master,
        raw_node(master) as two,
        raw_node(master) as frozen,
    ):
        await two.begin(2)
        await frozen.begin(3)
        await eventually(lambda: master.group.missing() == frozenset())
        began = trio.current_time()
        request = master.put()
        await follow(two, request)
        assert await request.wait() is Status.PUT_OK
        assert 5.0 <= trio.current_time() - began < 6.0
        assert master.group.accepted == {1, 2}
        assert master.state_file.load() == StoredSet(1, frozenset({1, 2}))
        assert master.service.confirm_offset() == request.append_result.next_offset


async def test_a_shrunk_set_counts_only_once_it_is_on_disk(tmp_path, clock):
    """Until then both sets may be in force; a disk that fails is tried again."""
    world, ha = RealFiles(), attrs.evolve(QUICK, slave_timeout_ms=60_000)
    async with (
        group_master(tmp_path / "m", members={1, 2, 3}, ha=ha, env=world.env) as master,
        raw_node(master) as two,
        raw_node(master) as three,
    ):
        await two.begin(2)
        await three.begin(3)
        await eventually(lambda: master.group.missing() == frozenset())
        world.disk.fail("write_file", DiskError("no", path="x"))
        three.sock.close()
        await eventually(lambda: master.group.proposal is not None)
        request = master.put()
        await follow(two, request)
        await trio.sleep(10)
        assert request.status is None
        assert master.group.accepted == {1, 2, 3}
        world.disk.heal()
        assert await request.wait() is Status.PUT_OK
        assert master.state_file.load() == StoredSet(1, frozenset({1, 2}))


async def test_a_member_that_leaves_is_shrunk_at_once_and_joins_again(tmp_path):
    """It joins with an ack of its own, as a learner that began on this master's first byte."""
    async with (
        group_master(tmp_path / "m", members={1, 2, 3}) as master,
        raw_node(master) as two,
    ):
        await two.begin(2)
        async with raw_node(master) as three:
            await three.begin(3)
            await eventually(lambda: master.group.missing() == frozenset())
        await joined(master, 1, 2)
        request = master.put()
        await follow(two, request)
        assert await status_of(request) is Status.PUT_OK
        async with raw_node(master) as three:
            await three.begin(3)
            await follow(three, request)
            await joined(master, 1, 2, 3)
            await eventually(lambda: master.state_file.load().members == {1, 2, 3})


@pytest.mark.parametrize("from_last_file", [False, True])
async def test_a_node_with_a_log_joins_unless_it_began_with_the_last_file(tmp_path, from_last_file):
    """A report does not say where a log begins; then it may lack what others must be able to read.

    One that asks for the whole log has been a copy of it.
    """
    async with group_master(tmp_path / "m", log=LOG) as master, raw_node(master) as node:
        await node.begin(2, 5_000, from_last_file=from_last_file)
        await node.bytes_up_to(len(LOG))
        await node.report(len(LOG))
        await eventually(lambda: master.service.ack_table.push2_slave_max_offset == len(LOG))
        if not from_last_file:
            await joined(master, 1, 2)
        else:
            assert master.group.accepted == {1}
            assert "its log begins" in master.group.why_not(2)


async def test_a_node_is_known_by_where_it_began_on_an_earlier_link(tmp_path):
    """It began on an empty directory then."""
    async with group_master(tmp_path / "m", log=LOG) as master:
        async with raw_node(master) as node:
            await node.begin(2)
            await node.bytes_up_to(len(LOG))
        async with raw_node(master) as node:
            await node.begin(2, 5_000)
            await node.bytes_up_to(len(LOG))
            await node.report(len(LOG))
            await joined(master, 1, 2)


async def test_ids_that_peers_name_push_no_members_beginning_out(tmp_path, monkeypatch):
    """Any peer can name an id; beyond a limit the master forgets the oldest that is no member."""
    monkeypatch.setattr(group_ha_service, "LOG_BEGINS_MAX", 3)

    async def link(master, node_id, start):
        async with raw_node(master) as node:
            await node.begin(node_id, start, from_last_file=True)
            await node.bytes_up_to(len(LOG))
            return master.group.acks.get(node_id).log_begin_offset

    async with group_master(tmp_path / "m", log=LOG, members={1, 2}) as master:
        for node_id in (2, 3, 4, 5):
            assert await link(master, node_id, 0) == 0
        assert await link(master, 2, 5_000) == 0
        assert await link(master, 5, 5_000) == 0
        assert await link(master, 3, 5_000) is None


async def test_a_learner_joins_and_is_awaited(tmp_path):
    """From its first ack at the confirm offset on; before that no put waits for it."""
    async with group_master(tmp_path / "m", log=LOG) as master, raw_node(master) as node:
        assert master.put().status is Status.PUT_OK
        end = master.log.max_offset
        await node.begin(3)
        await node.bytes_up_to(end)
        assert master.put().status is Status.PUT_OK
        end = master.log.max_offset
        await node.bytes_up_to(end)
        await node.report(end)
        await joined(master, 1, 3)
        request = master.put()
        assert request.status is None
        await follow(node, request)
        assert await status_of(request) is Status.PUT_OK


async def test_an_observer_never_counts(tmp_path):
    """It has everything, and is in no set; its acks raise nothing."""
    async with group_master(tmp_path / "m", log=LOG) as master, raw_node(master) as node:
        await node.begin(3, is_learner=True)
        await node.bytes_up_to(len(LOG))
        await node.report(len(LOG))
        await eventually(lambda: [o.ack_offset for o in master.group.acks.observers] == [len(LOG)])
        assert master.group.accepted == {1}
        assert master.service.ack_table.push2_slave_max_offset == 0
        assert master.put().status is Status.PUT_OK


async def test_an_observer_with_a_members_id_takes_its_place(tmp_path):
    """The node is that node, and asks not to count."""
    async with (
        group_master(tmp_path / "m", members={1, 2, 3}) as master,
        raw_node(master) as member,
        raw_node(master) as three,
        raw_node(master) as observer,
    ):
        await member.begin(2)
        await three.begin(3)
        await eventually(lambda: master.group.missing() == frozenset())
        await observer.begin(2, is_learner=True)
        await joined(master, 1, 3)


async def test_a_strict_set_refuses_puts_until_it_is_large_enough(tmp_path):
    """min_in_sync_replicas = 2: nothing is written; the slave joins an empty log."""
    rules = {"min_in_sync_replicas": 2}
    async with group_master(tmp_path / "m", rules=rules) as master:
        request = master.put()
        assert request.status is Status.IN_SYNC_REPLICAS_NOT_ENOUGH
        assert "node 1 only, fewer than min_in_sync_replicas = 2" in request.reason
        assert master.log.max_offset == 0
        async with raw_node(master) as node:
            await node.begin(2)
            await joined(master, 1, 2)
            request = master.put()
            await follow(node, request)
            assert await status_of(request) is Status.PUT_OK


async def test_a_strict_set_does_not_shrink_below_its_minimum(tmp_path):
    """The member's link closes: puts that wait and later ones are SLAVE_NOT_AVAILABLE, stored."""
    rules = {"min_in_sync_replicas": 2}
    async with group_master(tmp_path / "m", members={1, 2}, rules=rules) as master:
        async with raw_node(master) as node:
            await node.begin(2)
            await eventually(lambda: master.group.missing() == frozenset())
            waiting = master.put()
            assert waiting.status is None
        assert await status_of(waiting) is Status.SLAVE_NOT_AVAILABLE
        assert "node 2 not connected" in waiting.reason
        later = master.put()
        assert later.status is Status.SLAVE_NOT_AVAILABLE
        assert master.group.accepted == {1, 2}
        assert master.service.unavailable_because(master.log.max_offset) == later.reason
        assert master.service.confirm_offset() == 0


async def test_an_available_set_shrinks_to_its_master(tmp_path, clock):
    """min_in_sync_replicas = 1 with a coordinator: puts are PUT_OK again after the timeout."""
    rules, ha = {"has_coordinator": True}, attrs.evolve(QUICK, slave_timeout_ms=30_000)
    async with group_master(
        tmp_path / "m", members={1, 2}, rules=rules, ha=ha, env=RealFiles().env
    ) as master:
        async with raw_node(master) as node:
            await node.begin(2)
            await eventually(lambda: master.group.missing() == frozenset())
        began = trio.current_time()
        request = master.put()
        assert await request.wait() is Status.PUT_OK
        assert trio.current_time() - began == pytest.approx(5.0, abs=0.5)
        assert master.group.accepted == {1}


async def test_a_put_times_out_while_a_member_is_silent(tmp_path, clock):
    """FLUSH_SLAVE_TIMEOUT: stored, and nothing was shrunk yet."""
    async with (
        group_master(
            tmp_path / "m", members={1, 2, 3}, ha=IMPATIENT, env=RealFiles().env
        ) as master,
        raw_node(master) as two,
        raw_node(master) as three,
    ):
        await two.begin(2)
        await three.begin(3)
        await eventually(lambda: master.group.missing() == frozenset())
        request = master.put()
        assert await request.wait() is Status.FLUSH_SLAVE_TIMEOUT
        assert "within 300 ms" in request.reason
        assert master.group.accepted == {1, 2, 3}


@attrs.define
class LateCoordinator:
    """Keeps proposals until the test answers."""

    proposals: list = attrs.field(factory=list)

    lease = None

    def propose(self, proposal):
        self.proposals.append(proposal)


async def test_a_coordinator_may_answer_later_or_never(tmp_path):
    """Meanwhile both sets count, and it is asked once; a voided proposal changes nothing."""
    coordinator = LateCoordinator()
    async with (
        group_master(tmp_path / "m", log=LOG, coordinator=coordinator) as master,
        raw_node(master) as node,
    ):
        await node.begin(2)
        await node.bytes_up_to(len(LOG))
        await node.report(len(LOG))
        await eventually(lambda: coordinator.proposals)
        waiting = master.put()
        assert waiting.status is None
        assert master.group.accepted == {1}
        (proposal,) = coordinator.proposals
        await master.service.answer(proposal, Answer.VOIDED)
        assert await status_of(waiting) is Status.PUT_OK
        assert master.state_file.load() is None
        await follow(node, waiting)
        await eventually(lambda: len(coordinator.proposals) == 2)
        await master.service.answer(coordinator.proposals[1], Answer.ACCEPTED)
        assert master.group.accepted == {1, 2}
        assert master.state_file.load() == StoredSet(1, frozenset({1, 2}))


async def test_all_members_get_bytes_at_once_and_learners_in_rounds(tmp_path, monkeypatch):
    """A put waits for each member, so none may be held back for the next round."""
    monkeypatch.setattr(send_rounds, "ROUND_S", AN_HOUR)
    async with (
        group_master(tmp_path / "m", members={1, 2, 3}, ids={1, 2, 3}) as master,
        raw_node(master) as two,
        raw_node(master) as three,
        raw_node(master) as learner,
        raw_node(master) as observer,
    ):
        await two.begin(2)
        await three.begin(3)
        await learner.begin(4)
        await observer.begin(5, is_learner=True)
        for node in (two, three, learner, observer):
            await node.frame()  # the heartbeat that answers a first report
        await eventually(lambda: len(master.service.rounds.idle) == 4)
        for _ in range(5):
            request = master.put()
            await follow(two, request)
            await follow(three, request)
            assert await status_of(request) is Status.PUT_OK
        sent = {
            connection.framing.handshake.node_id: connection.progress.next_transfer_from_where
            for connection in master.service.connections.values()
        }
        end = master.log.max_offset
        assert sent == {2: end, 3: end, 4: 0, 5: 0}


async def test_dispatch_goes_up_to_what_the_set_confirms(tmp_path):
    """Or to what is flushed, if that is less; with read_uncommitted to the end."""
    async with group_master(tmp_path / "m", log=LOG, members={1, 2}, ids={1, 2}) as master:

        def confirmed(**changes):
            config = StoreConfig(data_dir="/d", **changes)
            return ConfirmOffset(master.log, config, master.service)()

        assert confirmed() == 0
        async with raw_node(master) as node:
            await node.begin(2)
            await node.bytes_up_to(len(LOG))
            await node.report(6_000)
            await eventually(confirmed)
            assert confirmed() == 6_000
            assert confirmed(flush_disk_type=FlushDiskType.SYNC_FLUSH) == 0
            assert confirmed(read_uncommitted=True) == len(LOG)
        await eventually(lambda: not master.service.connections)
        assert confirmed() == 6_000


async def test_master_with_sync_flush_confirms_only_what_it_has_flushed(tmp_path):
    """Else consumers of slaves see what a power cut takes from it, and its election from all."""
    async with group_master(
        tmp_path / "m", log=LOG, members={1, 2}, ids={1, 2}, gathers=True
    ) as master:
        async with raw_node(master) as node:
            await node.begin(2)
            await node.bytes_up_to(len(LOG))
            await node.report(6_000)
            await eventually(lambda: master.group.confirm_offset == 6_000)
            assert master.service.confirm_offset() == 0
            flush(master.log)
            assert master.service.confirm_offset() == 6_000
            await node.report(len(LOG))
            await eventually(lambda: master.service.confirm_offset() == len(LOG))


@pytest.mark.parametrize(
    ("gathers", "flushes", "kept"), [(False, False, 6_000), (True, False, 0), (True, True, 6_000)]
)
async def test_a_master_keeps_what_it_confirms_although_too_few_have_it(
    tmp_path, gathers, flushes, kept
):
    """Consumers see it: a start that lacks it has not kept all, though no put of it was PUT_OK."""
    acked = []
    async with (
        group_master(
            tmp_path / "m",
            log=LOG,
            members={1, 2},
            in_sync_replicas=3,
            gathers=gathers,
            acked=SimpleNamespace(raise_to=acked.append),
        ) as master,
        raw_node(master) as node,
    ):
        await node.begin(2)
        await node.bytes_up_to(len(LOG))
        if flushes:
            flush(master.log)
        await node.report(6_000)
        await eventually(lambda: master.group.confirm_offset == 6_000)
        assert master.group.ack_limit == 0
        assert max(acked) == kept


async def test_the_confirm_mark_rises_seldom_and_at_the_end(tmp_path, clock):
    """Never above what this disk has; a write that fails is repeated."""
    marks, disk_is_full = [], True

    def mark_confirmed(offset):
        marks.append((trio.current_time() - began, offset, disk_is_full))
        if disk_is_full:
            raise DiskFullError("no room", path="identity.json")

    began = trio.current_time()
    async with group_master(
        tmp_path / "m", log=LOG, members={1, 2}, ids={1, 2}, mark_confirmed=mark_confirmed
    ) as master:
        async with raw_node(master) as node:
            await node.begin(2)
            await node.bytes_up_to(len(LOG))
            await node.report(6_000)
            await trio.sleep(1)
            assert marks == []
            flush(master.log)
            await trio.sleep(mark_keeper.MARK_PAUSE_S)  # polled, it costs a minute
            await eventually(lambda: len(marks) == 1)
            disk_is_full = False
            for offset in range(6_001, 6_500):
                await node.report(offset)
                await eventually(lambda offset=offset: master.group.confirm_offset == offset)
            await trio.sleep(mark_keeper.MARK_PAUSE_S)
            await eventually(lambda: len(marks) == 2)
            request = master.put()
            await follow(node, request)
            assert await request.wait() is Status.PUT_OK
            await trio.sleep(mark_keeper.MARK_PAUSE_S)
            await eventually(lambda: len(marks) == 3)
            await node.report(end := master.put().append_result.next_offset)
            await eventually(lambda: master.group.confirm_offset == end)
            assert len(marks) == 3
            flush(master.log)
    (first_s, first, failed), (second_s, second, _), (third_s, third, _), (_, last, _) = marks
    assert failed
    assert first == 6_000
    assert second == 6_499
    assert third == len(LOG)
    assert last == end
    assert min(second_s - first_s, third_s - second_s) >= mark_keeper.MARK_PAUSE_S


async def test_a_flush_after_the_acks_notifies_idle_slaves_and_observers(tmp_path, monkeypatch):
    """The master's disk is often slower than its slaves: without that they wait for a heartbeat."""
    async with group_master(
        tmp_path / "m", log=LOG, members={1, 2}, ids={1, 2}, gathers=True
    ) as master:
        told = []
        monkeypatch.setattr(master.service, "on_acknowledged", lambda: told.append(1))
        async with raw_node(master) as node:
            await node.begin(2)
            await node.bytes_up_to(len(LOG))
            await node.report(len(LOG))
            await eventually(lambda: master.group.confirm_offset == len(LOG))
            assert not told
            flush(master.log)
            master.service.notify_flushed()
            assert told == [1]
            with trio.fail_after(WITHIN_S):
                while node.header.confirm_offset < len(LOG):
                    await node.frame()


async def test_links_that_a_master_ends_shrink_nothing(tmp_path):
    """A master that stops hands its set over as it is."""
    async with (
        group_master(tmp_path / "m", members={1, 2, 3}) as master,
        raw_node(master) as two,
        raw_node(master) as three,
    ):
        await two.begin(2)
        await three.begin(3)
        await eventually(lambda: master.group.missing() == frozenset())
        master.service.disconnect_all("it stops")
        async with raw_node(master) as late:
            await late.send(Handshake(node_id=2).encode())
            assert await late.closed() == b""
        await eventually(lambda: not master.service.connections)
        assert master.group.accepted == {1, 2, 3}
        assert master.group.proposal is None


async def test_a_member_in_step_that_freezes_is_shrunk_after_the_timeout(tmp_path, clock):
    """Its time begins with the put that it does not acknowledge, not with the end of an old one."""
    ha = attrs.evolve(QUICK, slave_timeout_ms=30_000, ha_housekeeping_interval_ms=600_000)
    async with (
        group_master(tmp_path / "m", members={1, 2, 3}, ha=ha, env=RealFiles().env) as master,
        raw_node(master) as two,
        raw_node(master) as frozen,
    ):
        for node, node_id in ((two, 2), (frozen, 3)):
            await node.begin(node_id)
        await eventually(lambda: master.group.missing() == frozenset())
        request = master.put()
        await follow(two, request)
        await follow(frozen, request)
        assert await request.wait() is Status.PUT_OK
        await trio.sleep(60)
        began = trio.current_time()
        request = master.put()
        await follow(two, request)
        assert await request.wait() is Status.PUT_OK
        assert trio.current_time() - began == pytest.approx(5.0, abs=0.5)
        assert master.group.accepted == {1, 2}


async def test_a_learner_that_is_near_is_awaited_like_a_member_for_a_second(tmp_path, clock):
    """The log moves on before its ack of the end arrives; frozen, it holds the confirm offset."""
    async with (
        group_master(tmp_path / "m", env=RealFiles().env) as master,
        raw_node(master) as node,
    ):
        await node.begin(2)
        await eventually(lambda: master.group.acks.get(2).ack_offset == 0)
        await joined(master, 1, 2)  # an empty log is all there is
    async with (
        group_master(tmp_path / "n", log=LOG, env=RealFiles().env) as master,
        raw_node(master) as node,
    ):
        await node.begin(2)
        await node.bytes_up_to(len(LOG))
        ends = [master.put().append_result.next_offset for _ in range(2)]
        await node.bytes_up_to(ends[1])
        await node.report(ends[0])
        await eventually(lambda: master.group.acks.get(2).ack_offset == ends[0])
        ends.append(master.put().append_result.next_offset)
        await node.report(ends[1])
        await eventually(lambda: master.group.held_id == 2)
        (connection,) = master.service.connections.values()
        assert connection.write_socket_service in master.service.rounds.awaited
        assert master.service.confirm_offset() == ends[2]
        last = master.put()
        assert last.status is None
        assert master.service.confirm_offset() == ends[2]
        began = trio.current_time()
        await eventually(lambda: master.group.held_id is None, every_s=0.1)
        assert trio.current_time() - began < 1.5
        assert master.service.confirm_offset() == last.append_result.next_offset
        assert not master.service.rounds.awaited


@contextlib.asynccontextmanager
async def holding(data_dir, env):
    """Run nodes 1, 2 and 3, and node 4, for which the confirm offset waits."""
    ha = attrs.evolve(QUICK, slave_timeout_ms=60_000)
    async with (
        group_master(data_dir, log=LOG, members={1, 2, 3}, ids={1, 2, 4}, ha=ha, env=env) as master,
        raw_node(master) as two,
        raw_node(master) as three,
        raw_node(master) as four,
    ):
        for node, node_id in ((two, 2), (three, 3), (four, 4)):
            await node.begin(node_id)
            await node.bytes_up_to(len(LOG))
        await eventually(lambda: master.group.missing() == frozenset())
        ends = []
        for _ in range(3):
            request = master.put()
            ends.append(request.append_result.next_offset)
            await follow(two, request)
            await follow(three, request)
            assert await status_of(request) is Status.PUT_OK
            if len(ends) > 1:
                await four.bytes_up_to(ends[-2])
                await four.report(ends[-2])
                await eventually(lambda: master.group.acks.get(4).ack_offset == ends[-2])
        assert master.group.held_id == 4
        yield master, two, three


async def test_deadlines_pass_while_a_disk_fails_to_save_the_set(tmp_path, clock):
    """A learner that holds the confirm offset, and acknowledges nothing more, is released."""
    world = RealFiles()
    async with holding(tmp_path / "m", world.env) as (master, two, three):
        world.disk.fail("write_file", DiskError("no", path="x"))
        three.sock.close()
        await eventually(lambda: master.group.proposal is not None)
        request = master.put()
        await follow(two, request)
        await eventually(lambda: master.group.held_id is None, every_s=0.1)
        assert master.group.proposal is not None
        assert request.status is None
        world.disk.heal()
        assert await request.wait() is Status.PUT_OK


async def test_a_master_that_hands_over_waits_for_no_learner(tmp_path, clock):
    """What all members have is PUT_OK at once, and the links may end then."""
    async with holding(tmp_path / "m", RealFiles().env) as (master, two, three):
        request = master.put()
        await follow(two, request)
        await follow(three, request)
        end = request.append_result.next_offset
        await eventually(lambda: master.group.acknowledged_by(end) == {1, 2, 3})
        assert request.status is None
        master.service.hand_over()
        assert request.status is Status.PUT_OK


async def test_a_lone_masters_put_waits_until_its_bytes_can_be_read(tmp_path):
    """With a transient store pool they are in no file yet."""
    async with group_master(tmp_path / "m") as master:
        early = GroupCommitRequest("orders", 0)
        early.expect(Part.HA)
        master.service.handle_ha(early, 1)
        assert early.status is None
        master.put()
        assert early.status is Status.PUT_OK


async def test_a_coordinator_is_asked_once_and_its_state_may_move(tmp_path):
    """An answer to a proposal that the state has overtaken changes nothing."""
    coordinator = LateCoordinator()
    async with (
        group_master(tmp_path / "m", log=LOG, coordinator=coordinator) as master,
        raw_node(master) as node,
    ):
        await node.begin(2)
        await node.bytes_up_to(len(LOG))
        await node.report(len(LOG))
        await eventually(lambda: coordinator.proposals)
        for _ in range(3):
            master.service.set_changed()
            await trio.testing.wait_all_tasks_blocked()
        (proposal,) = coordinator.proposals
        master.group.moved(frozenset({1, 2, 3}), frozenset(), trio.current_time())
        master.service.set_changed()
        await master.service.answer(proposal, Answer.ACCEPTED)
        assert master.group.accepted == {1, 2, 3}
        assert master.state_file.load() is None


async def test_expired_epochs_are_in_no_answer(tmp_path):
    """And a slave that needs deleted bytes is refused; one that does not stays."""
    log = bytes(range(251)) * 800
    epochs = ((1, 0), (2, 30_000), (3, 100_000))
    async with (
        group_master(tmp_path / "m", log=log, epochs=epochs) as master,
        raw_node(master) as old,
        raw_node(master) as new,
    ):
        await old.begin(2, 500)
        await new.begin(3, len(log))
        await eventually(lambda: master.group.acks.get(3) is not None)
        await old.frame()
        await new.frame()
        first = master.log.mapped_file_queue.take_first()
        master.service.refuse_expired()
        await eventually(lambda: len(master.service.connections) == 1)
        assert "needs the log from 500 on" in master.service.refusals[-1].reason
        async with raw_node(master) as later:
            answer = await later.begin(4, len(log))
            assert [entry.epoch for entry in answer.epochs.entries] == [2, 3]
        assert master.group.min_offset == first.next_file_offset
        master.log.mapped_file_queue.give_back(first)  # so that the log closes it
