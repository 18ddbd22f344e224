"""Sentences on a terminal: broken between words, what goes on stands below what it belongs to.

Off a terminal a line stays a line, whatever its length: programs read those.
"""

from __future__ import annotations

import shutil
import sys
import textwrap


def fold(text: str, *, hang: int) -> list[str]:
    """Give the lines of a text; all but the first begin with ``hang`` blanks.

    A word that is longer than the terminal is wide, such as a path, is never broken.
    """
    if not sys.stdout.isatty():
        return [text]
    width = shutil.get_terminal_size().columns
    lines = textwrap.wrap(
        text,
        width,
        subsequent_indent=" " * min(hang, width // 2),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [text]
