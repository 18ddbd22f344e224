"""The rules of ``rpo``, and the checker's rules computed from its counts, without Spark."""

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from hastore.pipeline.rpo.rules import (
    Fate,
    PutTally,
    RpoVerdict,
    all_fates,
    count_fates,
    verdict_of,
)
from hastore_scenarios.judge.account import Account
from hastore_scenarios.judge.presence import RULES, count_broken, disagreements
from tests.pipeline.rpo_worlds import RpoWorld

RANDOMS = st.randoms(use_true_random=False)


def one_put(**changes):
    """Return an acknowledged, promised put that both survivors have."""
    same = {
        "node": "a",
        "outcome": "ok",
        "status": "PUT_OK",
        "promised": True,
        "present": "11",
        "repeated": False,
        "puts": 1,
        "extra": 0,
        "altered": 0,
    }
    return PutTally(**same | changes)


def test_every_case_has_one_fate_and_every_fate_a_case():
    """There are 48 cases and ten fates."""
    cases = list(all_fates())
    assert len({case[:5] for case in cases}) == len(cases) == 48
    assert {fate for *_, fate in cases} == set(Fate)


def test_message_in_one_survivor_is_kept():
    """The other survivor may lack it."""
    assert verdict_of([one_put(present="01")]) is RpoVerdict.KEPT
    assert verdict_of([one_put(present="00")]) is RpoVerdict.LOST


def test_unreplicated_loss_counts_only_with_strict():
    """PUT_OK of an ASYNC_MASTER promises its own log only, so its loss is counted apart."""
    alone = [one_put(present="00", promised=False, puts=3)]
    assert count_fates(alone)[Fate.ALONE_LOST] == 3
    assert verdict_of(alone) is RpoVerdict.KEPT
    assert verdict_of(alone, strict=True) is RpoVerdict.LOST


def test_lost_takes_precedence_over_broken():
    """Duplicated, altered, and failed but stored messages break the rules."""
    broken = [
        one_put(repeated=True, extra=1),
        one_put(outcome="fail", status="MESSAGE_ILLEGAL"),
        one_put(outcome="unknown", status="NO_ANSWER", repeated=True, extra=1),
        one_put(altered=1),
    ]
    assert [verdict_of([one]) for one in broken] == [RpoVerdict.BROKEN] * 4
    assert verdict_of([*broken, one_put(present="00")]) is RpoVerdict.LOST
    fine = [
        one_put(outcome="unknown", status="NO_ANSWER"),
        one_put(outcome="unknown", status="NO_ANSWER", present="00"),
        one_put(outcome="fail", status="NOT_SENT", present="00"),
    ]
    assert verdict_of(fine) is RpoVerdict.KEPT


@settings(max_examples=300)
@given(RANDOMS, st.sampled_from([0.0, 0.05, 0.3]))
def test_counts_break_the_same_rules_as_the_checker(random, trouble):
    """The counts are those by presence in the survivors."""
    world = RpoWorld(random, trouble=trouble)
    nodes = tuple(world.logs)
    tallies = [attrs.asdict(tally) for tally in world.tallies(nodes)]
    account = Account.of(world.history.events)
    counts = count_broken(tallies, world.foreign(), nodes, account)
    assert disagreements(counts, world.checker_counts()) == ()


@settings(max_examples=300)
@given(RANDOMS)
def test_verdict_is_lost_iff_a_promised_message_is_in_no_log(random):
    """The expected value comes from checking each put alone."""
    world = RpoWorld(random)
    nodes = tuple(world.logs)
    tallies = world.tallies(nodes)
    intact = {(held.key, held.body) for log in world.logs.values() for held in log if held.is_sound}
    lost = sum(
        put.label == "PUT_OK"
        and put.wait
        and world.term_of(put).role.value == "SYNC_MASTER"
        and (put.key, put.key.encode() * 3) not in intact
        and not world.removals(put)[0]
        for put in world.history.operations
    )
    assert count_fates(tallies)[Fate.ACKNOWLEDGED_LOST] == lost
    assert (verdict_of(tallies) is RpoVerdict.LOST) == bool(lost)


def test_disagreement_names_the_rule_and_both_numbers():
    """A person must be able to find out which number is wrong."""
    counts = dict.fromkeys(RULES, 0)
    seen = {rule.value: 0 for rule in RULES} | {"duplicate": 2}
    reported = disagreements(counts, seen)
    assert reported == ("duplicate: the checker counts 2, Spark 0",)
