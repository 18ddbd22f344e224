"""What a field of the configuration is called outside Python: its key, variable, flag and help.

::

    flush_interval_ms: int = duration(500, "store.flush_interval", "The timer's period.")

    TOML         [store] flush_interval = "500ms"
    environment  HASTORE_STORE_FLUSH_INTERVAL=500ms
    flag         none, or the one given as ``flag="--flush-interval"``

Nothing of this is written anywhere else: reading files, variables and flags, ``--check-config`` and
the errors about them are derived from it, and a test compares the tables in docs/cli.md.  How a
value is parsed and written is the business of ``hastore_cli.settings.kinds``.
"""

from __future__ import annotations

import enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from hastore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    _Validator = Callable[[Any, attrs.Attribute[Any], Any], None]

_T = TypeVar("_T")
_METADATA_KEY: Final = "hastore.setting"


class Kind(enum.Enum):
    """What a value is; the member's value is how help texts write it."""

    TEXT = "TEXT"
    PATH = "DIR"
    ADDRESS = "H:P"
    HA_ADDRESS = "H:HAPORT"
    LOCAL_ADDRESS = "[H:]P"  # a port alone is one of this machine only
    SIZE = "SIZE"
    DURATION = "TIME"  # milliseconds in Python
    DURATION_OR_ZERO = "TIME|0s"
    HOURS = "HOURS"
    COUNT = "N"
    COUNT_OR_ZERO = "N|0"
    PERCENT = "PERCENT"
    CLOCK_HOURS = "HH;HH"
    DELAY_LEVELS = "TIMES"
    BOOL = "BOOL"
    ROLE = "SYNC_MASTER|ASYNC_MASTER"
    FLUSH = "ASYNC_FLUSH|SYNC_FLUSH"
    START = "earliest|last-file"
    LOG_FORMAT = "auto|console|json"
    LOG_LEVEL = "debug|info|warning|error"


@attrs.frozen(eq=False)
class Setting:
    """The public side of one field.

    ``node`` is the one kind of node, ``master`` or ``slave``, that heeds a field both kinds have.
    """

    section: str
    key: str
    kind: Kind
    help: str
    flag: str | None = None
    node: str | None = None

    @property
    def name(self) -> str:
        """``[ha] slave_timeout``."""
        return f"[{self.section}] {self.key}"

    @property
    def environment_name(self) -> str:
        """``HASTORE_HA_SLAVE_TIMEOUT``."""
        return f"HASTORE_{self.section}_{self.key}".upper()

    @property
    def parameter(self) -> str:
        """The name of the flag's value among a command's parameters."""
        return f"{self.section}_{self.key}"


def setting(
    default: _T,
    name: str,
    help_text: str,
    *,
    kind: Kind,
    flag: str | None = None,
    node: str | None = None,
    validator: _Validator | None = None,
) -> _T:
    """Declare a field with a default that can be set as ``section.key``, its ``name``.

    Numbers are above 0 where ``kind`` or ``validator`` does not say otherwise.
    """
    return attrs.field(
        default=default,
        validator=validator or _VALIDATORS.get(kind),
        metadata=setting_metadata(name, help_text, kind=kind, flag=flag, node=node),
    )


duration = partial(setting, kind=Kind.DURATION)
size = partial(setting, kind=Kind.SIZE)
count = partial(setting, kind=Kind.COUNT)
switch = partial(setting, kind=Kind.BOOL)


def setting_metadata(
    name: str, help_text: str, *, kind: Kind, flag: str | None = None, node: str | None = None
) -> Mapping[str, Setting]:
    """The metadata alone, for a field that must be given: ``attrs.field(metadata=…)``."""
    section, key = name.split(".")
    return {_METADATA_KEY: Setting(section, key, kind, help_text, flag, node)}


def settings_in(
    config: type[attrs.AttrsInstance],
) -> Iterator[tuple[Setting, attrs.Attribute[Any]]]:
    """The settings of a configuration class with their fields, inherited ones last."""
    for field in sorted(attrs.fields(config), key=lambda field: field.inherited):
        if _METADATA_KEY in field.metadata:
            yield field.metadata[_METADATA_KEY], field


def _positive(_instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value <= 0:
        msg = f"{attribute.name} must be above 0, not {value}"
        raise ConfigError(msg)


def _not_negative(_instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 0:
        msg = f"{attribute.name} must not be negative, but is {value}"
        raise ConfigError(msg)


_VALIDATORS: Final[Mapping[Kind, _Validator]] = {
    Kind.SIZE: _positive,
    Kind.DURATION: _positive,
    Kind.DURATION_OR_ZERO: _not_negative,
    Kind.HOURS: _positive,
    Kind.COUNT: _positive,
    Kind.COUNT_OR_ZERO: _not_negative,
    Kind.PERCENT: _positive,
}
