"""Read JSON as RocketMQ's peers write it; write it in pieces.

Java's fastjson writes maps with integer keys bare (``{0:"host:port"}``), which is not
JSON; the C++ client ends a body with a newline.  Both are read here; hastore writes plain JSON.

``loads`` reads a text in one go.  What clients send is read in pieces: a text of at most 64 Ki
characters is one piece, a longer one is read through a window of that size.  What fits into the
window is parsed in one go, the members of larger values one after the other::

    {"a": 1, "rows": [ row, row, row, │ row, row, … ]}
                       window         └ the next one begins at the first row that did not fit

Nothing is parsed a second time but the value at a window's end.  Values above 64 Ki characters are
objects and lists, at most ``LARGE_DEPTH_MAX`` deep.

Invariant: any bytes yield a value or a ProtocolError, in time linear in their number.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import attrs

from hastore.errors import ProtocolError
from hastore.wire.pieces import ROWS_OF_A_PIECE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hastore.wire.pieces import Pieces

WINDOW_SIZE: Final = 64 * 1024  # characters, parsed in some 1.2 ms
TURN_SIZE: Final = 16 * 1024  # bytes of JSON above which a request waits for its turn
LARGE_DEPTH_MAX: Final = 5  # of values that do not fit into the window
# Of a request above the window: members of its large values, and likewise objects and lists.
LARGE_VALUES_MAX: Final = 32_768
_PIECE_SIZE: Final = 16 * 1024  # characters
_PIECE_VALUES: Final = 500
_MARGIN: Final = 8  # a number or a word this close to the window's end may be incomplete

# A string (kept), or a bare integer key: after { or , and before a colon.  An unclosed string
# matches up to the end of the text; otherwise each quote in it would be tried again.
_STRING_OR_BARE_KEY: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|([{,]\s*)(-?[0-9]+)(\s*:)', re.DOTALL)
_BARE_KEY: Final = re.compile(r"[{,]\s*-?[0-9]+\s*:")
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_raw_decode: Final = json.JSONDecoder().raw_decode
_dumps: Final = json.JSONEncoder(separators=(",", ":")).encode


def _quote(match: re.Match[str]) -> str:
    before, digits, after = match.groups()
    return match[0] if digits is None else f'{before}"{digits}"{after}'


def _plain(text: str) -> str:
    """Return a text with its bare keys in quotes; it does not begin inside a string."""
    return _STRING_OR_BARE_KEY.sub(_quote, text) if _BARE_KEY.search(text) else text


# -- reading -------------------------------------------------------------------------------------


def loads(data: bytes, what: str) -> Any:
    """Read ``data`` in one go, whatever its size: several times faster than in pieces.

    Raises ProtocolError with ``what`` and the position of the fault.
    """
    try:
        text = data.decode()
        try:
            return json.loads(text)
        except ValueError:
            return json.loads(_plain(text))
    except (ValueError, RecursionError) as error:
        msg = f"{what} is not JSON: {error}"
        raise ProtocolError(msg) from error


def loads_object(data: bytes, what: str) -> dict[str, Any]:
    """Read one JSON object in one go.  Raises ProtocolError."""
    return _object(loads(data, what), what)


def loads_object_in_pieces(
    data: bytes, what: str, *, values_max: int | None = None
) -> Pieces[dict[str, Any]]:
    """Read one JSON object in pieces, as ``loads_in_pieces``.  Raises ProtocolError."""
    return _object((yield from loads_in_pieces(data, what, values_max=values_max)), what)


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        msg = f"{what} is not a JSON object but {type(value).__name__}"
        raise ProtocolError(msg)
    return value


def loads_in_pieces(data: bytes, what: str, *, values_max: int | None = None) -> Pieces[Any]:
    """Read ``data`` in pieces; ``values_max`` is LARGE_VALUES_MAX, or None for no limit.

    Raises ProtocolError with ``what`` and the position of the fault.
    """
    if len(data) > TURN_SIZE:
        yield 0
    try:
        text = data.decode()
        if len(text) > WINDOW_SIZE:
            # Each object or list costs the garbage collector, too, which runs when it likes.
            if values_max is not None and text.count("{") + text.count("[") > values_max:
                msg = f"{what} has more than {values_max} objects and lists"
                raise ProtocolError(msg)
            return (yield from _Windows(text, values_max).whole())
        value = json.loads(_plain(text))
    except (ValueError, RecursionError) as error:
        msg = f"{what} is not JSON: {error}"
        raise ProtocolError(msg) from error
    if len(data) > TURN_SIZE:
        yield len(text)
    return value


@final
@attrs.define(eq=False)
class _Windows:
    """Reads one long text; every method raises ValueError where it is not JSON."""

    text: str
    values_max: int | None
    window_size: int = WINDOW_SIZE
    _next: int = attrs.field(default=0, init=False)  # of the text's characters in no window yet
    _window: str = attrs.field(default="", init=False)
    _at: int = attrs.field(default=0, init=False)  # in the window
    _begun: int = attrs.field(default=0, init=False)  # where the piece began in the window
    _size: int = attrs.field(default=0, init=False)  # of the piece, in the windows before
    _piece_values: int = attrs.field(default=0, init=False)
    _values: int = attrs.field(default=0, init=False)

    def whole(self) -> Pieces[Any]:
        """Read the only value of the text."""
        value = yield from self._members(0)
        if self._peek():
            self._fail("Extra data", self._at)
        yield self._end_piece()
        return value

    def _members(self, depth: int) -> Pieces[Any]:
        """Read an object or a list one member after the other."""
        opening = self._peek()
        if opening not in {"{", "["}:
            self._fail(f"A value of more than {self.window_size} characters", self._at)
        if depth > LARGE_DEPTH_MAX:
            self._fail(f"More than {self.window_size} characters in one value this deep", self._at)
        closing, names = ("}", True) if opening == "{" else ("]", False)
        members: dict[str, Any] = {}
        values: list[Any] = []
        self._at += 1
        if self._peek() == closing:
            self._at += 1
            return members if names else values
        while True:
            name = self._name() if names else ""
            is_read, value = self._small_value()
            if not is_read:
                value = yield from self._members(depth + 1)
            if names:
                members[name] = value
            else:
                values.append(value)
            if self._is_full():
                yield self._end_piece()
            delimiter = self._peek()
            self._at += 1
            if delimiter == closing:
                return members if names else values
            if delimiter != ",":
                self._fail("Expecting ',' delimiter", self._at - 1)

    def _name(self) -> str:
        if self._peek() != '"':
            if self._at:
                self._refill()  # a bare key at the window's end has no quotes yet
            self._window = _plain(f",{self._window}")[1:]  # nor has one at its beginning
        begin = self._at
        is_read, name = self._small_value() if self._peek() == '"' else (False, None)
        if not is_read:
            self._fail("Expecting property name enclosed in double quotes", begin)
        if self._peek() != ":":
            self._fail("Expecting ':' delimiter", self._at)
        self._at += 1
        assert isinstance(name, str), "it has quotes"
        return name

    def _small_value(self) -> tuple[bool, Any]:
        """Read a value that fits into a window; (False, None) for a larger one."""
        self._peek()
        while True:
            is_last = self._next == len(self.text)
            try:
                value, end = _raw_decode(self._window, self._at)
            except ValueError as error:
                position = getattr(error, "pos", 0)
                is_cut = position >= len(self._window) - _MARGIN or "Unterminated" in str(error)
                if is_last or not is_cut:
                    self._fail(getattr(error, "msg", str(error)), position)
            else:
                if is_last or end <= len(self._window) - _MARGIN:
                    self._at = end
                    return True, value
            if not self._at:
                return False, None
            self._refill()

    def _peek(self) -> str:
        """Return the next character that is no space; "" at the end."""
        while True:
            match = _SPACE.match(self._window, self._at)
            assert match is not None, "it matches nothing, too"
            self._at = match.end()
            if self._at < len(self._window):
                return self._window[self._at]
            if self._next == len(self.text):
                return ""
            if match.start() == 0 and match.end() >= self.window_size:
                self._fail(f"{self.window_size} characters of white space", 0)
            self._refill()

    def _refill(self) -> None:
        """Move the window on, to begin at the next character."""
        rest = self._window[self._at :]
        end = self._next + max(self.window_size - len(rest), 0)
        more = self.text[self._next : end]
        self._next += len(more)
        self._size += self._at - self._begun
        self._window, self._at, self._begun = _plain(rest + more), 0, 0

    def _is_full(self) -> bool:
        self._values += 1
        self._piece_values += 1
        if self.values_max is not None and self._values > self.values_max:
            self._fail(f"More than {self.values_max} members of large values", self._at)
        size = self._size + self._at - self._begun
        return size >= _PIECE_SIZE or self._piece_values >= _PIECE_VALUES

    def _end_piece(self) -> int:
        size = self._size + self._at - self._begun
        self._size, self._begun, self._piece_values = 0, self._at, 0
        return size

    def _fail(self, reason: str, position: int) -> NoReturn:
        """Raise the error for a place in the window."""
        place = max(self._next - len(self._window), 0) + position
        msg = f"{reason}: char {place}"
        raise ValueError(msg)


# -- writing -------------------------------------------------------------------------------------


@final
@attrs.frozen
class Rows:
    """A member of an object that has many members of its own, each converted when written."""

    rows: Mapping[str, Any]
    to_json: Callable[[Any], Any]
    rows_of_a_piece: int = ROWS_OF_A_PIECE


@final
@attrs.frozen
class Items:
    """A member of an object that is a long list, each item converted when written."""

    items: Sequence[Any]
    to_json: Callable[[Any], Any]


def all_rows(value: Mapping[str, Any | Rows | Items]) -> dict[str, Any]:
    """Return an object whose Rows and Items are all converted."""
    return {name: _converted(member) for name, member in value.items()}


def _converted(member: Any | Rows | Items) -> Any:
    match member:
        case Rows():
            return {key: member.to_json(row) for key, row in member.rows.items()}
        case Items():
            return [member.to_json(item) for item in member.items]
        case _:
            return member


def dumps_in_pieces(value: Mapping[str, Any | Rows | Items]) -> Pieces[bytes]:
    """Return an object as JSON, as ``json.dumps`` writes it without spaces.

    Its members that are lists, Rows or Items are written some rows at a time, if one of them is
    longer than a piece.
    """
    is_long = any(map(_is_long, value.values()))
    if is_long:
        yield 0
    # Encoded part by part: a copy of megabytes in the last piece would take milliseconds.
    encoded: list[bytes] = []
    for name, member in value.items():
        encoded.append(f"{',' if encoded else '{'}{_dumps(name)}:".encode())
        if isinstance(member, (Rows, Items, list)):
            opening, closing = "{}" if isinstance(member, Rows) else "[]"
            encoded.append(opening.encode())
            for number, part in enumerate(_parts(member)):
                encoded.append(f"{',' if number else ''}{part}".encode())
                if is_long:
                    yield len(part)
            encoded.append(closing.encode())
        else:
            encoded.append(_dumps(member).encode())
    encoded.append(b"}" if encoded else b"{}")
    return b"".join(encoded)


def _parts(member: Rows | Items | list[Any]) -> Iterator[str]:
    """Yield the JSON of a member, some rows at a time, without its brackets."""
    if isinstance(member, Rows):
        rows, to_json = iter(member.rows.items()), member.to_json
        while some := {key: to_json(row) for key, row in islice(rows, member.rows_of_a_piece)}:
            yield _dumps(some)[1:-1]
    elif isinstance(member, Items):
        for begin in range(0, len(member.items), ROWS_OF_A_PIECE):
            items = member.items[begin : begin + ROWS_OF_A_PIECE]
            yield _dumps([member.to_json(item) for item in items])[1:-1]
    else:
        for begin in range(0, len(member), ROWS_OF_A_PIECE):
            yield _dumps(member[begin : begin + ROWS_OF_A_PIECE])[1:-1]


def _is_long(member: object) -> bool:
    """Whether a member is written in more than one piece."""
    match member:
        case Rows():
            return len(member.rows) > member.rows_of_a_piece
        case Items():
            return len(member.items) > ROWS_OF_A_PIECE
        case list():
            return len(member) > ROWS_OF_A_PIECE
        case _:
            return False
