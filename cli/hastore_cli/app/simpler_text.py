"""What a stream shows of a character that its encoding does not have: a simpler one, or an escape.

::

    0 … 17 × 3 — 84 µs    on an ASCII terminal    0 ... 17 x 3 - 84 us
    grüße, 日本, \\udcff                           gr\\xfc\\xdfe, \\u65e5\\u672c, \\udcff

The last is how Python carries a byte that is no UTF-8: no encoding has it, so it needs this
everywhere.  Widths may grow: whoever lays text out asks ``as_shown`` first.
"""

from __future__ import annotations

import codecs
from typing import IO, Final

_NAME: Final = "hastore_simpler_text"
_SIMPLER: Final = {
    **dict.fromkeys("\u2010\u2011\u2012–—―−─━═", "-"),
    **dict.fromkeys("│┃║", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╯╰╞╡╪╔╗╚╝╠╣╦╩╬", "+"),
    **dict.fromkeys("‘’‚", "'"),
    **dict.fromkeys("“”„", '"'),
    **dict.fromkeys("\u00a0\u2009\u202f", " "),
    **dict.fromkeys("·•", "*"),
    **dict.fromkeys("▏▎▍▌▋▊▉█", "#"),
    "…": "...",
    "×": "x",
    "µ": "u",
    "μ": "u",
    "≤": "<=",
    "≥": ">=",
    "→": "->",
    "←": "<-",
    "✓": "ok",
    "✔": "ok",
    "✗": "x",
    "✘": "x",
}


def _simpler(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wanted = error.object[error.start : error.end]
    return "".join(_SIMPLER.get(c) or ascii(c)[1:-1] for c in wanted), error.end


def show_all_text(stream: IO[str]) -> None:
    """Let ``stream`` take any text, whatever its encoding; one that is no real stream does."""
    codecs.register_error(_NAME, _simpler)
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors=_NAME)


def as_shown(text: str, stream: IO[str]) -> str:
    """``text`` as ``stream`` will show it."""
    if text.isascii():
        return text
    codecs.register_error(_NAME, _simpler)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, _NAME).decode(encoding)
