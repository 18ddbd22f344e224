"""``hastore consume`` of a cluster of several groups reads a topic from all that have it."""

import contextlib

import attrs
import pytest
import trio

from hastore_cli.app.interrupts import Interruption
from hastore_cli.consume import run as consume_run
from tests.support.commands.in_process import at, call
from tests.support.nodes.two_groups import cluster, other, put

# Several addresses are a group; nothing listens at the second one.
NOBODY = "127.0.0.1:1"
BODIES = ("-F", r"%s\n")


@pytest.fixture(autouse=True)
def _no_signals(monkeypatch):
    """Signals reach the main thread only, and commands run in another one here."""

    @contextlib.asynccontextmanager
    async def interruptible():
        yield Interruption()

    monkeypatch.setattr(consume_run, "interruptible", interruptible)


def consume(node, *words):
    """Run `consume` with the addresses of the first group."""
    return call("consume", "T", "--addr", f"{at(node)},{NOBODY}", *BODIES, *words)


async def test_the_backlogs_of_all_groups_are_one_in_the_order_of_store_times(tmp_path):
    """Also with a count, and of one group if one node or a queue is named."""
    async with cluster(tmp_path) as (one, two, _):
        for node, name in ((one, b"a"), (two, b"b"), (one, b"c"), (two, b"d")):
            await put(node, name + b"1", name + b"2")
            await trio.sleep(0.005)  # a later millisecond
        code, shown, told = await consume(one, "-e")
        assert (code, told) == (0, ""), told
        assert shown.split() == ["a1", "a2", "b1", "b2", "c1", "c2", "d1", "d2"]
        assert (await consume(one, "-n", 5))[1].split() == ["a1", "a2", "b1", "b2", "c1"]
        _, shown, _ = await call("consume", "T", "--addr", at(one), "-e", *BODIES)
        assert shown.split() == ["a1", "a2", "c1", "c2"]
        queues = [(await consume(one, "-e", "-q", queue))[1].split() for queue in (0, 1)]
        assert sorted(queues[0] + queues[1]) == ["a1", "a2", "c1", "c2"]


async def test_offsets_are_committed_to_the_group_that_has_the_messages(tmp_path):
    """So the next run goes on in both, and prints nothing twice."""
    async with cluster(tmp_path) as (one, two, _):
        await put(one, b"a1")
        await put(two, b"b1", b"b2")
        code, shown, _ = await consume(one, "-e", "-g", "readers")
        assert (code, sorted(shown.split())) == (0, ["a1", "b1", "b2"])
        await put(one, b"a2")
        await put(two, b"b3")
        code, shown, _ = await consume(one, "-e", "-g", "readers")
        assert (code, sorted(shown.split())) == (0, ["a2", "b3"])


async def test_a_topic_that_only_the_other_group_has_is_read(tmp_path):
    """The addresses' own group need not have it; no group having it is an error."""
    async with cluster(tmp_path, home_topics=()) as (one, two, directory):
        await put(two, b"b1")
        code, shown, _ = await consume(one, "-e")
        assert (code, shown.split()) == (0, ["b1"])
        directory.others = (other(two.address),)
        code, _, told = await consume(one, "-e")
        assert (code, "topic T does not exist" in told) == (1, True)


async def test_new_messages_come_from_all_groups_also_from_one_that_gets_the_topic_later(
    tmp_path, monkeypatch
):
    """A look at the route now and then finds it."""
    monkeypatch.setattr(consume_run, "LOOK_INTERVAL_S", 0.05)
    async with cluster(tmp_path, topics=()) as (one, two, directory):
        await put(one, b"a1")
        await put(two, b"b1")
        shown = []

        async def read():
            shown.extend(await consume(one, "-n", 4))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                directory.others = (other(two.address, "T"),)
                await put(one, b"a2")
                await put(two, b"b2")
        assert shown[0] == 0
        assert sorted(shown[1].split()) == ["a1", "a2", "b1", "b2"]


async def test_a_group_that_cannot_be_read_is_named(tmp_path):
    """An output that ends is an error without it; one that goes on says so."""
    async with cluster(tmp_path) as (one, two, directory):
        await put(one, b"a1")
        directory.others = (attrs.evolve(other(two.address, "T"), addresses={0: ("127.0.0.1", 1)}),)
        code, shown, told = await consume(one, "-e")
        assert (code, shown) == (3, "")
        assert "group g2 of this cluster has the topic, and cannot be read: " in told
        code, shown, told = await consume(one, "-n", 1)
        assert (code, shown.split()) == (0, ["a1"])
        assert "note: group g2 cannot be read now: " in told


@pytest.mark.parametrize("words", [("-e",), ("-n", 3)])
async def test_json_of_several_groups_is_one_document(tmp_path, words):
    """As of one."""
    async with cluster(tmp_path) as (one, two, _):
        await put(one, b"a1")
        await put(two, b"b1", b"b2")
        code, shown, _ = await call(
            "consume", "T", "--addr", f"{at(one)},{NOBODY}", "-o", "jsonl", *words
        )
        assert (code, len(shown.splitlines())) == (0, 3)
