"""Names of topics: RocketMQ's rules (``TopicValidator`` of 4.9.8) and the names it reserves."""

from __future__ import annotations

import re
from typing import Final

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"  # messages that are delayed, a queue for each level
DEFAULT_TOPIC: Final = "TBW102"  # its route is every new topic's
RETRY_TOPIC_PREFIX: Final = "%RETRY%"  # and the group's name
DLQ_TOPIC_PREFIX: Final = "%DLQ%"
GROUP_TOPIC_PREFIXES: Final = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)
TOPIC_SIZE_MAX: Final = 127  # characters
GROUP_TOPIC_SIZE_MAX: Final = 255
TOPIC_BYTES: Final = re.compile(rb"[%|a-zA-Z0-9_-]+")
_TOPIC: Final = re.compile(TOPIC_BYTES.pattern.decode())


def topic_fault(topic: str) -> str | None:
    """Return what is wrong with a topic's name; None where nothing is."""
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
