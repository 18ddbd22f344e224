"""Sends for ``hastore produce``: source → producer → tally, and messages to list.

::

    source.feed ─► channel ─► send ─► Producer.submit_many ─► SendTally.decided
                                └─► listed (≤ 20, or a terminal's) ─► a line each

Ctrl-C stops reading, waits ``_LAST_ANSWERS_S`` for outstanding answers, and reports.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.client.failover_rules import Retry
from hastore.client.master_link import FAILOVER_TIMEOUT_S
from hastore.client.producer import Producer
from hastore.client.remoting_client import REQUEST_TIMEOUT_S
from hastore.client.send_result import PendingSend
from hastore.errors import ConfigError, HastoreError
from hastore.message import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_WAIT_STORE_MSG_OK,
)
from hastore_cli.acl.access_key import access_key
from hastore_cli.acl.asking_command import client_tls
from hastore_cli.app.interrupts import interruptible
from hastore_cli.produce.source import (
    LineFormat,
    LineReader,
    MessageSource,
    batches_channel,
    chunks,
    read_ahead,
)
from hastore_cli.produce.tally import SendTally

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from hastore.client.master_link import Failover
    from hastore.message import Message
    from hastore_cli.produce.history import ProduceHistory

_AHEAD_S: Final = 0.01
_BEHIND_S: Final = 1.0  # after a longer stall the rate starts again, without a burst to catch up
FEW_MAX: Final = 20
IN_FLIGHT_MAX: Final = 1_024
_READ_AHEAD_S: Final = 0.2
_LAST_ANSWERS_S: Final = 3.0  # after Ctrl-C; a stop takes less than 5 s


@attrs.frozen(kw_only=True)
class ProduceOrder:
    """What to send, and to which node, or to which master of several."""

    topic: str
    addresses: list[tuple[str, int]]
    source: MessageSource
    key: str | None = None
    tag: str | None = None
    own_properties: Mapping[str, str] = attrs.field(factory=dict)
    line_format: LineFormat = LineFormat.TEXT
    key_separator: str = ""  # KEYED: what follows the keys of a line
    queue_id: int | None = None
    rate: float | None = None
    wait: bool = True
    list_all: bool = False  # stdin is a terminal: print every outcome
    history: ProduceHistory | None = None  # records every message and its outcome
    retry: Retry = Retry.REFUSED
    failover_timeout_s: float = FAILOVER_TIMEOUT_S

    def properties(self) -> dict[str, str]:
        """Return the properties of all messages."""
        found = dict(self.own_properties)
        if self.key is not None:
            found[PROPERTY_KEYS] = self.key
        if self.tag is not None:
            found[PROPERTY_TAGS] = self.tag
        if not self.wait:
            found[PROPERTY_WAIT_STORE_MSG_OK] = "false"
        return found

    def reader(self) -> LineReader:
        """Return what makes messages of the source's lines."""
        return LineReader(
            topic=self.topic,
            properties=self.properties(),
            name=self.source.name,
            line_format=self.line_format,
            separator=self.key_separator.encode(),
        )


@final
@attrs.define(eq=False)
class ProduceOutcome:
    """The result; ``error`` ended the run early, ``signal_code`` is 130 or 143 after a signal."""

    tally: SendTally
    seconds: float = 0.0
    error: HastoreError | None = None
    signal_code: int | None = None
    lists: bool = False
    address: tuple[str, int] | None = None  # of the node that it sent to last
    failovers: list[Failover] = attrs.field(factory=list)


@final
@attrs.define(eq=False)
class ProduceRun:
    """One run of the command.

    ``on_listed`` is called with each listed message that has an outcome, in the order of sending;
    ``watch`` surrounds the sending (the progress bar).
    """

    order: ProduceOrder
    on_listed: Callable[[PendingSend, ProduceOutcome], None]
    watch: Callable[[ProduceOutcome], AbstractAsyncContextManager[None]]
    on_failover: Callable[[Failover], None] = lambda _failover: None
    # Sent, and to be listed after all others: a signal came before the channel took them.
    _left: list[PendingSend] = attrs.field(factory=list, init=False)
    _line_number: int = attrs.field(default=0, init=False)
    _reader: LineReader = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Take the order's format of lines."""
        self._reader = self.order.reader()

    async def run(self) -> ProduceOutcome:
        """Connect, send everything, wait for the answers.  Raises UnreachableError."""
        order = self.order
        outcome = ProduceOutcome(SendTally(REQUEST_TIMEOUT_S), address=order.addresses[0])

        def on_failover(failover: Failover) -> None:
            outcome.failovers.append(failover)
            self.on_failover(failover)

        async with interruptible() as interruption:
            with interruption.grace_scope:
                async with Producer.connect(
                    order.addresses if len(order.addresses) > 1 else order.addresses[0],
                    in_flight_max=IN_FLIGHT_MAX,
                    retry=order.retry,
                    failover_timeout_s=order.failover_timeout_s,
                    on_failover=on_failover,
                    access_key=access_key(),
                    tls=client_tls(),
                ) as producer:
                    interruption.grace_s = _LAST_ANSWERS_S
                    await self._send_and_list(producer, outcome, interruption.scope)
        outcome.signal_code = interruption.exit_code
        return outcome

    async def _send_and_list(
        self, producer: Producer, outcome: ProduceOutcome, interruption_scope: trio.CancelScope
    ) -> None:
        start = trio.current_time()
        to_list, listed = trio.open_memory_channel[PendingSend](FEW_MAX + 1)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._list, listed, outcome)
                async with self.watch(outcome), to_list:
                    with interruption_scope:
                        await self._feed_and_send(producer, to_list, outcome)
                    await producer.drain()
        finally:
            outcome.seconds = trio.current_time() - start
            outcome.address = producer.address

    async def _feed_and_send(
        self,
        producer: Producer,
        to_list: trio.MemorySendChannel[PendingSend],
        outcome: ProduceOutcome,
    ) -> None:
        to_send, bodies = batches_channel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._feed, to_send, outcome)
            try:
                await self._send(producer, bodies, to_list, outcome)
            except HastoreError as error:
                # Earlier messages still get an answer, or an unknown outcome.
                outcome.error = error
            nursery.cancel_scope.cancel()

    async def _feed(
        self, to_send: trio.MemorySendChannel[list[bytes]], outcome: ProduceOutcome
    ) -> None:
        try:
            await self.order.source.feed(to_send)
        except HastoreError as error:
            outcome.error = error

    async def _send(
        self,
        producer: Producer,
        bodies: trio.MemoryReceiveChannel[list[bytes]],
        to_list: trio.MemorySendChannel[PendingSend],
        outcome: ProduceOutcome,
    ) -> None:
        order = self.order
        ahead, is_all = await read_ahead(bodies, count=FEW_MAX, seconds=_READ_AHEAD_S)
        outcome.lists = order.list_all or len(ahead) <= FEW_MAX
        pacer = None if order.rate is None else Pacer(order.rate)
        async with aclosing(_batches(ahead, bodies, is_all=is_all)) as batches:
            async for batch in batches:
                done = 0
                while done < len(batch):
                    end = len(batch)
                    if pacer is not None:
                        await pacer.wait_turn()
                        end = done + 1 + pacer.take_turns(end - done - 1)
                    await self._send_due(producer, batch[done:end], to_list, outcome)
                    done = end
                # Let answers come in even while there is room for more.
                await trio.lowlevel.checkpoint()

    async def _send_due(
        self,
        producer: Producer,
        bodies: list[bytes],
        to_list: trio.MemorySendChannel[PendingSend],
        outcome: ProduceOutcome,
    ) -> None:
        """Send messages that may leave now, as batches."""
        order, tally = self.order, outcome.tally
        messages, fault = self._messages(bodies)
        while messages:
            sent = await producer.submit_many(messages, queue_id=order.queue_id)
            to_be_listed = []
            for message, pending in zip(messages, sent, strict=False):
                listed = outcome.lists and (order.list_all or tally.sent < FEW_MAX)
                tally.sending(pending, len(message.body), listed=listed)
                if order.history is not None:
                    order.history.sending(pending, message.body)
                if listed:
                    to_be_listed.append(pending)
            listed_count = 0
            try:
                for pending in to_be_listed:
                    await to_list.send(pending)
                    listed_count += 1
            except trio.Cancelled:
                self._left = to_be_listed[listed_count:]
                raise
            messages = messages[len(sent) :]
        if fault is not None:
            raise fault

    def _messages(self, lines: list[bytes]) -> tuple[list[Message], ConfigError | None]:
        """Return the messages of lines, and why the next line is not one."""
        messages: list[Message] = []
        for line in lines:
            self._line_number += 1
            try:
                messages.append(self._reader.message(line, self._line_number))
            except ConfigError as fault:
                return messages, fault
        return messages, None

    async def _list(
        self, listed: trio.MemoryReceiveChannel[PendingSend], outcome: ProduceOutcome
    ) -> None:
        async for pending in listed:
            await pending.done()
            self.on_listed(pending, outcome)
        for pending in self._left:
            await pending.done()
            self.on_listed(pending, outcome)


async def _batches(
    ahead: list[bytes], bodies: trio.MemoryReceiveChannel[list[bytes]], *, is_all: bool
) -> AsyncGenerator[list[bytes], None]:
    for batch in chunks(ahead):
        yield batch
    if not is_all:
        async for batch in bodies:
            yield batch


# -- the rate ------------------------------------------------------------------------------------


@final
@attrs.define(eq=False)
class Pacer:
    """Limits messages to ``rate`` per second."""

    rate: float
    _start: float = attrs.field(factory=trio.current_time, init=False)
    _count: int = attrs.field(default=0, init=False)

    async def wait_turn(self) -> None:
        """Return when the next message may be sent."""
        due = self._start + self._count / self.rate
        self._count += 1
        now = trio.current_time()
        if due - now > _AHEAD_S:
            await trio.sleep_until(due)
        elif now - due > _BEHIND_S:
            self._start += now - due

    def take_turns(self, count_max: int) -> int:
        """Return how many more may be sent without waiting, at most ``count_max``."""
        ahead_s = trio.current_time() + _AHEAD_S - self._start
        count = min(max(int(ahead_s * self.rate) + 1 - self._count, 0), count_max)
        self._count += count
        return count
