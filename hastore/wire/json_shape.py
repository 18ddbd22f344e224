"""Check a JSON value against a type, such as an answer of a node against its status.

::

    class Row:                    {"address": "h:1", "lag": null, "new": 7}
        address: str          →   Row(address="h:1", lag=None)
        lag: int | None
                                  {"address": 7}
                              →   ProtocolError: the status's address is a number, …

Nodes of other versions have more fields, or fewer: an unknown field of a class is left out, and one
that is missing has its default, or is None where it may be.  Anything else that does not fit is an
error, so that what reads the value later meets no surprise.

Types are attrs classes, typed dictionaries (whose unknown fields stay), ``str``, ``int`` (64 bits
with a sign), ``float`` (finite, in the range of an int), ``bool``, ``None``, ``Any``, ``tuple[T,
...]``, ``list[T]``, ``dict[str, T]`` and unions of them.

Invariant: any JSON value yields a value of the type or a ProtocolError.
"""

from __future__ import annotations

import functools
import math
import types
import typing
from typing import Any, Final, TypeVar, Union, cast

import attrs

from hastore.errors import ProtocolError

_T = TypeVar("_T")
_INTEGER_END: Final = 1 << 63
_FLOAT_MAX: Final = 2.0**63
_NAMES: Final = {
    "NoneType": "null", "bool": "a boolean", "dict": "an object", "float": "a number",
    "int": "a number", "list": "a list", "str": "a text",
}  # fmt: skip


def read_shape(kind: type[_T], value: object, what: str) -> _T:
    """Return ``value`` as a ``kind``.  Raises ProtocolError, which says what of ``what`` is wrong.

    ``what`` is a noun for the message, such as "the status".
    """
    return cast("_T", _read(kind, value, what))


def _read(kind: Any, value: object, what: str) -> Any:
    if kind is Any:
        return value
    if kind is int or kind is float or kind is bool or kind is str or kind is type(None):
        return _scalar(kind, value, what)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {Union, types.UnionType}:
        return _one_of(arguments, value, what)
    if origin in {tuple, list} and isinstance(value, list | tuple):
        return origin(_read(arguments[0], one, f"an item of {what}") for one in value)
    if origin is dict and isinstance(value, dict):
        return {name: _read(arguments[1], one, _field(what, name)) for name, one in value.items()}
    if isinstance(value, dict) and origin is None:
        return _object(kind, value, what)
    raise _fault(what, value)


def _scalar(kind: type, value: object, what: str) -> object:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and is_number:
        assert isinstance(value, int | float)
        if math.isfinite(value) and abs(value) <= _FLOAT_MAX:
            return value
        raise ProtocolError(f"{what} is out of range")
    if kind is int and is_number and isinstance(value, int):
        if -_INTEGER_END <= value < _INTEGER_END:
            return value
        raise ProtocolError(f"{what} does not fit 64 bits")
    if kind not in {int, float} and type(value) is kind:
        return value
    raise _fault(what, value)


def _one_of(kinds: tuple[Any, ...], value: object, what: str) -> Any:
    """Read the first of several types that fits; raise the error of the last one."""
    if value is None and type(None) in kinds:
        return None
    *others, last = (kind for kind in kinds if kind is not type(None))
    for kind in others:
        try:
            return _read(kind, value, what)
        except ProtocolError:
            continue
    return _read(last, value, what)


def _object(kind: Any, value: dict[str, Any], what: str) -> Any:
    is_class = attrs.has(kind)
    found = {} if is_class else dict(value)
    for name, (its_kind, has_default) in _fields_of(kind).items():
        if name in value:
            found[name] = _read(its_kind, value[name], _field(what, name))
        elif not has_default:
            if type(None) not in typing.get_args(its_kind):
                raise ProtocolError(f"{what} has no {name}")
            found[name] = None
    return kind(**found) if is_class else found


@functools.cache
def _fields_of(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the fields of a class: their types, and whether they may be left out."""
    hints = typing.get_type_hints(kind)
    if not attrs.has(kind):
        return {name: (hint, False) for name, hint in hints.items()}
    return {
        field.name: (hints[field.name], field.default is not attrs.NOTHING)
        for field in attrs.fields(kind)
        if field.init
    }


def _field(what: str, name: str) -> str:
    return f"{what}'s {name:.100}"


def _fault(what: str, value: object) -> ProtocolError:
    name = type(value).__name__
    return ProtocolError(f"{what} is {_NAMES.get(name, name)}, which it cannot be")
