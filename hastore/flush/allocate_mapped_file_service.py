"""Makes the next mapped file before it is needed, in a thread, so that an append does not wait.

The log names the file it wants (the first; the next one once the last is half written); the service
makes it and hands it over.  A failure is kept and raised to every waiting caller.  It tries again
at the next request, and every RETRY_S without one, so a node recovers when space is freed.

With ``warm_mapped_file_enable`` the file is warmed up before it is handed over (``warm_up``).  At
the other end, files that have rolled are unlocked, and older ones lose their map, which costs a
descriptor and a gigabyte of addresses each.

Invariant: one file is made at a time, and only if it is wanted.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.concurrency.store_health import StoreHealth, Write
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import DiskError, FileLostError
from hastore.flush.checkpoint_flusher import is_out_of_descriptors
from hastore.flush.warm_up import WarmUp
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.config import StoreConfig
    from hastore.env.interface import Env
    from hastore.store.log.mapped_file import MappedFile
    from hastore.store.log.mapped_file_queue import MappedFileQueue

RETRY_S: Final = 1.0  # after a failure, if no put asks before
_CLOSES_WITHIN_S: Final = 0.05  # a client that is shed; less than a listener pauses without one

_log = logger("flush")


@final
@attrs.define(eq=False)
class AllocateMappedFileService:
    """Makes the files of ``mapped_file_queue``; without ``config`` no file is warmed up.

    ``last_error`` is why the last attempt failed, None if it succeeded, or if no file is wanted.
    """

    env: Env
    mapped_file_queue: MappedFileQueue
    config: StoreConfig | None = None
    health: StoreHealth = attrs.field(factory=StoreHealth)
    last_error: DiskError | None = attrs.field(default=None, init=False)
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    # Closes idle clients; returns whether there were any.  None: there is no port of clients.
    _shed_clients: Callable[[], bool] | None = attrs.field(default=None, init=False)
    # Set at the end of each attempt, and replaced by a new one.
    _attempt_ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    _warm_up: WarmUp | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        """Make the WarmUp if it is configured."""
        if self.config is not None and self.config.warm_mapped_file_enable:
            self._warm_up = WarmUp(self.env.memory, self.config)

    async def run(self) -> None:
        """Serve until cancelled.  An attempt that has begun always runs to its end.

        Raises FileLostError if the log's directory is no longer at its name.
        """
        queue = self.mapped_file_queue
        queue.subscribe(self._wake.wakeup)
        if self.health.fails(Write.NEXT_FILE):  # in the node's former role: until one is made
            queue.wants_next_file = True
        while True:
            file_from_offset = queue.wanted_file_offset()
            if file_from_offset is not None:
                await self._make(file_from_offset)
            else:
                self.last_error = None  # what is left of the last one suffices for now
                self.health.works(Write.NEXT_FILE)
            await self._release_old_files()
            if self.last_error is not None:
                with trio.move_on_after(RETRY_S):
                    await self._wake.wait_for_running()
            elif queue.wanted_file_offset() is None:
                await self._wake.wait_for_running()

    def sheds_by(self, shed_clients: Callable[[], bool]) -> None:
        """Call ``shed_clients`` where no descriptor is left for the next file."""
        self._shed_clients = shed_clients

    async def wait_for_file(self) -> None:
        """Wait until the log has its next file; there is no timeout.

        Raises DiskError if an attempt that ends after the call fails.
        """
        await trio.lowlevel.checkpoint()
        while self.mapped_file_queue.wanted_file_offset() is not None:
            attempt_ended = self._attempt_ended
            self._wake.wakeup()
            await attempt_ended.wait()
            if self.last_error is not None:
                raise self.last_error

    async def _make(self, file_from_offset: int) -> None:
        queue = self.mapped_file_queue
        try:
            mapped_file = await self._create_or_shed(file_from_offset)
            queue.offer(mapped_file)
        except FileLostError:
            raise
        except DiskError as error:
            if self.last_error is None:
                _log.error("next_file_failed", reason=str(error), next=error.hint)
            self.last_error = error
            self.health.failed(Write.NEXT_FILE, str(error))
        else:
            if self.last_error is not None:
                _log.info("next_file_made_again", file_from_offset=file_from_offset)
            self.last_error = None
            self.health.works(Write.NEXT_FILE)
        self._attempt_ended.set()
        self._attempt_ended = trio.Event()

    async def _create_or_shed(self, file_from_offset: int) -> MappedFile:
        """Create a file; where no descriptor is left, close idle clients and try once more."""
        try:
            return await self.env.offload.run(lambda: self._create(file_from_offset))
        except DiskError as error:
            shed = self._shed_clients
            if shed is None or not is_out_of_descriptors(error) or not shed():
                raise
        await trio.sleep(_CLOSES_WITHIN_S)
        return await self.env.offload.run(lambda: self._create(file_from_offset))

    def _create(self, file_from_offset: int) -> MappedFile:
        """Create a file, and warm it up; blocks.

        A file that cannot be warmed up is removed.  It holds no byte of the log, so even a failed
        sync is not fail-stop here.
        """
        queue = self.mapped_file_queue
        mapped_file = queue.create_file(file_from_offset)
        if self._warm_up is not None:
            try:
                self._warm_up.warm(mapped_file)
            except DiskError:
                queue.discard(mapped_file)
                raise
        return mapped_file

    async def _release_old_files(self) -> None:
        """Unlock the files that have rolled, and unmap older ones unless a view is still in use."""
        queue = self.mapped_file_queue
        warm_up = self._warm_up
        locked = [] if warm_up is None else queue.rolled_files_with_lock()
        unmappable = queue.release_views()
        if not locked and not unmappable:
            return

        def release() -> None:
            for mapped_file in locked:
                assert warm_up is not None
                warm_up.cool(mapped_file)
            for mapped_file in unmappable:
                with contextlib.suppress(BufferError):
                    mapped_file.disk_file.unmap()

        await self.env.offload.run(release)
