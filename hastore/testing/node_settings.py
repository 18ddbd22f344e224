"""The settings of a node of a test: fields of ``hastore.config`` by name, for either role.

Defaults are for tests: small files, short time-outs, quick reconnects.  A process gets its settings
as JSON.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from hastore.config import PARTS, GroupNodeConfig, MasterConfig, SlaveConfig, parts_of
from hastore.errors import ConfigError
from hastore.ha.client_port import ask_client_port
from hastore.status import BrokerRole, FlushDiskType, HAProtocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.ha.client_port import ClientPort

HOST: Final = "127.0.0.1"
REPLICA_GROUP: Final = "group"
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
# In addition, for a replica group: its nodes find a new master at once.
GROUP_DEFAULTS: Final[Mapping[str, Any]] = {
    "protocol": HAProtocol.AUTOSWITCH,
    "sync_state_timeout_ms": 3_000,
    "ha_reconnect_backoff_max_ms": 50,
}
_E = TypeVar("_E", bound=enum.Enum)
_SET_BY_CLUSTER: Final = frozenset({"data_dir", "flush_disk_type"})
_FIELD_DEFAULTS: Final = {
    field.name: field.default for config in PARTS.values() for field in attrs.fields(config)
}


@attrs.frozen(kw_only=True)
class NodeStart:
    """One start of a node; ``master_ha_port`` is None for a master.

    With a ``node_id`` it is a node of a replica group: ``role`` is its role as a master, and
    without ``master_ha_port`` it follows nobody yet.
    """

    name: str
    data_dir: str
    role: BrokerRole
    flush: FlushDiskType
    port: int
    ha_port: int
    master_ha_port: int | None = None
    config: Mapping[str, Any] = attrs.field(factory=dict)
    node_id: int | None = None
    client_ports: tuple[int, ...] = ()  # of the group's nodes, in the order of their ids: 1, 2, …

    def node_config(self) -> GroupNodeConfig | MasterConfig | SlaveConfig:
        """Return the node's configuration.  Raises ConfigError."""
        store = {"data_dir": self.data_dir, "flush_disk_type": self.flush}
        defaults = DEFAULTS if self.node_id is None else {**DEFAULTS, **GROUP_DEFAULTS}
        parts = parts_of({**defaults, **self.config, **store})
        listen = (HOST, self.port)
        if self.node_id is not None:
            return GroupNodeConfig(
                name=self.name,
                role=self.role,
                listen=listen,
                ha_listen=(HOST, self.ha_port),
                master=None if self.master_ha_port is None else (HOST, self.master_ha_port),
                node_id=self.node_id,
                replica_group=REPLICA_GROUP,
                group_ids=tuple(range(1, len(self.client_ports) + 1)),
                **parts,
            )
        if self.role is BrokerRole.SLAVE:
            assert self.master_ha_port is not None, "a slave has a master"
            master = (HOST, self.master_ha_port)
            return SlaveConfig(name=self.name, master=master, listen=listen, **parts)
        ha_listen = (HOST, self.ha_port)
        return MasterConfig(
            name=self.name, role=self.role, listen=listen, ha_listen=ha_listen, **parts
        )

    async def ask_client_port(self, address: tuple[str, int]) -> ClientPort | None:
        """Ask a node of the group; None for any other port, which may be another program's."""
        return await ask_client_port(address) if address[1] in self.client_ports else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return attrs.asdict(self, value_serializer=lambda _self, _field, value: _plain(value))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> NodeStart:
        """Return the settings of a JSON form."""
        config = {name: _from_plain(name, value) for name, value in data["config"].items()}
        role, flush = BrokerRole(data["role"]), FlushDiskType(data["flush"])
        ports = tuple(data["client_ports"])
        changed = {"role": role, "flush": flush, "config": config, "client_ports": ports}
        return cls(**{**data, **changed})


def one_of(kind: type[_E], value: _E | str, what: str) -> _E:
    """Return the member of ``kind`` for ``value``.  Raises ConfigError that names all members."""
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(str(member.value) for member in kind)
        msg = f"{what} {value!r} is not one of {choices}"
        hint = f'{what}="{next(iter(kind)).value}", or a member of hastore.status.{kind.__name__}'
        raise ConfigError(msg, hint=hint) from None


def check_names(config: Mapping[str, Any]) -> None:
    """Raise ConfigError for a name that is not a field of the configuration."""
    for name in config:
        if name not in _FIELD_DEFAULTS or name in _SET_BY_CLUSTER:
            msg = f"{name} is not a field of hastore's configuration"
            raise ConfigError(msg, hint="see StoreConfig, HAConfig and RemotingConfig")


def _plain(value: object) -> object:
    return value.value if isinstance(value, enum.Enum) else value


def _from_plain(name: str, value: object) -> object:
    default = _FIELD_DEFAULTS[name]
    return type(default)(value) if isinstance(default, enum.Enum) else value
