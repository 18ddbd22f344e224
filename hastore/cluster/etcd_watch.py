"""A watch at one endpoint of etcd: a stream of lines, and signs of life while it is silent.

::

    POST /v3/watch ──▶ created ──▶ are all changes there? ──▶ line, line, …
                                     (a read at after_revision)   silent for timeout_s: a read

A silent stream proves nothing: the server may be stopped, or cut off from the others.  So a read
at the same endpoint, which takes a majority, must then be answered within ``timeout_s``.  The first
read finds what etcd does not report: that it was restored to before ``after_revision``, where the
watch would wait for that revision to come again; and that a compaction *at* the first revision has
taken a deletion from the history (etcd issue 18089, repaired in 2024).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import trio

from hastore.cluster.etcd_encoding import changes_of, count_body, is_out_of_range, watch_body
from hastore.concurrency.service import as_itself
from hastore.errors import (
    CompactedError,
    CoordinatorError,
    CoordinatorRefusedError,
    CoordinatorUnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from hastore.cluster.etcd_encoding import Answer, Body
    from hastore.cluster.etcd_http import EtcdHttp
    from hastore.cluster.key_value_store import Changes

# etcd ends a watch with this header once its member has no leader.
_REQUIRE_LEADER: Final = {"Grpc-Metadata-hasleader": "true"}


async def watch(
    http: EtcdHttp,
    endpoint: str,
    prefix: str,
    after_revision: int,
    *,
    headers: Mapping[str, str],
    read: Callable[[Body], Awaitable[Answer]],
    timeout_s: float,
) -> AsyncGenerator[Changes]:
    """Yield the changes below ``prefix``; ``read`` asks the same endpoint for a range."""
    body = watch_body(prefix, after_revision)
    async with contextlib.AsyncExitStack() as stack:
        with trio.move_on_after(timeout_s) as opening:
            lines = await stack.enter_async_context(
                http.stream(
                    endpoint, "/v3/watch", body, {**headers, **_REQUIRE_LEADER}, within_s=timeout_s
                )
            )
            await _check_history(endpoint, prefix, after_revision, read)
            line = await _line_of(lines)
        if opening.cancelled_caught:
            raise CoordinatorUnreachableError(
                f"etcd at {endpoint}: no answer to a watch within {timeout_s:g} s"
            )

        async def show_life() -> None:
            await read(count_body(prefix))

        while True:
            if line is None:
                raise CoordinatorUnreachableError(f"etcd at {endpoint} has ended the watch")
            for changes in changes_of(line, after_revision):
                after_revision = changes.revision
                yield changes
            line = await _line_or_silence(lines, show_life, timeout_s)


async def _check_history(
    endpoint: str,
    prefix: str,
    after_revision: int,
    read: Callable[[Body], Awaitable[Answer]],
) -> None:
    """Raise CompactedError unless the store can still, and already, be read at the revision."""
    try:
        await read(count_body(prefix, after_revision))
    except CoordinatorRefusedError as error:
        if not is_out_of_range(error):
            raise
        raise CompactedError(
            f"etcd at {endpoint} has no changes after revision {after_revision}: {error}",
            after_revision=after_revision,
        ) from error


async def _line_or_silence(
    lines: AsyncGenerator[Answer], show_life: Callable[[], Awaitable[None]], timeout_s: float
) -> Answer | None:
    """Return the next line, None at the end; raise what ``show_life`` raises meanwhile."""
    failure: CoordinatorError | None = None

    async def ask_while_silent() -> None:
        nonlocal failure
        try:
            while True:
                await trio.sleep(timeout_s)
                await show_life()
        except CoordinatorError as error:
            failure = error
            nursery.cancel_scope.cancel()

    line: Answer | None = None
    with as_itself():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_while_silent)
            line = await _line_of(lines)
            nursery.cancel_scope.cancel()
    if line is None and failure is not None:
        raise failure
    return line


async def _line_of(lines: AsyncGenerator[Answer]) -> Answer | None:
    try:
        return await anext(lines)
    except StopAsyncIteration:
        return None
