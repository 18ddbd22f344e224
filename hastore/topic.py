"""Names of topics and groups: RocketMQ's rules (``TopicValidator`` of 4.9.8), reserved names."""

from __future__ import annotations

import re
from typing import Final

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"  # delayed messages, one queue for each level
DEFAULT_TOPIC: Final = "TBW102"  # its route is used for new topics
RETRY_TOPIC_PREFIX: Final = "%RETRY%"  # followed by the group's name
DLQ_TOPIC_PREFIX: Final = "%DLQ%"
GROUP_TOPIC_PREFIXES: Final = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)
TOPIC_SIZE_MAX: Final = 127  # characters
GROUP_TOPIC_SIZE_MAX: Final = 255
# Topics that belong to a broker: nobody deletes them.  ``TopicValidator`` of 4.9.8 and 5.3.3.
SYSTEM_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        DEFAULT_TOPIC,
        "BenchmarkTest",
        "CHECKPOINT_TOPIC",
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SELF_TEST_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
# Those of them that take no messages of producers: code 16.
NO_PRODUCER_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SELF_TEST_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
# Of the system topics those that a broker of RocketMQ makes at its start, and hastore does not.
OPERATORS_TOPICS: Final = frozenset({"BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"})
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"  # after the cluster's name
TOPIC_BYTES: Final = re.compile(rb"[%|a-zA-Z0-9_-]+")
_TOPIC: Final = re.compile(TOPIC_BYTES.pattern.decode())


def topic_fault(topic: str) -> str | None:
    """Return the fault in a topic's name, or None."""
    if not topic:
        return "the topic is empty"
    if not _TOPIC.fullmatch(topic):
        wrong = " ".join(dict.fromkeys(ascii(char) for char in topic if not _TOPIC.fullmatch(char)))
        return f"topic {topic[:32]!r} has {wrong[:64]}; allowed are a-z A-Z 0-9 _ - % |"
    is_group = topic.startswith(GROUP_TOPIC_PREFIXES)
    size_max = GROUP_TOPIC_SIZE_MAX if is_group else TOPIC_SIZE_MAX
    if len(topic) > size_max:
        return f"topic {topic[:32]!r}… has {len(topic)} characters, at most {size_max} are allowed"
    return None


def group_of(topic: str) -> str | None:
    """Return the group that a retry or dead-letter topic belongs to; None for other topics."""
    prefix = next(filter(topic.startswith, GROUP_TOPIC_PREFIXES), None)
    return None if prefix is None else topic.removeprefix(prefix)


def is_system_topic(
    topic: str, *, cluster: str | None = None, broker_name: str | None = None
) -> bool:
    """Whether a topic belongs to the brokers themselves, or to these brokers of ``cluster``."""
    if topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX):
        return True
    return cluster is not None and topic in {cluster, broker_name, reply_topic(cluster)}


def reply_topic(cluster: str) -> str:
    """Return the topic to which consumers of a cluster send their replies."""
    return f"{cluster}{REPLY_TOPIC_SUFFIX}"


def check_topic(topic: str) -> str:
    """Return ``topic``.  Raises ValueError if RocketMQ would refuse it."""
    fault = topic_fault(topic)
    if fault is not None:
        raise ValueError(fault)
    return topic


def check_group(group: str) -> str:
    """Return ``group``.  Raises ValueError if RocketMQ would refuse it or its retry topic."""
    if not group:
        msg = "a group has at least one character"
        raise ValueError(msg)
    fault = topic_fault(f"{RETRY_TOPIC_PREFIX}{group}")
    if fault is not None:
        msg = f"group {group!r}: its retry topic is not valid: {fault}"
        raise ValueError(msg)
    return group
