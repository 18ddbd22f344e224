"""A trio loop in a thread of its own, for synchronous callers.

``call`` runs an async function there and waits for it, from any other thread, even from one with an
event loop of its own (which is blocked meanwhile).

Invariant: after ``close`` the thread is gone, and every call has ended.
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


class LoopNotStartedError(HastoreError):
    """The event loop of a cluster cannot start; its cause says why."""


class LoopClosedError(HastoreError):
    """A closed cluster was used."""


@final
class LoopThread:
    """The thread and its loop; ``nursery``, for background tasks, lives as long.

    Raises LoopNotStartedError.
    """

    def __init__(self) -> None:
        self.nursery: trio.Nursery
        self._token: trio.lowlevel.TrioToken
        self._started: Future[None] = Future()
        self._waited_for: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        # A daemon thread never keeps the interpreter from ending.
        self._thread = threading.Thread(target=self._run, name="hastore-testing", daemon=True)
        try:
            self._thread.start()
            self._started.result()
        except (Exception, BaseExceptionGroup) as error:
            if self._thread.ident is not None:
                self._thread.join()
            raise LoopNotStartedError(
                f"the event loop of the cluster cannot start: {lone(error)}",
                hint="check this process's limits: open files (ulimit -n), threads (ulimit -u)",
            ) from error

    def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """Run ``await make()`` in the loop; return its result or raise its error.

        Raises LoopClosedError after ``close``.
        """
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
        """Cancel all tasks and wait for the end of the thread; idempotent."""
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
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)
        finally:
            with self._lock:
                self._is_closed = True
                left = [future for future in self._waited_for if not future.done()]
            for future in left:
                future.set_exception(LoopClosedError("the cluster was closed meanwhile"))

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self.nursery:
            self._started.set_result(None)
            await trio.sleep_forever()

    def _start(self, make: Callable[[], Awaitable[T]], future: Future[T]) -> None:
        if not future.done():
            self.nursery.start_soon(_settle, make, future)


async def _settle(make: Callable[[], Awaitable[T]], future: Future[T]) -> None:
    """Put the outcome into the future; raise only a cancellation."""
    try:
        result = await make()
    except trio.Cancelled:
        future.set_exception(LoopClosedError("the cluster was closed meanwhile"))
        raise
    except BaseException as error:  # noqa: BLE001 - the caller gets it
        future.set_exception(lone(error))
    else:
        future.set_result(result)


def lone(error: BaseException) -> BaseException:
    """Return the only error of trio's nested groups, or the group if it has several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
