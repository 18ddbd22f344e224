"""The topics of a broker: made by the first message, by an administrator, or found in the store.

With ``auto_create_topic_enable``, a topic that does not exist has the configuration with which its
first message would make it; until then no list shows it.  So it is with a group's retry topic
always: clients ask for its route before the group commits an offset.

A topic that was deleted and had messages is in a second table, as long as its deletion matters: its
records are in the log until they expire, and its queues go on where they ended if it is made again.
When that table is full, the deletion forgotten first is the oldest one whose records have all
expired; a topic of its name begins at queue offset 0.

A topic that a client has made, and that is not used, is forgotten when a master needs room for
another: after a minute at the earliest, the oldest first.  It is used if it has or had a message,
has an offset or a consumer, or belongs to a group of the table.  A forgotten topic's next message
makes it again.

On a slave the tables are a copy of its master's from the first ``copy`` on; a topic that the log
has and the master's table lacks is added until the next one, if there is room.  A slave forgets
nothing by itself: it cannot tell which topics have messages.

Where there are ``topics_max`` topics, clients and administrators make no more.  What the node's
file, its consume queues and its master have is taken whole, however much it is.

Invariants: at most DELETED_MAX deleted topics and DELETED_QUEUES_MAX queues of theirs; every name
in a table is legal for messages.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.broker.quotas import table_full
from hastore.errors import ProtocolError, RequestFailedError
from hastore.store.queue.deleted_topics import limit_deleted
from hastore.topic import (
    DEFAULT_TOPIC,
    GROUP_TOPIC_PREFIXES,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    reply_topic,
    topic_fault,
)
from hastore.trace import logger
from hastore.wire.config_tables import (
    DELETED_TOPICS,
    PERM_READ_WRITE,
    QUEUE_NUMS_MAX,
    RETRY_QUEUE_NUMS,
    DataVersion,
    DeletedTopic,
    TopicConfig,
    read_deleted_topics,
)
from hastore.wire.liberal_json import Rows, all_rows
from hastore.wire.remoting_codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hastore.broker.quotas import Quota

FORGOTTEN_AFTER_S: Final = 60.0  # a topic's first message may still be on its way
_FORGOTTEN_AT_ONCE: Final = 1_024  # so that the next look is far away
_LOOK_AGAIN_S: Final = 1.0  # after a look at all topics, which takes some 16 ms

# With names of any size, the list of all fits a frame of 16 MiB, beside 16,384 topics.
DELETED_MAX: Final = 4_096
DELETED_QUEUES_MAX: Final = 65_536

_log = logger("broker")


@final
@attrs.define(eq=False)
class TopicConfigManager:
    """The table of topics.json; ``on_changed`` is called after every change."""

    queue_nums: int  # of a new topic
    auto_create: bool
    now_ms: Callable[[], int]
    topics_max: int  # [remoting] topics_max
    on_changed: Callable[[], None] | None = None
    quota: Quota[str] | None = None  # of the topics that clients make
    # Each says whether a topic is used, in a way that it knows.
    users: list[Callable[[str], bool]] = attrs.field(factory=list, init=False)
    watchers: list[Callable[[], None]] = attrs.field(factory=list, init=False)  # likewise
    # Called with each topic that is deleted, here or by the master that is copied.
    deletion_watchers: list[Callable[[str], None]] = attrs.field(factory=list, init=False)
    topics: dict[str, TopicConfig] = attrs.field(factory=dict, init=False)
    deleted: dict[str, DeletedTopic] = attrs.field(factory=dict, init=False)
    version: DataVersion = attrs.field(factory=DataVersion, init=False)
    changes: int = attrs.field(default=0, init=False)  # since this object was made
    is_copy: bool = attrs.field(default=False, init=False)  # of a master's table
    # Those that clients have made, the oldest first.
    _auto_created: dict[str, None] = attrs.field(factory=dict, init=False)
    _made_at: dict[str, float] = attrs.field(factory=dict, init=False)  # the last minute's, by name
    _looked_at_all: float = attrs.field(default=-_LOOK_AGAIN_S, init=False)  # trio time

    def find(self, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic that exists, or that a message would make."""
        config = self.topics.get(topic)
        if config is not None or not self._may_make(topic) or topic_fault(topic) is not None:
            return config
        return self._default(topic)

    def _may_make(self, topic: str) -> bool:
        return self.auto_create or topic.startswith(RETRY_TOPIC_PREFIX)

    def fault_of(self, topic: str) -> str:
        """Return why ``find`` returns None."""
        return topic_fault(topic) or _missing(topic)

    def find_for_send(self, topic: str, owner: str | None = None) -> TopicConfig | None:
        """Return the configuration of a topic for a message; make the topic if need be.

        A new topic counts for the quota of ``owner``, if there is one.  None if the name is illegal
        for messages.  Raises RequestFailedError if the topic does not exist and must not be made.
        """
        config = self.topics.get(topic)
        if config is not None:
            return config
        if topic_fault(topic) is not None:
            return None
        if not self.auto_create:
            raise RequestFailedError(_missing(topic), code=ResponseCode.TOPIC_NOT_EXIST)
        if topic == DEFAULT_TOPIC:  # it stands for topics that do not exist: in no table
            return self._default(topic)
        return self._make(self._default(topic), owner)

    def _make(self, config: TopicConfig, owner: str | None) -> TopicConfig:
        if owner is None:
            return self.put(config)
        now = trio.current_time()
        if self.quota is not None:
            self.quota.take(owner, config.topic, now)
        made = self.put(attrs.evolve(config, auto_created=True))
        self._made_at[made.topic] = now
        return made

    def keep(self, topic: str) -> None:
        """Never forget a topic: a delayed message of it is in another topic's queue."""
        config = self.topics.get(topic)
        if config is not None and config.auto_created and not self.is_copy:
            self.put(attrs.evolve(config, auto_created=False))

    def _default(self, topic: str) -> TopicConfig:
        of_group = topic.startswith(GROUP_TOPIC_PREFIXES)
        queue_nums = RETRY_QUEUE_NUMS if of_group else self.queue_nums
        return TopicConfig(topic=topic, read_queue_nums=queue_nums, write_queue_nums=queue_nums)

    def put(self, config: TopicConfig) -> TopicConfig:
        """Make or replace a topic.  Raises RequestFailedError for a bad name or a full table."""
        self.check(config.topic)
        self.topics[config.topic] = config
        if config.auto_created:
            self._auto_created[config.topic] = None
        else:
            self._auto_created.pop(config.topic, None)
        self._changed()
        return config

    def check(self, topic: str, owner: str | None = None) -> None:
        """Raise RequestFailedError for a bad name, a full table or the used-up quota of ``owner``.

        A topic that exists counts for no quota.
        """
        fault, is_new = topic_fault(topic), topic not in self.topics
        if fault is not None:
            raise RequestFailedError(fault, code=ResponseCode.SYSTEM_ERROR)
        if is_new and not self._has_room():
            msg = f"this broker already has {len(self.topics)} topics; [remoting] topics_max is"
            msg += f" {self.topics_max}"
            raise table_full("topics_max", msg)
        if is_new and owner is not None and self.quota is not None:
            self.quota.check(owner, topic, trio.current_time())

    def _has_room(self) -> bool:
        """Whether there is room for another topic; forget some that are not used if need be."""
        if len(self.topics) < self.topics_max:
            return True
        if not self._auto_created:
            return False
        now = trio.current_time()
        if now - self._looked_at_all < _LOOK_AGAIN_S:
            return False
        self._made_at = {
            name: made for name, made in self._made_at.items() if now - made < FORGOTTEN_AFTER_S
        }
        unused = (
            topic
            for topic in self._auto_created
            if topic not in self._made_at and not self._is_used(topic)
        )
        forgotten = list(itertools.islice(unused, _FORGOTTEN_AT_ONCE))
        if len(forgotten) < _FORGOTTEN_AT_ONCE:
            self._looked_at_all = now
        if not forgotten:
            return False
        for topic in forgotten:
            self._forget(topic)
        _log.info("unused_topics_forgotten", topics=len(forgotten), examples=forgotten[:3])
        self._changed()
        return True

    def _is_used(self, topic: str) -> bool:
        """Whether a topic is used, or would not come back by itself."""
        if topic in self.deleted or not self._may_make(topic):
            return True
        return any(is_used(topic) for is_used in self.users)

    def _forget(self, topic: str) -> None:
        self.topics.pop(topic, None)
        self._auto_created.pop(topic, None)
        self._made_at.pop(topic, None)
        if self.quota is not None:
            self.quota.release(topic)

    def make_for_group(self, topic: str, queue_nums: int, owner: str | None = None) -> TopicConfig:
        """Return a group's retry or dead-letter topic; make it for ``owner`` if need be."""
        config = self.topics.get(topic)
        if config is None:
            new = TopicConfig(topic=topic, read_queue_nums=queue_nums, write_queue_nums=queue_nums)
            config = self._make(new, owner)
        return config

    def make_reply_topic(self, cluster: str) -> None:
        """Make the topic to which consumers send their replies, unless it is there.

        As in RocketMQ it has one queue.  A cluster whose name no topic can have has none.
        """
        topic = reply_topic(cluster)
        if topic in self.topics:
            return
        try:
            self.put(TopicConfig(topic=topic, read_queue_nums=1, write_queue_nums=1))
        except RequestFailedError as error:
            _log.warning("reply_topic_refused", reason=str(error))

    def delete(self, topic: str, deletion: DeletedTopic, *, log_min_offset: int) -> None:
        """Take a topic out of the table, and record the deletion if the topic had messages.

        Raises RequestFailedError if no deletion before it can be forgotten.
        """
        if deletion.next_offsets or topic in self.deleted:
            self._record(topic, deletion, log_min_offset)
        self._forget(topic)
        self._changed()
        self._notify_deleted((topic,))

    def _record(self, topic: str, deletion: DeletedTopic, log_min_offset: int) -> None:
        deleted = {name: each for name, each in self.deleted.items() if name != topic}
        deleted[topic] = deletion
        expired = sorted(
            (each.log_offset, name)
            for name, each in deleted.items()
            if each.log_offset <= log_min_offset
        )
        queues = sum(len(each.next_offsets) for each in deleted.values())
        for _, name in expired:
            if len(deleted) <= DELETED_MAX and queues <= DELETED_QUEUES_MAX:
                break
            queues -= len(deleted.pop(name).next_offsets)
        if len(deleted) > DELETED_MAX or queues > DELETED_QUEUES_MAX:
            msg = (
                f"this broker remembers at most {DELETED_MAX} deleted topics with"
                f" {DELETED_QUEUES_MAX} queues until their messages have expired; topic {topic}"
                " was not deleted: try again when older files of the log have been deleted"
            )
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
        self.deleted = deleted

    def _notify_deleted(self, topics: Iterable[str]) -> None:
        for topic in topics:
            for watcher in self.deletion_watchers:
                watcher(topic)

    def adopt(self, topic: str, queue_id: int) -> None:
        """Add a queue that the store has, made by an embedded producer or a master.

        A new topic takes no other topic's place.
        """
        config = self.topics.get(topic)
        if config is not None and (self.is_copy or queue_id < config.read_queue_nums):
            return
        if topic_fault(topic) is not None or not 0 <= queue_id < QUEUE_NUMS_MAX:
            return
        if config is None:
            if topic in {SCHEDULE_TOPIC, DEFAULT_TOPIC}:
                return
            config = self._default(topic)
        self.topics[topic] = attrs.evolve(
            config, read_queue_nums=max(config.read_queue_nums, queue_id + 1)
        )
        self._changed()

    def copy(
        self,
        topics: Mapping[str, TopicConfig],
        version: DataVersion | None,
        deleted: Mapping[str, DeletedTopic] | None = None,
        gone: Iterable[str] = (),
    ) -> None:
        """Replace the tables by a master's.

        ``deleted`` None: it has no table of deleted topics.  ``gone`` are topics without messages
        that the master has deleted.  Without a ``version`` the table gets the next one of its own
        if it has changed.
        """
        self.is_copy = True
        kept = dict(topics)
        merged = self.merged_deletions(topics, deleted)
        before, self.deleted = self.deleted, merged
        if kept != self.topics or merged != before or version not in {None, self.version}:
            self.topics = kept
            self._list_auto_created()
            self._changed(version)
        self._notify_deleted([name for name in merged if merged[name] != before.get(name)])
        self._notify_deleted(gone)

    def limit_deletions(self, log_end: int) -> bool:
        """Lower deletions that lie behind the end of the log to that; return if there were any."""
        limited = dict(limit_deleted(self.deleted, log_end))
        if limited == self.deleted:
            return False
        self.deleted = limited
        self._changed(self.version)
        return True

    def merged_deletions(
        self, topics: Mapping[str, TopicConfig], deleted: Mapping[str, DeletedTopic] | None
    ) -> dict[str, DeletedTopic]:
        """Return the deletions that count after a copy of a master's tables.

        A master without such a table says nothing about deletions.  Of a topic that a master
        neither has nor remembers, the own deletion stays: it has forgotten an expired one.
        """
        if deleted is None:
            return self.deleted
        own = {
            name: each
            for name, each in self.deleted.items()
            if name not in topics and name not in deleted
        }
        return dict(itertools.islice({**deleted, **own}.items(), DELETED_MAX))

    def _list_auto_created(self) -> None:
        names = (name for name, config in self.topics.items() if config.auto_created)
        self._auto_created = dict.fromkeys(names)

    def _changed(self, version: DataVersion | None = None) -> None:
        self.version = version or self.version.next(self.now_ms())
        self.changes += 1
        if self.on_changed is not None:
            self.on_changed()
        for watcher in self.watchers:
            watcher()

    # -- JSON ------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the whole table: topics.json, and the body of 21."""
        return all_rows(self.to_rows())

    def to_rows(self) -> dict[str, Any]:
        """Return the same, with rows that are converted when they are written."""
        return {
            "dataVersion": self.version.to_dict(),
            "topicConfigTable": Rows(dict(self.topics), TopicConfig.to_dict),
            DELETED_TOPICS: Rows(dict(self.deleted), DeletedTopic.to_dict),
        }

    def load(self, value: dict[str, Any]) -> None:
        """Load the content of topics.json; invalid entries are logged and left out."""
        ignored = IgnoredRows("topicConfigTable")
        self.version, rows = read_table(value, ignored)
        for name, row in rows.items():
            fault = topic_fault(name)
            if fault is not None:
                ignored.add(name, fault)
                continue
            try:
                config = TopicConfig.from_dict(name, row)
            except ProtocolError as error:
                ignored.add(name, str(error))
                continue
            self.topics[name] = config
        ignored.log()
        self._list_auto_created()
        ignored = IgnoredRows(DELETED_TOPICS)
        self.deleted, unreadable = read_deleted_topics(value)
        for name in unreadable:
            ignored.add(name, "not a deletion")
        ignored.log()


def _missing(topic: str) -> str:
    return f"topic {topic} does not exist, and this broker does not create topics by itself"


def new_topic_config(
    topic: str, *, read_queue_nums: int, write_queue_nums: int, perm: int = PERM_READ_WRITE
) -> TopicConfig:
    """Return an administrator's configuration.  Raises RequestFailedError for bad values."""
    for name, queue_nums in (("read", read_queue_nums), ("write", write_queue_nums)):
        if not 0 < queue_nums <= QUEUE_NUMS_MAX:
            msg = f"{queue_nums} {name} queues: a topic has 1 to {QUEUE_NUMS_MAX}"
            raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
    if perm & ~PERM_READ_WRITE:
        msg = f"perm {perm} is not 0, 2 (write), 4 (read) or 6 (both)"
        raise RequestFailedError(msg, code=ResponseCode.SYSTEM_ERROR)
    return TopicConfig(
        topic=topic, read_queue_nums=read_queue_nums, write_queue_nums=write_queue_nums, perm=perm
    )


@final
@attrs.define(eq=False)
class IgnoredRows:
    """The rows of a file's ``table`` that cannot be used; one log line names the first of them."""

    table: str
    _rows: int = attrs.field(default=0, init=False)
    _first: tuple[str, str] = attrs.field(default=("", ""), init=False)  # row and reason

    def add(self, row: str, reason: str) -> None:
        """Count a row."""
        if not self._rows:
            self._first = row, reason
        self._rows += 1

    def log(self) -> None:
        """Log the rows, if there are any."""
        if self._rows:
            row, reason = self._first
            _log.warning(
                "table_rows_ignored", table=self.table, rows=self._rows, first=row, reason=reason
            )


def read_table(
    value: dict[str, Any], ignored: IgnoredRows
) -> tuple[DataVersion, dict[str, dict[str, Any]]]:
    """Return version and rows of the table that ``ignored`` names; it gets what is not a row."""
    try:
        version = DataVersion.from_dict(value.get("dataVersion"))
    except ProtocolError:
        version = DataVersion()
    table, rows = value.get(ignored.table), {}
    for key, row in table.items() if isinstance(table, dict) else ():
        if isinstance(row, dict):
            rows[key] = row
        else:
            ignored.add(key, "not an object")
    return version, rows
