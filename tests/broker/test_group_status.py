"""The status of a replica group's master, and what `explain` says of the acks that puts needed."""

import json

import attrs
import pytest
import trio

from hastore.broker.node.group_status import with_group
from hastore.broker.observe.explanation import explain
from hastore.broker.observe.node_status import NodeStatus
from hastore.errors import DiskError
from hastore.ha import group_ha_service
from hastore.status import PutMessageStatus as Status
from tests.patience import WITHIN_S
from tests.support.env.fake_env import RealFiles
from tests.support.nodes.configs import QUICK
from tests.support.nodes.group import group_master, raw_node
from tests.support.nodes.statuses import MASTER
from tests.support.waiting import eventually

LOG = bytes(range(251)) * 40  # 10,040 bytes
WHY = "its removal is not accepted yet"


@pytest.fixture
def clock(autojump_clock):
    """Let virtual time jump, but only after loopback traffic has arrived."""
    autojump_clock.autojump_threshold = 0.02
    return autojump_clock


def status_of(master, **changes):
    """The master's status, as a program that asks reads it."""
    service = master.service
    slaves = tuple(
        attrs.evolve(MASTER.slaves[0], address="{}:{}".format(*connection.address))
        for connection in service.connections.values()
    )
    end = master.log.max_offset
    alone = attrs.evolve(MASTER, max_offset=end, slaves=slaves, wall_time_ms=10**12, **changes)
    status = with_group(alone, service, trio.current_time())
    assert NodeStatus.from_dict(json.loads(json.dumps(status.to_dict()))) == status
    return status


def weak_rows(master):
    """What `explain` shows of the puts that were not PUT_OK."""
    shown = explain(status_of(master), master.puts.decisions, 100, slave_timeout_ms=3_000)
    return json.loads(json.dumps(shown))["weak"]


async def decided(request):
    with trio.fail_after(WITHIN_S):
        return await request.wait()


async def test_a_status_has_the_epoch_the_set_and_each_node(tmp_path):
    """Members, a learner that lacks bytes, an observer, and a configured node that never came."""
    async with (
        group_master(
            tmp_path / "m",
            log=LOG,
            epochs=((1, 0), (4, 9_000)),
            members={1, 2},
            ids={1, 2, 3, 5},
            rules={"min_in_sync_replicas": 2},
        ) as master,
        raw_node(master) as two,
        raw_node(master) as three,
        raw_node(master) as nine,
    ):
        await two.begin(2, 9_000)
        await two.bytes_up_to(len(LOG))
        await two.report(len(LOG))
        await three.begin(3, 4_000)
        await nine.begin(9, 4_000, is_learner=True)
        await eventually(lambda: master.service.confirm_offset() == len(LOG))
        await eventually(
            lambda: len([s for s in status_of(master).sync_state.nodes if s.address]) == 3
        )
        status = status_of(master)
        group = status.sync_state
        assert (status.epoch, status.epoch_start_offset) == (4, 9_000)
        assert (group.epoch, group.epoch_start_offset) == (4, 9_000)
        assert 0 <= group.epoch_age_s < WITHIN_S
        assert (group.members, group.configured_ids) == ((1, 2), (1, 2, 3, 5))
        assert (group.in_sync_replicas, group.min_in_sync_replicas) == ("all", 2)
        assert group.copies == len(group.members)
        assert (group.mode, group.is_enough, group.proposal) == ("strict", True, None)
        assert (group.confirm_offset, group.confirm_lag_bytes) == (len(LOG), 0)
        assert group.confirm_lag_s == 0
        assert group.may_lose_because is None
        assert (status.acks_needed, status.slave_unavailable_because) == (1, None)
        rows = {row.node_id: row for row in group.nodes}
        assert [(row.node_id, row.role, row.is_connected) for row in group.nodes] == [
            (1, "master", True),
            (2, "member", True),
            (3, "learner", True),
            (5, "learner", False),
            (9, "observer", True),
        ]
        assert (rows[2].ack_offset, rows[2].lag_bytes, rows[2].why_not) == (len(LOG), 0, None)
        assert rows[2].address == "{}:{}".format(*two.sock.getsockname())
        assert rows[3].why_not == "it has acknowledged nothing on this connection"
        assert rows[5].why_not == "it has not connected in this epoch"
        assert rows[5].since_s is None
        roles = {slave.address: (slave.node_id, slave.node_role) for slave in status.slaves}
        assert roles["{}:{}".format(*nine.sock.getsockname())] == (9, "observer")
        assert sorted(roles.values()) == [(2, "member"), (3, "learner"), (9, "observer")]
        assert status_of(master, role="ASYNC_MASTER").acks_needed == 0


async def test_a_pending_proposal_is_shown_with_its_age(tmp_path, clock):
    """Puts wait for both sets until its members are on disk."""
    world = RealFiles()
    async with (
        group_master(tmp_path / "m", members={1, 2, 3}, env=world.env) as master,
        raw_node(master) as two,
        raw_node(master) as three,
    ):
        await two.begin(2)
        await three.begin(3)
        await eventually(lambda: master.group.missing() == frozenset())
        world.disk.fail("write_file", DiskError("no", path="x"))
        await trio.sleep(3.0)
        three.sock.close()
        await eventually(lambda: master.group.proposal is not None)
        before = status_of(master).sync_state.proposal
        assert before.age_s < 2.0
        await trio.sleep(7.0)
        status = status_of(master)
        proposal = status.sync_state.proposal
        assert (proposal.number, proposal.members, proposal.left) == (1, (1, 2), (3,))
        assert proposal.joined == ()
        assert proposal.why == "the set {1, 2}: node 3 closed its link"
        assert proposal.age_s - before.age_s == pytest.approx(7.0, abs=0.1)
        assert status.acks_needed == 2
        (row,) = (row for row in status.sync_state.nodes if row.node_id == 3)
        assert (row.role, row.is_connected) == ("member", False)
        assert row.why_not == f"it closed its link; {WHY}"
        assert row.since_s >= 7.0


async def test_the_confirm_offset_lags_while_a_member_is_silent(tmp_path, clock):
    """In bytes, and since the log's end passed it."""
    async with (
        group_master(
            tmp_path / "m", members={1, 2}, ids={1, 2}, rules={"min_in_sync_replicas": 2}
        ) as master,
        raw_node(master) as two,
    ):
        await two.begin(2)
        await eventually(lambda: master.group.missing() == frozenset())
        await trio.sleep(1.0)
        request = master.put()
        await trio.sleep(4.0)
        group = status_of(master).sync_state
        assert (group.confirm_offset, group.confirm_lag_bytes) == (0, request.result.next_offset)
        assert group.confirm_lag_s >= 4.0
        row = group.nodes[1]
        assert row.role == "member"
        assert (row.ack_offset, row.lag_bytes, row.lag_s) in (
            (None, None, None),
            (0, group.confirm_lag_bytes, group.confirm_lag_s),
        )


@pytest.mark.parametrize(
    ("in_sync_replicas", "members", "acks_needed", "expected"),
    [
        ("all", {1, 2, 3}, 2, ""),
        (
            "all",
            {1},
            0,
            "node 1 alone has what was acknowledged: its failure may lose",
        ),
        (
            2,
            {1, 2, 3},
            1,
            "in_sync_replicas = 2: the failure of the master and 1 more node may lose",
        ),
        (
            1,
            {1, 2, 3},
            0,
            "in_sync_replicas = 1: the failure of the master may lose",
        ),
    ],
)
async def test_a_status_says_which_failures_may_lose_messages(
    tmp_path, in_sync_replicas, members, acks_needed, expected
):
    """With "all" only those of all members at once."""
    async with group_master(
        tmp_path / "m", members=members, in_sync_replicas=in_sync_replicas
    ) as master:
        status = status_of(master, slave_lag_max=256 << 20)
        assert expected in (status.sync_state.may_lose_because or "")
        assert (status.sync_state.may_lose_because is None) is (expected == "")
        assert status.sync_state.mode == "available"
        assert status.slave_lag_max is None
        assert status.acks_needed == acks_needed


async def test_puts_need_no_fewer_nodes_than_the_least(tmp_path):
    """With a number, too: min_in_sync_replicas counts members, the master included."""
    async with group_master(
        tmp_path / "m", members={1, 2}, in_sync_replicas=1, rules={"min_in_sync_replicas": 2}
    ) as master:
        assert status_of(master).acks_needed == 1


async def test_all_is_not_in_force_before_the_members_have_what_was_acknowledged(tmp_path):
    """After a change from a number."""
    async with group_master(tmp_path / "m", members={1, 2}, in_sync_replicas=1) as master:
        master.put()
        master.group.change_in_sync_replicas("all")
        assert "not in force yet" in status_of(master).sync_state.may_lose_because


# -- explain --------------------------------------------------------------------------------------


async def test_a_late_put_names_the_nodes_that_had_it_and_those_that_did_not(tmp_path, clock):
    """One member acknowledges, one is silent, and a learner is not needed."""
    ha = attrs.evolve(QUICK, slave_timeout_ms=3_000)
    async with (
        group_master(tmp_path / "m", members={1, 2, 3}, ids={1, 2, 3, 4}, ha=ha) as master,
        raw_node(master) as two,
        raw_node(master) as silent,
    ):
        await two.begin(2)
        await silent.begin(3)
        await eventually(lambda: master.group.missing() == frozenset())
        request = master.put()
        end = request.append_result.next_offset
        await two.bytes_up_to(end)
        await two.report(end)
        assert await decided(request) is Status.FLUSH_SLAVE_TIMEOUT
        (row,) = weak_rows(master)
        acks = row["acks"]
        assert (acks["in_sync_replicas"], acks["min_in_sync_replicas"]) == ("all", 1)
        assert (acks["members"], acks["needed"]) == ([1, 2, 3], [1, 2, 3])
        assert acks["got"] == [2]
        (missed,) = acks["missed"]
        assert missed["node_id"] == 3
        assert missed["address"] == "{}:{}".format(*silent.sock.getsockname())
        assert not missed["ack_offset"]  # None, or the 0 at which it began
        assert missed["sent_offset"] == end
        assert missed["last_report_age_s"] >= 3.0
        assert [node["node_id"] for node in acks["not_needed"]] == [4]


async def test_a_put_without_a_members_link_names_it(tmp_path):
    """SLAVE_NOT_AVAILABLE at once: the set may not shrink below a majority."""
    async with group_master(tmp_path / "m", members={1, 2}, ids={1, 2, 3}) as master:
        assert await decided(master.put()) is Status.SLAVE_NOT_AVAILABLE
        status = status_of(master)
        assert "node 2 not connected" in status.slave_unavailable_because
        (row,) = weak_rows(master)
        (missed,) = row["acks"]["missed"]
        assert (missed["node_id"], missed["address"]) == (2, None)
        assert missed["since_ms"] <= 10**12
        assert row["acks"]["got"] == []


async def test_a_refused_put_names_the_nodes_that_are_not_in_the_set(tmp_path):
    """IN_SYNC_REPLICAS_NOT_ENOUGH: the message was not written, so nobody has it."""
    async with group_master(
        tmp_path / "m", members={1}, rules={"min_in_sync_replicas": 2}
    ) as master:
        assert await decided(master.put()) is Status.IN_SYNC_REPLICAS_NOT_ENOUGH
        assert not status_of(master).sync_state.is_enough
        (row,) = weak_rows(master)
        assert row["first_offset"] is None
        assert (row["acks"]["got"], row["acks"]["missed"]) == ([], [])
        absent = {node["node_id"]: node["why_not"] for node in row["acks"]["not_needed"]}
        assert absent == dict.fromkeys((2, 3), "it has not connected in this epoch")


async def test_nodes_that_a_put_needs_come_first(tmp_path, monkeypatch):
    """An entry keeps a limited number of nodes."""
    monkeypatch.setattr(group_ha_service, "NODES_MAX", 1)
    async with group_master(tmp_path / "m", members={1, 3}, ids={1, 2, 3}) as master:
        (kept,) = master.service.standing().group.nodes
        assert kept.node.node_id == 3
