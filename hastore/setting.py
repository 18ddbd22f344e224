"""Declare the fields of a configuration: key, environment variable, flag, kind and help.

::

    flush_interval_ms: int = duration(500, "store.flush_interval", "Period of the flush timer.")

    TOML         [store] flush_interval = "500ms"
    environment  HASTORE_STORE_FLUSH_INTERVAL=500ms
    flag         none, or the one given as ``flag="--flush-interval"``

Everything else is derived from the declaration: how files, variables and flags are read,
``--check-config``, and errors; a test compares the tables in docs/cli.md.
``hastore_cli.settings.kinds`` parses and writes values.
"""

from __future__ import annotations

import enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from hastore.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    _Validator = Callable[[Any, attrs.Attribute[Any], Any], None]

_T = TypeVar("_T")
_METADATA_KEY: Final = "hastore.setting"


class Kind(enum.Enum):
    """The kind of a value; the member's value is its placeholder in help texts."""

    TEXT = "TEXT"
    PATH = "DIR"
    FILE = "FILE"
    URLS = "URL,URL"
    ADDRESS = "H:P"
    ADDRESSES = "H:P,H:P"
    HA_ADDRESS = "H:HAPORT"
    LOCAL_ADDRESS = "[H:]P"  # a port alone listens on loopback
    SIZE = "SIZE"
    DURATION = "TIME"  # milliseconds in Python
    DURATION_OR_ZERO = "TIME|0s"
    HOURS = "HOURS"
    COUNT = "N"
    COUNT_OR_ZERO = "N|0"
    ALL_OR_COUNT = "all|N"
    COUNTS = "N,N"
    NAMES = "NAME,NAME"
    PEERS = "HOST@OFFSET"  # several: separated by commas
    PERCENT = "PERCENT"
    CLOCK_HOURS = "HH;HH"
    DELAY_LEVELS = "TIMES"
    BOOL = "BOOL"
    ROLE = "SYNC_MASTER|ASYNC_MASTER"
    FLUSH = "ASYNC_FLUSH|SYNC_FLUSH"
    START = "earliest|last-file"
    PROTOCOL = "classic|autoswitch"
    OWN_SIGNATURES = "preferred|required"
    TLS_MODE = "disabled|permissive|enforcing"
    TLS_VERSION = "1.2|1.3"
    CLIENT_CERTIFICATES = "none|asked|required"
    LOG_FORMAT = "auto|console|json"
    LOG_LEVEL = "debug|info|warning|error"


@attrs.frozen(eq=False)
class Setting:
    """The declaration of one field.

    ``node`` is ``master`` or ``slave`` if both kinds of node have the field but only one uses it,
    ``node`` if only a node whose role may change has it.  ``old_key`` is its key of 0.1.0, which
    files and variables may have for one more release.
    """

    section: str
    key: str
    kind: Kind
    help: str
    flag: str | None = None
    node: str | None = None
    old_key: str | None = None

    @property
    def name(self) -> str:
        """``[ha] slave_timeout``."""
        return f"[{self.section}] {self.key}"

    @property
    def environment_name(self) -> str:
        """``HASTORE_HA_SLAVE_TIMEOUT``."""
        return f"HASTORE_{self.section}_{self.key}".upper()

    @property
    def old_environment_name(self) -> str | None:
        """``HASTORE_STORE_FILE_SIZE``; None without an old key."""
        return None if self.old_key is None else f"HASTORE_{self.section}_{self.old_key}".upper()

    @property
    def parameter(self) -> str:
        """The name of the command parameter that holds the flag's value."""
        return f"{self.section}_{self.key}"


def setting(
    default: _T,
    name: str,
    help_text: str,
    *,
    kind: Kind,
    flag: str | None = None,
    node: str | None = None,
    old_key: str | None = None,
    validator: _Validator | None = None,
) -> _T:
    """Declare a field with a default and the key ``name``, which is ``section.key``.

    Numbers must be above 0 unless ``kind`` or ``validator`` allows others.
    """
    return attrs.field(
        default=default,
        validator=validator or _VALIDATORS.get(kind),
        metadata=setting_metadata(
            name, help_text, kind=kind, flag=flag, node=node, old_key=old_key
        ),
    )


duration = partial(setting, kind=Kind.DURATION)
size = partial(setting, kind=Kind.SIZE)
count = partial(setting, kind=Kind.COUNT)
switch = partial(setting, kind=Kind.BOOL)


def setting_metadata(
    name: str,
    help_text: str,
    *,
    kind: Kind,
    flag: str | None = None,
    node: str | None = None,
    old_key: str | None = None,
) -> Mapping[str, Setting]:
    """Return the metadata of a field without a default: ``attrs.field(metadata=…)``."""
    section, key = name.split(".")
    return {_METADATA_KEY: Setting(section, key, kind, help_text, flag, node, old_key)}


def settings_in(
    config: type[attrs.AttrsInstance],
) -> Iterator[tuple[Setting, attrs.Attribute[Any]]]:
    """Yield the settings of a configuration class with their fields, inherited ones last."""
    for field in sorted(attrs.fields(config), key=lambda field: field.inherited):
        if _METADATA_KEY in field.metadata:
            yield field.metadata[_METADATA_KEY], field


def _positive(_instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value <= 0:
        raise SettingsError(f"{{0}} must be above 0, not {value}", attribute.name)


def _not_negative(_instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 0:
        raise SettingsError(f"{{0}} must not be negative, but is {value}", attribute.name)


_VALIDATORS: Final[Mapping[Kind, _Validator]] = {
    Kind.SIZE: _positive,
    Kind.DURATION: _positive,
    Kind.DURATION_OR_ZERO: _not_negative,
    Kind.HOURS: _positive,
    Kind.COUNT: _positive,
    Kind.COUNT_OR_ZERO: _not_negative,
    Kind.PERCENT: _positive,
}
