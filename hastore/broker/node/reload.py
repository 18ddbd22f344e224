"""Reload: the files that a running node reads again on SIGHUP.

::

    SIGHUP, reload() ─┬─ permissions ─┬─ read, checked ─┬─ valid: they replace the former, whole
                      ├─ certificate ─┤                 └─ not: the former stay; named
                      └─ coordinator ─┘

Links stay as they are, and the configuration file is not read again.  A node also looks at these
files itself (``NodeAccess``, ``TlsContexts``, ``CoordinatorFiles``); a reload does not wait for a
look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.broker.access.node_access import NodeAccess
    from hastore.concurrency.watched_files import ReloadedFiles
    from hastore.tls.tls_contexts import TlsContexts

_log = logger("broker")


@attrs.frozen
class Reloaded:
    """The outcome of a reload, by what was read: permissions, certificate, coordinator."""

    taken: tuple[str, ...]  # in force as the files are now
    not_taken: dict[str, str]  # why the former stay


async def reload_files(
    access: NodeAccess | None, tls: TlsContexts | None, coordinator: ReloadedFiles | None = None
) -> Reloaded:
    """Read the files again, and log in one line what came of it."""
    taken: list[str] = []
    not_taken: dict[str, str] = {}
    hint: str | None = None
    read: tuple[tuple[str, ReloadedFiles | None], ...] = (
        ("permissions", access),
        ("certificate", tls),
        ("coordinator", coordinator),
    )
    for what, files in read:
        if files is None:
            continue
        if await files.reload():
            taken.append(what)
        else:
            status = files.status()
            not_taken[what], hint = status.fault or "", hint or status.hint
    if not_taken:
        _log.warning("reloaded", taken=taken, not_taken=not_taken, next=hint)
    else:
        _log.info("reloaded", taken=taken, not_taken=not_taken)
    return Reloaded(tuple(taken), not_taken)
