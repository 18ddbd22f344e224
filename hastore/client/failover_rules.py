"""What becomes of a message whose answer is no answer of a master: pure decisions.

::

    answer                                              message                    the link
    ------------------------------------------------    -----------------------    ---------
    PUT_OK                                              ANSWERED                   stays
    another answer of a master                          ANSWERED                   stays
    the same, not stored, sent before in doubt          UNKNOWN                    stays
    SERVICE_NOT_AVAILABLE, from no master               AGAIN                      is left
    another status, from no master                      UNKNOWN (AT_LEAST_ONCE:    is left
                                                        AGAIN)
    none: the link broke, or the time was up            UNKNOWN (AT_LEAST_ONCE:    is left
                                                        AGAIN)

A message that was refused with SERVICE_NOT_AVAILABLE is in no log, so it may be sent again.  One
that a node has stored, and then ceased to be master, is perhaps on its successor, perhaps not:
whatever the status says, its outcome is unknown.  So is that of a message without an answer.  If
it is sent again, it stays in doubt until a master says that it has stored it.  When no
time or no master is left, AGAIN becomes ANSWERED, or UNKNOWN if it is in doubt.

A node says that it is no master by the field ``notMaster``.  A RocketMQ broker does not: there
SERVICE_NOT_AVAILABLE, without hastore's ``putStatus``, is the refusal of a slave.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

from hastore.client.send_result import status_of
from hastore.status import PutMessageStatus
from hastore.wire.remoting_codes import ResponseCode
from hastore.wire.send_message import NOT_MASTER_FIELD, PUT_STATUS_FIELD

if TYPE_CHECKING:
    from hastore.wire.remoting_command import RemotingCommand


class Retry(enum.Enum):
    """Which messages a producer sends again after a failover."""

    REFUSED = "refused"  # those that are certainly in no log
    AT_LEAST_ONCE = "at_least_once"  # all without a master's answer: perhaps stored twice


class Fate(enum.Enum):
    """What becomes of a message."""

    ANSWERED = "answered"  # the node's answer is its outcome
    AGAIN = "again"  # it is sent to the next master
    UNKNOWN = "unknown"  # it may be stored


def is_from_master(response: RemotingCommand) -> bool:
    """Return whether a node answered a send request as a master."""
    fields = response.ext_fields
    if NOT_MASTER_FIELD in fields:
        return False
    return response.code != ResponseCode.SERVICE_NOT_AVAILABLE or PUT_STATUS_FIELD in fields


@attrs.frozen
class Verdict:
    """What becomes of a message, and of the link on which it was sent."""

    fate: Fate
    is_link_left: bool
    is_in_doubt: bool  # it may be stored


def judge(response: RemotingCommand | None, retry: Retry, *, was_in_doubt: bool = False) -> Verdict:
    """Return what follows an answer; see the table.  ``response`` None: there was none."""
    status = None if response is None else status_of(response)
    if response is not None and is_from_master(response):
        in_doubt = was_in_doubt and (status is None or not status.stored)
        return Verdict(Fate.UNKNOWN if in_doubt else Fate.ANSWERED, False, in_doubt)
    if status is PutMessageStatus.SERVICE_NOT_AVAILABLE:
        return Verdict(Fate.AGAIN, True, was_in_doubt)
    again = retry is Retry.AT_LEAST_ONCE
    return Verdict(Fate.AGAIN if again else Fate.UNKNOWN, True, True)


def last_fate(verdict: Verdict) -> Fate:
    """Return what becomes of a message that cannot be sent again any more."""
    if verdict.fate is not Fate.AGAIN:
        return verdict.fate
    return Fate.UNKNOWN if verdict.is_in_doubt else Fate.ANSWERED
