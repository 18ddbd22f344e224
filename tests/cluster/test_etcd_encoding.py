"""The JSON of etcd's gateway: requests as etcd wants them, answers however hostile."""

from __future__ import annotations

import base64
import json
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hastore.cluster import etcd_encoding
from hastore.cluster.etcd_encoding import Answer, TokenRefusedError
from hastore.cluster.key_value_store import (
    Absent,
    Changes,
    Delete,
    KeyValue,
    Lease,
    Outcome,
    Put,
    Snapshot,
    Unchanged,
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

OK = 200
HEADER = {"cluster_id": "14841639068965178418", "revision": "9"}
READERS = (
    etcd_encoding.snapshot_of,
    etcd_encoding.outcome_of,
    etcd_encoding.lease_of,
    etcd_encoding.renewed_ttl_of,
    lambda answer: etcd_encoding.changes_of(answer, 3),
)
# Names that etcd uses, so that an answer that is made up gets far.
NAMES = st.sampled_from(
    [
        *("header", "cluster_id", "revision", "kvs", "kv", "key", "value", "create_revision"),
        *("mod_revision", "lease", "succeeded", "ID", "TTL", "result", "events", "type"),
        *("compact_revision", "canceled", "cancel_reason", "error", "code", "message"),
    ]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.integers().map(str),
    st.binary(max_size=5).map(lambda data: base64.b64encode(data).decode()),
    st.sampled_from(["PUT", "DELETE", "9" * 5000, "٣", "1_0", "-1", "etcdserver: no leader"]),
)
HOSTILE = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=20,
)


def answer(**fields: object) -> Answer:
    """Return an answer with a header."""
    return Answer.of("etcd", OK, json.dumps({"header": HEADER, **fields}).encode())


def text64(text: str) -> str:
    """Return a text in base64."""
    return base64.b64encode(text.encode()).decode()


@given(status=st.sampled_from([200, 302, 400, 404, 500, 503]), fields=HOSTILE)
@example(status=OK, fields={"header": {"revision": float("inf")}})
@example(status=OK, fields={"header": {"revision": True}})
@example(status=OK, fields={"header": HEADER, "kvs": [{"key": "ä"}]})
@example(status=400, fields={"error": "x", "message": ["lease"], "code": 5})
def test_no_json_raises_anything_but_our_errors(status: int, fields: object) -> None:
    """Whatever is in an answer, each reader returns a value or raises a CoordinatorError."""
    data = json.dumps(fields).encode()
    for read in READERS:
        with suppress(CoordinatorError):
            read(Answer.of("etcd", status, data))


@given(st.integers(100, 599), st.binary(max_size=40))
@example(OK, b"[" * 100_000)
@example(OK, b"1" * 5000)
@example(OK, b'{"a": NaN}')
@example(OK, b"<html>")
@example(OK, b"")
def test_no_bytes_raise_anything_but_our_errors(status: int, data: bytes) -> None:
    """What is no JSON object is not an answer of etcd."""
    with suppress(CoordinatorError):
        Answer.of("etcd", status, data)


@given(st.text(max_size=4), st.binary(max_size=6))
@example("", b"\x00")
@example("/g/", b"/g0")
@example("\U0010ffff", b"\xf4\x8f\xbf\xbf\xff")
def test_a_range_is_exactly_the_keys_below_a_prefix(prefix: str, key: bytes) -> None:
    """Compared as etcd compares: bytes, the end exclusive; an end of a zero byte is none."""
    try:
        begin = prefix.encode()
    except UnicodeEncodeError:
        return  # half of a surrogate pair is in no prefix
    body = etcd_encoding.range_of(prefix)
    first, end = (base64.b64decode(body[name]) for name in ("key", "range_end"))
    if key:
        assert key.startswith(begin) == (first <= key and (end == b"\0" or key < end))


@given(st.binary(max_size=20))
def test_a_key_that_is_no_text_comes_back(key: bytes) -> None:
    """Somebody else's bytes below our prefix do no harm, and can be compared and deleted."""
    row = {"key": base64.b64encode(key).decode(), "create_revision": "1", "mod_revision": "1"}
    (found,) = etcd_encoding.snapshot_of(answer(kvs=[row])).items
    assert base64.b64decode(etcd_encoding.to_base64(found)) == key


def test_a_transaction_compares_and_writes() -> None:
    """As etcd's documentation has it: numbers are strings, bytes base64."""
    body = etcd_encoding.commit_body(
        [Absent("/a"), Unchanged("/b", 7)], [Put("/a", b"1", lease=5), Delete("/b")]
    )
    assert body == {
        "compare": [
            {"key": "L2E=", "target": "CREATE", "create_revision": "0"},
            {"key": "L2I=", "target": "MOD", "mod_revision": "7"},
        ],
        "success": [
            {"request_put": {"key": "L2E=", "value": "MQ==", "lease": "5"}},
            {"request_delete_range": {"key": "L2I="}},
        ],
    }


def test_answers_are_read() -> None:
    """What etcd leaves out is false, zero or empty."""
    cluster_id = int(HEADER["cluster_id"])
    row = {"key": "L2E=", "create_revision": "2", "mod_revision": "3", "version": "2"}
    item = KeyValue("/a", b"", 2, 3, None)
    assert etcd_encoding.snapshot_of(answer(kvs=[row])) == Snapshot(cluster_id, 9, {"/a": item})
    assert etcd_encoding.outcome_of(answer(succeeded=True)) == Outcome(True, cluster_id, 9)
    assert etcd_encoding.outcome_of(answer()) == Outcome(False, cluster_id, 9)
    assert etcd_encoding.lease_of(answer(ID="77", TTL="5")) == Lease(77, 5.0)
    assert etcd_encoding.renewed_ttl_of(answer(result={"ID": "77", "TTL": "5"})) == 5.0
    assert etcd_encoding.renewed_ttl_of(answer(result={"ID": "77"})) is None


def test_a_line_may_have_several_revisions() -> None:
    """Each is one Changes with its own number; those that were seen before are left out."""

    def event(key: str, revision: int, kind: str | None = None) -> dict[str, object]:
        kv = {"key": text64(key), "create_revision": "1", "mod_revision": str(revision)}
        return {"kv": kv} if kind is None else {"type": kind, "kv": kv}

    events = [event("/old", 3), event("/a", 4), event("/b", 4, "DELETE"), event("/a", 6, "PUT")]
    line = Answer("etcd", {"result": {"header": HEADER, "events": events}})
    assert etcd_encoding.changes_of(line, 3) == [
        Changes(4, (KeyValue("/a", b"", 1, 4, None),), ("/b",)),
        Changes(6, (KeyValue("/a", b"", 1, 6, None),), ()),
    ]
    created = Answer("etcd", {"result": {"header": HEADER, "created": True}})
    assert etcd_encoding.changes_of(created, 3) == []


def test_a_watch_that_was_compacted_says_so() -> None:
    """The error has the revision from which nothing is known."""
    line = Answer("etcd", {"result": {"canceled": True, "compact_revision": "8"}})
    with pytest.raises(CompactedError) as caught:
        etcd_encoding.changes_of(line, 3)
    assert caught.value.after_revision == 3


REFUSALS = [
    (503, 14, "etcdserver: no leader", CoordinatorUnreachableError),
    (503, 14, "etcdserver: request timed out", CoordinatorUnreachableError),
    (504, 4, "context deadline exceeded", CoordinatorUnreachableError),
    (500, 2, "anything", CoordinatorUnreachableError),
    (404, 5, "etcdserver: requested lease not found", LeaseGoneError),
    (401, 16, "etcdserver: invalid auth token", TokenRefusedError),
    (400, 3, "etcdserver: revision of auth store is old", TokenRefusedError),
    (400, 3, "etcdserver: user name is empty", TokenRefusedError),
    (400, 3, "etcdserver: authentication failed, invalid user ID", CoordinatorLoginError),
    (403, 7, "etcdserver: permission denied", CoordinatorRefusedError),
    (429, 8, "etcdserver: mvcc: database space exceeded", CoordinatorNoSpaceError),
    (429, 8, "etcdserver: too many requests", CoordinatorUnreachableError),
    (400, 3, "etcdserver: duplicate key given in txn request", CoordinatorRefusedError),
]


@pytest.mark.parametrize(("status", "code", "text", "kind"), REFUSALS)
def test_a_refusal_says_whether_anything_can_have_been_done(
    status: int, code: int, text: str, kind: type[CoordinatorError]
) -> None:
    """In an answer and in a stream; only what etcd decides not to do is a refusal."""
    whole = {"error": text, "message": text, "code": code}
    in_stream = {"error": {"grpc_code": code, "http_code": status, "message": text}}
    for http_status, body in ((status, whole), (OK, in_stream)):
        with pytest.raises(CoordinatorError, match=text) as caught:
            Answer.of("etcd at http://a:1", http_status, json.dumps(body).encode())
        assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("etcdserver: authentication failed, invalid user ID or password", "the password"),
        ("etcdserver: user name is empty", "set a user"),
        ("etcdserver: permission denied", "etcdctl role"),
        ("etcdserver: mvcc: database space exceeded", "alarm disarm"),
        ("grpc: received message larger than max (3 vs. 2)", "max-request-bytes"),
    ],
)
def test_a_refusal_has_a_next_step(text: str, hint: str) -> None:
    """For those that a person can do something about."""
    with pytest.raises(CoordinatorRefusedError) as caught:
        Answer.of("etcd", 400, json.dumps({"error": text, "message": text, "code": 3}).encode())
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("etcdserver: no leader", CoordinatorUnreachableError),
        ("", CoordinatorUnreachableError),
        ("rpc error: code = PermissionDenied desc = etcdserver: permission denied", None),
    ],
)
def test_a_cancelled_watch_is_unreachable_unless_it_is_refused(
    reason: str, kind: type[CoordinatorError] | None
) -> None:
    """A member without a leader is left; one that refuses is named."""
    line = Answer("etcd", {"result": {"canceled": True, "cancel_reason": reason}})
    with pytest.raises(CoordinatorError) as caught:
        etcd_encoding.changes_of(line, 3)
    assert type(caught.value) is (kind or CoordinatorRefusedError)


def test_no_message_repeats_a_long_answer() -> None:
    """It has the beginning of what is not etcd's, and a next step."""
    with pytest.raises(CoordinatorUnreachableError) as caught:
        Answer.of("etcd at http://a:1", OK, b"<html>" + b"x" * 100_000)
    assert "HTTP status 200, '<html>xxx" in str(caught.value)
    assert len(str(caught.value)) < 400
    assert "http or https" in str(caught.value.hint)
