"""The dispatch of a node: from the log into consume queues and index, and to the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.concurrency.store_health import StoreHealth
from hastore.dispatch.record_dispatcher import RecordDispatcher
from hastore.dispatch.reput_message_service import ReputMessageService
from hastore.flush.checkpoint_flusher import CheckpointFlusher
from hastore.flush.flush_consume_queue_service import FlushConsumeQueueService
from hastore.store.record.delay_levels import DelayLevels

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.dispatch.dispatch_wake import DispatchWake
    from hastore.env.interface import Env
    from hastore.store.message_store import MessageStore


@final
@attrs.define(eq=False)
class Dispatching:
    """The services; a stop calls ``finish`` last, before it closes the store."""

    message_store: MessageStore
    reput_message_service: ReputMessageService
    flush_service: FlushConsumeQueueService
    checkpoint_flusher: CheckpointFlusher  # the FlushManager runs it

    async def run(self) -> None:
        """Serve until cancelled.  Raises DiskError after a failed read or sync."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.reput_message_service.run)
            nursery.start_soon(self.flush_service.run)

    async def finish(self) -> None:
        """Dispatch what is confirmed, and force what was dispatched to the disk."""
        await self.reput_message_service.catch_up()
        await self.flush_service.flush()
        self.message_store.redispatched_to = self.reput_message_service.committed_offset


def make_dispatching(
    env: Env,
    message_store: MessageStore,
    confirm_offset: Callable[[], int],
    wake: DispatchWake,
    *,
    health: StoreHealth | None = None,
    on_bad_record: Callable[[int, str], None] | None = None,
) -> Dispatching:
    """Return the services of an open store; ``on_bad_record`` is a slave's.

    The caller notifies ``wake`` when the log or its confirm offset grew.
    """
    config, health = message_store.config, health or StoreHealth()
    reput = ReputMessageService(
        env,
        message_store.commit_log,
        RecordDispatcher(
            message_store.consume_queues,
            message_store.index_service,
            DelayLevels.parse(config.message_delay_level),
        ),
        confirm_offset,
        message_store.redispatch_from,
        last_message_offset=message_store.commit_log.load_report.last_message_offset,
        on_bad_record=on_bad_record,
        wake=wake,
        health=health,
    )
    # The dispatched offset is stored as the confirm offset: consumers have seen nothing above it.
    checkpoint_flusher = CheckpointFlusher(
        env, message_store.checkpoint, lambda: reput.committed_offset
    )
    flush_service = FlushConsumeQueueService(
        env=env,
        config=config,
        consume_queues=message_store.consume_queues,
        index_service=message_store.index_service,
        checkpoint_flusher=checkpoint_flusher,
        dispatched_timestamp_ms=lambda: reput.dispatched_timestamp_ms,
        health=health,
    )
    reput.subscribe(lambda _grown: flush_service.notify_dispatched())
    return Dispatching(message_store, reput, flush_service, checkpoint_flusher)
