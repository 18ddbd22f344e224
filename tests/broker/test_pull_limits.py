"""Limits on pulls: many held pulls, large requests, and consumers that read no answers."""

from __future__ import annotations

import gc
import select
import sys

import trio

from hastore.broker.pulls import pull_request_hold_service
from hastore.config import MIB
from hastore.message import Message
from hastore.store.queue import queue_read
from hastore.wire.frame_reader import encode_command
from hastore.wire.remoting_codes import FLAG_ONE_WAY
from hastore.wire.remoting_command import RemotingCommand
from tests.broker.pull_answers import bodies, offsets
from tests.patience import WITHIN_S
from tests.support.nodes.raw_client import raw_client
from tests.support.nodes.reading import open_master, pull_command, put
from tests.support.waiting import eventually


async def test_a_held_pull_finds_its_message_after_many_others(tmp_path, monkeypatch):
    """The match is after more units than one read checks, and no later message wakes the pull."""
    monkeypatch.setattr(queue_read, "UNITS_MAX", 4)
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        await put(master)
        await client.send(
            pull_command(1, queue_offset=1, subscription="b", suspend_timeout_ms=600_000)
        )
        await client.ask(RemotingCommand(code=105, ext_fields={"topic": "T"}))  # it is held now
        tags = "a" * 600 + "b"
        await master.put_batch([Message("T", b"x", properties={"TAGS": tag}) for tag in tags])
        with trio.fail_after(WITHIN_S):
            found = await client.receive()
    assert (found.opaque, bodies(found), offsets(found)[0]) == (1, [b"x"], 602)


async def test_a_held_pull_keeps_no_body(tmp_path, monkeypatch):
    """A client may hold a thousand pulls, and each may have come with a body of 64 KiB."""
    held = []
    hold = pull_request_hold_service.PullRequestHoldService.hold

    def record(self, pull):
        held.append(pull)
        return hold(self, pull)

    monkeypatch.setattr(pull_request_hold_service.PullRequestHoldService, "hold", record)
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        command = pull_command(suspend_timeout_ms=600_000)
        command.body = bytes(60_000)
        await client.send(command)
        await eventually(lambda: held)
        reached = [held[0].tag]
        for thing in reached:
            if not isinstance(thing, type):
                reached += gc.get_referents(thing)
        assert sum(sys.getsizeof(thing) for thing in reached if type(thing) in {bytes, str}) < 1_000


async def test_pulls_above_the_limit_of_held_pulls_are_answered_at_once(tmp_path, monkeypatch):
    """The client may hold two pulls; its third is answered."""
    monkeypatch.setattr(pull_request_hold_service, "HELD_MAX", 2)
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        for opaque in range(3):
            await client.send(pull_command(opaque, suspend_timeout_ms=600_000))
        response = await client.receive()
    assert (response.opaque, response.code) == (2, 19)


async def test_a_consumer_that_never_reads_does_not_slow_others(tmp_path):
    """A thousand unread pulls cost one answer's memory, and their connection is closed."""
    async with (
        open_master(tmp_path, in_flight_max=100, idle_timeout_ms=5_000) as master,
        raw_client(master.address) as stalled,
        raw_client(master.address) as client,
    ):
        await put(master, "L", [bytes(100_000)] * 40)
        with trio.move_on_after(0.5):
            await stalled.send(*[encode_command(pull_command(n, topic="L")) for n in range(1_000)])
        # Polled instead of read: a client that reads is not stalled any more.
        poll = select.poll()
        poll.register(stalled.sock.fileno(), select.POLLRDHUP)
        for n in range(20):
            await put(master, "S", [b"%d" % n])
            found = bodies(await client.ask(pull_command(topic="S", queue_offset=n)))
            assert found == [b"%d" % n]
            assert n or not poll.poll(0), "the stalled connection was closed too early"
        await eventually(lambda: poll.poll(0), "the stalled connection is closed")
        with trio.fail_after(WITHIN_S):
            await stalled.closed()
        files = master.commit_log.mapped_file_queue.files
        assert [file.holders for file in files] == [0] * len(files)


async def test_waiting_requests_are_bounded_by_their_size(tmp_path):
    """The node soon stops reading from a client that reads no answers."""
    async with open_master(tmp_path) as master, raw_client(master.address) as stalled:
        await put(master, bodies=[bytes(100_000)] * 40)
        large = pull_command()
        large.body = bytes(4 * MIB)
        sent = 0
        with trio.move_on_after(1):
            await stalled.send(*[pull_command() for _ in range(10)])
            while sent < 40:
                await stalled.send(large)
                sent += 1
        assert sent < 10


async def test_a_one_way_pull_is_not_held(tmp_path):
    """It asks to be held, but never gets an answer."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        await put(master)
        pull = pull_command(1, flag=FLAG_ONE_WAY, queue_offset=1, suspend_timeout_ms=600_000)
        await client.send(pull, pull_command(2))
        assert (await client.receive()).opaque == 2
        await put(master)
        assert (await client.ask(pull_command(3))).opaque == 3
