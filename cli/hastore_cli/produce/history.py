"""``hastore produce --history FILE``: every message with its outcome, a JSON line each.

The lines are those of ``hastore_scenarios.judge.history``: a call when a message is handed to the
link, then its answer (ok, fail, unknown).  A message without an answer line has an unknown outcome,
so a killed producer leaves a valid history; its last line may be cut off.  ``hastore pipeline run
rpo`` compares it with the surviving logs.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import IO, TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.errors import ConfigError, HastoreError
from hastore.quantities import format_address
from hastore.store.record.record_check import body_crc32
from hastore_scenarios.judge.history import (
    Operation,
    Outcome,
    complete_line,
    invoke_line,
    outcome_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.client.pending_request import PendingRequest
    from hastore.client.send_result import PendingSend

_BUFFER_SIZE: Final = 64 * 1024


@final
@attrs.define(eq=False)
class ProduceHistory:
    """Writes the history of one run; ``error`` is why it is incomplete."""

    path: str
    address: tuple[str, int]
    wait: bool
    sink: IO[str]
    is_at_least_once: bool = False  # messages without an answer are sent again
    error: OSError | None = attrs.field(default=None, init=False)
    _count: int = attrs.field(default=0, init=False)
    _began_s: float | None = attrs.field(default=None, init=False)

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, path: str, address: tuple[str, int], *, wait: bool, is_at_least_once: bool = False
    ) -> Iterator[ProduceHistory]:
        """Create the file.  Raises ConfigError if it exists or cannot be created."""
        try:
            sink = open(path, "x", encoding="utf-8", buffering=_BUFFER_SIZE)  # noqa: PTH123, SIM115
        except FileExistsError as error:
            raise ConfigError(
                f"{path} exists already", hint="a history is of one run: name another file"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written: {error.strerror}", hint="name another file"
            ) from error
        history = cls(
            path=path, address=address, wait=wait, is_at_least_once=is_at_least_once, sink=sink
        )
        try:
            yield history
        finally:
            try:
                sink.close()
            except OSError as error:
                history.error = history.error or error
            if not history._count:
                os.unlink(path)  # noqa: PTH108 - nothing was sent: the next run can use the name

    def sending(self, pending: PendingSend, body: bytes) -> None:
        """Record a message that was handed to the link, and later its outcome."""
        assert pending.unique_key is not None
        operation = Operation(
            op=self._count,
            node=format_address(self.address),
            process=f"produce/{os.getpid()}",
            topic=pending.topic,
            queue_id=pending.queue_id,
            key=pending.unique_key,
            body_size=len(body),
            body_crc=body_crc32(body),
            wait=self.wait,
            at_least_once=self.is_at_least_once,
            invoked_s=self._now_s(),
            invoked_wall_ms=time.time_ns() // 1_000_000,
        )
        self._count += 1
        self._write(invoke_line(operation))
        before = pending.on_done

        def decided(request: PendingRequest) -> None:
            if before is not None:
                before(request)
            self._decided(operation, pending)

        pending.on_done = decided

    def _decided(self, operation: Operation, pending: PendingSend) -> None:
        try:
            result = pending.result()
        except HastoreError as error:
            operation.outcome, operation.error = Outcome.UNKNOWN, str(error)
        else:
            operation.outcome, operation.status = outcome_of(result.status), result.status
            operation.physic_offset = result.physic_offset
            operation.queue_offset = result.queue_offset
            operation.message_id = result.message_id
            operation.error = None if result.ok else result.reason
        operation.sent_count = pending.sent_count
        operation.completed_s = self._now_s()
        self._write(complete_line(operation, time.time_ns() // 1_000_000))

    def _now_s(self) -> float:
        now_s = trio.current_time()
        if self._began_s is None:
            self._began_s = now_s
        return now_s - self._began_s

    def _write(self, line: dict[str, Any]) -> None:
        if self.error is not None:
            return
        try:
            self.sink.write(json.dumps(line, separators=(",", ":")) + "\n")
        except OSError as error:
            self.error = error  # reported at the end: sending continues
