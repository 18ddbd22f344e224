"""The expiry of a node: of log files first, then of consume queues and index."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.broker.expiry.clean_commit_log_service import CleanCommitLogService
from hastore.broker.expiry.clean_consume_queue_service import CleanConsumeQueueService
from hastore.concurrency.store_health import StoreHealth
from hastore.store.log.cleaning import Hold

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hastore.broker.clock.clock_watch import ClockWatch
    from hastore.dispatch.reput_message_service import ReputMessageService
    from hastore.env.interface import Env
    from hastore.ha.ha_service import HAService
    from hastore.store.message_store import MessageStore


@final
@attrs.define(eq=False)
class Expiry:
    """The two services of a node's expiry, and the watch of the clock that they go by."""

    clock: ClockWatch
    clean_commit_log_service: CleanCommitLogService
    clean_consume_queue_service: CleanConsumeQueueService

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.clock.run)
            nursery.start_soon(self.clean_commit_log_service.run)
            nursery.start_soon(self.clean_consume_queue_service.run)


def make_expiry(
    env: Env,
    message_store: MessageStore,
    reput_message_service: ReputMessageService,
    *,
    clock: ClockWatch,
    health: StoreHealth | None = None,
    keep_reserve: Callable[[], object] = lambda: None,
    ha_service: HAService | None = None,
    on_disk_full: Callable[[str | None], None] = lambda _reason: None,
    flush_queues: Callable[[], Awaitable[object]] | None = None,
) -> Expiry:
    """Return the services of an open store; a slave leaves out ``ha_service``, ``on_disk_full``.

    Dispatch keeps the files that it still has to read; slaves keep those with bytes that they have
    not acknowledged.
    ``on_disk_full`` is CleanCommitLogService's; ``flush_queues`` forces the consume queues to disk.
    """
    clean_queues = CleanConsumeQueueService(env.offload, message_store, message_store.config)

    def holds() -> list[Hold]:
        held = [Hold(physic_offset=reput_message_service.committed_offset, who="dispatch")]
        return held if ha_service is None else [*held, *ha_service.holds()]

    def refuse_expired() -> None:
        if ha_service is not None:
            ha_service.refuse_expired()

    clean_log = CleanCommitLogService(
        env=env,
        config=message_store.config,
        commit_log=message_store.commit_log,
        clock=clock,
        holds=holds,
        refuse_expired=refuse_expired,
        on_removed=clean_queues.wakeup,
        on_disk_full=on_disk_full,
        health=health or StoreHealth(),
        keep_reserve=keep_reserve,
        flush_queues=flush_queues,
    )
    return Expiry(clock, clean_log, clean_queues)
