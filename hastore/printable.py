"""Makes text that others wrote safe to print: control characters never reach a terminal.

A node, a log, etcd or a file may hold ``ESC [ 2 J``, a line end or a mark that reverses the text.
"""

from __future__ import annotations


def escaped(text: str, *, keep: str = "") -> str:
    """Return a text on one line: what is not printable as backslash escapes, but for ``keep``.

    Not printable are control characters (C0, C1), line ends, marks that direct or hide text (such
    as U+202E), and bytes that are not UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)
