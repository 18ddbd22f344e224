"""A trio loop in a thread of its own, for callers that are not asynchronous.

Everything that is awaited runs there; ``call`` waits for it from any other thread, also from one
that runs an event loop of its own (which stands still meanwhile).

Invariant: after ``close`` the thread is gone, and every call that was waited for has ended.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import trio

from hastore.errors import HastoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

CLOSE_WITHIN_S: Final = 120.0


class LoopClosedError(HastoreError):
    """Something was asked of a cluster that is closed."""


@final
class LoopThread:
    """The thread and its loop; ``nursery`` lives as long, and is for tasks that stay."""

    def __init__(self) -> None:
        self.nursery: trio.Nursery
        self._token: trio.lowlevel.TrioToken
        self._ready = threading.Event()
        self._waited_for: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        # A daemon: whatever happens to the tests, it never keeps the interpreter from ending.
        self._thread = threading.Thread(target=self._run, name="hastore-testing", daemon=True)
        self._thread.start()
        self._ready.wait()

    def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """Run ``await make()`` in the loop; give its result, or raise what it raised."""
        assert threading.current_thread() is not self._thread, "this would wait for itself"
        future: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                raise LoopClosedError("this cluster is closed", hint="use it within its test")
            self._waited_for.add(future)
        self._token.run_sync_soon(self._start, make, future)
        try:
            return future.result()
        finally:
            self._waited_for.discard(future)

    def close(self) -> None:
        """End the loop: cancel what stays, and wait for the thread; idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._token.run_sync_soon(self.nursery.cancel_scope.cancel)
        self._thread.join(CLOSE_WITHIN_S)
        assert not self._thread.is_alive(), f"a node has not ended within {CLOSE_WITHIN_S:g} s"

    # -- in the thread

    def _run(self) -> None:
        try:
            trio.run(self._main)
        finally:
            with self._lock:
                self._is_closed = True
                left = [future for future in self._waited_for if not future.done()]
            for future in left:
                future.set_exception(LoopClosedError("the cluster was closed meanwhile"))

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self.nursery:
            self._ready.set()
            await trio.sleep_forever()

    def _start(self, make: Callable[[], Awaitable[T]], future: Future[T]) -> None:
        if not future.done():
            self.nursery.start_soon(_settle, make, future)


async def _settle(make: Callable[[], Awaitable[T]], future: Future[T]) -> None:
    """Put the outcome into the future; nothing but a cancellation leaves this."""
    try:
        result = await make()
    except trio.Cancelled:
        future.set_exception(LoopClosedError("the cluster was closed meanwhile"))
        raise
    except BaseException as error:  # noqa: BLE001 - it belongs to who waits
        future.set_exception(lone(error))
    else:
        future.set_result(result)


def lone(error: BaseException) -> BaseException:
    """Take an error out of trio's groups, where it is the only one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
