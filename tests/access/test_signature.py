"""Signatures of requests: RocketMQ's vectors, and any request and key."""

from __future__ import annotations

import pickle
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.access.secret import Secret
from hastore.access.signature import (
    NONCE_FIELD,
    OWN_SIGNATURE_FIELD,
    AccessKey,
    RequestSigner,
    is_signed_by,
    signed_content,
    signed_fields,
)
from hastore.errors import ProtocolError
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.remoting_codes import RequestCode, ResponseCode, SerializeType
from hastore.wire.remoting_command import RemotingCommand

KEY = AccessKey("reader-key", Secret("12345678"))
TEXTS = st.text(max_size=20)
FIELDS = st.dictionaries(TEXTS, TEXTS | st.integers() | st.booleans(), max_size=6)


@pytest.mark.parametrize(
    ("code", "is_asked_again"),
    [
        (ResponseCode.SUCCESS, False),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, False),
        (ResponseCode.SYSTEM_ERROR, True),
        (ResponseCode.SYSTEM_BUSY, True),
        (None, True),
    ],
)
def test_a_refusal_does_not_say_that_the_peer_has_no_nonce(code, is_asked_again) -> None:
    """A key may come into force later, and a lock-out ends: the connection asks again."""
    signer = RequestSigner(KEY)
    role_change = RequestCode.NOTIFY_BROKER_ROLE_CHANGED
    signer.use_nonce_of(None if code is None else RemotingCommand(code=code, opaque=1, remark="no"))
    assert signer.needs_nonce(role_change) == is_asked_again
    nonce = {NONCE_FIELD: "0" * 32}
    signer.use_nonce_of(RemotingCommand(code=ResponseCode.SUCCESS, opaque=2, ext_fields=nonce))
    assert not signer.needs_nonce(role_change)
    assert OWN_SIGNATURE_FIELD in signer.signed(role_change, {}, b"")


def test_the_signature_is_rocketmqs() -> None:
    """The vector of RocketMQ's AclSignerTest."""
    assert Secret("12345678").sign(b"RocketMQ") == "IUc8rrO/0gDch8CjObLQsW2rsiA="


@pytest.mark.parametrize(
    ("fields", "body", "content"),
    [
        ({"b": "2", "a": "1", "AccessKey": "K"}, b"body", b"K12body"),
        ({"Signature": "s", "a": "1", "_UNIQUE_KEY_QUERY": "true"}, b"", b"1"),
        ({"a": 5, "b": True, "c": False, "d": None}, b"", b"5truefalse"),
        # Java sorts by UTF-16 units: U+10000 begins with D800 and comes before U+E000.
        ({"\ue000": "2", "\U00010000": "1"}, b"", b"12"),
        ({"a": "\u00e9", "b": "\ud800"}, b"\xff", "\u00e9?".encode() + b"\xff"),
        ({}, b"", b""),
    ],
)
def test_the_signed_content_is_values_by_name_then_the_body(fields, body, content):
    """Neither names nor what comes after the signature are part of it."""
    assert signed_content(fields, body) == content


@given(FIELDS, st.binary(max_size=20), TEXTS, st.sampled_from(SerializeType))
def test_a_signed_request_passes_after_its_way_over_the_wire(fields, body, secret, kind):
    """With either kind of header; and not with another secret, or another body."""
    key = AccessKey("any", Secret(secret))
    signed = signed_fields(key, fields, body)
    frame = encode_command(
        RemotingCommand(code=10, ext_fields=signed, body=body, serialize_type=kind)
    )
    reader = FrameReader(1 << 20)
    reader.feed(frame)
    received = reader.next_command()
    assert received is not None
    assert is_signed_by(key.secret, received.ext_fields, received.body)
    assert not is_signed_by(Secret(secret + "x"), received.ext_fields, received.body)
    assert not is_signed_by(key.secret, received.ext_fields, received.body + b"x")


@given(st.text() | st.integers() | st.none() | st.booleans())
def test_no_other_signature_passes(signature):
    """Whatever a peer sends as its signature is compared, and does not raise."""
    fields = {"topic": "orders", "AccessKey": KEY.name, "Signature": signature}
    assert not is_signed_by(KEY.secret, fields, b"")


def test_a_value_that_is_no_text_is_an_error():
    """A list among the ext fields has no text to sign."""
    with pytest.raises(ProtocolError, match="topic is neither text nor a number"):
        is_signed_by(KEY.secret, {"topic": []}, b"")


def test_a_secret_does_not_show_itself():
    """Not in texts, formats, the key that has it, pickles, or a traceback with its values."""
    secret = Secret("do-not-show")
    shown = [str(secret), repr(secret), f"{secret}", f"{secret:>20}", repr(AccessKey("k", secret))]
    assert "do-not-show" not in "".join(shown)
    assert secret == Secret("do-not-show")
    assert secret != Secret("another")
    assert secret != "do-not-show"
    with pytest.raises(TypeError, match="a secret is not pickled"):
        pickle.dumps(secret)
    try:
        assert secret == Secret("another")
    except AssertionError as error:
        text = "".join(
            traceback.TracebackException.from_exception(error, capture_locals=True).format()
        )
        assert "do-not-show" not in text
    assert len({secret, Secret("do-not-show")}) == 1
    assert secret.reveal() == "do-not-show"
