"""The outcomes of one ``hastore produce``: counts, latencies, exit code.

Pure: answers in, counts and an exit code out.  The labels are the names of PutMessageStatus, or
NO_ANSWER for an unknown outcome: the link broke, or the time was up.

Exit code: 3 no answer > 23 rejected > 1 unknown error > 20 SLAVE_NOT_AVAILABLE >
21 FLUSH_SLAVE_TIMEOUT > 22 FLUSH_DISK_TIMEOUT > 0; the first of these that occurred counts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, final

import trio

from hastore.status import PutMessageStatus

if TYPE_CHECKING:
    from hastore.client.pending_request import PendingRequest
    from hastore.client.send_result import PendingSend

_STEPS_PER_E: Final = 50  # e^(1/50) = 1.0202
PUT_OK: Final = PutMessageStatus.PUT_OK.value
NO_ANSWER: Final = "NO_ANSWER"
REFUSED: Final = "REFUSED"  # the node refuses such requests
EXIT_UNREACHABLE: Final = 3
EXIT_REJECTED: Final = 23

# From the worst to the best.
EXIT_CODES: Final[dict[str, int]] = {
    NO_ANSWER: EXIT_UNREACHABLE,
    REFUSED: EXIT_REJECTED,
    PutMessageStatus.MESSAGE_ILLEGAL.value: EXIT_REJECTED,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED.value: EXIT_REJECTED,
    PutMessageStatus.SERVICE_NOT_AVAILABLE.value: EXIT_REJECTED,
    PutMessageStatus.CREATE_MAPPED_FILE_FAILED.value: EXIT_REJECTED,
    PutMessageStatus.OS_PAGE_CACHE_BUSY.value: EXIT_REJECTED,
    PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH.value: EXIT_REJECTED,
    PutMessageStatus.UNKNOWN_ERROR.value: 1,
    PutMessageStatus.SLAVE_NOT_AVAILABLE.value: 20,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT.value: 21,
    PutMessageStatus.FLUSH_DISK_TIMEOUT.value: 22,
    PUT_OK: 0,
}
STORED_WEAKER: Final = frozenset({20, 21, 22})


def label_of(pending: PendingRequest) -> str:
    """Return the label of a message with an outcome."""
    if pending.failure is not None:
        return NO_ANSWER
    status: PutMessageStatus | None = getattr(pending, "status", None)
    return REFUSED if status is None else status.value


def reason_of(pending: PendingRequest) -> str | None:
    """Return why it is not PUT_OK, in the words of the node or the link."""
    response = pending.response
    return pending.failure if response is None else response.remark


@final
class SendTally:
    """Counts by label, the last reason of each, and latencies."""

    def __init__(self, request_timeout_s: float) -> None:
        self.counts: dict[str, int] = {}
        self.reasons: dict[str, str] = {}
        self.latencies = LatencySketch()
        self.sent = 0
        self.body_bytes = 0
        self._request_timeout_s = request_timeout_s
        self._listed: dict[int, float | None] = {}  # by identity

    def sending(self, pending: PendingSend, body_size: int, *, listed: bool) -> None:
        """Count a message handed to the link; ``listed``: keep its latency for ``take_latency``."""
        if listed:
            self._listed[id(pending)] = None
        self.sent += 1
        self.body_bytes += body_size
        pending.on_done = self.decided

    def decided(self, pending: PendingRequest) -> None:
        """Count an outcome."""
        label = label_of(pending)
        self.counts[label] = self.counts.get(label, 0) + 1
        if label != PUT_OK:
            self.reasons[label] = reason_of(pending) or label
        # The deadline was set when the message was posted.
        latency_s = trio.current_time() - (pending.deadline - self._request_timeout_s)
        if label != NO_ANSWER:
            self.latencies.add(latency_s)
        if id(pending) in self._listed:
            self._listed[id(pending)] = latency_s

    def take_latency(self, pending: PendingRequest) -> float | None:
        """Return and forget the latency of a listed message with an outcome."""
        return self._listed.pop(id(pending), None)

    @property
    def done(self) -> int:
        """The number of messages with an outcome."""
        return sum(self.counts.values())

    def ordered_counts(self) -> dict[str, int]:
        """Return the counts, best first."""
        return {label: self.counts[label] for label in reversed(EXIT_CODES) if label in self.counts}

    def exit_code(self, *, lenient: bool) -> int:
        """Return the exit code of the worst outcome; with ``lenient`` 0 for any stored one."""
        for label, code in EXIT_CODES.items():
            if self.counts.get(label):
                return 0 if lenient and code in STORED_WEAKER else code
        return 0


# -- latencies -----------------------------------------------------------------------------------


@final
class LatencySketch:
    """Counts of latencies in seconds."""

    def __init__(self) -> None:
        self.count = 0
        self._buckets: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """Count one latency; below a microsecond it counts as one."""
        bucket = round(math.log(max(seconds, 1e-6)) * _STEPS_PER_E)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1

    def quantile(self, share: float) -> float | None:
        """Return the latency that ``share`` (0 to 1) of all do not exceed; None without any."""
        left = math.ceil(share * self.count)
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return math.exp(bucket / _STEPS_PER_E)
        return None
