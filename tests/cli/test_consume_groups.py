"""``hastore consume`` of a cluster of several groups reads a topic from all that have it."""

import contextlib
import signal

import attrs
import pytest
import trio

import hastore
from hastore.client.admin import AdminClient
from hastore.errors import AccessDeniedError
from hastore.wire.remoting_codes import ResponseCode
from hastore_cli.app.interrupts import Interruption
from hastore_cli.consume import run as consume_run
from hastore_cli.consume.run import ConsumeOrder, ConsumeRun, ConsumeStart, StartKind
from tests.patience import WITHIN_S
from tests.support.commands.in_process import at, call
from tests.support.nodes.directory import Directory, known
from tests.support.nodes.group_nodes import promote
from tests.support.nodes.two_groups import cluster, of_group, other, put, serve
from tests.support.waiting import eventually

# Several addresses are a group; nothing listens at the second one.
NOBODY = "127.0.0.1:1"
BODIES = ("-F", r"%s\n")


INTERRUPTIONS: list[Interruption] = []  # of the commands of a test


@pytest.fixture(autouse=True)
def _no_signals(monkeypatch):
    """Signals reach the main thread only, and commands run in another one here."""
    INTERRUPTIONS.clear()
    monkeypatch.setattr(consume_run, "_LAST_COMMIT_S", WITHIN_S)

    @contextlib.asynccontextmanager
    async def interruptible():
        INTERRUPTIONS.append(Interruption())
        yield INTERRUPTIONS[-1]

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


# -- new messages ----------------------------------------------------------------------------------


@attrs.define
class Live:
    """A `consume` that goes on: what it has printed, and what it has said."""

    bodies: list[bytes]
    notes: list[str]

    async def has(self, *bodies):
        """Wait until these bodies are printed."""
        await eventually(lambda: set(bodies) <= set(self.bodies), lambda: f"{self}")


@contextlib.asynccontextmanager
async def live(node, start=StartKind.BEGINNING, **changes):
    """Run `consume` until the block ends; what was printed is committed then."""
    order = ConsumeOrder(
        topic="T",
        addresses=[node.address, ("127.0.0.1", 1)],
        start=ConsumeStart(start),
        failover_timeout_s=0.1,
        **changes,
    )
    running = Live([], [])
    run = ConsumeRun(
        order,
        lambda messages: running.bodies.extend(message.body for message in messages),
        running.notes.append,
        lambda _total: None,
    )
    with trio.fail_after(WITHIN_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.run)
            await eventually(lambda: run._is_live)
            yield running
            INTERRUPTIONS[-1].interrupt(signal.SIGINT)


@pytest.fixture
def _looks_often(monkeypatch):
    monkeypatch.setattr(consume_run, "LOOK_INTERVAL_S", 0.05)


@pytest.mark.usefixtures("_looks_often")
async def test_the_own_group_is_read_too_once_it_has_the_topic(tmp_path):
    """With all that came before the look."""
    async with cluster(tmp_path, home_topics=()) as (one, two, _):
        await put(two, b"b1")
        async with live(one) as running:
            await running.has(b"b1")
            await put(one, b"a1")  # creates the topic
            await running.has(b"a1")
        assert sorted(running.bodies) == [b"a1", b"b1"]


@pytest.mark.usefixtures("_looks_often")
async def test_from_the_end_means_the_end_at_the_start_also_in_groups_found_later(tmp_path):
    """What was stored before the command is not printed, what came before the look is."""
    async with cluster(tmp_path, topics=()) as (one, two, directory):
        await put(two, b"old")
        await trio.sleep(0.005)  # a later millisecond
        async with live(one, StartKind.END) as running:
            await put(two, b"new")
            directory.others = (other(two.address, "T"),)
            await running.has(b"new")
        assert running.bodies == [b"new"]


@pytest.mark.usefixtures("_looks_often")
async def test_a_group_that_was_lost_goes_on_where_it_was(tmp_path, nursery):
    """It is named once; what was printed before is committed when it is there again."""
    directory, stop = Directory(broker_name="g1"), trio.Event()
    config = of_group(tmp_path, "g2")
    with trio.fail_after(WITHIN_S):
        two = await nursery.start(serve, config, stop)
        address = two.address
        async with hastore.open_node(of_group(tmp_path, "g1"), directory=directory) as one:
            await promote(one)
            directory.known = known(one.address, master=one.address)
            directory.others = (other(address, "T"),)
            await put(two, b"b1", b"b2")
            await put(one, b"a1")
            async with live(one, group="readers") as running:
                await running.has(b"a1", b"b1", b"b2")
                stop.set()
                await eventually(lambda: running.notes)
                stop = trio.Event()
                two = await nursery.start(serve, attrs.evolve(config, listen=address), stop)
                await put(two, b"b3")
                await running.has(b"b3")
            assert sorted(running.bodies) == [b"a1", b"b1", b"b2", b"b3"]
            assert len([note for note in running.notes if "g2 cannot be read now" in note]) == 1
            async with AdminClient.connect(address) as admin:
                offsets = [await admin.query_offset("readers", "T", queue) for queue in range(8)]
            assert sum(offset or 0 for offset in offsets) == 3
            stop.set()


async def test_a_group_that_denies_access_is_named_and_the_others_are_read(tmp_path, monkeypatch):
    """Without `-e`: with it the output would not be whole."""
    opened = ConsumeRun._open

    async def denied(self, node):
        if node.group_name == "g2":
            raise AccessDeniedError("access denied: no key", code=ResponseCode.SYSTEM_ERROR)
        return await opened(self, node)

    monkeypatch.setattr(ConsumeRun, "_open", denied)
    async with cluster(tmp_path) as (one, _, _):
        await put(one, b"a1")
        async with live(one) as running:
            await running.has(b"a1")
        assert running.notes == ["group g2 cannot be read now: access denied: no key"]
        code, _, told = await consume(one, "-e")
        assert (code, "cannot be read: access denied" in told) == (3, True)
