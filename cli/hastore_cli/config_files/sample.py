"""A configuration file to begin with: every key with its help, and its default in a comment.

::

    # Directory of the commit log; created if missing.
    data = "/var/lib/hastore/data"          what a node of this kind needs

    # Period of the flush timer.
    # flush_interval = "500ms"              a default

Derived from the settings' declarations, so that it has no key that a node does not know.  Pure.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore.config import CoordinatorConfig, GroupNodeConfig, check_addresses
from hastore.quantities import read_digits
from hastore_cli.settings.kinds import format_value, parse_value
from hastore_cli.settings.settings import PLACES, default_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hastore.setting import Setting

# What a node of each kind needs, and an example of it.
NEEDED: Final[Mapping[str, Mapping[str, str]]] = {
    "master": {"[node] data": "/var/lib/hastore/data"},
    "slave": {"[node] data": "/var/lib/hastore/data", "[ha] master": "127.0.0.1:10912"},
    "node": {
        "[node] data": "/var/lib/hastore/data",
        "[node] id": "1",
        "[node] group": "g1",
        "[node] group_ids": "1,2,3",
        "[cluster] etcd": "http://127.0.0.1:2379",
    },
}
# What may be given besides; otherwise the file has the default in a comment.
CHOSEN: Final[Mapping[str, frozenset[str]]] = {
    "master": frozenset({"[listen] client", "[listen] ha"}),
    "slave": frozenset({"[listen] client"}),
    "node": frozenset({"[listen] client", "[listen] ha", "[cluster] advertise"}),
}
_WIDTH: Final = 100


def sample(role: str, given: Mapping[str, str] | None = None) -> str:
    """Return the file of a ``master``, ``slave`` or ``node``; ``given`` replaces examples, by name.

    Raises ValueError that names a value which its setting cannot have.
    """
    values = {**NEEDED[role], **(given or {})}
    lines = [
        f"# hastore {role} -c FILE; hastore {role} -c FILE --check-config checks it.",
        "# A key in a comment has its default. Times: 500ms, 3s, 2min, 1h, 3d; sizes: 64KiB, 1GiB.",
    ]
    section = None
    for setting in PLACES[role]:
        if setting.section != section:
            section = setting.section
            lines += ["", f"[{section}]"]
        lines += ["", *_lines_of(role, setting, values.get(setting.name))]
    return "\n".join(lines) + "\n"


def check_reachable(given: Mapping[str, str]) -> None:
    """Raise ConfigError for a node that its group could not reach, as the node itself would."""
    values = {**NEEDED["node"], **given}
    found: dict[str, Any] = {
        place.field.name: parse_value(setting.kind, values[setting.name])
        for setting, place in PLACES["node"].items()
        if setting.name in {"[cluster] etcd", *CHOSEN["node"]} and setting.name in values
    }
    fields = attrs.fields(GroupNodeConfig)
    listen = found.pop("listen", fields.listen.default)
    ha_listen = found.pop("ha_listen", fields.ha_listen.default)
    check_addresses(CoordinatorConfig(**found), listen=listen, ha_listen=ha_listen)


def _lines_of(role: str, setting: Setting, text: str | None) -> Iterator[str]:
    yield from textwrap.wrap(
        setting.help, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False
    )
    if text is not None:
        try:
            number = read_digits(text)
            value = parse_value(setting.kind, text if number is None else number)
        except ValueError as error:
            raise ValueError(f"{setting.name}: {error}") from error
        yield f"{setting.key} = {format_value(setting.kind, value)}"
        return
    default = default_text(role, setting)
    if default is None:
        yield f"# {setting.key} = "
        return
    field = PLACES[role][setting].field
    value = field.default if setting.name != "[ha] protocol" else None
    shown = f'"{default}"' if value in (None, attrs.NOTHING) else format_value(setting.kind, value)
    yield f"# {setting.key} = {shown}"
