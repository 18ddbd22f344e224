"""The audit log: who has changed what on a node, from where, and with which outcome.

::

    request of an admin ── guard ── refused ──────────────────→ event, outcome "refused"
                             └──── process ── answered ───────→ event, "done" or "failed"
                                                 └ cancelled ─→ event, "unknown"

Events go to the logger ``hastore.audit`` (``hastore.trace.audit``), each one: none is sampled, and
``[log] level`` does not silence them.  A request that only reads is an event where it is refused.

Invariant: each code that only an admin may use is in ``CHANGES`` or in ``READS``; a test checks it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore.access.signature import DENIED_FIELD
from hastore.concurrency.tcp import describe
from hastore.errors import ProtocolError
from hastore.trace import audit
from hastore.wire import liberal_json
from hastore.wire.property_text import read_java_properties
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from hastore.wire.remoting_command import RemotingCommand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.access.permissions import Account
    from hastore.broker.reply import Answer, Later

# What a request changes, and the ext fields that say of what; a group's name is in its body.
CHANGES: Final[Mapping[int, tuple[str, tuple[str, ...]]]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: (
        "put-topic",
        ("topic", "readQueueNums", "writeQueueNums", "perm"),
    ),
    RequestCode.DELETE_TOPIC_IN_BROKER: ("delete-topic", ("topic",)),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ("put-group", ()),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: (
        "delete-group",
        ("groupName", "removeOffset", "cleanOffset"),
    ),
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: (
        "change-role",
        ("masterBrokerId", "masterAddress", "masterEpoch"),
    ),
    RequestCode.UPDATE_BROKER_CONFIG: ("update-config", ()),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: (
        "reset-offsets",
        ("topic", "group", "timestamp", "isForce", "queueId", "offset"),
    ),
    RequestCode.UPDATE_CONSUMER_OFFSET: (
        "set-offset",
        ("consumerGroup", "topic", "queueId", "commitOffset"),
    ),
}
# What members and slaves of a group ask for all the time, and commands that show something.
READS: Final[Mapping[int, str]] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: "read-topics",
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "read-groups",
    RequestCode.GET_ALL_CONSUMER_OFFSET: "read-offsets",
    RequestCode.GET_ALL_DELAY_OFFSET: "read-delay-offsets",
    RequestCode.GET_BROKER_RUNTIME_INFO: "read-runtime-info",
    RequestCode.GET_BROKER_CONFIG: "read-config",
    RequestCode.CLEAN_UNUSED_TOPIC: "clean-unused-topic",  # which is always refused
    RequestCode.GET_BROKER_EPOCH_CACHE: "read-epochs",
    RequestCode.GET_PRODUCER_CONNECTION_LIST: "read-producers",
    RequestCode.VIEW_BROKER_STATS_DATA: "read-stats",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "read-consumer",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "consume-message",  # a client does: no change here
    RequestCode.GET_BROKER_CONSUME_STATS: "read-consumption",
    RequestCode.EXPLAIN_PUTS: "read-decisions",
    RequestCode.LOG_DIGEST: "read-digest",
    RequestCode.LOG_BYTES: "read-log",
    RequestCode.GROUP_LOG: "read-group-log",
    RequestCode.COUNT_MESSAGES: "count-messages",
    RequestCode.PROMISE_NOT_TO_STAND: "promise",
}
NOBODY: Final = "nobody"  # the node needs no access keys, or the request has none
_CUT_OFF: Final = "the connection ended before the outcome was known, or the node stops"
_TEXT_MAX: Final = 300  # characters of a value
_BODY_MAX: Final = 65_536  # bytes; a group's configuration has some hundred
_REFUSED_BODY_MAX: Final = 4_096  # of a request that is refused: parsed in less than 0.1 ms
_FIELDS_MAX: Final = 20


def audit_refusal(
    request: RemotingCommand,
    peer: tuple[str, int],
    key: str | None,
    reason: str,
    *,
    is_proven: bool,
) -> None:
    """Record that a request of an admin was refused; a request of others is not recorded.

    Without a right signature (``is_proven``) the body is not looked into: anybody could fill the
    log with a few requests.
    """
    change = CHANGES.get(request.code)
    if request.code == RequestCode.UPDATE_CONSUMER_OFFSET or (
        change is None and request.code not in READS
    ):
        return  # a consumer's, which its own log has
    action = READS[request.code] if change is None else change[0]
    body_max = _REFUSED_BODY_MAX if is_proven else 0
    _record(action, request, peer, key, outcome="refused", reason=reason, body_max=body_max)


def audited(
    response: RemotingCommand | Later,
    request: RemotingCommand,
    peer: tuple[str, int],
    account: Account | None,
) -> RemotingCommand | Later:
    """Return a request's answer, which is recorded once it is known, if it changes something.

    Consumers commit their offsets, which are no events; those that an admin sets are.
    """
    change = CHANGES.get(request.code)
    if change is None:
        return response
    if request.code == RequestCode.UPDATE_CONSUMER_OFFSET and not (account and account.is_admin):
        return response
    key = None if account is None else account.key.name
    if isinstance(response, RemotingCommand):
        _record_answer(change[0], request, peer, key, response)
        return response

    async def make() -> Answer | None:
        try:
            answer = await response.make()
        except BaseException:
            _record(change[0], request, peer, key, outcome="unknown", reason=_CUT_OFF)
            raise
        _record_answer(change[0], request, peer, key, answer)
        return answer

    return attrs.evolve(response, make=make)


def _record_answer(
    action: str,
    request: RemotingCommand,
    peer: tuple[str, int],
    key: str | None,
    answer: Answer | None,
) -> None:
    assert isinstance(answer, RemotingCommand), "changes are answered with commands"
    if answer.code == ResponseCode.SUCCESS:
        _record(action, request, peer, key, outcome="done", reason=None)
    else:
        is_refused = answer.code == ResponseCode.NO_PERMISSION or DENIED_FIELD in answer.ext_fields
        outcome = "refused" if is_refused else "failed"
        size = _REFUSED_BODY_MAX if is_refused else _BODY_MAX
        _record(action, request, peer, key, outcome=outcome, reason=answer.remark, body_max=size)


def _record(
    action: str,
    request: RemotingCommand,
    peer: tuple[str, int],
    key: str | None,
    *,
    outcome: str,
    reason: str | None,
    body_max: int = _BODY_MAX,
) -> None:
    audit(
        action,
        who=_short(key) if key else NOBODY,
        peer=describe(peer),
        what=_what(request, body_max),
        outcome=outcome,
        reason=None if reason is None else _short(reason),
    )


def _what(request: RemotingCommand, body_max: int) -> dict[str, Any]:
    """Return what a request names, as far as it is there: a peer may send anything."""
    names = CHANGES[request.code][1] if request.code in CHANGES else ()
    fields = request.ext_fields
    what = {name: _short(str(fields[name])) for name in names if fields.get(name) is not None}
    if request.code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
        try:
            body = liberal_json.loads_object(request.body[:body_max], "the group")
        except ProtocolError:
            return what
        what |= _shown(body)
    if request.code == RequestCode.UPDATE_BROKER_CONFIG:
        what |= _shown(read_java_properties(request.body[:body_max]))
    return what


def _shown(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the first values of a request's body."""
    rows = sorted(values.items())[:_FIELDS_MAX]
    return {_short(name): _short(str(value)) for name, value in rows}


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
