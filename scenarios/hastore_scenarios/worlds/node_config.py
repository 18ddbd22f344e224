"""From fields of ``hastore.config`` to a node's TOML file.

A world takes settings by field name (``slave_timeout_ms=500``); a node reads ``[section] key``.
The table is this side's own copy of the public names, so a renamed key is noticed here too.
"""

from __future__ import annotations

import enum
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore.config import HAConfig, RemotingConfig, StoreConfig
from hastore.errors import ConfigError
from hastore.status import BrokerRole, FlushDiskType, SlaveStart

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOML_NAMES: Final[Mapping[str, tuple[str, str, str]]] = {
    # field: (section, key, unit behind a number)
    "mapped_file_size": ("store", "file_size", ""),
    "flush_interval_ms": ("store", "flush_interval", "ms"),
    "sync_flush_timeout_ms": ("store", "flush_timeout", "ms"),
    "create_mapped_file_timeout_ms": ("store", "create_timeout", "ms"),
    "os_page_cache_busy_timeout_ms": ("store", "busy_timeout", "ms"),
    "max_message_size": ("store", "message_max", ""),
    "append_prop_crc": ("store", "prop_crc", ""),
    "flush_least_pages": ("store", "flush_least_pages", ""),
    "transient_store_pool_enable": ("store", "transient_pool", ""),
    "transient_store_pool_size": ("store", "transient_pool_size", ""),
    "mapped_file_size_consume_queue": ("store", "queue_file_size", ""),
    "flush_consume_queue_interval_ms": ("store", "queue_flush_interval", "ms"),
    "warm_mapped_file_enable": ("store", "warm_up", ""),
    "message_index_enable": ("store", "index", ""),
    "max_hash_slot_num": ("store", "index_slots", ""),
    "max_index_num": ("store", "index_entries", ""),
    "clean_resource_interval_ms": ("store", "clean_interval", "ms"),
    "delete_files_interval_ms": ("store", "delete_interval", "ms"),
    "disk_max_used_space_ratio": ("store", "disk_max", ""),
    "disk_space_clean_forcibly_ratio": ("store", "disk_forced", ""),
    "disk_space_warning_level_ratio": ("store", "disk_full", ""),
    "slave_timeout_ms": ("ha", "slave_timeout", "ms"),
    "ha_slave_fallbehind_max": ("ha", "max_gap", ""),
    "ha_transfer_batch_size": ("ha", "batch", ""),
    "ha_transfer_batch_size_max": ("ha", "batch_max", ""),
    "ha_new_slave_from": ("ha", "new_slave_from", ""),
    "ha_send_heartbeat_interval_ms": ("ha", "heartbeat", "ms"),
    "ha_housekeeping_interval_ms": ("ha", "housekeeping", "ms"),
    "ha_connect_timeout_ms": ("ha", "connect_timeout", "ms"),
    "ha_reconnect_backoff_min_ms": ("ha", "reconnect_min", "ms"),
    "ha_reconnect_backoff_max_ms": ("ha", "reconnect_max", "ms"),
    "in_flight_max": ("remoting", "in_flight_max", ""),
}
_MASTER_ONLY: Final = frozenset(
    {
        "slave_timeout_ms",
        "ha_slave_fallbehind_max",
        "ha_transfer_batch_size",
        "ha_transfer_batch_size_max",
        "ha_new_slave_from",
    }
)
_SLAVE_ONLY: Final = frozenset(
    {"ha_connect_timeout_ms", "ha_reconnect_backoff_min_ms", "ha_reconnect_backoff_max_ms"}
)

# A scenario is over in seconds: small files so that their ends are met, short timeouts so that
# waiting for one is bearable.  Timeouts stay far above what two busy cores delay a
# process by.
SCENARIO_DEFAULTS: Final[Mapping[str, object]] = {
    "mapped_file_size": 1024 * 1024,
    "slave_timeout_ms": 2_000,
    "ha_send_heartbeat_interval_ms": 300,
    "ha_housekeeping_interval_ms": 5_000,
    "ha_connect_timeout_ms": 2_000,
    "ha_reconnect_backoff_min_ms": 20,
    "ha_reconnect_backoff_max_ms": 250,
}


def with_defaults(config: Mapping[str, object]) -> dict[str, object]:
    """Lay ``config`` over the scenario defaults; ConfigError for what no node takes."""
    for name, value in config.items():
        if name not in _TOML_NAMES:
            near = get_close_matches(name, _TOML_NAMES, n=1)
            known = f"did you mean {near[0]}?" if near else f"known: {', '.join(_TOML_NAMES)}"
            raise ConfigError(f"{name} is no setting of a node; {known}")
        expect_kind(name, value, _kind_of(name))
    return {**SCENARIO_DEFAULTS, **config}


def expect_kind(name: str, value: object, kind: type[Any]) -> None:
    """Raise ConfigError unless a setting is of its kind: before a node chokes on it."""
    if type(value) is kind:
        return
    if issubclass(kind, enum.Enum):
        allowed = f"one of {', '.join(map(str, kind))}"
    else:
        allowed = "True or False" if kind is bool else "a whole number"
    raise ConfigError(f"{name}={value!r}: give {allowed}")


def _kind_of(name: str) -> type[Any]:
    """Give the type of a setting, which is that of its default."""
    for config in (StoreConfig, HAConfig, RemotingConfig):
        field = getattr(attrs.fields(config), name, None)
        if field is not None:
            return int if field.default is None else type(field.default)
    raise AssertionError(f"{name} is in no config")


def to_toml(config: Mapping[str, object], *, role: BrokerRole) -> str:
    """Write the settings that a node of this role heeds as TOML."""
    left_out = _MASTER_ONLY if role is BrokerRole.SLAVE else _SLAVE_ONLY
    sections: dict[str, list[str]] = {}
    for name, value in config.items():
        if name not in left_out:
            section, key, unit = _TOML_NAMES[name]
            sections.setdefault(section, []).append(f"{key} = {_toml_value(value, unit)}")
    return "\n".join(
        f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items()
    )


def _toml_value(value: object, unit: str) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return f'"{value}{unit}"' if unit else str(value)
        case BrokerRole() | FlushDiskType() | SlaveStart():
            return f'"{value.value}"'
        case _:
            raise TypeError(f"{value!r} has no TOML form here")
