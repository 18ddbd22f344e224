"""The pure and the nearly pure parts of `hastore produce`: sources, pace, latencies, judgement."""

import math
import os
from types import SimpleNamespace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from hastore.errors import ConfigError
from hastore.status import PutMessageStatus
from hastore_cli.produce.report import ProduceReport
from hastore_cli.produce.run import Pacer
from hastore_cli.produce.source import (
    LINE_SIZE_MAX,
    GeneratedSource,
    LineSource,
    batches_channel,
    open_source,
    read_ahead,
)
from hastore_cli.produce.tally import EXIT_CODES, LatencySketch, SendTally
from tests.support.commands.running import REPO_ROOT


async def bodies_of(source) -> list[bytes]:
    """Everything that a source gives."""
    found = []
    to_send, bodies = batches_channel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.feed, to_send)
        async for batch in bodies:
            found += batch
    return found


def pipe_with(data: bytes) -> int:
    """A descriptor that gives ``data`` and then ends."""
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    return reader


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"\n", [b""]),
        (b"a\r\nb\x00\xff\n", [b"a\r", b"b\x00\xff"]),
    ],
)
async def test_one_line_is_one_message(data, lines):
    """The newline is taken away and nothing else; a last line needs none."""
    assert await bodies_of(LineSource(pipe_with(data), "stdin", None)) == lines


async def test_lines_are_the_same_wherever_a_read_ends(tmp_path):
    """A file larger than one read gives exactly its lines."""
    lines = [b"%d " % number * (number % 97) for number in range(20_000)]
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(lines) + b"\n")
    source = open_source(str(file), count=None, size=None)
    assert source.total == file.stat().st_size
    assert await bodies_of(source) == lines
    assert source.done == source.total


async def test_only_the_first_lines_are_taken_when_n_is_given():
    """-n with a file is a limit."""
    assert await bodies_of(LineSource(pipe_with(b"1\n2\n3\n4"), "stdin", None, 3)) == [
        b"1",
        b"2",
        b"3",
    ]


async def test_a_line_that_no_message_can_be_is_named(tmp_path):
    """A line beyond the limit is refused with its number; those before it are given."""
    file = tmp_path / "long"
    file.write_bytes(b"a\nb\n" + bytes(LINE_SIZE_MAX + 1))
    found = []
    to_send, bodies = batches_channel()
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match="line 3 is longer")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_source(str(file), count=None, size=None).feed, to_send)
            async for batch in bodies:
                found += batch
    assert found == [b"a", b"b"]


async def test_made_up_messages_have_the_size_and_a_number():
    """-n N --size B gives N bodies of B bytes that can be told apart."""
    found = await bodies_of(GeneratedSource(1_000, 100))
    assert len(found) == len(set(found)) == 1_000
    assert {len(body) for body in found} == {100}
    assert await bodies_of(GeneratedSource(2, 0)) == [b"", b""]


async def test_reading_ahead_gives_up_in_time_and_loses_nothing(autojump_clock):
    """A slow input is not waited for, and what was taken is not lost."""
    to_send, bodies = batches_channel()
    await to_send.send([b"a", b"b"])
    ahead, is_all = await read_ahead(bodies, count=20, seconds=0.2)
    assert (ahead, is_all) == ([b"a", b"b"], False)
    await to_send.send([b"c"])
    to_send.close()
    assert await read_ahead(bodies, count=20, seconds=0.2) == ([b"c"], True)


async def test_the_rate_is_kept_without_a_sleep_for_each_message(autojump_clock):
    """10 000 messages at 5 000 a second take two seconds and a few hundred sleeps."""
    sleeps = 0

    class Count(trio.abc.Instrument):
        def before_io_wait(self, timeout):
            nonlocal sleeps
            sleeps += 1

    start = trio.current_time()
    trio.lowlevel.add_instrument(counter := Count())
    pacer = Pacer(5_000)
    for _ in range(10_000):
        await pacer.wait_turn()
    trio.lowlevel.remove_instrument(counter)
    assert trio.current_time() - start == pytest.approx(2.0, abs=0.02)
    assert sleeps < 2_000


async def test_a_stall_is_not_made_up_for_by_a_burst(autojump_clock):
    """After ten seconds without sending, the rate is kept as before."""
    pacer = Pacer(10)
    await pacer.wait_turn()
    await trio.sleep(10)
    start = trio.current_time()
    for _ in range(21):
        await pacer.wait_turn()
    assert trio.current_time() - start == pytest.approx(2.0, abs=0.2)


@given(st.lists(st.floats(1e-6, 100), min_size=1), st.floats(0, 1))
def test_a_quantile_is_right_within_a_few_percent(latencies, share):
    """Against sorting them all."""
    histogram = LatencySketch()
    for latency in latencies:
        histogram.add(latency)
    exact = sorted(latencies)[max(0, math.ceil(share * len(latencies)) - 1)]
    assert histogram.quantile(share) == pytest.approx(exact, rel=0.011)
    assert LatencySketch().quantile(0.5) is None


@pytest.mark.parametrize(
    ("counts", "code", "lenient_code"),
    [
        ({}, 0, 0),
        ({"PUT_OK": 5}, 0, 0),
        ({"PUT_OK": 5, "FLUSH_DISK_TIMEOUT": 1}, 22, 0),
        ({"FLUSH_SLAVE_TIMEOUT": 1, "FLUSH_DISK_TIMEOUT": 1}, 21, 0),
        ({"SLAVE_NOT_AVAILABLE": 1, "FLUSH_SLAVE_TIMEOUT": 1}, 20, 0),
        ({"SLAVE_NOT_AVAILABLE": 1, "MESSAGE_ILLEGAL": 1}, 23, 23),
        ({"UNKNOWN_ERROR": 1, "SLAVE_NOT_AVAILABLE": 1}, 1, 1),
        ({"NO_ANSWER": 1, "MESSAGE_ILLEGAL": 1, "PUT_OK": 9}, 3, 3),
    ],
)
def test_the_exit_code_is_that_of_the_worst_outcome(counts, code, lenient_code):
    """--lenient forgives what is stored, and only that."""
    tally = SendTally(10.0)
    tally.counts = counts
    assert tally.exit_code(lenient=False) == code
    assert tally.exit_code(lenient=True) == lenient_code
    assert list(tally.ordered_counts()) == [name for name in reversed(EXIT_CODES) if name in counts]


@pytest.mark.parametrize(
    ("label", "reason", "said"),
    [
        ("PROPERTIES_SIZE_EXCEEDED", "larger than 32767 bytes", "shorten the properties"),
        ("MESSAGE_ILLEGAL", "the message is larger than a mapped file", "one file of the master"),
        ("MESSAGE_ILLEGAL", "the message is larger than max_message_size", "message_max"),
        (
            "MESSAGE_ILLEGAL",
            "topic 'a b' has characters other than",
            "the reason names",
        ),
    ],
)
def test_a_setting_is_named_only_where_it_helps(label, reason, said):
    """Only a message above max_message_size leads to that setting."""
    report = ProduceReport(SimpleNamespace(address=("127.0.0.1", 1)), as_json=False)
    step = report._next_step(label, reason)
    assert said in step
    assert ("message_max" in step) == ("max_message_size" in reason)


def test_every_status_has_an_exit_code():
    """No outcome of a put is counted as done by mistake."""
    for status in PutMessageStatus:
        code = EXIT_CODES[status.value]
        assert (code == 0) == (status is PutMessageStatus.PUT_OK)
        assert status.stored == (code in {0, 20, 21, 22})


async def test_outcomes_are_counted_with_reason_and_latency(autojump_clock):
    """An answer, a refusal and a broken link each end up under their name."""
    tally = SendTally(10.0)

    def sent(opaque):
        deadline = trio.current_time() + 10
        pending = SimpleNamespace(opaque=opaque, deadline=deadline, response=None, failure=None)
        tally.sending(pending, 100, listed=opaque == 1)
        return pending

    first, second, third = sent(1), sent(2), sent(3)
    await trio.sleep(0.5)
    first.response, first.status = SimpleNamespace(remark=None), PutMessageStatus.PUT_OK
    second.response, second.status = SimpleNamespace(remark="no permission"), None
    third.failure = "the link broke"
    for pending in (first, second, third):
        pending.on_done(pending)
    assert tally.counts == {"PUT_OK": 1, "REFUSED": 1, "NO_ANSWER": 1}
    assert tally.reasons == {"REFUSED": "no permission", "NO_ANSWER": "the link broke"}
    assert tally.latencies.count == 2
    assert tally.take_latency(first) == pytest.approx(0.5)
    assert tally.take_latency(second) is None
    assert (tally.sent, tally.done, tally.body_bytes) == (3, 3, 300)


def test_what_producers_get_is_one_word_wherever_a_person_reads():
    """PUT_OK; the other name stands where it is explained, and where JSON is made."""
    explained = {"README.md": 1, "docs/cli.md": 1, "cli/hastore_cli/produce/report.py": 2}
    found = {}
    for pattern in (
        "README.md",
        "docs/*.md",
        "cli/**/*.py",
        "scenarios/**/*.py",
        "hastore/**/*.py",
    ):
        for path in REPO_ROOT.glob(pattern):
            lines = path.read_text(encoding="utf-8").splitlines()
            count = sum("SEND_OK" in line for line in lines)
            if count:
                found[path.relative_to(REPO_ROOT).as_posix()] = count
    assert found == explained
