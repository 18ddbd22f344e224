"""``import``: send the messages of an export to a master, as a producer does.

Needs no Spark: one connection keeps the order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from hastore.errors import ConfigError
from hastore.pipeline.job import JobInfo, JobResult
from hastore.pipeline.transfer.import_rows import find_files, read_rows
from hastore.pipeline.transfer.import_sender import ImportTally, make_queues, send_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hastore.access.signature import AccessKey
    from hastore.tls.client_tls import ClientTls

INFO: Final = JobInfo(
    name="import",
    summary="Send the messages of an export to a master.",
    description="""
    Reads JSON lines, CSV or Parquet as export writes them, a file or a directory of parts, and
    sends each row: topic, queue, body, properties (so tags, keys and UNIQ_KEY too), flags, birth
    time and the order in each queue are kept; offsets and store times are new. topic and body
    are enough. All rows are checked before the first is sent. Topics get the queues that rows
    name. The broker's own messages (timers of delayed messages, halves of transactions) are left
    out, by topic; committed messages are sent as ordinary ones, without TRAN_MSG. Rows of the
    table were not stored, or their outcome is unknown: place, topic, queue_id, outcome, reason. If
    the link breaks, skip in the summary is the number of rows that need not be sent again; some
    later rows may be stored too.
    """,
    examples=(
        "hastore pipeline run import orders.jsonl --to 127.0.0.1:10911",
        "hastore pipeline run import all --to 127.0.0.1:10911 --skip 20000   # where it ended",
        """echo '{"topic": "orders", "body": "hi"}' > one.jsonl   # enough""",
    ),
)
INTERRUPTED: Final = "interrupted"
COLUMNS: Final = ("place", "topic", "queue_id", "outcome", "reason")


def import_messages(
    path: str,
    address: tuple[str, int],
    *,
    skip: int = 0,
    on_progress: Callable[[int], None] | None = None,
    access_key: AccessKey | None = None,
    tls: ClientTls | None = None,
) -> JobResult:
    """Send the rows of an export after the first ``skip``; the result says if Ctrl-C ended it.

    ``on_progress`` is called with 1 for each row; ``access_key`` signs all requests, ``tls``
    encrypts.  Raises ConfigError (nothing is sent then), UnreachableError, RequestFailedError.
    """
    files = find_files(path)
    rows, needed = _check(files)
    if skip > rows:
        raise ConfigError(f"{path} has {rows} rows, so {skip} cannot be skipped")
    tally = ImportTally(certain=skip)

    async def send() -> None:
        await make_queues(address, needed, tally, access_key, tls)
        await send_rows(
            address,
            read_rows(files),
            tally,
            skip=skip,
            on_progress=on_progress,
            access_key=access_key,
            tls=tls,
        )

    try:
        trio.run(send)
    except BaseException as error:
        if not _is_interrupt(error):
            raise
        tally.stopped_because = INTERRUPTED
    return JobResult(
        name=INFO.name,
        columns=COLUMNS,
        rows=tally.findings,
        summary=_summary(tally, rows),
        found=bool(tally.failed or tally.unknown or tally.stopped_because or tally.queues_refused),
    )


def _check(files: list[Path]) -> tuple[int, dict[str, int]]:
    """Return the counts of rows and of queues that each topic needs.  Raises ConfigError."""
    count = 0
    needed: dict[str, int] = {}
    for row in read_rows(files):
        count += 1
        if row.message is not None and row.queue_id is not None:
            needed[row.topic] = max(needed.get(row.topic, 0), row.queue_id + 1)
    return count, needed


def _is_interrupt(error: BaseException) -> bool:
    """Whether an error holds only KeyboardInterrupts, however deep."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_interrupt(one) for one in error.exceptions)
    return isinstance(error, KeyboardInterrupt)


def _summary(tally: ImportTally, rows: int) -> dict[str, Any]:
    stopped = tally.stopped_because
    return {
        "rows": rows,
        "skipped": tally.skipped,
        "sent": tally.sent,
        "failed": tally.failed,
        "unknown": tally.unknown,
        "statuses": tally.statuses,
        "left_out": tally.left_out,
        "queues_made": tally.queues_made,
        "queues_refused": tally.queues_refused,
        **({"stopped_because": stopped} if stopped else {}),
        "skip": tally.certain if stopped else rows,
    }
