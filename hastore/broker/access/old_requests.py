"""Which requests of the last release without hastore's own signature still count, and why.

RocketMQ's signature covers values without names and code.  Whoever records a table read (21), whose
values are the digits ``128``, could send it as LOG_BYTES with ``epoch=1 from=2 to=8``, or as a role
request with ``masterEpoch=128``.  So during a rolling upgrade RocketMQ's signature counts only for
a request whose values can be split in one way, and occur in no request of another code::

    1008   masterAddress=OURS masterBrokerId=OURS masterEpoch=N     make this very node master
    28103  epoch=N group=TEXT masterId=N nonce=0.(17 digits) ttlMs=N    a promise to its master

"Ours" fixes where the address and the id end, so the rest is the epoch; the promise's group is
compared with the node's own, and its nonce has the only full stop and 17 digits behind it.  Fields
beside these could take up a part of another request, so there must be none.

Nodes need the promise: a master of the last release asks members that are newer for it while its
coordinator is silent.  Commands of the last release can make a node master, which demotes none.  A
newer node refuses all else of theirs that needs an own signature (a whole ``cluster failover``,
``explain``, ``cluster history``, the comparison of ``doctor``), so commands are updated first.  An
unverified slave of the last release compares its log with a newer master's once it is newer, too.

Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hastore.access.signature import ACCESS_KEY_FIELD, SIGNATURE_FIELD
from hastore.quantities import format_address
from hastore.wire.remoting_codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.broker.request_target import RequestTarget
    from hastore.wire.remoting_command import RemotingCommand

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_PROMISE_NONCE: Final = re.compile(r"0\.[0-9]{17}")
_SIGNATURE_FIELDS: Final = frozenset({ACCESS_KEY_FIELD, SIGNATURE_FIELD})
_PROMOTION: Final = frozenset({"masterAddress", "masterBrokerId", "masterEpoch"})
_PROMISE: Final = frozenset({"epoch", "group", "masterId", "nonce", "ttlMs"})


def is_from_the_last_release(
    request: RemotingCommand, target: RequestTarget, reached_at: tuple[str, int] | None
) -> bool:
    """Whether RocketMQ's signature, which is right, proves the code of a request of hastore's own.

    ``reached_at``: the address of this node that the client has connected to; None if not known.
    """
    fields = {
        name: value for name, value in request.ext_fields.items() if name not in _SIGNATURE_FIELDS
    }
    if not all(type(value) is str for value in fields.values()):
        return False
    match request.code:
        case RequestCode.NOTIFY_BROKER_ROLE_CHANGED:
            return fields.keys() == _PROMOTION and _is_our_promotion(fields, target, reached_at)
        case RequestCode.PROMISE_NOT_TO_STAND:
            return fields.keys() == _PROMISE and not request.body and _is_promise(fields)
        case _:
            return False


def _is_our_promotion(
    fields: Mapping[str, str], target: RequestTarget, reached_at: tuple[str, int] | None
) -> bool:
    addresses = {format_address(each) for each in (target.address, reached_at) if each is not None}
    own_id = target.status().node_id
    return (
        fields["masterAddress"] in addresses
        and own_id is not None
        and fields["masterBrokerId"] == str(own_id)
        and _NUMBER.fullmatch(fields["masterEpoch"]) is not None
    )


def _is_promise(fields: Mapping[str, str]) -> bool:
    numbers = (fields["epoch"], fields["masterId"], fields["ttlMs"])
    return (
        all(_NUMBER.fullmatch(each) for each in numbers)
        and _PROMISE_NONCE.fullmatch(fields["nonce"]) is not None
    )
