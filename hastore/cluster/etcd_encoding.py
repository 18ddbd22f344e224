"""The bodies of etcd's JSON gateway (``/v3/…``): requests and answers to values and back, no I/O.

::

    {"key": "L2cv", "range_end": "L2cw"}                        keys and values are base64
    {"header": {"cluster_id": "14841639068965178418",           64-bit numbers are strings;
                "revision": "7"}, "kvs": [{"key": …}]}          false, 0 and empty are left out
    {"error": "…", "message": "etcdserver: …", "code": 14}      a refusal: gRPC's code
    {"error": {"grpc_code": 14, "message": "…"}}                the same, in a stream

Source: etcd's ``rpc.proto`` and ``rpctypes/error.go``, 3.4 and 3.5.  Whatever an answer contains,
reading it raises nothing but errors below CoordinatorError.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from hastore.broker.observe.coordinator_status import NO_SPACE_HINT
from hastore.cluster.key_value_store import (
    Absent,
    Changes,
    KeyValue,
    Lease,
    Outcome,
    Put,
    Snapshot,
)
from hastore.errors import (
    CompactedError,
    CoordinatorError,
    CoordinatorLoginError,
    CoordinatorNoSpaceError,
    CoordinatorRefusedError,
    CoordinatorUnreachableError,
    LeaseGoneError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.cluster.key_value_store import Delete, Unchanged

Body = dict[str, Any]

_NUMBER_MAX: Final = 2**64 - 1
_DIGITS_MAX: Final = len(str(_NUMBER_MAX))
_TEXT_MAX: Final = 200  # of an answer, in a message
NOT_ETCD_HINT: Final = "is this an address for etcd's clients, and http or https as there?"

# gRPC's codes.
_UNAUTHENTICATED: Final = 16
# After these nobody knows what was done: cancelled, unknown, deadline exceeded, internal,
# unavailable (no leader, leader changed, request timed out, the server stops).
_UNKNOWN_CODES: Final = frozenset({1, 2, 4, 13, 14})
_HTTP_OK: Final = 200
_HTTP_SERVER_ERRORS: Final = 500

_LOGIN_FAILED: Final = "authentication failed"
_NO_SPACE: Final = "space exceeded"
_OVERLOADED: Final = "too many requests"
# What etcd's refusals say, and what to do then; the first that fits.
_HINTS: Final = (
    (_LOGIN_FAILED, "check the user and the password for etcd"),
    ("permission denied", "grant the user's role readwrite on the prefix: etcdctl role"),
    (_NO_SPACE, NO_SPACE_HINT),
    ("request is too large", "raise etcd's --max-request-bytes"),
    ("message larger than max", "raise etcd's --max-request-bytes"),
    (_OVERLOADED, "etcd is overloaded: look at its disk and its load"),
)


# As status has them: "memberID:7383792418829112008 alarm:NOSPACE ".
_ALARM: Final = re.compile(r"\balarm:([A-Z]+)")


# In the metrics: "etcd_server_quota_backend_bytes 2.147483648e+09".
_QUOTA: Final = re.compile(
    rb"^etcd_server_quota_backend_bytes ([0-9]{1,20}(?:\.[0-9]{1,20})?(?:e\+[0-9]{1,2})?)$",
    re.MULTILINE,
)


class TokenRefusedError(CoordinatorLoginError):
    """The token has expired, or is of an older set of users: authenticate again."""


# -- requests ------------------------------------------------------------------------------------


def to_base64(text: str | bytes) -> str:
    """Encode a key or a value; a key's lone surrogates stand for bytes that are not UTF-8."""
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    return base64.b64encode(data).decode()


def range_of(prefix: str) -> Body:
    """Return the range of all keys that begin with ``prefix``: up to its next neighbour."""
    key = prefix.encode(errors="surrogateescape")
    stem = key.rstrip(b"\xff")
    end = stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\0"  # etcd's end of all keys
    return {"key": to_base64(key or b"\0"), "range_end": to_base64(end)}


def count_body(prefix: str, revision: int = 0) -> Body:
    """Ask, at a revision (0: the newest), only how many keys there are."""
    return {**range_of(prefix), "count_only": True, "revision": str(revision)}


def commit_body(comparisons: Sequence[Absent | Unchanged], writes: Sequence[Put | Delete]) -> Body:
    """Return a transaction."""
    return {
        "compare": [_comparison(each) for each in comparisons],
        "success": [_write(each) for each in writes],
    }


def _comparison(comparison: Absent | Unchanged) -> Body:
    key = to_base64(comparison.key)
    if isinstance(comparison, Absent):
        return {"key": key, "target": "CREATE", "create_revision": "0"}
    return {"key": key, "target": "MOD", "mod_revision": str(comparison.mod_revision)}


def _write(write: Put | Delete) -> Body:
    key = to_base64(write.key)
    if isinstance(write, Put):
        lease = str(write.lease or 0)
        return {"request_put": {"key": key, "value": to_base64(write.value), "lease": lease}}
    return {"request_delete_range": {"key": key}}


def watch_body(prefix: str, after_revision: int) -> Body:
    """Return the request for all changes after a revision."""
    wish = {**range_of(prefix), "start_revision": str(after_revision + 1), "progress_notify": True}
    return {"create_request": wish}


# -- answers -------------------------------------------------------------------------------------


@final
@attrs.frozen
class Answer:
    """A JSON object of an answer; ``where`` names the endpoint that sent it.

    What cannot be read says nothing about what was done: CoordinatorUnreachableError.
    """

    where: str
    fields: Body

    @classmethod
    def of(cls, where: str, status: int, data: bytes) -> Answer:
        """Read a whole answer, or a line of a stream.  Raises what a refusal says."""
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError) as error:
            start = data[:_TEXT_MAX].decode(errors="replace").strip()
            raise _not_etcd(where, f"HTTP status {status}, {start!r}") from error
        answer = cls(where, fields if isinstance(fields, dict) else {"error": fields})
        if status != _HTTP_OK or "error" in answer.fields:
            raise _refusal(answer, status)
        return answer

    def number(self, name: str) -> int:
        """Return a number from 0 on; one that is left out is 0."""
        value = self.fields.get(name, 0)
        if isinstance(value, str) and re.fullmatch(rf"[0-9]{{1,{_DIGITS_MAX}}}", value):
            value = int(value)
        if type(value) is not int or not 0 <= value <= _NUMBER_MAX:
            raise self._wrong(name)
        return value

    def flag(self, name: str) -> bool:
        """Return a truth value; one that is left out is false."""
        value = self.fields.get(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name)
        return value

    def text(self, name: str) -> str:
        """Return a text; one that is left out is empty."""
        value = self.fields.get(name, "")
        if not isinstance(value, str):
            raise self._wrong(name)
        return value

    def data(self, name: str) -> bytes:
        """Return bytes; those that are left out are empty."""
        try:
            return base64.b64decode(self.text(name), validate=True)
        except ValueError as error:
            raise self._wrong(name) from error

    def inner(self, name: str) -> Answer:
        """Return an object; one that is left out is empty."""
        value = self.fields.get(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name)
        return Answer(self.where, value)

    def rows(self, name: str) -> list[Answer]:
        """Return a list of objects; one that is left out is empty."""
        value = self.fields.get(name, [])
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self._wrong(name)
        return [Answer(self.where, each) for each in value]

    def _wrong(self, name: str) -> CoordinatorUnreachableError:
        found = repr(self.fields.get(name))[:_TEXT_MAX]
        return _not_etcd(self.where, f"{name} is {found}")

    @property
    def cluster_id(self) -> int:
        """The id of the cluster that answered."""
        return self.inner("header").number("cluster_id")

    @property
    def revision(self) -> int:
        """The store's revision when it answered; an etcd without keys is at 1."""
        revision = self.inner("header").number("revision")
        if not revision:
            raise _not_etcd(self.where, "no revision")
        return revision


def snapshot_of(answer: Answer) -> Snapshot:
    """Return what a range found."""
    items = [_key_value_of(row) for row in answer.rows("kvs")]
    return Snapshot(answer.cluster_id, answer.revision, {item.key: item for item in items})


def _key_value_of(row: Answer) -> KeyValue:
    return KeyValue(
        key=_key_of(row),
        value=row.data("value"),
        create_revision=row.number("create_revision"),
        mod_revision=row.number("mod_revision"),
        lease=row.number("lease") or None,
    )


def _key_of(row: Answer) -> str:
    return row.data("key").decode(errors="surrogateescape")


def token_of(answer: Answer) -> str:
    """Return the token of a login, which goes into a header."""
    token = answer.text("token")
    if not (token.isascii() and token.isprintable()):
        raise _not_etcd(answer.where, "a token that no header can have")
    return token


def outcome_of(answer: Answer) -> Outcome:
    """Return what a transaction did."""
    return Outcome(answer.flag("succeeded"), answer.cluster_id, answer.revision)


def lease_of(answer: Answer) -> Lease:
    """Return a lease that was granted."""
    lease = Lease(answer.number("ID"), float(answer.number("TTL")))
    if not lease.lease_id or not lease.ttl_s:
        raise _not_etcd(answer.where, "no lease")
    return lease


def renewed_ttl_of(answer: Answer) -> float | None:
    """Return the time to live of a lease that was renewed, None if it has ended."""
    result = answer.inner("result")
    if not result.number("ID"):  # is there also for a lease that has ended
        raise _not_etcd(answer.where, "no lease")
    return float(result.number("TTL")) or None


def alarms_of(status: Answer) -> frozenset[str]:
    """Return the alarms that a server's status names, those of all servers: NOSPACE, CORRUPT."""
    errors = status.fields.get("errors", [])
    texts = errors if isinstance(errors, list) else []
    found = (_ALARM.search(text) for text in texts if isinstance(text, str))
    return frozenset(match[1] for match in found if match is not None)


def quota_in(metrics: bytes) -> int | None:
    """Return how large a server lets its database grow, from its metrics page; None: not there."""
    found = _QUOTA.search(metrics)
    return None if found is None else int(float(found[1])) or None


def changes_of(line: Answer, after_revision: int) -> list[Changes]:
    """Return what a watch's line says has changed: revision by revision, only later ones.

    A line may have several revisions, each of them whole; its header's revision may be above all
    of them, and later lines below that.  One without events is a sign of life.
    """
    result = line.inner("result")
    if result.number("compact_revision"):
        raise CompactedError(
            f"{line.where} has forgotten the changes after revision {after_revision}",
            after_revision=after_revision,
        )
    if result.flag("canceled"):
        raise _refused(line.where, result.text("cancel_reason") or "the watch was cancelled", None)
    puts: dict[int, dict[str, KeyValue]] = {}
    deletes: dict[int, dict[str, None]] = {}
    for event in result.rows("events"):
        row, kind = event.inner("kv"), event.fields.get("type", "PUT")
        revision = row.number("mod_revision")
        if kind == "PUT":
            puts.setdefault(revision, {})[_key_of(row)] = _key_value_of(row)
        elif kind == "DELETE":
            deletes.setdefault(revision, {})[_key_of(row)] = None
        else:
            raise _not_etcd(line.where, f"an event of type {repr(kind)[:_TEXT_MAX]}")
    return [
        Changes(each, tuple(puts.get(each, {}).values()), tuple(deletes.get(each, ())))
        for each in sorted(puts.keys() | deletes.keys())
        if each > after_revision
    ]


# -- refusals ------------------------------------------------------------------------------------


def _refusal(answer: Answer, status: int) -> CoordinatorError:
    """Return the error for an answer that is none."""
    error = answer.fields.get("error")
    inner = error if isinstance(error, dict) else answer.fields
    code, text = inner.get("code", inner.get("grpc_code")), inner.get("message", error)
    if not isinstance(text, str) or type(code) is not int:
        detail = repr(answer.fields)[:_TEXT_MAX]
        return _not_etcd(answer.where, f"HTTP status {status}, {detail}")
    if code in _UNKNOWN_CODES or (not code and status >= _HTTP_SERVER_ERRORS):
        return CoordinatorUnreachableError(f"{answer.where}: {text[:_TEXT_MAX]}")
    return _refused(answer.where, text, code)


def _refused(where: str, text: str, code: int | None) -> CoordinatorError:
    """Return the error for a text that refuses; the code is None if only the text is known."""
    message = f"{where}: {text[:_TEXT_MAX]}"
    if "requested lease not found" in text:
        return LeaseGoneError(message)
    if "user name is empty" in text:
        return TokenRefusedError(message, hint="etcd has users: set a user and its password")
    if code == _UNAUTHENTICATED or "invalid auth token" in text or "auth store is old" in text:
        return TokenRefusedError(message)
    if "no leader" in text or "server stopped" in text:  # reasons that end a watch
        return CoordinatorUnreachableError(message)
    hint = next((hint for words, hint in _HINTS if words in text), None)
    kind: type[CoordinatorError] = CoordinatorRefusedError
    if _LOGIN_FAILED in text:
        kind = CoordinatorLoginError
    elif _NO_SPACE in text:
        kind = CoordinatorNoSpaceError
    elif _OVERLOADED in text or (code is None and hint is None):  # it may pass by itself
        kind = CoordinatorUnreachableError
    return kind(message, hint=hint)


def is_out_of_range(error: CoordinatorError) -> bool:
    """Whether a read at a revision was refused because that is compacted, or not there yet."""
    return "revision has been compacted" in str(error) or "is a future revision" in str(error)


def has_no_users(error: CoordinatorError) -> bool:
    """Whether etcd asks nobody for a password."""
    return "authentication is not enabled" in str(error)


def _not_etcd(where: str, detail: str) -> CoordinatorUnreachableError:
    return CoordinatorUnreachableError(
        f"{where}: not an answer of etcd: {detail}", hint=NOT_ETCD_HINT
    )
