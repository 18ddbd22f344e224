"""Which slaves get appended bytes at once, and when the others do."""

import contextlib

import attrs
import pytest
import trio

import hastore
from hastore.config import HAConfig
from hastore.ha import send_rounds
from hastore.ha.send_rounds import (
    CROWD,
    HELD_SIZE_MAX,
    ROUND_S,
    ROUND_S_A_LINK,
    GroupSendRounds,
    SendRounds,
)
from hastore.ha.write_socket_service import WriteSocketService
from hastore.status import PutMessageStatus
from tests.support.nodes.harness import master_config, messages, raw_slave
from tests.support.waiting import eventually

AN_HOUR = 3600.0
# No heartbeats of an idle link: one that is due takes along what is held back.
SILENT = HAConfig(ha_send_heartbeat_interval_ms=3_600_000, ha_housekeeping_interval_ms=7_200_000)


@attrs.define
class Log:
    readable_offset: int = 0


@attrs.define(eq=False)
class Writer:
    """Notes when it was told of appends, and how."""

    told: list = attrs.field(factory=list)

    def on_appended(self, end, *, at_once):
        self.told.append((round(trio.current_time() - BEGAN.get(), 6), end, at_once))


BEGAN = trio.lowlevel.RunVar("began")


def served(nursery, *, gathers=False):
    """Return rounds that are served."""
    BEGAN.set(trio.current_time())
    rounds = SendRounds(Log(), gathers=gathers)
    nursery.start_soon(rounds.run)
    return rounds


def with_links(rounds, count):
    links = [Writer() for _ in range(count)]
    rounds.idle.update(dict.fromkeys(links))
    return links


def append(rounds, size=10):
    rounds.commit_log.readable_offset += size
    rounds.notify_appended()


async def test_all_get_bytes_at_once_while_none_is_nearest(autojump_clock, nursery):
    """Before the first acknowledgement nobody knows which slave is quick."""
    rounds = served(nursery)
    links = with_links(rounds, 3)
    append(rounds)
    assert [link.told for link in links] == [[(0.0, 10, True)]] * 3
    await trio.sleep(1)
    assert [len(link.told) for link in links] == [1] * 3


async def test_others_get_several_appends_in_one_round(autojump_clock, nursery):
    """The nearest is told of each append, the others once, a round later."""
    rounds = served(nursery)
    nearest, *others = with_links(rounds, 3)
    rounds.nearest = nearest
    for _ in range(3):
        append(rounds)
    assert nearest.told == [(0.0, 10, True), (0.0, 20, True), (0.0, 30, True)]
    assert [other.told for other in others] == [[], []]
    await trio.sleep(1)
    assert [other.told for other in others] == [[(ROUND_S, 30, True)]] * 2


async def test_next_append_begins_the_next_round(autojump_clock, nursery):
    """A round serves what came before its end; without appends there is none."""
    rounds = served(nursery)
    nearest, other = with_links(rounds, 2)
    rounds.nearest = nearest
    append(rounds)
    await trio.sleep(1)
    append(rounds)
    await trio.sleep(1)
    assert [at for at, _, _ in other.told] == [ROUND_S, 1 + ROUND_S]


async def test_rounds_of_many_links_are_longer(autojump_clock, nursery):
    """So that the sends and reads of a round take a small part of the master's time."""
    rounds = served(nursery)
    links = with_links(rounds, 20)
    rounds.nearest = links[0]
    append(rounds)
    await trio.sleep(1)
    assert {told[0] for link in links[1:] for told in link.told} == {20 * ROUND_S_A_LINK}


async def test_a_sync_flush_master_leaves_sending_to_the_links_tasks(autojump_clock, nursery):
    """One frame then holds what a turn has appended: nearest or not."""
    rounds = served(nursery, gathers=True)
    nearest, other = with_links(rounds, 2)
    append(rounds)
    assert nearest.told == other.told == [(0.0, 10, False)]
    rounds.nearest = nearest
    append(rounds)
    assert nearest.told[1:] == [(0.0, 20, False)]


@pytest.mark.parametrize("kind", [SendRounds, GroupSendRounds])
async def test_the_puts_that_follow_a_crowd_leave_in_one_frame(kind):
    """The puts that one ack released are likely to be followed by as many in the same turn."""
    BEGAN.set(trio.current_time())
    rounds = kind(Log(), gathers=False)
    (link,) = with_links(rounds, 1)
    rounds.nearest = link
    if isinstance(rounds, GroupSendRounds):
        rounds.awaited[link] = None
    for rounds.released in (0, CROWD - 1, CROWD, 1):
        append(rounds)
    assert [at_once for _, _, at_once in link.told] == [True, True, False, True]


async def test_a_link_that_holds_bytes_back_gets_a_round_of_its_own(autojump_clock, nursery):
    """It found more bytes after a frame, and perhaps no append follows."""
    rounds = served(nursery)
    nearest, other = with_links(rounds, 2)
    rounds.nearest = nearest
    rounds.commit_log.readable_offset = 10
    assert rounds.holds_back(other, 10)
    await trio.sleep(1)
    assert other.told == [(ROUND_S, 10, True)]


async def test_what_is_never_held_back(autojump_clock, nursery):
    """The nearest slave's bytes, a lagging slave's, and anybody's while none is nearest."""
    rounds = served(nursery)
    nearest, other = with_links(rounds, 2)
    assert not rounds.holds_back(other, 1)
    rounds.nearest = nearest
    assert not rounds.holds_back(nearest, 1)
    assert not rounds.holds_back(other, HELD_SIZE_MAX + 1)
    assert rounds.holds_back(other, HELD_SIZE_MAX)


async def test_without_the_nearest_all_get_bytes_at_once_again(autojump_clock, nursery):
    """A link that has ended is forgotten, whatever place it had."""
    rounds = served(nursery)
    nearest, other = with_links(rounds, 2)
    rounds.nearest = nearest
    rounds.forget(nearest)
    append(rounds)
    assert not nearest.told
    assert other.told == [(0.0, 10, True)]


async def test_all_awaited_nodes_of_a_group_get_bytes_at_once(autojump_clock, nursery):
    """The others in rounds, also while none is awaited; one that has ended is forgotten."""
    BEGAN.set(trio.current_time())
    rounds = GroupSendRounds(Log(), gathers=False)
    nursery.start_soon(rounds.run)
    one, two, other = with_links(rounds, 3)
    rounds.awaited.update(dict.fromkeys((one, two)))
    append(rounds)
    append(rounds)
    assert [link.told for link in (one, two)] == [[(0.0, 10, True), (0.0, 20, True)]] * 2
    assert not other.told
    await trio.sleep(1)
    assert other.told == [(ROUND_S, 20, True)]
    assert not rounds.holds_back(one, 1)
    assert not rounds.holds_back(other, HELD_SIZE_MAX + 1)
    assert rounds.holds_back(other, HELD_SIZE_MAX)
    rounds.forget(one)
    assert (list(rounds.idle), list(rounds.awaited)) == ([two, other], [two])
    rounds.forget(two)
    await trio.sleep(1)
    told = len(other.told)
    append(rounds)
    assert len(other.told) == told
    await trio.sleep(1)
    assert len(other.told) == told + 1


async def frames_up_to(peer, end):
    """Return the frames that a raw slave gets until it has ``end``, heartbeats left out."""
    frames = []
    while not frames or sum(frames[-1]) < end:
        offset, body = await peer.frame()
        if body:
            frames.append((offset, len(body)))
    return frames


async def put_through(master, peer, message):
    """Put one message, which a raw slave acknowledges; return where it ends."""
    request = master.submit(message)
    end = request.append_result.next_offset
    await frames_up_to(peer, end)
    await peer.report(end)
    assert await request.wait() is PutMessageStatus.PUT_OK
    return end


async def first_put(master, peer):
    """Let a raw slave become the nearest; return where the log ends."""
    await peer.report(0)
    await eventually(lambda: master.ha_service.is_slave_ok(0) and master.ha_service.rounds.idle)
    return await put_through(master, peer, messages(1)[0])


async def test_a_slave_gets_a_crowds_next_puts_in_one_frame(tmp_path):
    """Else the first of them has a frame and a report of its own."""
    config = master_config(tmp_path / "m", ha=SILENT)
    async with hastore.open_master(config) as master, raw_slave(master) as slave:
        await first_put(master, slave)
        frames = []
        for _ in range(2):  # bursts
            requests = [master.submit(message) for message in messages(CROWD)]
            end = requests[-1].append_result.next_offset
            frames.append(len(await frames_up_to(slave, end)))
            await slave.report(end)
            await requests[-1].wait()
            await eventually(lambda: master.ha_service.rounds.idle)
        assert frames == [2, 1]


async def test_a_slave_that_no_put_waits_for_gets_one_frame(tmp_path, monkeypatch):
    """It gets five puts in one frame as soon as the nearest slave has left."""
    monkeypatch.setattr(send_rounds, "ROUND_S", AN_HOUR)
    config = master_config(tmp_path / "m", ha=SILENT)
    async with hastore.open_master(config) as master:
        rounds = master.ha_service.rounds
        async with contextlib.AsyncExitStack() as stack:
            nearest = await stack.enter_async_context(raw_slave(master))
            start = await first_put(master, nearest)
            async with raw_slave(master) as other:
                await other.report(start)
                # The heartbeat that answers its first report, which would take a put along.
                assert await other.frame() == (start, b"")
                await eventually(lambda: len(rounds.idle) == 2)
                for message in messages(5):
                    await put_through(master, nearest, message)
                await stack.aclose()
                await eventually(lambda: rounds.nearest is None)
                last = master.submit(messages(1)[0])
                end = last.append_result.next_offset
                assert await frames_up_to(other, end) == [(start, end - start)]
                await other.report(end)
                assert await last.wait() is PutMessageStatus.PUT_OK


async def test_another_slave_acknowledges_when_the_nearest_freezes(tmp_path):
    """It gets the bytes a round later, and is the nearest from then on."""
    async with (
        hastore.open_master(master_config(tmp_path / "m")) as master,
        raw_slave(master) as frozen,
    ):
        start = await first_put(master, frozen)
        rounds = master.ha_service.rounds
        before = rounds.nearest
        async with raw_slave(master) as other:
            await other.report(start)
            await eventually(lambda: len(rounds.idle) == 2)
            await put_through(master, other, messages(1)[0])
            assert rounds.nearest not in {None, before}


async def test_no_heartbeat_leaves_while_bytes_are_held_back(tmp_path, monkeypatch):
    """A slave takes a heartbeat's offset for our end: it would call itself ahead of us."""
    monkeypatch.setattr(send_rounds, "ROUND_S", AN_HOUR)
    async with (
        hastore.open_master(master_config(tmp_path / "m")) as master,
        raw_slave(master) as nearest,
    ):
        start = await first_put(master, nearest)
        end = await put_through(master, nearest, messages(1)[0])
        async with raw_slave(master) as other:
            await other.report(start)
            offset, body = await other.frame()
            assert (offset, offset + len(body)) == (start, end)


async def test_bytes_that_come_during_a_send_are_held_back(tmp_path, monkeypatch):
    """The link's own task has just sent: without that it would send as often as the nearest's."""
    monkeypatch.setattr(send_rounds, "ROUND_S", AN_HOUR)
    record_sent, submitted = WriteSocketService._record_sent, []
    async with (
        hastore.open_master(master_config(tmp_path / "m")) as master,
        raw_slave(master) as nearest,
    ):
        start = await first_put(master, nearest)
        end = await put_through(master, nearest, messages(1)[0])

        def submit_once(service, began, size):
            record_sent(service, began, size)
            if service is not master.ha_service.rounds.nearest and not submitted:
                submitted.append(master.submit(messages(1)[0]))

        monkeypatch.setattr(WriteSocketService, "_record_sent", submit_once)
        async with raw_slave(master) as other:
            await other.report(start)
            assert await frames_up_to(other, end) == [(start, end - start)]
            (request,) = submitted
            last = request.append_result.next_offset
            await frames_up_to(nearest, last)
            await nearest.report(last)
            assert await request.wait() is PutMessageStatus.PUT_OK
            sent = {slave.sent_offset for slave in master.ha_service.standing().slaves}
            assert sent == {end, last}
