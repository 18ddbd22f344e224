"""Selects a consumer's messages by RocketMQ's tag expressions, ``*`` or ``TagA || TagB``.

A filter is applied twice: to the tags code of a consume queue's unit, which may match by accident
(two texts with one hash), and then to the tags themselves.
"""

from __future__ import annotations

from typing import Final, Self, final

import attrs

from hastore.store.record.java_hash import tags_code

ALL: Final = "*"


@final
@attrs.frozen
class TagFilter:
    """Passes messages with one of ``tags``, or all messages if that is None."""

    tags: frozenset[str] | None
    _codes: frozenset[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Hash each tag once."""
        codes = frozenset(tags_code(tag) for tag in self.tags or ())
        object.__setattr__(self, "_codes", codes)

    @classmethod
    def parse(cls, expression: str | None) -> Self:
        """Read an expression; None, an empty one and ``*`` pass everything."""
        text = (expression or ALL).strip()
        if text in {"", ALL}:
            return cls(None)
        return cls(frozenset(tag for part in text.split("||") if (tag := part.strip())))

    @property
    def passes_all(self) -> bool:
        """Whether every message is wanted."""
        return self.tags is None

    def matches_code(self, code: int) -> bool:
        """Whether a message with this tags code may be wanted."""
        return self.tags is None or code in self._codes

    def matches_tags(self, tags: str | None) -> bool:
        """Whether a message with these tags is wanted."""
        return self.tags is None or tags in self.tags
