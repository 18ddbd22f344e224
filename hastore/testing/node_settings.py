"""What a node of a test is started with: fields of ``hastore.config`` by name, for either role.

Defaults are for tests: small files, short time-outs, quick reconnects.  All of it can be told
otherwise, and travels to a process as JSON.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from hastore.config import HAConfig, MasterConfig, RemotingConfig, SlaveConfig, StoreConfig
from hastore.errors import ConfigError
from hastore.status import BrokerRole, FlushDiskType, SlaveStart

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST: Final = "127.0.0.1"
DEFAULTS: Final[Mapping[str, Any]] = {
    "mapped_file_size": 4 * 1024 * 1024,
    "max_hash_slot_num": 10_000,
    "max_index_num": 40_000,
    "slave_timeout_ms": 1_000,
    "ha_send_heartbeat_interval_ms": 300,
    "ha_housekeeping_interval_ms": 3_000,
    "ha_connect_timeout_ms": 1_000,
    "ha_reconnect_backoff_min_ms": 20,
    "ha_reconnect_backoff_max_ms": 250,
}
_E = TypeVar("_E", bound=enum.Enum)
_KINDS: Final = (StoreConfig, HAConfig, RemotingConfig)
_OURS: Final = frozenset({"data_dir", "flush_disk_type"})
_ENUMS: Final[Mapping[str, type[enum.Enum]]] = {"ha_new_slave_from": SlaveStart}


@attrs.frozen(kw_only=True)
class NodeStart:
    """One start of one node; ``master_ha_port`` None: it is a master."""

    name: str
    data_dir: str
    role: BrokerRole
    flush: FlushDiskType
    port: int
    ha_port: int
    master_ha_port: int | None = None
    config: Mapping[str, Any] = attrs.field(factory=dict)

    def node_config(self) -> MasterConfig | SlaveConfig:
        """Give the configuration; ConfigError for what cannot be."""
        values = {**DEFAULTS, **self.config}
        parts = {kind: _part(kind, values) for kind in _KINDS}
        store = StoreConfig(
            data_dir=self.data_dir, flush_disk_type=self.flush, **parts[StoreConfig]
        )
        ha, remoting = HAConfig(**parts[HAConfig]), RemotingConfig(**parts[RemotingConfig])
        if self.role is BrokerRole.SLAVE:
            assert self.master_ha_port is not None, "a slave has a master"
            return SlaveConfig(
                store=store,
                name=self.name,
                master=(HOST, self.master_ha_port),
                listen=(HOST, self.port),
                ha=ha,
                remoting=remoting,
            )
        return MasterConfig(
            store=store,
            name=self.name,
            role=self.role,
            listen=(HOST, self.port),
            ha_listen=(HOST, self.ha_port),
            ha=ha,
            remoting=remoting,
        )

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON form."""
        return attrs.asdict(self, value_serializer=lambda _self, _field, value: _plain(value))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> NodeStart:
        """Read the JSON form."""
        config = {
            name: _ENUMS[name](value) if name in _ENUMS else value
            for name, value in data["config"].items()
        }
        role, flush = BrokerRole(data["role"]), FlushDiskType(data["flush"])
        return cls(**{**data, "role": role, "flush": flush, "config": config})


def one_of(kind: type[_E], value: _E | str, what: str) -> _E:
    """Give the member of ``kind`` that is meant; ConfigError with all there are for another."""
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(str(member.value) for member in kind)
        msg = f"{what} {value!r} is not one of {choices}"
        hint = f'{what}="{next(iter(kind)).value}", or a member of hastore.status.{kind.__name__}'
        raise ConfigError(msg, hint=hint) from None


def check_names(config: Mapping[str, Any]) -> None:
    """Refuse a name that is no field of the configuration."""
    known = {field.name for kind in _KINDS for field in attrs.fields(kind)} - _OURS
    for name in config:
        if name not in known:
            msg = f"{name} is no field of hastore's configuration"
            raise ConfigError(msg, hint="StoreConfig, HAConfig and RemotingConfig have the names")


def _part(kind: type[attrs.AttrsInstance], values: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in attrs.fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def _plain(value: object) -> object:
    return value.value if isinstance(value, enum.Enum) else value
