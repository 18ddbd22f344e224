"""Reads a JSON table as fastjson 1.2.83 does, with which RocketMQ reads its files.

A file that was edited by hand and that RocketMQ's broker reads is read here, too.  Beyond JSON,
fastjson takes

- a byte order mark, comments (``/* … */`` and ``// …``), commas without a value between them,
- texts in single quotes, names without quotes (letters, digits, ``_`` and ``$``),
- numbers such as ``5L``.

It refuses text after the end, an object without its end, and ``#`` comments.  Source: fastjson
1.2.83 was run on such files.

A text is *torn* if a crash may have left it: it has zeros, or more text could make it whole.

Invariant: any bytes yield an object or a ProtocolError, in time linear in their number.
"""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn, final

import attrs

from hastore.errors import ProtocolError

DEPTH_MAX: Final = 64
_ZERO: Final = "\0"
# How a text may end that was cut off: in a word or a comment, or in a quoted text, which has one
# line in every file that a program writes.
_UNFINISHED: Final = re.compile(r"""[^\s{}\[\]:,"'/]*|/(\*.*)?""", re.DOTALL)
_UNFINISHED_COMMENT: Final = re.compile(r"/(\*.*)?", re.DOTALL)
_UNFINISHED_TEXT: Final = re.compile(r".*")
_BYTE_ORDER_MARK: Final = "\ufeff"
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")  # its byte order marks
_SPACE: Final = re.compile(r"(?:[ \t\r\n\f\b]|/\*.*?\*/|//[^\n]*)*", re.DOTALL)
_SPACE_AND_COMMAS: Final = re.compile(r"(?:[ \t\r\n\f\b,]|/\*.*?\*/|//[^\n]*)*", re.DOTALL)
_NAME: Final = re.compile(r"[A-Za-z0-9_$]+|-[0-9]+")
_NUMBER: Final = re.compile(r"(-?[0-9]+)(\.[0-9]+)?([eE][+-]?[0-9]+)?[LSBFD]?")
_WORD: Final = re.compile(r"[A-Za-z]+")
_WORDS: Final = {"true": True, "false": False, "null": None}
_TEXTS: Final = {
    '"': re.compile(r'[^"\\]+'),
    "'": re.compile(r"[^'\\]+"),
}
_HEX: Final = re.compile(r"[0-9A-Fa-f]+")
_HEX_DIGITS: Final = {"u": 4, "x": 2}
_ESCAPED: Final = {
    "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "/": "/", "\\": "\\", '"': '"', "'": "'",
}  # fmt: skip
_INTEGER_DIGITS_MAX: Final = 20


class FastjsonError(ProtocolError):
    """A text that fastjson does not read; ``is_torn`` if a crash may have left it."""

    def __init__(self, message: str, *, is_torn: bool) -> None:
        super().__init__(message)
        self.is_torn = is_torn


def loads_object(data: bytes, what: str) -> dict[str, Any]:
    """Read one object.  Raises FastjsonError with ``what``, line and column."""
    try:
        text = data.decode().removeprefix(_BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        before = data[: error.start].decode()
        is_torn = error.end == len(data) or (0 in data and not data.startswith(_UTF_16))
        raise _error(what, before, len(before), "not UTF-8", is_torn=is_torn) from error
    zero = text.find(_ZERO)
    if zero >= 0:  # they may begin in one text and end in another
        raise _error(what, text, zero, "a zero", is_torn=True)
    reader = _Reader(text, what)
    value = reader.whole()
    if not isinstance(value, dict):
        raise _error(what, text, 0, "not an object", is_torn=False)
    return value


def _error(what: str, text: str, position: int, reason: str, *, is_torn: bool) -> FastjsonError:
    """Return the error for a position, with line and column counted from 1."""
    before = text[:position]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    msg = f"{what}: line {line}, column {column}: {reason}"
    return FastjsonError(msg, is_torn=is_torn)


def _with_pairs(text: str) -> str:
    """Return a text in which two escaped surrogates are the one character that they mean."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


@final
@attrs.define(eq=False)
class _Reader:
    text: str
    what: str
    _at: int = attrs.field(default=0, init=False)

    def whole(self) -> Any:
        """Read the only value of the text."""
        value = self._value(0)
        self._skip(_SPACE)
        if self._at < len(self.text):
            self._fail("more after the end", unfinished=_UNFINISHED_COMMENT)
        return value

    def _value(self, depth: int) -> Any:
        self._skip(_SPACE)
        first = self._peek()
        if depth > DEPTH_MAX:
            self._fail(f"more than {DEPTH_MAX} values within one another")
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._list(depth)
        if first in _TEXTS:
            return self._text(first)
        number = _NUMBER.match(self.text, self._at)
        if number is not None:
            return self._number(number)
        word = _WORD.match(self.text, self._at)
        if word is None or word[0] not in _WORDS:
            self._fail("no value")
        self._at = word.end()
        return _WORDS[word[0]]

    def _object(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        self._at += 1
        self._skip(_SPACE_AND_COMMAS)
        while self._peek() != "}":
            name = self._name()
            self._skip(_SPACE)
            if self._peek() != ":":
                self._fail("no : after a name")
            self._at += 1
            members[name] = self._value(depth + 1)
            self._end_of_member("}")
        self._at += 1
        return members

    def _list(self, depth: int) -> list[Any]:
        values: list[Any] = []
        self._at += 1
        self._skip(_SPACE_AND_COMMAS)
        while self._peek() != "]":
            values.append(self._value(depth + 1))
            self._end_of_member("]")
        self._at += 1
        return values

    def _end_of_member(self, closing: str) -> None:
        self._skip(_SPACE)
        if self._peek() not in {",", closing}:
            self._fail(f"neither , nor {closing} after a value")
        self._skip(_SPACE_AND_COMMAS)

    def _name(self) -> str:
        first = self._peek()
        if first in _TEXTS:
            return self._text(first)
        match = _NAME.match(self.text, self._at)
        if match is None:
            self._fail("no name")
        self._at = match.end()
        return match[0]

    def _text(self, quote: str) -> str:
        parts: list[str] = []
        begin = self._at
        self._at += 1
        while True:
            plain = _TEXTS[quote].match(self.text, self._at)
            if plain is not None:
                parts.append(plain[0])
                self._at = plain.end()
            end = self.text[self._at : self._at + 1]
            if not end:
                self._at = begin
                self._fail("a text without its end", unfinished=_UNFINISHED_TEXT)
            self._at += 1
            if end == quote:
                return _with_pairs("".join(parts))
            parts.append(self._escape())

    def _escape(self) -> str:
        kind = self.text[self._at : self._at + 1]
        self._at += 1
        if kind in _HEX_DIGITS:
            digits = self.text[self._at : self._at + _HEX_DIGITS[kind]]
            if len(digits) == _HEX_DIGITS[kind] and _HEX.fullmatch(digits):
                self._at += len(digits)
                return chr(int(digits, 16))
        if kind not in _ESCAPED:
            self._at -= 1
            self._fail("no escape sequence")
        return _ESCAPED[kind]

    def _number(self, match: re.Match[str]) -> int | float:
        digits, fraction, exponent = match.groups()
        if len(digits) > _INTEGER_DIGITS_MAX:
            self._fail("a number of too many digits")
        self._at = match.end()
        if fraction is None and exponent is None:
            return int(digits)
        return float(f"{digits}{fraction or ''}{exponent or ''}")

    def _skip(self, what: re.Pattern[str]) -> None:
        match = what.match(self.text, self._at)
        assert match is not None, "it matches nothing, too"
        self._at = match.end()

    def _peek(self) -> str:
        if self._at >= len(self.text):
            self._fail("the text ends in the middle")
        return self.text[self._at]

    def _fail(self, reason: str, *, unfinished: re.Pattern[str] = _UNFINISHED) -> NoReturn:
        """Raise the error for the position; the text is torn if all the rest is ``unfinished``."""
        is_torn = unfinished.fullmatch(self.text, self._at) is not None
        raise _error(self.what, self.text, self._at, reason, is_torn=is_torn)
