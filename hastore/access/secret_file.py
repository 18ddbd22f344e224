"""Files with secrets: read whole or not at all, and only if nobody else may read them.

YAML and TOML become the same tree.  No text of an error quotes a value: it may be a secret.

Invariant: what ``read_secret_file`` returns was the whole content at one instant, as long as
writers replace the file or change its length or time.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import attrs

from hastore.errors import ConfigError, DiskError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import yaml

    from hastore.env.interface import Disk, FileStamp

FILE_SIZE_MAX: Final = 1024 * 1024
PASSWORD_SIZE_MAX: Final = 1_024  # OpenSSL's PEM_BUFSIZE; ``ssl`` raises ValueError above it
_OTHERS: Final = 0o077
_DEPTH_MAX: Final = 5  # accounts, one of them, its topics
_NODES_MAX: Final = 200_000
# tomllib takes time by the square of a dotted key's parts: 200,000 of them would take hours.
_DOTS_MAX: Final = 500  # outside of strings and comments, where these files need none
_TOML_TEXT: Final = re.compile(
    r"""
    \"{3}(?:[^\\]|\\.)*?(?:\"{3}|\Z) | '{3}.*?(?:'{3}|\Z)  # strings of several lines
    | "(?:[^"\\\n]|\\.)*"? | '[^'\n]*'? | \#[^\n]*       # strings, comments
    """,
    re.DOTALL | re.VERBOSE,
)
_QUOTED: Final = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`""")
_NULL: Final = "tag:yaml.org,2002:null"
_BOOL: Final = "tag:yaml.org,2002:bool"
_TRUE: Final = frozenset({"true", "yes", "on"})

_T = TypeVar("_T")


@attrs.frozen(repr=False)
class Item:
    """A value and its place: a table (``dict`` of items), a list of them, a text, bool or None."""

    value: Any
    place: str  # ``line 3``, or ``accounts 2, topicPerms`` where there are no lines


def read_secret_file(disk: Disk, path: str) -> tuple[bytes, FileStamp]:
    """Return a file's bytes and its stamp.

    Raises ConfigError if it cannot be read, is too large, changes meanwhile, or is open to others.
    """
    try:
        stamp = disk.stamp(path)
        check_is_private(path, stamp)
        if stamp.size > FILE_SIZE_MAX:
            raise ConfigError(
                f"{path} has {stamp.size} bytes; at most {FILE_SIZE_MAX} are read",
                hint="is it the right file?",
            )
        data = disk.read_file(path)
        if disk.stamp(path) != stamp:
            raise ConfigError(
                f"{path} changes while it is read", hint="write it under another name and rename it"
            )
    except DiskError as error:
        raise ConfigError(str(error), hint="check the path, its owner and its mode") from error
    return data, stamp


def check_is_private(path: str, stamp: FileStamp) -> None:
    """Raise ConfigError if others than its owner may use a file, by its mode."""
    if stamp.mode & _OTHERS:
        raise ConfigError(
            f"{path} has mode {stamp.mode:04o}: others may read its secrets",
            hint=f"chmod 600 {path}",
        )


def read_password(disk: Disk, path: str) -> bytes:
    """Return the first line of a file that only its owner may read, without its line end.

    Raises ConfigError.
    """
    data, _ = read_secret_file(disk, path)
    password = data.partition(b"\n")[0].removesuffix(b"\r")
    if not password:
        raise ConfigError(f"{path} has no password in its first line", hint="write it there")
    if len(password) > PASSWORD_SIZE_MAX:
        raise ConfigError(
            f"the password in {path} has {len(password)} bytes; at most {PASSWORD_SIZE_MAX} are"
            " accepted",
            hint="its first line is the password; is it the right file?",
        )
    return password


def parse_table(data: bytes, path: str) -> dict[str, Item]:
    """Return the table in a file's bytes; its name says whether it is YAML or TOML.

    Raises ConfigError with the file, the line and the next step.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        # Without the error, which has the bytes, as its cause.
        raise ConfigError(f"{path}, line {line}: not UTF-8", hint="save it as UTF-8") from None
    suffix = path.rpartition(".")[2].lower()
    if suffix in {"yml", "yaml"}:
        item = _from_yaml(text, path)
    elif suffix == "toml":
        item = _from_toml(text, path)
    else:
        raise ConfigError(
            f"{path} is neither .yml, .yaml nor .toml", hint="rename it by what it contains"
        )
    if item.value is None:
        return {}
    if not isinstance(item.value, dict):
        raise ConfigError(f"{path}, {item.place}: not a table of keys", hint="write KEY: VALUE")
    return cast("dict[str, Item]", item.value)


# -- YAML ----------------------------------------------------------------------------------------


def _from_yaml(text: str, path: str) -> Item:
    import yaml  # noqa: PLC0415 - only a node whose permissions are in YAML needs it

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", line {mark.line + 1}"
        raise _not(path, where, "YAML", error.problem or "") from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise _not(path, "", "YAML", "") from None
    if node is None:
        return Item(None, "line 1")
    return _Converter(path, yaml).item(node, 0)


@attrs.define
class _Converter:
    """Makes items of YAML nodes; an alias is its node again, so the number of visits is limited."""

    path: str
    yaml: Any
    visits: int = 0

    def item(self, node: yaml.Node, depth: int) -> Item:
        line = node.start_mark.line + 1
        self.visits += 1
        if depth > _DEPTH_MAX or self.visits > _NODES_MAX:
            raise ConfigError(
                f"{self.path}, line {line}: too much in one another",
                hint="accounts are a list of tables",
            )
        return Item(self._value(node, depth), f"line {line}")

    def _value(self, node: yaml.Node, depth: int) -> Any:
        if isinstance(node, self.yaml.MappingNode):
            table: dict[str, Item] = {}
            for key_node, value_node in node.value:
                key = self.item(key_node, depth + 1)
                if not isinstance(key.value, str):
                    raise ConfigError(
                        f"{self.path}, {key.place}: a key is no text", hint="write KEY: VALUE"
                    )
                if key.value in table:
                    raise ConfigError(
                        f"{self.path}, {key.place}: the second {key.value:.64} of one table",
                        hint="keep one of them",
                    )
                table[key.value] = self.item(value_node, depth + 1)
            return table
        if isinstance(node, self.yaml.SequenceNode):
            return [self.item(one, depth + 1) for one in node.value]
        if node.tag == _NULL:
            return None
        if node.tag == _BOOL:
            return node.value.lower() in _TRUE
        # A number is what it looks like: a secret of digits is a text.
        return node.value


# -- TOML ----------------------------------------------------------------------------------------


def _from_toml(text: str, path: str) -> Item:
    dots = _TOML_TEXT.sub("", text).count(".")
    if dots > _DOTS_MAX:
        raise ConfigError(
            f"{path} has {dots} dots in its keys; at most {_DOTS_MAX} are read",
            hint='a line is: key = "text"; [[accounts]] begins an account',
        )
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _not(path, "", "TOML", str(error)) from None
    except RecursionError:
        raise _not(path, "", "TOML", "") from None
    return _toml_item(table, "the file")


def _toml_item(value: object, place: str) -> Item:
    if isinstance(value, dict):
        inner = "" if place == "the file" else f"{place}, "
        return Item(
            {key: _toml_item(one, f"{inner}{key:.64}") for key, one in value.items()}, place
        )
    if isinstance(value, list):
        return Item(
            [_toml_item(one, f"{place} {number}") for number, one in enumerate(value, 1)], place
        )
    return Item(value, place)


def _not(path: str, where: str, what: str, problem: str) -> ConfigError:
    """Return the error for text of another form; what it quotes is left out."""
    said = _QUOTED.sub("...", problem)
    reason = f": {said}" if said else ""
    return ConfigError(
        f"{path}{where} is not {what}{reason}",
        hint="a secret with special characters needs quotation marks"
        if what == "YAML"
        else 'a line is: key = "text"; [[accounts]] begins an account',
    )


# -- values --------------------------------------------------------------------------------------


@attrs.frozen
class Reader:
    """Takes values out of a table; every error names the file and the place."""

    path: str

    def fault(self, place: str, what: str, hint: str) -> ConfigError:
        """Return an error about a place."""
        return ConfigError(f"{self.path}, {place}: {what}", hint=hint)

    def check_keys(self, table: Mapping[str, Item], known: tuple[str, ...]) -> None:
        """Refuse a key that does not exist."""
        for key, item in table.items():
            if key not in known:
                raise self.fault(
                    item.place, f"no such key: {key:.64}", f"known are: {', '.join(known)}"
                )

    def text(self, table: Mapping[str, Item], key: str) -> str | None:
        """Return a text; None if it is missing or empty."""
        item = table.get(key)
        if item is None or item.value is None or item.value == "":
            return None
        if not isinstance(item.value, str):
            raise self.fault(item.place, f"{key} is not a text", "write it in quotation marks")
        return item.value

    def required_text(self, table: Mapping[str, Item], key: str, place: str) -> tuple[str, str]:
        """Return a text that must be there, and its place."""
        text = self.text(table, key)
        if text is None:
            raise self.fault(place, f"{key} is missing", f"an account needs its {key}")
        return text, table[key].place

    def flag(self, table: Mapping[str, Item], key: str) -> bool:
        """Return a boolean; false if it is missing."""
        item = table.get(key)
        if item is None or item.value is None:
            return False
        if not isinstance(item.value, bool):
            raise self.fault(item.place, f"{key} is neither true nor false", f"{key}: false")
        return item.value

    def texts(self, table: Mapping[str, Item], key: str) -> list[tuple[str, str]]:
        """Return a list of texts, each with its place; empty if it is missing."""
        item = table.get(key)
        if item is None or item.value is None:
            return []
        if not isinstance(item.value, list) or not all(
            isinstance(one.value, str) for one in item.value
        ):
            raise self.fault(item.place, f"{key} is not a list of texts", f"{key}: [A, B]")
        return [(one.value, one.place) for one in item.value]

    def parsed(self, place: str, what: str, hint: str, parse: Callable[[], _T]) -> _T:
        """Return a value that its parser takes; the parser's error is not shown."""
        try:
            return parse()
        except ValueError:
            raise self.fault(place, what, hint) from None
