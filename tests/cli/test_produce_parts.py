"""Parts of `hastore produce`: sources, pacing, latencies and exit codes."""

import json
import math
import os
import signal
from collections import Counter
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from hastore.config import RemotingConfig
from hastore.errors import ConfigError
from hastore.status import PutMessageStatus
from hastore_cli.app.interrupts import Interruption
from hastore_cli.produce.report import ProduceReport
from hastore_cli.produce.run import FEW_MAX, Pacer, ProduceOrder, ProduceRun
from hastore_cli.produce.source import (
    LINE_SIZE_MAX,
    GeneratedSource,
    LineFormat,
    LineReader,
    LineSource,
    batches_channel,
    open_source,
    read_ahead,
)
from hastore_cli.produce.tally import EXIT_CODES, LatencySketch, SendTally
from tests.patience import WITHIN_S
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.repository import REPO_ROOT


async def bodies_of(source) -> list[bytes]:
    """All bodies that a source feeds."""
    found = []
    to_send, bodies = batches_channel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.feed, to_send)
        async for batch in bodies:
            found += batch
    return found


def pipe_with(data: bytes) -> int:
    """A file descriptor that yields ``data`` and then ends."""
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
    """Only the newline is removed; the last line needs none."""
    assert await bodies_of(LineSource(pipe_with(data), "stdin", None)) == lines


async def test_lines_across_reads_stay_whole(tmp_path):
    """The file is larger than one read."""
    lines = [b"%d " % number * (number % 97) for number in range(20_000)]
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(lines) + b"\n")
    source = open_source(str(file), count=None, size=None)
    assert source.total == file.stat().st_size
    assert await bodies_of(source) == lines
    assert source.done == source.total


async def test_count_limits_the_lines_of_an_input():
    """For input from a file or a pipe, -n is a limit."""
    assert await bodies_of(LineSource(pipe_with(b"1\n2\n3\n4"), "stdin", None, 3)) == [
        b"1",
        b"2",
        b"3",
    ]


async def test_too_long_line_is_named_by_its_number(tmp_path):
    """Earlier lines are still fed."""
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


async def test_generated_bodies_have_the_size_and_are_distinct():
    """-n N --size B generates N bodies of B bytes."""
    found = await bodies_of(GeneratedSource(1_000, 100))
    assert len(found) == len(set(found)) == 1_000
    assert {len(body) for body in found} == {100}
    assert await bodies_of(GeneratedSource(2, 0)) == [b"", b""]


async def test_read_ahead_times_out_and_loses_nothing(autojump_clock):
    """A slow input is not waited for; batches already received are returned."""
    to_send, bodies = batches_channel()
    await to_send.send([b"a", b"b"])
    ahead, is_all = await read_ahead(bodies, count=20, seconds=0.2)
    assert (ahead, is_all) == ([b"a", b"b"], False)
    await to_send.send([b"c"])
    to_send.close()
    assert await read_ahead(bodies, count=20, seconds=0.2) == ([b"c"], True)


async def test_pacer_keeps_the_rate_without_a_sleep_per_message(autojump_clock):
    """10 000 messages at 5 000 a second take two seconds and fewer than 2 000 sleeps."""
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


async def test_pacer_allows_no_burst_after_a_stall(autojump_clock):
    """After ten seconds without sending, the rate is as before."""
    pacer = Pacer(10)
    await pacer.wait_turn()
    await trio.sleep(10)
    start = trio.current_time()
    for _ in range(21):
        await pacer.wait_turn()
    assert trio.current_time() - start == pytest.approx(2.0, abs=0.2)


async def test_pacer_gives_the_turns_that_are_due_at_once(autojump_clock):
    """Those of the next 10 ms, for a batch; the rate is kept."""
    start = trio.current_time()
    pacer = Pacer(5_000)
    sent = 0
    while sent < 10_000:
        await pacer.wait_turn()
        turns = 1 + pacer.take_turns(40)
        assert turns <= 41
        sent += turns
        ahead = sent - 5_000 * (trio.current_time() - start)
        assert ahead <= 52
    assert trio.current_time() - start == pytest.approx(2.0, abs=0.02)
    assert Pacer(1).take_turns(0) == 0


@pytest.mark.parametrize("rate", [None, 1_000.0])
async def test_lines_that_are_there_are_sent_in_batches(rate, autojump_clock):
    """Each has its own outcome; stored in their order; with a rate, only what is due goes."""
    target = InMemoryTarget()
    listed = []
    async with serving(target, RemotingConfig(default_topic_queue_nums=4)) as (_, address):
        order = ProduceOrder(
            topic="T",
            addresses=[address],
            source=GeneratedSource(400, 20),
            rate=rate,
            list_all=True,
        )
        run = ProduceRun(order, lambda pending, _: listed.append(pending), no_progress)
        outcome = await run.run()
    assert outcome.tally.counts == {"PUT_OK": 400}
    assert outcome.error is None
    assert sum(target.batches) > 300
    assert max(target.batches) <= (64 if rate is None else 4)
    by_key = {message.properties["UNIQ_KEY"]: message for message in target.messages}
    numbers = [int(by_key[one.unique_key].body[8:18]) for one in listed]
    assert numbers == list(range(400))
    assert [int(message.body[8:18]) for message in target.messages] == list(range(400))
    counts = Counter(one.queue_id for one in listed)
    assert counts.keys() == set(range(4))
    # The node takes the next queue for each request, and with a rate requests differ in size.
    assert max(counts.values()) - min(counts.values()) <= (0 if rate is None else 40)


async def test_a_signal_keeps_sent_messages_in_the_list(monkeypatch):
    """Those too for which the listing task had no room yet."""
    interruption = Interruption()

    @asynccontextmanager
    async def interrupted():
        yield interruption

    monkeypatch.setattr("hastore_cli.produce.run.interruptible", interrupted)
    target = InMemoryTarget(answer=None)
    listed, outcomes = [], []
    async with serving(target) as (_, address):
        order = ProduceOrder(
            topic="T", addresses=[address], source=GeneratedSource(200, 20), list_all=True
        )
        run = ProduceRun(order, lambda pending, _: listed.append(pending), no_progress)

        async def produce():
            outcomes.append(await run.run())

        with trio.fail_after(WITHIN_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce)
                while sum(target.batches) < FEW_MAX + 3:
                    await trio.testing.wait_all_tasks_blocked()
                await trio.testing.wait_all_tasks_blocked()
                interruption.interrupt(signal.SIGINT)
                while not outcomes:
                    target.release()
                    await trio.lowlevel.checkpoint()
    (outcome,) = outcomes
    assert outcome.signal_code == 130
    assert outcome.tally.counts == {"PUT_OK": len(target.messages)}
    by_key = {message.properties["UNIQ_KEY"]: message for message in target.messages}
    numbers = [int(by_key[one.unique_key].body[8:18]) for one in listed]
    assert numbers == list(range(len(target.messages)))


@asynccontextmanager
async def no_progress(_outcome):
    """Show nothing."""
    yield


@given(st.lists(st.floats(1e-6, 100), min_size=1), st.floats(0, 1))
def test_quantile_is_right_within_about_1_percent(latencies, share):
    """Compared with the exact quantile of the sorted latencies."""
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
def test_worst_outcome_decides_the_exit_code(counts, code, lenient_code):
    """--lenient turns the codes of stored messages into 0, and only those."""
    tally = SendTally(10.0)
    tally.counts = counts
    assert tally.exit_code(lenient=False) == code
    assert tally.exit_code(lenient=True) == lenient_code
    assert list(tally.ordered_counts()) == [name for name in reversed(EXIT_CODES) if name in counts]


@pytest.mark.parametrize(
    ("label", "reason", "expected"),
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
def test_next_step_names_a_setting_only_if_it_helps(label, reason, expected):
    """Only a body above max_message_size requires another value."""
    report = ProduceReport(SimpleNamespace(addresses=[("127.0.0.1", 1)]), as_json=False)
    step = report._next_step(label, reason)
    assert expected in step
    assert ("message_max" in step) == ("max_message_size" in reason)


def test_every_status_has_an_exit_code():
    """Only PUT_OK has 0; messages stored with less have 20 to 22."""
    for status in PutMessageStatus:
        code = EXIT_CODES[status.value]
        assert (code == 0) == (status is PutMessageStatus.PUT_OK)
        assert status.stored == (code in {0, 20, 21, 22})


async def test_outcomes_are_counted_with_reason_and_latency(autojump_clock):
    """An answer, a refusal and a broken link are counted separately."""
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


def test_people_read_put_ok_instead_of_send_ok():
    """SEND_OK appears only where it is explained and where JSON is made."""
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


# -- what a line says ------------------------------------------------------------------------------


def reader(line_format, separator=b""):
    """What makes messages of lines, each with two properties of its own."""
    common = {"KEYS": "all", "a": "b"}
    return LineReader(
        topic="T", properties=common, name="f", line_format=line_format, separator=separator
    )


@pytest.mark.parametrize(
    ("line", "body", "properties"),
    [
        (b"o-17::hello", b"hello", {"KEYS": "o-17", "a": "b"}),
        (b"o-17::a::b", b"a::b", {"KEYS": "o-17", "a": "b"}),
        (b"::", b"", {"KEYS": "all", "a": "b"}),
        ("grüße ☃::\0\xff".encode(), "\0\xff".encode(), {"KEYS": "grüße ☃", "a": "b"}),
    ],
)
def test_a_line_with_keys(line, body, properties):
    """Up to the first separator; without keys of its own a line has those of all."""
    message = reader(LineFormat.KEYED, b"::").message(line, 1)
    assert (message.topic, message.body, message.properties) == ("T", body, properties)


@pytest.mark.parametrize(
    ("line", "body", "properties"),
    [
        ({"body": "hello"}, b"hello", {"KEYS": "all", "a": "b"}),
        ({"body": "", "keys": "x y", "tags": "t"}, b"", {"KEYS": "x y", "TAGS": "t", "a": "b"}),
        ({"body": "", "properties": {"a": "c", "d": ""}}, b"", {"KEYS": "all", "a": "c", "d": ""}),
        ({"body_base64": "/wA="}, b"\xff\0", {"KEYS": "all", "a": "b"}),
        ({"body": "/wA=", "body_encoding": "base64"}, b"\xff\0", {"KEYS": "all", "a": "b"}),
        ({"body": "x", "queue_id": 7, "topic": "U"}, b"x", {"KEYS": "all", "a": "b"}),
    ],
)
def test_a_line_of_json(line, body, properties):
    """Keys and properties of its own; the topic and the queue are those of the command."""
    message = reader(LineFormat.JSON).message(json.dumps(line).encode(), 1)
    assert (message.topic, message.queue_id) == ("T", 0)
    assert (message.body, message.properties) == (body, properties)


@pytest.mark.parametrize(
    ("line_format", "line", "why"),
    [
        (LineFormat.KEYED, b"o-17:hello", "has no '::' after its keys"),
        (LineFormat.KEYED, b"\xff::hello", "keys are not UTF-8"),
        (LineFormat.JSON, b"hello", "is not JSON"),
        pytest.param(LineFormat.JSON, b"[" * 100_000, "is not JSON", id="deeply-nested"),
        (LineFormat.JSON, b"[1]", "not an object"),
        (LineFormat.JSON, b'{"bdy": "x"}', "'bdy' is none of body, body_base64, keys"),
        (LineFormat.JSON, b'{"keys": "x"}', "neither body nor body_base64"),
        (LineFormat.JSON, b'{"body": 1}', "body is not text"),
        (LineFormat.JSON, b'{"body": "", "properties": {"a": 1}}', "properties are not"),
        (LineFormat.JSON, b'{"body_base64": "%"}', "not base64"),
    ],
)
def test_a_line_that_is_no_message_is_named(line_format, line, why):
    """By the input, the number of the line and the reason."""
    with pytest.raises(ConfigError, match=why) as refused:
        reader(line_format, b"::").message(line, 12)
    assert str(refused.value).startswith("f, line 12 is not a message: ")


async def test_generated_bodies_are_made_a_few_megabytes_at_a_time():
    """256 bodies of 15 MiB would be 4 GiB."""
    to_send, batches = trio.open_memory_channel(4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(GeneratedSource(5, 3 << 20).feed, to_send)
        sizes = [len(batch) async for batch in batches]
    assert sizes == [1] * 5
