"""Bodies that producers compressed: decoded within a limit, or left as they are with the reason."""

from __future__ import annotations

import sys
import tracemalloc
import zlib

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.store.record.body_compression import (
    DecodedBody,
    decode_body,
    decode_body_in_pieces,
    decoded,
)
from hastore.store.record.message_codec import decode
from tests.support.store.log_builder import LogBuilder

COMPRESSED = 1
OLD_ZLIB, LZ4, ZSTD, ZLIB = (COMPRESSED | kind << 8 for kind in range(4))
TEXT = b"a body of more than four kilobytes " * 200


def packed_by(sys_flag, body):
    """Compress as RocketMQ's clients do; skip the test without the library."""
    if sys_flag == LZ4:
        return pytest.importorskip("lz4.frame", reason="hastore[codecs]").compress(body)
    if sys_flag == ZSTD:
        zstandard = pytest.importorskip("zstandard", reason="hastore[codecs]")
        # As Java's stream writes it: without the size of the content.
        compressor = zstandard.ZstdCompressor().compressobj()
        return compressor.compress(body) + compressor.flush()
    return zlib.compress(body)


@pytest.fixture(params=[OLD_ZLIB, ZLIB, LZ4, ZSTD], ids=["old zlib", "zlib", "lz4", "zstd"])
def sys_flag(request):
    """Each kind of compression."""
    return request.param


@pytest.mark.parametrize("body", [b"", b"x", TEXT, bytes(3_000_000)], ids=len)
def test_each_kind_is_decoded(sys_flag, body):
    """The flags of compression are cleared, and all others stay."""
    packed = packed_by(sys_flag, body)
    assert decode_body(packed, sys_flag | 0x18) == DecodedBody(body, 0x18, None, len(body))


def test_a_body_that_is_not_compressed_is_the_same_object():
    """Whatever its other flags are: bits 8 to 10 say nothing alone."""
    body = zlib.compress(TEXT)
    assert decode_body(body, 3 << 8).body is body
    assert decode_body(body, 3 << 8).fault is None


@pytest.mark.parametrize("left", [0, 1, 5, -1])
def test_a_body_that_is_cut_off_stays_as_it_is(sys_flag, left):
    """The result says that it ends too early."""
    packed = packed_by(sys_flag, TEXT)[:left]
    body, flags, fault, _ = decode_body(packed, sys_flag)
    assert (body, flags) == (packed, sys_flag)
    assert "ends too early" in fault


def test_a_body_of_another_kind_stays_as_it_is(sys_flag):
    """The result names the kind that the flags claim."""
    packed_by(sys_flag, b"")
    body, flags, fault, _ = decode_body(b"not compressed at all", sys_flag)
    assert (body, flags) == (b"not compressed at all", sys_flag)
    assert fault.startswith("it is not ")


@pytest.mark.parametrize("kind", [4, 5, 6, 7])
def test_a_kind_that_no_client_knows_is_left(kind):
    """Bits 8 to 10 have room for eight."""
    fault = decode_body(b"x", COMPRESSED | kind << 8).fault
    assert fault == f"its compression, type {kind}, is not known"


@pytest.mark.parametrize(("sys_flag", "library"), [(LZ4, "lz4"), (ZSTD, "zstandard")])
def test_without_the_library_the_body_stays_and_the_extra_is_named(monkeypatch, sys_flag, library):
    """A node and its tools need neither."""
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, f"{library}.frame", None)
    body, flags, fault, _ = decode_body(b"x", sys_flag)
    assert (body, flags) == (b"x", sys_flag)
    assert "[codecs]" in fault


def test_the_size_of_a_decoded_body_is_bounded(sys_flag):
    """At the limit it is decoded; one byte more, and it stays as it is."""
    packed = packed_by(sys_flag, bytes(2_000_001))
    assert decode_body(packed, sys_flag, size_max=2_000_001).body == bytes(2_000_001)
    body, _, fault, _ = decode_body(packed, sys_flag, size_max=2_000_000)
    assert body == packed
    assert fault == "it decodes to more than 2000000 bytes"


def test_a_bomb_costs_no_memory_beyond_the_limit(sys_flag):
    """Twenty times the limit; the decoder stops where the limit is passed, piece by piece."""
    limit = 4 * 1024 * 1024
    packed = packed_by(sys_flag, bytes(20 * limit))
    tracemalloc.start()
    try:
        assert decode_body(packed, sys_flag, size_max=limit).fault is not None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit + 12 * 1024 * 1024


def test_a_large_body_is_decoded_in_pieces(sys_flag):
    """The event loop can run between them."""
    size = 24 * 1024 * 1024
    packed = packed_by(sys_flag, bytes(size))
    pieces = list(decode_body_in_pieces(packed, sys_flag))
    assert len(pieces) >= 3
    assert max(pieces) <= 10 * 1024 * 1024
    assert sum(pieces) <= size + len(packed)


def test_a_decoded_body_is_held_once(sys_flag):
    """Its parts were joined in the end: twice the memory, and half a second without the loop."""
    size = 48 * 1024 * 1024
    packed = packed_by(sys_flag, bytes(size))
    tracemalloc.start()
    try:
        assert len(decode_body(packed, sys_flag).body) == size
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size + size // 2


@pytest.mark.parametrize(
    ("sys_flag", "head", "block"),
    [
        (ZLIB, b"\x78\x9c", b"\0\0\0\xff\xff"),  # stored, of 0 bytes
        (LZ4, b"\x04\x22\x4d\x18\x60\x40\x82", b"\x01\0\0\0\0"),  # one token, no literals
        (ZSTD, b"\x28\xb5\x2f\xfd\0\x58", b"\0\0\0"),  # raw, of 0 bytes
    ],
    ids=["zlib", "lz4", "zstd"],
)
def test_blocks_without_a_byte_are_read_in_pieces(sys_flag, head, block):
    """The loop could not run until megabytes of them were read."""
    packed_by(sys_flag, b"")
    packed = head + block * (1024 * 1024 // len(block))
    work = decode_body_in_pieces(packed, sys_flag)
    pieces = list(work)
    assert len(pieces) >= 8
    assert sum(pieces) <= len(packed)
    _, _, fault, size = decode_body(packed, sys_flag)
    assert size == 0
    assert "ends too early" in fault


@given(st.binary(max_size=5_000), st.sampled_from([OLD_ZLIB, LZ4, ZSTD]), st.data())
def test_a_body_above_the_limit_is_never_returned(body, sys_flag, data):
    """Whatever the limit, and wherever the compressed bytes are cut off."""
    packed = packed_by(sys_flag, body * data.draw(st.integers(1, 50)))
    packed = packed[: data.draw(st.integers(0, len(packed)))]
    found = decode_body(packed, sys_flag, size_max=1_000)
    assert found.fault is not None or len(found.body) <= 1_000


@given(st.binary(max_size=300), st.integers(0, 0x7FF))
def test_any_bytes_are_decoded_or_returned(data, sys_flag):
    """Never an exception, never a body above the limit."""
    body, flags, fault, _ = decode_body(data, sys_flag, size_max=1000)
    if fault is not None:
        assert (body, flags) == (data, sys_flag)
    else:
        assert len(body) <= 1000
        assert not flags & COMPRESSED


def test_a_message_is_decoded_once():
    """Its size, checksum and the rest are those of the record."""
    log = LogBuilder()
    log.add(zlib.compress(TEXT), sys_flag=ZLIB)
    stored = decode(bytes(log.data))
    read = decoded(stored)
    assert read == attrs.evolve(stored, body=TEXT, sys_flag=0)
    assert decoded(read) is read
    bad = decoded(attrs.evolve(stored, body=b"no zlib"))
    assert (bad.body, bad.sys_flag) == (b"no zlib", ZLIB)
    assert bad.body_fault.startswith("it is not zlib")
    assert decoded(bad) is bad
