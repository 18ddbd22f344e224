"""Whether a new link takes the place of the one that its node has: the table, row by row."""

import pytest

from hastore.ha.node_claims import REPLACED_LINK_S, ClaimStep, NodeClaims, Verdict

BEFORE, ASKED, AFTER = 9.0, 10.0, 10.5  # s
DUE = ASKED + REPLACED_LINK_S


def claimed(now=ASKED):
    """Return claims with one: link 21 claims node 2, which link 20 holds."""
    claims = NodeClaims()
    assert claims.claim(2, claimant_id=21, holder_id=20, now=now) is None
    return claims


def judge(claims, reported_at, now):
    (claim,) = claims.due(now)
    return claims.judge(claim, reported_at=reported_at, now=now)


def test_a_silent_holder_loses_its_place():
    """What it reported before it was asked says nothing of it."""
    claims = claimed()
    assert claims.next_deadline() == DUE
    assert list(claims.due(DUE - 0.001)) == []
    assert judge(claims, BEFORE, DUE) is Verdict.TAKE_PLACE
    assert claims.next_deadline() is None


@pytest.mark.parametrize(
    ("reported_at", "verdict"),
    [(AFTER, Verdict.TAKE_PLACE), (DUE, Verdict.REFUSE), (DUE + 0.1, Verdict.REFUSE)],
)
def test_a_holder_lives_that_reports_each_time(reported_at, verdict):
    """One report may have been under way as its slave left the link."""
    claims = claimed()
    assert judge(claims, AFTER, DUE) is Verdict.ASK_AGAIN
    assert claims.next_deadline() == DUE + REPLACED_LINK_S
    assert judge(claims, reported_at, DUE + REPLACED_LINK_S) is verdict
    assert claims.next_deadline() is None


def test_a_later_claimant_takes_the_place_of_an_earlier_one():
    """The holder's time goes on; the end of the earlier claimant changes nothing."""
    claims = claimed()
    judge(claims, AFTER, DUE)
    earlier = claims.claim(2, claimant_id=22, holder_id=20, now=DUE + 0.5)
    assert earlier.claimant_id == 21
    assert claims.ended(21, now=DUE + 0.5) is None
    (claim,) = claims.due(DUE + REPLACED_LINK_S)
    assert (claim.claimant_id, claim.step) == (22, ClaimStep.SECOND)


def test_the_holders_end_grants_the_claim():
    """Another node's link means nothing."""
    claims = claimed()
    assert claims.ended(30, now=AFTER) is None
    assert claims.ended(20, now=AFTER).claimant_id == 21
    assert claims.next_deadline() is None


def test_an_impatient_slave_takes_the_place_on_a_later_link():
    """It waits for less time than a claim takes, so the claim waits for its next link."""
    claims = claimed()
    assert claims.ended(21, now=AFTER) is None
    assert judge(claims, BEFORE, DUE) is Verdict.ASK_AGAIN
    assert claims.claim(2, claimant_id=22, holder_id=20, now=DUE + 0.1) is None
    assert judge(claims, BEFORE, DUE + REPLACED_LINK_S) is Verdict.TAKE_PLACE


def test_a_claim_without_a_claimant_is_forgotten():
    """No other one has come for a whole time."""
    claims = claimed()
    assert claims.ended(21, now=AFTER) is None
    assert judge(claims, BEFORE, DUE) is Verdict.ASK_AGAIN
    assert judge(claims, BEFORE, DUE + REPLACED_LINK_S) is Verdict.FORGET
    assert claims.next_deadline() is None
    claims = claimed()
    claims.ended(21, now=AFTER)
    assert claims.ended(20, now=AFTER) is None


def test_claims_of_nodes_are_apart():
    """Each has its own time."""
    claims = claimed()
    assert claims.claim(3, claimant_id=31, holder_id=30, now=ASKED + 0.5) is None
    assert [claim.node_id for claim in claims.due(DUE)] == [2]
    assert claims.withdraw(2).claimant_id == 21
    assert claims.withdraw(2) is None
    assert claims.next_deadline() == DUE + 0.5
