"""What nodes say themselves goes before what etcd has of them."""

import attrs

from hastore_cli.cluster.heard import refreshed
from tests.support.nodes.group_views import member, view_of
from tests.support.nodes.statuses import GROUP_MASTER


def test_the_end_of_a_log_and_its_epochs_are_those_that_its_node_says():
    """An earlier version says no ``end_epoch``: then it is that of its newest epoch."""
    view = view_of(member(1), member(2, last_epoch=7, end_epoch=6))
    said = attrs.evolve(GROUP_MASTER, epoch=9, end_epoch=8, max_offset=1_500)
    after = refreshed(view, {2: said}).members
    assert (after[2].last_epoch, *after[2].log_rank) == (9, 8, 1_500)
    assert after[1] == view.members[1]
    after = refreshed(view, {2: attrs.evolve(said, end_epoch=None)}).members
    assert after[2].log_rank == (9, 1_500)
