"""The topics that were deleted, as the store finds them in ``config/topics.json``.

::

    {"topicConfigTable": {...},
     "deletedTopics": {"T": {"logOffset": 4096, "nextOffsets": {"0": 7}}}}

The broker writes that file (``TopicConfigManager``).  A deletion takes a topic's row out of the one
table and puts its row into the other, in one write, so a crash leaves the topic either there or
deleted.  The store reads it at its opening, before anything is dispatched.

Invariant: no deletion lies behind the log's end on a master, nor on a slave as a link begins: the
messages that are appended next were not deleted.  A slave's may while that link lasts: it names a
place in its master's log, of which this one lacks the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hastore.store.json_file import JsonFile
from hastore.store.log.store_directory import TOPICS_FILE
from hastore.wire.config_tables import DELETED_TOPICS, DeletedTopic, read_deleted_topics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.env.interface import Disk


def load_deleted(disk: Disk, data_dir: str) -> dict[str, DeletedTopic]:
    """Read the deletions of a store's directory; rows that cannot be read are left out."""
    return read_deleted_topics(JsonFile(disk, f"{data_dir}/{TOPICS_FILE}").load())[0]


def store_deleted(disk: Disk, data_dir: str, deleted: Mapping[str, DeletedTopic]) -> None:
    """Replace the deletions, durably, and leave the rest of the file as it is.  Raises DiskError.

    Nobody else writes the file meanwhile: the store is being opened, or cut.
    """
    file = JsonFile(disk, f"{data_dir}/{TOPICS_FILE}")
    rows = {topic: deleted[topic].to_dict() for topic in deleted}
    file.store({**file.load(), DELETED_TOPICS: rows})


def limit_deleted(deleted: Mapping[str, DeletedTopic], log_end: int) -> Mapping[str, DeletedTopic]:
    """Return deletions of which none lies behind the end of the log."""
    return {
        topic: each if each.log_offset <= log_end else attrs.evolve(each, log_offset=log_end)
        for topic, each in deleted.items()
    }


def lower_deleted(
    deleted: Mapping[str, DeletedTopic], others: Mapping[str, DeletedTopic]
) -> Mapping[str, DeletedTopic]:
    """Return the deletions that ``others`` have, too; of each topic the one earlier in the log."""
    return {
        topic: min(each, others[topic], key=lambda deletion: deletion.log_offset)
        for topic, each in deleted.items()
        if topic in others
    }
