"""Our client library at a node that lies: a typed error or an answer, never a crash or a false OK.

The node answers each question with a stream of the corpus, renumbered to match the question if it
is an answer, or mutated; then it closes.  ``PUT_OK`` may result only if the node has sent it.
"""

import contextlib
import json
import random

import pytest
import trio

from hastore.client.admin import AdminClient
from hastore.client.consumer import Consumer
from hastore.client.producer import Producer
from hastore.concurrency.tcp import bound_address, open_listener
from hastore.errors import HastoreError, ProtocolError, UnknownOutcomeError
from hastore.message import Message
from hastore.status import PutMessageStatus
from hastore.wire.frame_reader import FrameReader, encode_command
from tests.hostile.corpus_files import mutated, mutated_inside, recorded
from tests.hostile.handmade import TO_CLIENT
from tests.patience import WITHIN_S
from tests.support.nodes.scripted_node import ROUTE

STREAMS = recorded("to_client") | TO_CLIENT
ROUNDS = 150
ROUTE_CODE, HEARTBEAT_CODE = 105, 34


def commands_of(stream):
    """Return the complete commands in a stream."""
    reader = FrameReader(16 << 20)
    reader.feed(stream)
    commands = []
    with contextlib.suppress(ProtocolError):
        while (command := reader.next_command()) is not None:
            commands.append(command)
    return commands


def renumbered(stream, opaque):
    """Return the same answer to another question."""
    commands = commands_of(stream)
    if len(commands) != 1 or not commands[0].is_response:
        return stream
    commands[0].opaque = opaque
    return encode_command(commands[0])


class Liar:
    """A node that sends whatever ``answer(request)`` returns."""

    def __init__(self):
        self.answer = None
        self.address = None
        self.has_said_ok = False

    async def serve(self, listener):
        async with trio.open_nursery() as nursery:
            while True:
                sock, _ = await listener.accept()
                nursery.start_soon(self.converse, sock)

    async def converse(self, sock):
        reader = FrameReader(16 << 20)
        with sock, contextlib.suppress(OSError):
            while data := await sock.recv(65_536):
                reader.feed(data)
                while (request := reader.next_command()) is not None:
                    is_last, stream = self.answer(request)
                    if request.code in (310, 320, 10):
                        self.has_said_ok |= any(
                            answer.is_response
                            and answer.opaque == request.opaque
                            and answer.code == 0
                            for answer in commands_of(stream)
                        )
                    await sock.send(stream) if stream else None
                    if is_last:
                        sock.shutdown(trio.socket.SHUT_WR)


@contextlib.asynccontextmanager
async def liar():
    listener = await open_listener(("127.0.0.1", 0), "clients")
    node = Liar()
    node.address = bound_address(listener)
    with listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.serve, listener)
            yield node
            nursery.cancel_scope.cancel()


async def use_whole_client(node):
    """Produce, consume, administer: each must end by itself, with an answer or an error of ours."""
    node.has_said_ok = False
    statuses = []
    for ask in (produce, consume, administer):
        with trio.fail_after(WITHIN_S), contextlib.suppress(HastoreError):
            await ask(node.address, statuses)
    if PutMessageStatus.PUT_OK in statuses:
        assert node.has_said_ok, "the node never sent an OK"


async def produce(address, statuses):
    async with Producer.connect(address, request_timeout_s=2) as producer:
        pending = await producer.submit(Message("T", b"one"))
        statuses.append((await pending.wait()).status)


async def consume(address, _statuses):
    async with Consumer.connect(address, request_timeout_s=2) as consumer:
        with contextlib.suppress(HastoreError):
            await consumer.pull("T", 0, 0)
        async for _ in consumer.messages("T", until_end=True):
            pass


async def administer(address, _statuses):
    async with AdminClient.connect(address, request_timeout_s=2) as admin:
        for ask in (
            admin.ha_status,
            admin.runtime_info,
            admin.topics,
            admin.groups,
            admin.consumer_offsets,
            lambda: admin.route("T"),
            lambda: admin.members("g"),
            lambda: admin.query_offset("g", "T", 0),
            lambda: admin.max_offset("T", 0),
            lambda: admin.query_message("T", "k"),
            lambda: admin.view_message(17),
        ):
            with contextlib.suppress(HastoreError):
                await ask()


async def test_recorded_and_handmade_answers_are_accepted_or_refused():
    """Each stream answers every question, once with and once without a valid answer for a route."""
    async with liar() as node:
        for name, stream in STREAMS.items():
            for has_route in (True, False):

                def answer(request, stream=stream, has_route=has_route):
                    if request.code == ROUTE_CODE and has_route:
                        route = json.dumps(ROUTE).encode()
                        return False, encode_command(request.response(0, body=route))
                    if request.code == HEARTBEAT_CODE:
                        return False, encode_command(request.response(0))
                    return True, renumbered(stream, request.opaque)

                node.answer = answer
                try:
                    await use_whole_client(node)
                except BaseException as error:
                    error.add_note(f"stream: {name}, with a route: {has_route}")
                    raise


async def test_mutated_answers_are_accepted_or_refused():
    """Each answer is mutated, differently each time."""
    choose = random.Random(5)
    streams = [stream for stream in STREAMS.values() if stream]
    async with liar() as node:
        for number in range(ROUNDS):
            sent = []

            def answer(request, sent=sent):
                if request.code == ROUTE_CODE and choose.randrange(4):
                    route = json.dumps(ROUTE).encode()
                    return False, encode_command(request.response(0, body=route))
                stream = renumbered(choose.choice(streams), request.opaque)
                mutate = mutated_inside if choose.randrange(3) else mutated
                sent.append(mutate(stream, streams, choose))
                return True, sent[-1]

            node.answer = answer
            try:
                await use_whole_client(node)
            except BaseException as error:
                error.add_note(f"round {number}: {[stream[:200].hex() for stream in sent]}")
                raise


async def test_node_that_neither_reads_nor_answers_blocks_no_producer():
    """Sends time out, and unsent data is bounded: the producer gets WouldBlock."""
    listener = await open_listener(("127.0.0.1", 0), "clients")

    async def deaf():
        sock, _ = await listener.accept()
        with sock:
            reader = FrameReader(1 << 20)
            while (request := reader.next_command()) is None:
                reader.feed(await sock.recv(65_536))
            route = json.dumps(ROUTE).encode()
            await sock.send(encode_command(request.response(0, body=route)))
            await trio.sleep_forever()

    address = bound_address(listener)
    is_checked = False
    with listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deaf)
            with trio.fail_after(WITHIN_S), contextlib.suppress(HastoreError):
                async with Producer.connect(address, request_timeout_s=2) as producer:
                    sent = []
                    with contextlib.suppress(trio.WouldBlock):
                        while len(sent) < 1_000:
                            sent += [producer.send_nowait(Message("T", bytes(1 << 20)))]
                    assert len(sent) < 30
                    for pending in sent:
                        with pytest.raises(UnknownOutcomeError):
                            await pending.wait()
                    is_checked = True  # only the end of the block may raise
            nursery.cancel_scope.cancel()
    assert is_checked
