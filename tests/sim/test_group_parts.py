"""The parts of the simulator of replica groups: what counts as lost, and as cut."""

from types import SimpleNamespace

import pytest
import trio

from hastore.sim.cluster import Boot
from hastore.sim.group.controller import GroupState, Member
from hastore.sim.group.group_faults import GroupTarget
from hastore.sim.group.group_simulation import GroupSimulation
from hastore.sim.host import SimOffload
from hastore.sim.seams import run_by_seed
from hastore.store.recovery.log_cut import LogCut


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
