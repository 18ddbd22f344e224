"""Commands show the bodies that clients compressed as they were sent."""

import json
import zlib

import pytest

from tests.support.store.log_builder import LogBuilder

TEXT = b"needle in a body of some kilobytes " * 200
PACKED = zlib.compress(TEXT)
ZLIB = 1 | 3 << 8
COMMANDS = [("log", "cat"), ("log", "tail"), ("log", "find", "-t", "orders")]


@pytest.fixture
def store(tmp_path):
    """A log of three messages: compressed, plain, and one whose compressed body is damaged."""
    builder = LogBuilder()
    builder.add(PACKED, topic="orders", sys_flag=ZLIB, key="packed")
    builder.add(b"plain", topic="orders")
    builder.add(PACKED[:-9], topic="orders", sys_flag=ZLIB, key="damaged")
    return builder.write(tmp_path / "D1", queues=True)


def listed(run, store, words, *more):
    code, out, err = run(*words, store, "-o", "jsonl", *more)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()], err


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[1])
def test_bodies_are_decoded_and_the_flags_agree(run, store, words):
    """The damaged one is shown as it is stored, with the reason in JSON and on stderr."""
    (packed, plain, damaged), err = listed(run, store, words)
    assert (packed["body"], packed["sys_flag"]) == (TEXT.decode(), 0)
    assert packed["body_size"] == len(TEXT)
    assert "body_fault" not in packed
    assert plain["body"] == "plain"
    assert (damaged["sys_flag"], damaged["body_size"]) == (ZLIB, len(PACKED) - 9)
    assert damaged["body_fault"] == "its zlib data ends too early"
    where = f"the body at {damaged['offset']}"
    assert err == f"note: {where} is still compressed: its zlib data ends too early\n"


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[1])
def test_raw_bodies_are_those_of_the_record(run, store, words):
    """Nothing is decoded, so nothing is at fault."""
    rows, err = listed(run, store, words, "--raw")
    assert [row["sys_flag"] for row in rows] == [ZLIB, 0, ZLIB]
    assert [row["body_size"] for row in rows] == [len(PACKED), 5, len(PACKED) - 9]
    assert err == ""


def test_a_format_prints_the_decoded_body(run, store):
    """Its size is that of what is printed."""
    code, out, _ = run("log", "cat", store, "-n", 1, "-F", "%S %s")
    assert (code, out) == (0, f"{len(TEXT)} {TEXT.decode()}")


def test_find_looks_into_decoded_bodies(run, store):
    """With --raw, too: it says what to print."""
    for more in ((), ("--raw",)):
        (found,), _ = listed(run, store, ("log", "find"), "--body", "needle", *more)
        assert found["properties"]["KEYS"] == "packed"


def test_get_shows_one_message_decoded(run, store):
    """In full, and raw."""
    code, out, _ = run("get", "--key", "packed", "--dir", store, "-o", "jsonl")
    assert (code, json.loads(out)["body"]) == (0, TEXT.decode())
    code, out, _ = run("get", "--offset", 0, "--dir", store)
    assert code == 0
    assert "needle in a body" in out
    code, out, _ = run("get", "--offset", 0, "--dir", store, "--raw")
    assert code == 0
    assert "needle in a body" not in out
