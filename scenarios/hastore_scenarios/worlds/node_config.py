"""Turns a story's settings, named as the fields of ``hastore.config``, into a node's TOML file.

A world takes settings by field name (``slave_timeout_ms=500``); a node reads ``[section] key``.
Names, keys and kinds are those of the fields (``hastore.setting``).
"""

from __future__ import annotations

import enum
import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from hastore.config import PARTS, CoordinatorConfig
from hastore.errors import ConfigError
from hastore.setting import Kind, settings_in
from hastore.status import HAProtocol

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNITS: Final = {Kind.DURATION: "ms", Kind.DURATION_OR_ZERO: "ms", Kind.HOURS: "h"}
# A world sets directories and the flush type itself; a story has no addresses to trust.
_SETTINGS: Final = {
    field.name: (setting, field.default)
    for config in PARTS.values()
    for setting, field in settings_in(config)
    if setting.kind not in (Kind.PATH, Kind.FLUSH, Kind.PEERS)
}
# A world has the coordinator's addresses, and a story what a node does by it.
_BY_COORDINATOR: Final = ("ttl_ms", "priority", "failsafe")
_SETTINGS.update(
    (field.name, (setting, field.default))
    for setting, field in settings_in(CoordinatorConfig)
    if field.name in _BY_COORDINATOR
)

# A scenario takes seconds: small files, so that it reaches their ends, and short timeouts, though
# far above the delays of a process on two busy cores.
SCENARIO_DEFAULTS: Final[Mapping[str, object]] = {
    "mapped_file_size": 1024 * 1024,
    "slave_timeout_ms": 2_000,
    "ha_send_heartbeat_interval_ms": 300,
    "ha_housekeeping_interval_ms": 5_000,
    "ha_connect_timeout_ms": 2_000,
    "ha_reconnect_backoff_min_ms": 20,
    "ha_reconnect_backoff_max_ms": 250,
}

# In addition, for the nodes of a replica group, which find a new master at once.
GROUP_DEFAULTS: Final[Mapping[str, object]] = {
    "protocol": HAProtocol.AUTOSWITCH,
    "sync_state_timeout_ms": 3_000,
    "ha_reconnect_backoff_max_ms": 50,
}

# And where a coordinator decides: the shortest lease, so that a story need not wait long.
ELECTED_DEFAULTS: Final[Mapping[str, object]] = {**GROUP_DEFAULTS, "ttl_ms": 3_000}


def coordinator_config(
    config: Mapping[str, object], endpoints: tuple[str, ...] = ()
) -> CoordinatorConfig:
    """Return what a node is told of its coordinator."""
    given: dict[str, Any] = {name: config[name] for name in _BY_COORDINATOR if name in config}
    return CoordinatorConfig(endpoints=endpoints, **given)


def with_defaults(config: Mapping[str, object]) -> dict[str, object]:
    """Return the scenario defaults with ``config`` over them.  Raises ConfigError."""
    for name, value in config.items():
        if name not in _SETTINGS:
            near = get_close_matches(name, _SETTINGS, n=1)
            known = f"did you mean {near[0]}?" if near else "see hastore.config for all settings"
            raise ConfigError(f"{name} is not a setting of a node; {known}")
        default = default_of(name)
        if _SETTINGS[name][0].kind is Kind.ALL_OR_COUNT and type(value) is int:
            continue
        expect_kind(name, value, int if default is None else type(default))
    return {**SCENARIO_DEFAULTS, **config}


def default_of(name: str) -> object:
    """Return the default of a setting outside scenarios."""
    return _SETTINGS[name][1]


def expect_kind(name: str, value: object, kind: type[Any]) -> None:
    """Raise ConfigError unless a setting is of its kind."""
    if type(value) is kind:
        return
    if issubclass(kind, enum.Enum):
        allowed = f"one of {', '.join(map(str, kind))}"
    else:
        allowed = {bool: "True or False", int: "a whole number", str: "a text"}[kind]
    raise ConfigError(f"{name}={value!r}: use {allowed}")


def to_toml(config: Mapping[str, object]) -> str:
    """Return settings as TOML; a node ignores those of the other role."""
    lines = []
    for name, value in config.items():
        setting, _ = _SETTINGS[name]
        plain = value.value if isinstance(value, enum.Enum) else value
        if setting.kind in _UNITS:
            plain = f"{plain}{_UNITS[setting.kind]}"
        lines.append(f"{setting.section}.{setting.key} = {json.dumps(plain, ensure_ascii=False)}\n")
    return "".join(lines)
