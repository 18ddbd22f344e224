"""The simulator of groups with a coordinator finds each bug that is planted into them."""

import pytest

from hastore.sim.group.group_simulation import simulate_group
from tests.support.worlds.planted_with_etcd import PLANTED_WITH_ETCD

SEEDS_MAX = 200
# A seed that finds the bug soon.  Any change that draws from a seed's generators may make them
# useless: then other seeds find it, later, and `make soak` prints the first one.
FOUND_BY = {
    "stands_outside_the_set": 3,
    "stands_with_another_directory": 0,
    "elects_a_node_that_lost_its_cache": 1,
    "continues_its_epoch_after_a_start": 1,
    "shrinks_before_it_is_accepted": 1,
    "voids_a_proposal_after_a_read": 85,
    "acknowledges_after_giving_up_its_role": 124,
    "ends_because_etcd_is_full": 7,
    "repairs_without_a_mark": 14,
    "verifies_without_a_comparison": 14,
    "elects_an_unverified_member": 83,
    "keeps_its_role_on_a_full_disk": 0,
    "hands_over_to_a_full_node": 5,
    "needs_room_to_change_its_role": 2,
    "compares_no_token": 2,
    "recognises_no_start": 0,
    "uses_start_numbers_again": 2,
    "compares_no_start_with_the_state": 80,
    "accepts_a_copy_beside_its_original": 0,
    "records_no_finding_of_an_opening": 1,
    "takes_the_same_boot_for_a_proof": 1,
    "does_not_compare_the_acked_offset": 1,
    "lowers_the_confirm_mark_without_a_trace": 94,
    "elects_the_unproven_without_all_members": 3,
    "prefers_the_unproven": 1,
    "leaves_out_the_unproven": 2,
    "forgets_promises_of_another_ttl": 11,
    "copies_no_deletions": 135,
}


def find(plant, seeds, monkeypatch):
    """Return the first seed that finds a bug, by a rule that fits it."""
    plant(monkeypatch)
    for seed in seeds:
        result = simulate_group(seed, with_etcd=True)
        if not result.ok:
            rules = PLANTED_WITH_ETCD[plant]
            assert result.violation.name in rules, f"seed {seed}: {result.violation}"
            return seed
    pytest.fail(f"{plant.__name__} was not found in {SEEDS_MAX} seeds: {plant.__doc__}")


# Only in the soak: `make test` finds the same bugs without etcd, or in a story.
FOUND_ELSEWHERE = {
    "elects_a_node_that_lost_its_cache": "sim/test_planted_in_groups",
    "shrinks_before_it_is_accepted": "sim/test_planted_in_groups",
    "stands_outside_the_set": "scenarios/test_planted_bugs",
}
QUICK = [
    pytest.param(plant, marks=pytest.mark.soak) if plant.__name__ in FOUND_ELSEWHERE else plant
    for plant in PLANTED_WITH_ETCD
    if plant.__name__ in FOUND_BY
]


@pytest.mark.parametrize("plant", QUICK, ids=lambda plant: plant.__name__)
def test_a_bug_planted_into_a_group_with_etcd_is_found(plant, monkeypatch):
    """The first violation within 200 seeds is of a rule that fits the bug."""
    known = FOUND_BY[plant.__name__]
    find(plant, sorted(range(SEEDS_MAX), key=lambda seed: seed != known), monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("plant", PLANTED_WITH_ETCD, ids=lambda plant: plant.__name__)
def test_a_bug_planted_into_a_group_with_etcd_is_found_in_order(plant, monkeypatch):
    """Likewise if the seeds are tried from 0 on, and none before that breaks another rule."""
    print(plant.__name__, find(plant, range(SEEDS_MAX), monkeypatch))


def test_seeds_are_known_for_planted_bugs_only():
    """A bug that was renamed or removed leaves no seed behind."""
    assert FOUND_BY.keys() <= {plant.__name__ for plant in PLANTED_WITH_ETCD}
