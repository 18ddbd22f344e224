"""How far each group has consumed each queue: consumerOffset.json.

::

    {"dataVersion": {...}, "offsetTable": {"topic@group": {"0": 17, "1": 4}}}

An offset is that of the next message to consume, at most the queue's end.  A group may lower it.

Invariant: at most KEYS_MAX pairs of topic and group, and OFFSETS_MAX offsets.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from hastore.broker.groups.topic_config_manager import read_table
from hastore.errors import ProtocolError, RequestFailedError
from hastore.trace import logger
from hastore.wire.config_tables import QUEUE_NUMS_MAX, DataVersion
from hastore.wire.remoting_codes import ResponseCode
from hastore.wire.remoting_command import integer_field

if TYPE_CHECKING:
    from collections.abc import Callable

KEYS_MAX: Final = 16_384  # the table fits a frame of 16 MiB
OFFSETS_MAX: Final = 262_144
TOPIC_GROUP_SEPARATOR: Final = "@"
_QUEUE_ID: Final = re.compile(r"[0-9]{1,5}")

_log = logger("broker")


@final
@attrs.define(eq=False)
class ConsumerOffsetManager:
    """The table; ``on_changed`` is called after every change."""

    now_ms: Callable[[], int]
    on_changed: Callable[[], None] | None = None
    offsets: dict[str, dict[int, int]] = attrs.field(factory=dict, init=False)
    version: DataVersion = attrs.field(factory=DataVersion, init=False)
    _count: int = attrs.field(default=0, init=False)

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset that a group has committed, or None."""
        queues = self.offsets.get(f"{topic}{TOPIC_GROUP_SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset.  Raises RequestFailedError for a full table or an impossible queue."""
        if not 0 <= queue_id < QUEUE_NUMS_MAX:
            msg = f"queue {queue_id} is not in 0 to {QUEUE_NUMS_MAX - 1}"
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
        key = f"{topic}{TOPIC_GROUP_SEPARATOR}{group}"
        queues = self.offsets.get(key)
        if queues is None:
            if len(self.offsets) >= KEYS_MAX:
                msg = f"this broker keeps offsets of at most {KEYS_MAX} pairs of topic and group"
                raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
            queues = self.offsets[key] = {}
        previous = queues.get(queue_id)
        if previous == offset:
            return
        if previous is None:
            if self._count >= OFFSETS_MAX:
                msg = f"this broker keeps at most {OFFSETS_MAX} consumer offsets"
                raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
            self._count += 1
        queues[queue_id] = offset
        if self.on_changed is not None:
            self.on_changed()

    # -- JSON ------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the whole table: consumerOffset.json, and the body of 43."""
        return {
            "dataVersion": self.version.to_dict(),
            "offsetTable": {
                key: {str(queue_id): offset for queue_id, offset in queues.items()}
                for key, queues in self.offsets.items()
            },
        }

    def next_version(self) -> None:
        """Raise the version, once for each write of the file."""
        self.version = self.version.next(self.now_ms())

    def load(self, value: dict[str, Any]) -> None:
        """Load the content of the file; invalid offsets are logged and left out."""
        self.version, rows = read_table(value, "offsetTable")
        on_changed, self.on_changed = self.on_changed, None
        for key, row in rows.items():
            topic, separator, group = key.rpartition(TOPIC_GROUP_SEPARATOR)
            for queue_id in row:
                try:
                    if not separator or not _QUEUE_ID.fullmatch(queue_id):
                        msg = "not topic@group, or not a queue"
                        raise ProtocolError(msg)
                    offset = integer_field(row, queue_id, bits=64)
                    self.commit(group, topic, int(queue_id), offset)
                except (ProtocolError, RequestFailedError) as error:
                    _log.warning(
                        "consumer_offset_unreadable", key=key, queue=queue_id, reason=str(error)
                    )
        self.on_changed = on_changed
