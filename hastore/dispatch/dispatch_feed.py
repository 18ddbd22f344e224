"""What a master has just appended, for the dispatch: so that nothing is decoded that was encoded.

Each append leaves one ``FeedEntry``; ReputMessageService takes them in order.  The feed covers the
log from ``start_offset`` to its end without a gap.  Where dispatch may not follow (it waits for a
slave, or for the disk) the feed stops growing at ``FEED_SIZE_MAX`` entries: it is closed then, and
what it lacks is read from the log.

Invariant: while the feed is open every record from ``start_offset`` on has its entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from hastore.message import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

FEED_SIZE_MAX: Final = 65_536

# Tags, UNIQ_KEY, KEYS, DELAY: the properties that dispatch looks at, None where there is none.
FeedTexts: TypeAlias = "tuple[str | None, str | None, str | None, str | None]"
# Physic offset, size, topic, queue id, queue offset, store timestamp, sysFlag, texts.
FeedEntry: TypeAlias = "tuple[int, int, str, int, int, int, int, FeedTexts | None]"


def feed_texts(properties: Mapping[str, str] | None) -> FeedTexts | None:
    """Take what dispatch needs of a message's properties; its producer may change them later."""
    if not properties:
        return None
    get = properties.get
    return (
        get(PROPERTY_TAGS),
        get(PROPERTY_UNIQ_KEY),
        get(PROPERTY_KEYS),
        get(PROPERTY_DELAY_TIME_LEVEL),
    )
