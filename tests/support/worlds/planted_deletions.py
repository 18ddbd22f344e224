"""Bugs of deleted topics, planted into a simulated group whose operator deletes topics.

Each is a function that patches the product with ``patch`` (pytest's MonkeyPatch).
"""

from collections.abc import Mapping

import attrs
import pytest

from hastore.broker.groups.consumer_offset_manager import ConsumerOffsetManager
from hastore.broker.groups.copied_tables import CopiedTable
from hastore.broker.groups.slave_synchronize import SlaveSynchronize
from hastore.broker.groups.topic_config_manager import TopicConfigManager
from hastore.store import message_store
from hastore.store.queue.consume_queue_store import ConsumeQueueStore
from hastore.store.queue.deleted_topics import lower_deleted
from hastore.wire.config_tables import DeletedTopic, TopicConfig
from tests.support.worlds.planted import Plant


def forgets_deletions_at_an_opening(patch: pytest.MonkeyPatch) -> None:
    """A store is opened as if nothing had been deleted: dispatch brings old messages back."""
    patch.setattr(message_store, "load_deleted", lambda _disk, _path: {})


def copies_no_deletions(patch: pytest.MonkeyPatch) -> None:
    """A slave copies its master's topics only, as RocketMQ's does."""
    patch.setattr(TopicConfigManager, "merged_deletions", lambda self, _topics, _: self.deleted)


def keeps_offsets_in_deleted_topics(patch: pytest.MonkeyPatch) -> None:
    """A deletion leaves the offsets of consumer groups, as RocketMQ 4.9's does."""
    patch.setattr(ConsumerOffsetManager, "forget_topics", lambda _self, _topics: None)


def leaves_queues_on_the_disk(patch: pytest.MonkeyPatch) -> None:
    """What a deletion has set aside is never removed."""
    patch.setattr(ConsumeQueueStore, "remove_trees", lambda _self, _paths: None)


def revives_nothing(patch: pytest.MonkeyPatch) -> None:
    """A former master whose deletion nobody had copied serves no message from before it."""

    def take(self: SlaveSynchronize, table: CopiedTable[TopicConfig]) -> int:
        queues = self.message_store.consume_queues
        deleted, queues.deleted = queues.deleted, {}
        taken = take_topics(self, table)
        queues.deleted = lower_deleted(deleted, self.data.topics.deleted)
        return taken

    take_topics = SlaveSynchronize._take_topics
    patch.setattr(SlaveSynchronize, "_take_topics", take)


def deletes_what_was_made_again(patch: pytest.MonkeyPatch) -> None:
    """A slave removes all queues of a deleted topic, even those with messages from after it."""
    delete = ConsumeQueueStore.delete_topics

    def delete_all(self: ConsumeQueueStore, deleted: Mapping[str, DeletedTopic]) -> list[str]:
        wide = {topic: attrs.evolve(deleted[topic], log_offset=2**62) for topic in deleted}
        moved = delete(self, wide)
        self.deleted = dict(deleted)
        return moved

    patch.setattr(ConsumeQueueStore, "delete_topics", delete_all)


def begins_again_at_offset_0(patch: pytest.MonkeyPatch) -> None:
    """The queues of a topic that is made again begin at 0, as RocketMQ's do."""
    delete_at = TopicConfigManager.delete

    def delete(
        self: TopicConfigManager, topic: str, deletion: DeletedTopic, *, log_min_offset: int
    ) -> None:
        deletion = attrs.evolve(deletion, next_offsets={0: 0})
        delete_at(self, topic, deletion, log_min_offset=log_min_offset)

    patch.setattr(TopicConfigManager, "delete", delete)


PLANTED_DELETIONS: dict[Plant, set[str]] = {
    forgets_deletions_at_an_opening: {"deleted", "queue order"},
    copies_no_deletions: {"uncopied", "deleted", "new life"},
    keeps_offsets_in_deleted_topics: {"deleted"},
    leaves_queues_on_the_disk: {"deleted"},
    revives_nothing: {"new life"},
    deletes_what_was_made_again: {"new life"},
    begins_again_at_offset_0: {"queue order"},
}
