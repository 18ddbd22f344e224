"""The parts of the simulator of replica groups: losses, cuts, records and deliveries."""

from types import SimpleNamespace

import pytest
import trio

from hastore.sim.cluster import Boot
from hastore.sim.faults import Faults
from hastore.sim.group import directory_faults, node_log
from hastore.sim.group.controller import GroupState, Member
from hastore.sim.group.delay_oracle import Deliveries
from hastore.sim.group.directory_faults import DirectoryFaults
from hastore.sim.group.group_faults import GroupTarget
from hastore.sim.group.group_records import records
from hastore.sim.group.group_simulation import GroupSimulation
from hastore.sim.group.node_log import NodeLog
from hastore.sim.host import SimOffload
from hastore.sim.seams import run_by_seed
from hastore.sim.violation import ViolationError
from hastore.store.record.message_codec import decode
from hastore.store.recovery.log_cut import LogCut
from hastore.topic import SCHEDULE_TOPIC


def with_target(check):
    """Call ``check`` with a group whose nodes run their first boot; nodes 1 and 2 are its set.

    Node 1 has ASYNC_FLUSH, node 2 has SYNC_FLUSH.
    """

    async def main():
        simulation = next(
            simulation
            for simulation in map(GroupSimulation, range(1_000))
            if [simulation.config.is_sync(node_id) for node_id in (1, 2)] == [False, True]
        )
        async with trio.open_nursery() as nursery:
            controller = simulation._make_controller(nursery)
            controller.state = GroupState(
                epoch=1, members={node_id: Member("uuid", 1, 1) for node_id in (1, 2)}
            )
            for node in simulation.cluster.nodes:
                node.boots = 1
                node.boot = Boot(1, node.disk, SimOffload(simulation.choices))
            check(GroupTarget(simulation.cluster, simulation.oracle, controller))

    run_by_seed(1, main)


@pytest.mark.parametrize("lost_power", [False, True])
@pytest.mark.parametrize("syncs_failed", [0, 1])
def test_a_crash_loses_bytes_if_power_or_an_earlier_sync_failed(lost_power, syncs_failed):
    """The next start does not trust what a failed sync left in the page cache."""

    def check(target):
        for node in target.nodes[:2]:
            node.live_disk.syncs_failed = syncs_failed
            target.crashing(node, lost_power=lost_power)
        assert target.oracle.has_lost(1) == (lost_power or syncs_failed > 0)
        assert not target.oracle.has_lost(2), "it acknowledges only what is on its platter"

    with_target(check)


def test_a_cut_that_a_start_shows_again_is_not_new():
    """The newest cut by the wall clock may be an older one, after that clock has gone back."""

    def cut_at(time_ms):
        return LogCut(
            physic_offset=100,
            end_offset=200,
            reason="",
            time_ms=time_ms,
            epochs=(),
            messages={},
            saved_paths=(f"trimmed/{time_ms}",),
        )

    def check(target):
        log = target.oracle.logs[1]
        first, second = cut_at(2_000), cut_at(1_000)
        shown = [log.new_cut(SimpleNamespace(last_cut=cut)) for cut in (None, first, first)]
        shown += [log.new_cut(SimpleNamespace(last_cut=cut)) for cut in (second, first)]
        assert shown == [None, first, None, second, None]

    with_target(check)


@pytest.fixture
def opened(monkeypatch):
    """Return a node's log, the bytes on its disk, and a function that opens the log up to there."""
    disk = bytearray()
    monkeypatch.setattr(
        node_log, "log_range", lambda disk, start, end, *_size, **_kind: bytes(disk[start:end])
    )
    node = SimpleNamespace(name="node-1", live_disk=disk, boots=1)
    log = NodeLog(node, is_sync=False)

    def open_log():
        commit_log = SimpleNamespace(max_offset=len(disk), file_size=1_000)
        reput = SimpleNamespace(reput_offset=0)
        log.update(SimpleNamespace(commit_log=commit_log, reput_message_service=reput))

    return log, disk, open_log


def test_a_hole_that_was_filled_before_a_stop_is_none_at_the_next_start(opened):
    """A log was repaired, compared with its master's, and stopped before anything was appended."""
    log, disk, open_log = opened
    disk += b"0123456789"
    open_log()
    disk[3:5] = b"--"
    log.edited(b"0123456789")
    open_log()
    assert log.hole == node_log.Hole(3, b"34")
    disk[3:5] = b"34"
    open_log()
    assert log.hole is None
    assert log.data == disk


@pytest.mark.parametrize(("end", "has_hole"), [(2, False), (3, False), (4, True), (8, True)])
def test_a_log_that_is_opened_without_its_end_has_the_part_of_a_hole_that_is_left(
    opened, end, has_hole
):
    """Nothing but the hole may differ from what the log had."""
    log, disk, open_log = opened
    disk += b"0123456789"
    open_log()
    disk[3:5] = b"--"
    log.edited(b"0123456789")
    open_log()
    del disk[end:]
    open_log()
    assert (log.hole is not None) is has_hole
    assert log.data == disk


def test_bytes_that_change_beside_a_hole_are_found(opened):
    """A repair excuses only what it has put there."""
    log, disk, open_log = opened
    disk += b"0123456789"
    open_log()
    disk[3:5] = b"--"
    log.edited(b"0123456789")
    disk[6:7] = b"-"
    with pytest.raises(ViolationError, match="bytes below 10 have changed"):
        open_log()


@pytest.mark.parametrize("claims_after_s", [0.2, 0.5, 0.7, 2.0])
async def test_a_copy_is_stopped_as_soon_as_it_has_its_originals_id(
    claims_after_s, autojump_clock, nursery, monkeypatch
):
    """Otherwise it may be elected, and be older; without the id it is stopped after 1.5 s here."""
    runs = SimpleNamespace(has_claimed=trio.Event(), node=SimpleNamespace(is_up=False))

    def start(_nursery):
        runs.node.is_up = True

    def kill():
        runs.node.is_up, runs.killed_at = False, trio.current_time() - began

    runs.node.start, runs.node.kill = start, kill
    monkeypatch.setattr(directory_faults, "DirectoryCopy", lambda *_args: runs)
    target = SimpleNamespace(
        cluster=SimpleNamespace(id_of=lambda _node: 1),
        oracle=SimpleNamespace(
            logs={1: SimpleNamespace(foreign=None, hole=None, lost=None)}, lost_bytes=None
        ),
    )
    faults = DirectoryFaults(
        SimpleNamespace(is_over=False, begins=lambda *_args: None, nursery=nursery),
        target,
        SimpleNamespace(is_trusted=True),
        put=None,
    )
    node = SimpleNamespace(node=object(), name="node-1", live_disk=SimpleNamespace(snapshot=list))
    lasts = iter([0.5, 1.0])  # how long it runs, and how long it takes to be stopped
    choices = SimpleNamespace(randint=lambda low, _high: low, uniform=lambda *_range: next(lasts))

    async def claim():
        await trio.sleep(claims_after_s)
        runs.has_claimed.set()

    began = trio.current_time()
    nursery.start_soon(claim)
    await faults.actions()[directory_faults.COPY_BESIDE](None, node, choices)
    assert runs.killed_at == pytest.approx(min(claims_after_s, 1.5))


async def test_a_node_whose_log_was_removed_is_copied_again_after_a_lost_storage():
    """As after any other end: its start would refuse what is left of the directory."""
    calls = []
    node = SimpleNamespace(name="node-1", is_up=True)
    node.lose_storage = lambda _choices: setattr(node, "is_up", False)
    node.start = lambda _nursery: calls.append("start")
    target = SimpleNamespace(
        may_lose_power=lambda _node: True,
        crashing=lambda _node, **_kind: None,
        starting=lambda _node: calls.append("starting"),
        nodes=[],
        trace=SimpleNamespace(add=lambda *_args: None),
    )
    faults = Faults(target, None, plan=None, choices=None)
    choices = SimpleNamespace(random=lambda: 0.9)  # this node only, beside the others
    actions = DirectoryFaults(faults, target, None, put=None).actions()
    await actions[directory_faults.LOST_STORAGE](SimpleNamespace(number=0), node, choices)
    assert calls == ["starting", "start"]


@pytest.fixture(scope="module")
def log_with_delays():
    """Return the bytes of a log in which some messages were delayed, and all delivered."""
    simulation = next(s for s in map(GroupSimulation, range(1_000)) if s.config.has_delays)
    run_by_seed(simulation.seed, simulation.run)
    assert simulation.violation is None
    return bytes(simulation.oracle.logs[1].data)


def test_records_of_a_log_are_those_that_the_store_decodes(log_with_delays):
    """Topic, queue, queue offset and key, of delayed messages and of others."""
    found = list(records(log_with_delays))
    assert {SCHEDULE_TOPIC.encode(), b"orders"} == {record.topic for record in found}
    for record in found:
        message = decode(log_with_delays[record.start : record.end])
        assert record.topic.decode() == message.topic
        assert (record.queue_id, record.queue_offset) == (message.queue_id, message.queue_offset)
        assert record.key.decode() == message.properties["KEYS"]
        assert record.body_size == len(message.body)


def test_records_end_before_an_incomplete_one(log_with_delays):
    """A log that is being received may end anywhere."""
    whole = list(records(log_with_delays))
    for end in (whole[1].end - 1, whole[1].start + 1, whole[1].start):
        assert list(records(log_with_delays[:end])) == whole[:1]


def test_a_delayed_message_without_its_delivery_is_found(log_with_delays):
    """Below the offset that a node has stored for its level."""
    delayed = next(each for each in records(log_with_delays) if each.topic != b"orders")
    level, queue_offset = delayed.queue_id + 1, delayed.queue_offset
    everything = Deliveries.of(log_with_delays)
    assert everything.undelivered(level, queue_offset + 1) is None
    cut = Deliveries.of(log_with_delays[: delayed.end])
    assert cut.undelivered(level, queue_offset) is None
    assert cut.undelivered(level, queue_offset + 1) == delayed.key
