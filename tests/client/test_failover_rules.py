"""What becomes of a message whose node is no master any more: the table, row by row."""

import pytest

from hastore.client.failover_rules import Fate, Retry, Verdict, is_from_master, judge, last_fate
from hastore.wire.remoting_codes import FLAG_RESPONSE, ResponseCode
from hastore.wire.remoting_command import RemotingCommand


def answer(code, status=None, *, not_master=False):
    fields = {} if status is None else {"putStatus": status}
    if not_master:
        fields["notMaster"] = "true"
    return RemotingCommand(code=code, flag=FLAG_RESPONSE, ext_fields=fields)


PUT_OK = answer(ResponseCode.SUCCESS)
WEAKER = answer(ResponseCode.FLUSH_SLAVE_TIMEOUT, "FLUSH_SLAVE_TIMEOUT")
DISK_FULL = answer(ResponseCode.SERVICE_NOT_AVAILABLE, "SERVICE_NOT_AVAILABLE")
TOO_FEW = answer(ResponseCode.SYSTEM_ERROR, "IN_SYNC_REPLICAS_NOT_ENOUGH")
NO_PERMISSION = answer(ResponseCode.NO_PERMISSION)
REFUSED = answer(ResponseCode.SERVICE_NOT_AVAILABLE, "SERVICE_NOT_AVAILABLE", not_master=True)
ROCKETMQ_SLAVE = answer(ResponseCode.SERVICE_NOT_AVAILABLE)
STEPPED_DOWN = answer(ResponseCode.FLUSH_SLAVE_TIMEOUT, "FLUSH_SLAVE_TIMEOUT", not_master=True)
FAILED = answer(ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR", not_master=True)


@pytest.mark.parametrize("retry", Retry)
@pytest.mark.parametrize("response", [PUT_OK, WEAKER, DISK_FULL, TOO_FEW, NO_PERMISSION])
def test_an_answer_of_a_master_is_the_outcome(response, retry):
    """Whatever it says: a full disk is no reason to look for another master."""
    assert is_from_master(response)
    assert judge(response, retry) == Verdict(Fate.ANSWERED, False, False)


@pytest.mark.parametrize("retry", Retry)
@pytest.mark.parametrize("response", [REFUSED, ROCKETMQ_SLAVE])
def test_a_refusal_because_of_the_role_is_sent_again(response, retry):
    """It is in no log; if it was in doubt before, it still is."""
    assert not is_from_master(response)
    assert judge(response, retry) == Verdict(Fate.AGAIN, True, False)
    assert judge(response, retry, was_in_doubt=True) == Verdict(Fate.AGAIN, True, True)


@pytest.mark.parametrize("response", [STEPPED_DOWN, FAILED, None])
def test_what_a_former_master_may_have_stored_is_in_doubt(response):
    """Unknown, or with AT_LEAST_ONCE sent again."""
    assert judge(response, Retry.REFUSED) == Verdict(Fate.UNKNOWN, True, True)
    assert judge(response, Retry.AT_LEAST_ONCE) == Verdict(Fate.AGAIN, True, True)


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        (PUT_OK, Verdict(Fate.ANSWERED, False, False)),
        (WEAKER, Verdict(Fate.ANSWERED, False, False)),
        (TOO_FEW, Verdict(Fate.UNKNOWN, False, True)),
        (NO_PERMISSION, Verdict(Fate.UNKNOWN, False, True)),
    ],
)
def test_only_a_master_that_stored_it_ends_the_doubt(response, verdict):
    """A refusal says nothing of what an earlier master has stored."""
    assert judge(response, Retry.AT_LEAST_ONCE, was_in_doubt=True) == verdict


@pytest.mark.parametrize(
    ("verdict", "fate"),
    [
        (Verdict(Fate.AGAIN, True, False), Fate.ANSWERED),
        (Verdict(Fate.AGAIN, True, True), Fate.UNKNOWN),
        (Verdict(Fate.UNKNOWN, True, True), Fate.UNKNOWN),
        (Verdict(Fate.ANSWERED, False, False), Fate.ANSWERED),
    ],
)
def test_the_end_of_a_message_that_cannot_be_sent_again(verdict, fate):
    """Refused if that is certain, else unknown."""
    assert last_fate(verdict) is fate
