"""The tables that a broker keeps beside its log: topics, subscription groups, consumer offsets.

::

    DIR/config/topics.json              written at once when a topic changes
    DIR/config/subscriptionGroup.json   written at once when a group changes
    DIR/config/consumerOffset.json      every flush_consumer_offset_interval_ms while it changes

Each is written in a thread, from a copy, and again after a disk error.  Only a request that makes
or deletes a topic or a group waits until it is on the disk.

Invariants: the topics that have consume queues are restored from them.  A torn file never prevents
a start; one that was edited into something unreadable does, before it changes anything
(``lock_store``).  No crash leaves a topic or a group there that has lost its offsets by a
deletion: consumerOffset.json is written after the other two, and keeps offsets that were removed
while one of those cannot be written.  Offsets that are committed do not wait for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, final

import attrs
import trio

from hastore.broker.groups.consumer_offset_manager import ConsumerOffsetManager
from hastore.broker.groups.subscription_group_manager import (
    SubscriptionGroupManager,
)
from hastore.broker.groups.topic_config_manager import (
    IgnoredRows,
    TopicConfigManager,
    read_table,
)
from hastore.broker.quotas import Quota
from hastore.concurrency.store_health import StoreHealth, Write
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import DiskError
from hastore.store.disk_usage import CONFIG_DIR
from hastore.store.json_file import JsonFile
from hastore.topic import RETRY_TOPIC_PREFIX, group_of
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hastore.config import RemotingConfig
    from hastore.env.interface import Env
    from hastore.store.queue.consume_queue import ConsumeQueue
    from hastore.wire.config_tables import DeletedTopic

RETRY_INTERVAL_S: Final = 1.0
STOP_TIMEOUT_S: Final = 2.0

_log = logger("broker")


class _Table(Protocol):
    def to_dict(self) -> dict[str, Any]:
        """Return the content as JSON."""

    def load(self, value: dict[str, Any]) -> None:
        """Take the content of a file."""


@final
@attrs.define(eq=False)
class TableFile:
    """One table and its file; without a ``file`` it is in memory only."""

    env: Env
    table: _Table
    file: JsonFile | None
    interval_s: float
    health: StoreHealth = attrs.field(factory=StoreHealth)
    # Whose changes before ours are written first; while they are not, our file keeps all its rows.
    written_first: tuple[TableFile, ...] = ()
    is_dirty: bool = attrs.field(default=False, init=False)
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def mark_dirty(self) -> None:
        """Have ``run`` write the table."""
        if not self.is_dirty and self.file is not None:
            self.is_dirty = True
            self._wake.wakeup()

    def load(self) -> None:
        """Read the file; blocks."""
        if self.file is not None:
            self.table.load(self.file.load())

    async def persist(self) -> None:
        """Write all changes made so far.  Raises DiskError."""
        file = self.file
        async with self._lock:
            if not self.is_dirty or file is None:
                return
            self.is_dirty = False  # in the same step as ``to_dict``
            if isinstance(self.table, ConsumerOffsetManager):
                self.table.next_version()
            value = self.table.to_dict()
            try:
                if not await self._write_others_first() and await self.env.offload.run(
                    lambda: _keep_rows(file, value)
                ):
                    self.mark_dirty()  # to be written without them
                await self.env.offload.run(lambda: file.store(value))
            except BaseException as error:
                self.is_dirty = True
                self._wake.wakeup()  # ``run`` may wait already
                if isinstance(error, DiskError):
                    self.health.failed(Write.CONFIG, str(error), part=file.path)
                raise
            self.health.works(Write.CONFIG, part=file.path)

    async def _write_others_first(self) -> bool:
        """Return whether all of ``written_first`` are written; those that fail show it."""
        for other in self.written_first:
            try:
                await other.persist()
            except DiskError:
                return False
        return True

    async def run(self) -> None:
        """Write changes, at most once per interval, until cancelled."""
        refused = False
        while True:
            if not self.is_dirty:
                await self._wake.wait_for_running()
                continue
            await trio.sleep(RETRY_INTERVAL_S if refused else self.interval_s)
            try:
                await self.persist()
            except DiskError as error:
                if not refused:
                    _log.error("config_file_refused", reason=str(error), next=error.hint)
                refused = True
            else:
                refused = False


def _keep_rows(file: JsonFile, value: dict[str, Any]) -> bool:
    """Add the offsets that the file still has to the table that replaces it; blocks.

    What removed them is not on the disk yet.  Return whether there were any.
    """
    table = value["offsetTable"]
    is_changed = False
    for key, row in read_table(file.load(), IgnoredRows("offsetTable"))[1].items():
        kept = {**row, **table.get(key, {})}
        if kept != table.get(key):
            table[key], is_changed = kept, True
    return is_changed


@final
@attrs.define(eq=False)
class BrokerData:
    """The three tables: call ``load`` first, then ``run``, ``persist_all`` at the end."""

    env: Env
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    topics_file: TableFile
    groups_file: TableFile
    offsets_file: TableFile

    @classmethod
    def make(
        cls,
        env: Env,
        config: RemotingConfig,
        data_dir: str | None,
        health: StoreHealth | None = None,
    ) -> BrokerData:
        """Return empty tables; without a ``data_dir`` they are in memory only.

        The outcome of each write goes to ``health``.
        """
        health = health or StoreHealth()

        def table_file(
            table: _Table, name: str, interval_s: float, *written_first: TableFile
        ) -> TableFile:
            path = None if data_dir is None else f"{data_dir.rstrip('/')}/{CONFIG_DIR}/{name}"
            file = None if path is None else JsonFile(env.disk, path)
            return TableFile(env, table, file, interval_s, health, written_first)

        now_ms = env.wall_clock.now_ms
        topics = TopicConfigManager(
            config.default_topic_queue_nums,
            config.auto_create_topic_enable,
            now_ms,
            config.topics_max,
            lambda: topics_file.mark_dirty(),  # noqa: PLW0108 - made below
        )
        groups = SubscriptionGroupManager(
            now_ms,
            config.groups_max,
            lambda: groups_file.mark_dirty(),  # noqa: PLW0108 - made below
        )
        offsets = ConsumerOffsetManager(
            now_ms,
            config.offset_keys_max,
            config.offsets_max,
            lambda: offsets_file.mark_dirty(),  # noqa: PLW0108 - made below
        )
        topics.quota = Quota(
            "topics",
            "topics_per_owner_max",
            config.topics_per_owner_max,
            lambda topic: topic in topics.topics,
            "new_topics_per_minute_max",
            config.new_topics_per_minute_max,
        )
        groups.quota = Quota(
            "consumer groups",
            "groups_per_owner_max",
            config.groups_per_owner_max,
            lambda group: group in groups.groups,
            "new_groups_per_minute_max",
            config.new_groups_per_minute_max,
        )
        offsets.key_quota = Quota(
            "pairs of topic and group with an offset",
            "offset_keys_per_owner_max",
            config.offset_keys_per_owner_max,
            lambda key: key in offsets.offsets,
        )
        offsets.offset_quota = Quota(
            "consumer offsets",
            "offsets_per_owner_max",
            config.offsets_per_owner_max,
            lambda place: offsets.has(*place),
        )
        topics.users.append(
            lambda topic: offsets.has_topic(topic) or group_of(topic) in groups.groups
        )
        topics_file = table_file(topics, "topics.json", 0.0)
        groups_file = table_file(groups, "subscriptionGroup.json", 0.0)
        offsets_interval_s = config.flush_consumer_offset_interval_ms / 1000
        offsets_file = table_file(
            offsets, "consumerOffset.json", offsets_interval_s, topics_file, groups_file
        )
        return cls(env, topics, groups, offsets, topics_file, groups_file, offsets_file)

    @property
    def _files(self) -> tuple[TableFile, ...]:
        return self.topics_file, self.groups_file, self.offsets_file

    def load(self) -> None:
        """Read the files; blocks."""
        for file in self._files:
            file.load()
        # A crash may have left offsets of what was deleted.  A committed offset makes its group.
        deleted = self.topics.deleted
        self.offsets.forget_topics({topic: deleted[topic].next_offsets for topic in deleted})
        self.offsets.forget_groups(self.groups.deleted.keys() - self.groups.groups.keys())

    def adopt(self, queues: Iterable[ConsumeQueue]) -> None:
        """Add the topics of consume queues, unless all of a queue's messages were deleted."""
        for queue in queues:
            deletion = self.topics.deleted.get(queue.topic)
            end = 0 if deletion is None else deletion.log_offset
            if not queue.is_empty and queue.max_physic_offset > end:
                self.topics.adopt(queue.topic, queue.queue_id)

    def delete_topic(self, topic: str, deletion: DeletedTopic, *, log_min_offset: int) -> None:
        """Delete a topic and all groups' offsets in it; its queues are the store's.

        In one step with the caller's look at the log, and so that no slave copies the offsets after
        the deletion.  Raises RequestFailedError without room for the deletion.
        """
        self.topics.delete(topic, deletion, log_min_offset=log_min_offset)
        self.offsets.forget_topics({topic: None})

    async def delete_group(self, group: str, *, with_offsets: bool) -> None:
        """Delete a group, and its offsets if ``with_offsets``, durably.  Raises DiskError."""
        self.groups.delete(group, with_offsets=with_offsets)
        if with_offsets:
            self.offsets.forget_groups({group})
        await self.groups_file.persist()
        await self.offsets_file.persist()

    def commit(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        owner: str | None,
        *,
        is_slave: bool,
    ) -> None:
        """Commit an offset; with the first one a group and its retry topic stay.

        What is new counts for the quotas of ``owner``, if there is one.  A slave makes no topics.
        Raises RequestFailedError for a full table or quota, and has then made none of the three.
        """
        self.offsets.check(group, topic, queue_id, owner)
        if group not in self.groups.groups:
            retry_queue_nums = self.groups.find(group).retry_queue_nums
            has_retries = retry_queue_nums and not is_slave
            retry_topic = RETRY_TOPIC_PREFIX + group if has_retries else None
            self.keep_group(group, retry_topic, retry_queue_nums, owner)
        self.offsets.commit(group, topic, queue_id, offset, owner)

    def keep_group(self, group: str, topic: str | None, queue_nums: int, owner: str | None) -> None:
        """Make what is missing of a group and its retry or dead-letter topic, for ``owner``.

        Raises RequestFailedError for a full table or quota, and has then made neither.
        """
        if group not in self.groups.groups:
            self.groups.check(group, owner)
        if topic is not None:
            self.topics.check(topic, owner)
        self.groups.register(group, owner)
        if topic is not None:
            self.topics.make_for_group(topic, queue_nums, owner)

    def limit_offsets(self, queue_end: Callable[[str, int], int]) -> None:
        """Lower consumer offsets to the ends of their queues, when this node becomes a master.

        ``queue_end`` is ``CommitLog.next_queue_offset``.  An offset may be ahead because the node
        was a slave that copied offsets faster than the log, or because the log lost its tail.
        """
        lowered = self.offsets.limit(queue_end)
        if lowered:
            _log.warning(
                "consumer_offsets_corrected",
                offsets=lowered,
                reason="they were above the ends of their queues in this log",
            )

    async def serve(
        self,
        queues: Iterable[ConsumeQueue],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Load the tables, report that, and keep the files up to date until cancelled."""
        await self.env.offload.run(self.load)
        self.adopt(queues)
        task_status.started()
        try:
            await self.run()
        finally:
            await self.persist_all()

    async def run(self) -> None:
        """Keep the files up to date until cancelled."""
        async with trio.open_nursery() as nursery:
            for file in self._files:
                nursery.start_soon(file.run)

    async def persist_all(self) -> None:
        """Write what has changed, at a stop, even if cancelled."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_TIMEOUT_S):
            for file in self._files:
                try:
                    await file.persist()
                except DiskError as error:
                    _log.error("config_file_refused", reason=str(error), next=error.hint)
