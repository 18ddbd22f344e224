"""The simulator of replica groups finds each bug that is planted into it."""

import pytest

from hastore.sim.group.group_simulation import simulate_group
from tests.support.worlds.planted_in_groups import PLANTED_IN_GROUPS

SEEDS_MAX = 200
# A seed that finds the bug soon.  Any change that draws from a seed's generators may make them
# useless: then other seeds find it, later, and `make soak` prints the first one.  A bug without a
# known seed is looked for by `make soak` alone.
FOUND_BY = {
    "begins_without_its_entry": 0,
    "stores_the_entry_after_the_bytes": 0,
    "continues_its_epoch_after_a_restart": 2,
    "cuts_at_the_end_of_its_own_epoch": 7,
    "cuts_the_whole_epoch": 1,
    "counts_a_second_node": 0,
    "counts_connections": 133,
    "ignores_the_minimum_of_waiting_puts": 29,
    "takes_one_copy_for_the_default": 16,
    "shrinks_before_it_is_accepted": 0,
    "awaits_a_joining_node_once_it_is_accepted": 4,
    "cuts_without_comparing": 18,
    "takes_equal_epochs_for_equal_logs": 65,
    "sends_observers_all_that_it_has": 113,
    "stores_delay_offsets_before_they_are_confirmed": 84,
    "loses_consumer_offsets_at_a_promotion": 80,
    "copies_no_consumer_offsets": 0,
    "elects_a_node_outside_the_set": 0,
    "dispatches_all_at_a_promotion": 14,
    "takes_its_own_changes_for_losses": 0,
    "forgets_deletions_at_an_opening": 69,
    "keeps_offsets_in_deleted_topics": 69,
    "deletes_what_was_made_again": 69,
    "begins_again_at_offset_0": 69,
    "revives_nothing": 19,
}


def find(plant, seeds, monkeypatch):
    """Return the first seed that finds a bug, by a rule that fits it."""
    plant(monkeypatch)
    for seed in seeds:
        result = simulate_group(seed)
        if not result.ok:
            rules = PLANTED_IN_GROUPS[plant]
            assert result.violation.name in rules, f"seed {seed}: {result.violation}"
            return seed
    pytest.fail(f"{plant.__name__} was not found in {SEEDS_MAX} seeds: {plant.__doc__}")


# Only in the soak: the other bug of consumer offsets is found by the same rule.
LATER = {"loses_consumer_offsets_at_a_promotion"}


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(plant, marks=pytest.mark.soak)
        if plant.__name__ in LATER or plant.__name__ not in FOUND_BY
        else plant
        for plant in PLANTED_IN_GROUPS
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_bug_planted_into_a_group_is_found(plant, monkeypatch):
    """The first violation within 200 seeds is of a rule that fits the bug."""
    known = FOUND_BY.get(plant.__name__)
    find(plant, sorted(range(SEEDS_MAX), key=lambda seed: seed != known), monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("plant", PLANTED_IN_GROUPS, ids=lambda plant: plant.__name__)
def test_a_bug_planted_into_a_group_is_found_in_order(plant, monkeypatch):
    """Likewise if the seeds are tried from 0 on, and none before that breaks another rule."""
    print(plant.__name__, find(plant, range(SEEDS_MAX), monkeypatch))


def test_seeds_are_known_for_planted_bugs_only():
    """A bug that was renamed or removed leaves no seed behind."""
    assert FOUND_BY.keys() <= {plant.__name__ for plant in PLANTED_IN_GROUPS}
