"""Send the rows of an export to a master, in order, and count their outcomes.

All go over one connection, so each queue keeps its order; at most IN_FLIGHT_MAX wait for their
answers.  A refused row is counted, and the next one is sent; a broken link ends the import.

Invariant: the outcomes of the first ``certain`` rows are known.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from hastore.client.admin import AdminClient
from hastore.client.producer import Producer
from hastore.errors import (
    ConfigError,
    HastoreError,
    RequestFailedError,
    UnknownOutcomeError,
    UnreachableError,
)
from hastore.pipeline.job import ROWS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hastore.access.signature import AccessKey
    from hastore.client.send_result import PendingSend
    from hastore.pipeline.transfer.import_rows import ImportRow
    from hastore.tls.client_tls import ClientTls

IN_FLIGHT_MAX: Final = 256
FAILED_IN_A_ROW_MAX: Final = 1_000  # after that, the node is at fault and not the rows


@final
@attrs.define(eq=False)
class ImportTally:
    """The outcomes of the rows so far."""

    certain: int = 0  # rows from the first on that need not be sent again
    skipped: int = 0
    sent: int = 0  # stored, whatever the status
    failed: int = 0  # not stored
    unknown: int = 0  # stored or not
    statuses: dict[str, int] = attrs.field(factory=dict)
    left_out: dict[str, int] = attrs.field(factory=dict)  # the broker's own, by topic
    queues_made: dict[str, int] = attrs.field(factory=dict)
    queues_refused: dict[str, str] = attrs.field(factory=dict)
    stopped_because: str | None = None
    findings: list[dict[str, Any]] = attrs.field(factory=list)  # the first that failed
    _failed_in_a_row: int = 0

    def count(self, row: ImportRow, label: str, *, is_stored: bool | None, reason: str) -> None:
        """Count one outcome; ``is_stored`` is None if it is unknown."""
        self.statuses[label] = self.statuses.get(label, 0) + 1
        if is_stored:
            self.sent += 1
            self._failed_in_a_row = 0
        else:
            self.failed += is_stored is False
            self.unknown += is_stored is None
            self._failed_in_a_row += 1
            if len(self.findings) < ROWS_MAX:
                self.findings.append(
                    {
                        "place": row.place,
                        "topic": row.topic,
                        "queue_id": row.queue_id,
                        "outcome": label,
                        "reason": reason,
                    }
                )
        if is_stored is not None and not self.unknown:
            self.certain = row.number

    @property
    def is_hopeless(self) -> bool:
        """Whether too many rows failed one after another."""
        return self._failed_in_a_row >= FAILED_IN_A_ROW_MAX


async def make_queues(
    address: tuple[str, int],
    needed: Mapping[str, int],
    tally: ImportTally,
    access_key: AccessKey | None = None,
    tls: ClientTls | None = None,
) -> None:
    """Create topics, or add queues to them, so that all queues that rows name exist.

    The tally records refusals: a master refuses a message for a queue that does not exist.
    Raises UnreachableError.
    """
    async with AdminClient.connect(address, access_key=access_key, tls=tls) as admin:
        there = await admin.topics()
        for topic, count in needed.items():
            config = there.get(topic)
            reads, writes = 0, 0
            if config is not None:
                reads, writes = config.read_queue_nums, config.write_queue_nums
            if writes >= count:
                continue
            try:
                await admin.create_topic(
                    topic, read_queue_nums=max(count, reads), write_queue_nums=count
                )
            except RequestFailedError as error:
                tally.queues_refused[topic] = str(error)
            else:
                tally.queues_made[topic] = count


async def send_rows(
    address: tuple[str, int],
    rows: Iterator[ImportRow],
    tally: ImportTally,
    *,
    skip: int = 0,
    on_progress: Callable[[int], None] | None = None,
    access_key: AccessKey | None = None,
    tls: ClientTls | None = None,
) -> None:
    """Send all rows after the first ``skip``.  Raises UnreachableError, RequestFailedError."""
    waiting: collections.deque[tuple[ImportRow, PendingSend]] = collections.deque()
    async with Producer.connect(
        address,
        group="hastore-import",
        in_flight_max=IN_FLIGHT_MAX,
        access_key=access_key,
        tls=tls,
    ) as producer:
        for row in rows:
            if on_progress is not None:
                on_progress(1)
            if row.number <= skip:
                tally.skipped += 1
                continue
            while waiting and (waiting[0][1].is_done or len(waiting) >= IN_FLIGHT_MAX):
                await _settle(*waiting.popleft(), tally)
            if row.message is None:
                tally.left_out[row.topic] = tally.left_out.get(row.topic, 0) + 1
                continue
            if tally.is_hopeless:
                tally.stopped_because = f"{FAILED_IN_A_ROW_MAX} messages in a row were not stored"
                break
            try:
                pending = await producer.submit(row.message, queue_id=row.queue_id)
            except UnreachableError as error:
                tally.stopped_because = str(error)
                break
            except ConfigError as error:
                while waiting:
                    await _settle(*waiting.popleft(), tally)
                tally.count(row, "NOT_SENT", is_stored=False, reason=str(error))
                continue
            waiting.append((row, pending))
        while waiting:
            await _settle(*waiting.popleft(), tally)


async def _settle(row: ImportRow, pending: PendingSend, tally: ImportTally) -> None:
    """Wait for the outcome of a row, and count it."""
    try:
        result = await pending.wait()
    except UnknownOutcomeError as error:
        tally.count(row, "NO_ANSWER", is_stored=None, reason=str(error))
        tally.stopped_because = tally.stopped_because or str(error)
    except RequestFailedError as error:
        tally.count(row, "REFUSED", is_stored=False, reason=str(error))
    except HastoreError as error:
        tally.count(row, "BAD_ANSWER", is_stored=None, reason=str(error))
    else:
        status = result.status
        tally.count(row, status.value, is_stored=status.stored, reason=result.reason or "")
