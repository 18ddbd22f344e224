"""The simulated group itself."""

from tests.cluster.simulated import simulated

_SIZE_MAX = 10_000


@simulated()
async def test_a_failed_assert_prints_little(group):
    """Pytest prints each object of an assert: with every byte of every disk that took minutes."""
    node_id, master = await group.master()
    agent, role = group.cluster.agent(node_id), group.roles[node_id]
    shown = [group, group.cluster, group.masters(), master, agent, role, group.node(node_id)]
    sizes = [len(repr(each)) for each in shown]
    assert max(sizes) < _SIZE_MAX
