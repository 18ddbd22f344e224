"""All settings of a node, collected from the fields of its configuration classes.

::

    [ha] slave_timeout = "3s"      HASTORE_HA_SLAVE_TIMEOUT=3s      --slave-timeout 3s
                    └─────── one ``Setting``: the metadata of ``HAConfig.slave_timeout_ms`` ───────┘

Everything else (reading a file, the flags of ``hastore master``, ``--check-config``, the error for
a key that does not exist) is derived from these tables, so that it cannot disagree with them.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from hastore.config import HAConfig, MasterConfig, RemotingConfig, SlaveConfig, StoreConfig
from hastore.setting import Kind, Setting, settings_in
from hastore_cli.app.logging_setup import LogConfig
from hastore_cli.settings.kinds import format_value

SECTIONS: Final = ("node", "listen", "ha", "metrics", "store", "remoting", "log")
NODE_CONFIGS: Final = {"master": MasterConfig, "slave": SlaveConfig}

_LOG_SETTINGS: Final = {
    "format": Setting(
        "log",
        "format",
        Kind.LOG_FORMAT,
        "Lines for people, or JSON; auto: sentences on a terminal, else JSON.",
        flag="--log-format",
    ),
    "level": Setting(
        "log",
        "level",
        Kind.LOG_LEVEL,
        "Least level that is logged (to stderr).",
        flag="--log-level",
    ),
}


@attrs.frozen
class Place:
    """Where a setting's value goes.

    A field of the node's configuration (``part`` is empty), of the part of it that is named so, or
    of ``LogConfig`` (``log``).
    """

    part: str
    field: attrs.Attribute[Any]


def _places(*nodes: str) -> dict[Setting, Place]:
    """The settings that these kinds of node heed, by section."""
    configs = (
        ("store", StoreConfig),
        *(("", NODE_CONFIGS[node]) for node in nodes),
        ("ha", HAConfig),
        ("remoting", RemotingConfig),
    )
    places = {
        setting: Place(part, field)
        for part, config in configs
        for setting, field in settings_in(config)
        if setting.node in (None, *nodes)
    }
    places |= {_LOG_SETTINGS[field.name]: Place("log", field) for field in attrs.fields(LogConfig)}
    return dict(sorted(places.items(), key=lambda item: SECTIONS.index(item[0].section)))


SETTINGS: Final = tuple(_places("master", "slave"))
PLACES: Final = {node: _places(node) for node in NODE_CONFIGS}


def default_text(node: str, setting: Setting) -> str | None:
    """The default as a person would write it; None where there is none."""
    place = PLACES[node].get(setting)
    if place is None or place.field.default in (attrs.NOTHING, None):
        return None
    return format_value(setting.kind, place.field.default).strip('"')


def setting_at(section: str, key: str) -> Setting | None:
    """The setting of a section and key, if there is one."""
    for setting in SETTINGS:
        if setting.section == section and setting.key == key:
            return setting
    return None
