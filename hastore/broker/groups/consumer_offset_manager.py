"""How far each group has consumed each queue: consumerOffset.json.

::

    {"dataVersion": {...}, "offsetTable": {"topic@group": {"0": 17, "1": 4}},
     "masterOffsetTable": {"topic@group": {"1": 3}}}

An offset is that of the next message to consume, at most the queue's end.  A group may lower it.

A slave follows its master queue by queue: an offset that has changed there replaces the slave's,
and what a consumer has committed to the slave stays until then.  ``masterOffsetTable``, on slaves
only, has the master's offsets that consumers of the slave have replaced.

Where there are ``keys_max`` pairs of topic and group, or ``offsets_max`` offsets, consumers add no
more.
What the file has is taken whole, and so is a master's table; of what earlier masters had and it
lacks, as much stays as those limits.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.broker.groups.topic_config_manager import IgnoredRows, read_table
from hastore.broker.quotas import table_full
from hastore.errors import ProtocolError, RequestFailedError
from hastore.wire.config_tables import QUEUE_NUMS_MAX, DataVersion
from hastore.wire.liberal_json import Rows, all_rows
from hastore.wire.remoting_codes import ResponseCode
from hastore.wire.remoting_command import integer_field

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from hastore.broker.quotas import Quota

TOPIC_GROUP_SEPARATOR: Final = "@"
_QUEUE_ID: Final = re.compile(r"[0-9]{1,5}")


@final
@attrs.define(eq=False)
class ConsumerOffsetManager:
    """The table; ``on_changed`` is called after every change."""

    now_ms: Callable[[], int]
    keys_max: int  # [remoting] offset_keys_max
    offsets_max: int  # [remoting] offsets_max
    on_changed: Callable[[], None] | None = None
    key_quota: Quota[str] | None = None  # of the pairs that clients make
    offset_quota: Quota[tuple[str, int]] | None = None
    offsets: dict[str, dict[int, int]] = attrs.field(factory=dict, init=False)
    version: DataVersion = attrs.field(factory=DataVersion, init=False)
    changes: int = attrs.field(default=0, init=False)  # since this object was made
    _count: int = attrs.field(default=0, init=False)
    _topics: Counter[str] = attrs.field(factory=Counter, init=False)  # keys of each
    _replaced: dict[str, dict[int, int]] = attrs.field(factory=dict, init=False)  # by the file
    _own: tuple[int, int] = attrs.field(default=(0, 0), init=False)  # keys and offsets, at first
    # What the master's table had when it was last copied; None on a master.
    _copied: dict[str, dict[int, int]] | None = attrs.field(default=None, init=False)

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset that a group has committed, or None."""
        queues = self.offsets.get(f"{topic}{TOPIC_GROUP_SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, owner: str | None = None
    ) -> None:
        """Set an offset; one of another queue counts for the quota of ``owner``, if there is one.

        Raises RequestFailedError as ``check`` does.
        """
        self.check(group, topic, queue_id, owner)
        key = f"{topic}{TOPIC_GROUP_SEPARATOR}{group}"
        if owner is not None and not self.has(key, queue_id):
            if key not in self.offsets and self.key_quota is not None:
                self.key_quota.take(owner, key, trio.current_time())
            if self.offset_quota is not None:
                self.offset_quota.take(owner, (key, queue_id), trio.current_time())
        self._set(key, queue_id, offset)

    def _set(self, key: str, queue_id: int, offset: int) -> None:
        queues = self.offsets.get(key)
        if queues is None:
            queues = self.offsets[key] = {}
            self._topics[_topic_of(key)] += 1
        previous = queues.get(queue_id)
        if previous != offset:
            self._count += previous is None
            queues[queue_id] = offset
            self._changed()

    def check(self, group: str, topic: str, queue_id: int, owner: str | None = None) -> None:
        """Raise RequestFailedError for an impossible queue, a full table or a used-up quota."""
        if not 0 <= queue_id < QUEUE_NUMS_MAX:
            msg = f"queue {queue_id} is not in 0 to {QUEUE_NUMS_MAX - 1}"
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
        key = f"{topic}{TOPIC_GROUP_SEPARATOR}{group}"
        queues = self.offsets.get(key)
        if queues is None:
            if len(self.offsets) >= self.keys_max:
                msg = f"this broker has offsets of {len(self.offsets)} pairs of topic and group;"
                msg += f" [remoting] offset_keys_max is {self.keys_max}"
                raise table_full("offset_keys_max", msg)
            if owner is not None and self.key_quota is not None:
                self.key_quota.check(owner, key, trio.current_time())
        elif queue_id in queues:
            return
        if self._count >= self.offsets_max:
            msg = f"this broker has {self._count} consumer offsets; [remoting] offsets_max is"
            msg += f" {self.offsets_max}"
            raise table_full("offsets_max", msg)
        if owner is not None and self.offset_quota is not None:
            self.offset_quota.check(owner, (key, queue_id), trio.current_time())

    def topics_beside(self, table: Mapping[str, object]) -> set[str]:
        """Return the topics with a key here that another table lacks."""
        return {_topic_of(key) for key in self.offsets.keys() - table.keys()}

    def forget_beside(self, table: Mapping[str, object], topics: Collection[str]) -> None:
        """Remove the offsets in some topics whose keys another table lacks."""
        beside = self.offsets.keys() - table.keys()
        self._remove([key for key in beside if _topic_of(key) in topics])

    def forget_topics(self, next_offsets: Mapping[str, Mapping[int, int] | None]) -> None:
        """Remove all groups' offsets in some topics.

        By topic None, or the offsets with which its queues begin, by queue: an offset that is not
        below has been committed since the topic was made again, and stays.
        """

        def is_old(key: str, queue_id: int, offset: int) -> bool:
            begins = next_offsets[_topic_of(key)]
            return begins is None or offset < begins.get(queue_id, 0)

        self._remove([key for key in self.offsets if _topic_of(key) in next_offsets], is_old)

    def forget_groups(self, groups: Collection[str]) -> None:
        """Remove the offsets of some groups in all topics."""
        separator = TOPIC_GROUP_SEPARATOR
        self._remove([key for key in self.offsets if key.rpartition(separator)[2] in groups])

    def _remove(
        self,
        keys: Iterable[str],
        is_removed: Callable[[str, int, int], bool] = lambda _key, _queue_id, _offset: True,
    ) -> None:
        """Remove offsets; a slave copies what its master has of them again."""
        removed = 0
        for key in keys:
            queues = self.offsets[key]
            kept = {
                each: queues[each] for each in queues if not is_removed(key, each, queues[each])
            }
            removed += len(queues) - len(kept)
            if kept:
                self.offsets[key] = kept
            else:
                del self.offsets[key]
                topic = _topic_of(key)
                self._topics[topic] -= 1
                if not self._topics[topic]:
                    del self._topics[topic]
            if self._copied is not None:
                self._copied.pop(key, None)
        if removed:
            self._count -= removed
            self._changed()

    def has(self, key: str, queue_id: int) -> bool:
        """Whether there is an offset of ``topic@group`` in a queue."""
        return queue_id in self.offsets.get(key, ())

    def has_topic(self, topic: str) -> bool:
        """Whether any group has an offset in a topic."""
        return topic in self._topics

    def _changed(self) -> None:
        self.changes += 1
        if self.on_changed is not None:
            self.on_changed()

    # -- a slave's copy --------------------------------------------------------------------------

    def follow(self) -> None:
        """Begin to copy a master's offsets; what was loaded counts as copied."""
        self._own = len(self.offsets), self._count
        self._copied = {
            key: queues | self._replaced.get(key, {}) for key, queues in self.offsets.items()
        }

    def copy(self, table: Mapping[str, Mapping[int, int]], version: DataVersion | None) -> int:
        """Take over what has changed in the master's table; return how many offsets found no room.

        What the master no longer has stays, up to the limits.
        """
        assert self._copied is not None, "follow first"
        before, without_room = self.changes, 0
        own_keys, own_offsets = self._own
        keys_max = self.keys_max + own_keys + len(table)
        offsets_max = self.offsets_max + own_offsets + sum(map(len, table.values()))
        for key, queues in table.items():
            copied = self._copied.get(key, {})
            for queue_id, offset in queues.items():
                if copied.get(queue_id) == offset:
                    continue
                is_new = not self.has(key, queue_id)
                is_key_full = key not in self.offsets and len(self.offsets) >= keys_max
                if is_new and (is_key_full or self._count >= offsets_max):
                    without_room += 1
                else:
                    self._set(key, queue_id, offset)
                    copied[queue_id] = offset
                    self._copied[key] = copied
        if self.changes != before and version is not None:
            self.version = version
        return without_room

    def limit(self, queue_end: Callable[[str, int], int]) -> int:
        """Lower each offset to the end of its queue, at the start as a master.

        ``queue_end`` returns the queue offset of the next message of a topic's queue.  Returns how
        many offsets were above it: their messages are not in this log, and new ones would be
        skipped in their place.
        """
        self._copied = None
        lowered = 0
        for key, queues in self.offsets.items():
            for queue_id, offset in queues.items():
                end = queue_end(_topic_of(key), queue_id)
                if offset > end:
                    queues[queue_id] = end
                    lowered += 1
        if lowered:
            self._changed()
        return lowered

    # -- JSON ------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the whole table: consumerOffset.json, and the body of 43."""
        return all_rows(self.to_rows())

    def to_rows(self) -> dict[str, Any]:
        """Return the same, with rows that are converted when they are written.

        Offsets that are committed meanwhile may be in it, or not.
        """
        value = {
            "dataVersion": self.version.to_dict(),
            "offsetTable": Rows(dict(self.offsets), _to_json),
        }
        replaced = {
            key: differing
            for key, copied in (self._copied or {}).items()
            if (differing := _differing(copied, self.offsets.get(key, {})))
        }
        return {**value, "masterOffsetTable": Rows(replaced, _to_json)} if replaced else value

    def next_version(self) -> None:
        """Raise the version, once for each write of the file; a slave has its master's."""
        if self._copied is None:
            self.version = self.version.next(self.now_ms())

    def load(self, value: dict[str, Any]) -> None:
        """Load the content of the file; invalid offsets are logged and left out."""
        on_changed, self.on_changed = self.on_changed, None
        self.version = self._load_rows(value, "offsetTable")
        # The same checks for the second table, in a table of its own.
        replaced = ConsumerOffsetManager(self.now_ms, self.keys_max, self.offsets_max)
        replaced._load_rows(value, "masterOffsetTable")
        self._replaced = replaced.offsets
        self.on_changed = on_changed

    def _load_rows(self, value: dict[str, Any], table: str) -> DataVersion:
        ignored = IgnoredRows(table)
        version, rows = read_table(value, ignored)
        for key, row in rows.items():
            topic, _, group = key.rpartition(TOPIC_GROUP_SEPARATOR)
            for queue_id in row:
                is_queue = _QUEUE_ID.fullmatch(queue_id) and int(queue_id) < QUEUE_NUMS_MAX
                try:
                    if not topic or not group or not is_queue:
                        msg = "not topic@group, or not a queue"
                        raise ProtocolError(msg)
                    self._set(key, int(queue_id), integer_field(row, queue_id, bits=64))
                except ProtocolError as error:
                    ignored.add(f"{key}, queue {queue_id}", str(error))
        ignored.log()
        return version


def _topic_of(key: str) -> str:
    return key.rpartition(TOPIC_GROUP_SEPARATOR)[0]


def _differing(copied: dict[int, int], own: dict[int, int]) -> dict[int, int]:
    return {queue_id: offset for queue_id, offset in copied.items() if own.get(queue_id) != offset}


def _to_json(queues: dict[int, int]) -> dict[str, int]:
    return {str(queue_id): offset for queue_id, offset in queues.items()}
