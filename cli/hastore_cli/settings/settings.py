"""All settings of a node, collected from the fields of its configuration classes.

::

    [ha] slave_timeout = "3s"      HASTORE_HA_SLAVE_TIMEOUT=3s      --slave-timeout 3s
                    └─────── one ``Setting``: the metadata of ``HAConfig.slave_timeout_ms`` ───────┘

All code about settings (reading a file, the flags of ``hastore master``, ``--check-config``, the
error for an unknown key) is derived from these tables, so that it cannot disagree with them.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from hastore.config import (
    AccessConfig,
    CoordinatorConfig,
    GroupNodeConfig,
    HAConfig,
    MasterConfig,
    RemotingConfig,
    SlaveConfig,
    StoreConfig,
    TlsConfig,
)
from hastore.setting import Setting, settings_in
from hastore.status import HAProtocol
from hastore_cli.app.log_output import LogConfig
from hastore_cli.settings.kinds import format_value

SECTIONS: Final = (
    "node",
    "listen",
    "ha",
    "cluster",
    "metrics",
    "route",
    "store",
    "remoting",
    "access",
    "tls",
    "log",
)
NODE_CONFIGS: Final = {"master": MasterConfig, "slave": SlaveConfig, "node": GroupNodeConfig}


@attrs.frozen
class Place:
    """The field that a setting's value goes to.

    ``part``: empty for a field of the node's configuration itself, the name of a part of it
    (``store``, ``ha``, ``remoting``, ``access``, ``tls``, ``coordinator``), or ``log`` for
    ``LogConfig``.
    """

    part: str
    field: attrs.Attribute[Any]


def _places(*nodes: str) -> dict[Setting, Place]:
    """Return the settings that these kinds of node have, by section."""
    configs = (
        ("store", StoreConfig),
        *(("", NODE_CONFIGS[node]) for node in nodes),
        ("ha", HAConfig),
        ("remoting", RemotingConfig),
        ("access", AccessConfig),
        ("tls", TlsConfig),
        *([("coordinator", CoordinatorConfig)] if "node" in nodes else ()),
        ("log", LogConfig),
    )
    places = {
        setting: Place(part, field)
        for part, config in configs
        for setting, field in settings_in(config)
        if setting.node in (None, *nodes) or "node" in nodes  # it may be either of the others
    }
    return dict(sorted(places.items(), key=lambda item: SECTIONS.index(item[0].section)))


SETTINGS: Final = tuple(_places("master", "slave", "node"))
PLACES: Final = {node: _places(node) for node in NODE_CONFIGS}


def default_text(node: str, setting: Setting) -> str | None:
    """Return the default as a person would write it; None where there is none."""
    place = PLACES[node].get(setting)
    if (node, setting.name) == ("node", "[ha] protocol"):
        return HAProtocol.AUTOSWITCH.value
    if place is None or place.field.default in (attrs.NOTHING, None, ()):
        return None
    return format_value(setting.kind, place.field.default).strip('"')


def setting_at(section: str, key: str) -> Setting | None:
    """Return the setting of a section and key, also an old one; None where there is none."""
    for setting in SETTINGS:
        if setting.section == section and key in {setting.key, setting.old_key}:
            return setting
    return None
