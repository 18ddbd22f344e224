"""GET_BROKER_CONFIG (26) and UPDATE_BROKER_CONFIG (25): settings under RocketMQ's names.

::

    26  → body: lines of name=value; ext field version: a DataVersion as JSON
    25  body: the same lines → a setting that can change while the node runs changes at once; for
        any other the request is refused, by its name, and changes nothing

A change counts until the node's next start or change of role: the configuration file stays as it
is.  RocketMQ writes its file, and ignores names that it does not know.  Source: RocketMQ 4.9.8
``AdminBrokerProcessor``, ``MixAll``.

Invariant: of the settings of one request all are changed, or none.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.broker.group_directory import MASTER_ID
from hastore.errors import RequestFailedError
from hastore.quantities import read_integer
from hastore.status import BrokerRole
from hastore.wire.config_tables import QUEUE_NUMS_MAX, DataVersion
from hastore.wire.property_text import read_java_properties
from hastore.wire.remoting_codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hastore.broker.groups.topic_config_manager import TopicConfigManager
    from hastore.broker.request_target import RequestTarget
    from hastore.wire.remoting_command import RemotingCommand

AUTO_CREATE: Final = "autoCreateTopicEnable"
QUEUE_NUMS: Final = "defaultTopicQueueNums"
# Where the others are set.
_SETTINGS: Final = {
    "brokerClusterName": "[node] cluster",
    "brokerId": "[node] id",
    "brokerName": "[node] group or name",
    "brokerRole": "[node] role",
    "deleteWhen": "[store] delete_when",
    "diskMaxUsedSpaceRatio": "[store] disk_max",
    "fileReservedTime": "[store] keep",
    "flushDiskType": "[store] flush",
    "haListenPort": "[listen] ha",
    "listenPort": "[listen] client",
    "mappedFileSizeCommitLog": "[store] file_size",
    "maxMessageSize": "[store] message_max",
    "messageDelayLevel": "[store] delay_levels",
    "namesrvAddr": "[route] name_servers",
    "storePathRootDir": "[node] data",
}
# RocketMQ refuses these by NO_PERMISSION: with them it could be made to write any file.
_FORBIDDEN: Final = frozenset(
    {"brokerConfigPath", "configBlackList", "configRootPath", "rocketmqHome"}
)


@final
@attrs.define(eq=False)
class ConfigProcessors:
    """Answers 25 and 26."""

    target: RequestTarget
    topics: TopicConfigManager
    now_ms: Callable[[], int]
    _version: DataVersion = attrs.field(factory=DataVersion, init=False)

    def get_config(self, request: RemotingCommand) -> RemotingCommand:
        """Return the settings that RocketMQ has, too."""
        lines = [f"{name}={value}" for name, value in sorted(self._values().items())]
        return request.response(
            ResponseCode.SUCCESS,
            ext_fields={"version": json.dumps(self._version.to_dict(), separators=(",", ":"))},
            body="".join(f"{line}\n" for line in lines).encode(),
        )

    def _values(self) -> dict[str, str]:
        status, store = self.target.status(), self.target.message_store.config
        is_slave = self.target.role is BrokerRole.SLAVE
        values = {
            AUTO_CREATE: str(self.topics.auto_create).lower(),
            QUEUE_NUMS: self.topics.queue_nums,
            "brokerClusterName": self.target.cluster,
            "brokerId": (status.node_id or 1) if is_slave else MASTER_ID,
            "brokerName": self.target.broker_name,
            "brokerRole": status.role,
            "deleteWhen": store.delete_when,
            "diskMaxUsedSpaceRatio": store.disk_max_used_space_ratio,
            "fileReservedTime": store.file_reserved_time_h,
            "flushDiskType": status.flush_disk_type,
            "haListenPort": _port_of(status.ha_address),
            "listenPort": _port_of(status.address),
            "mappedFileSizeCommitLog": status.mapped_file_size,
            "maxMessageSize": store.max_message_size,
            "messageDelayLevel": store.message_delay_level,
            "storePathRootDir": status.data_dir,
        }
        return {name: str(value) for name, value in values.items() if value is not None}

    def update_config(self, request: RemotingCommand) -> RemotingCommand:
        """Change settings for as long as the node keeps its role."""
        wanted = read_java_properties(request.body)
        if not wanted:
            raise _refused("no line name=value is in the body")
        present = self._values()
        changed = {name: value for name, value in wanted.items() if present.get(name) != value}
        _check(changed)
        if AUTO_CREATE in changed:
            self.topics.auto_create = changed[AUTO_CREATE] == "true"
        if QUEUE_NUMS in changed:
            self.topics.queue_nums = int(changed[QUEUE_NUMS])
        if changed:
            self._version = self._version.next(self.now_ms())
        return request.response(ResponseCode.SUCCESS)


def _check(changed: Mapping[str, str]) -> None:
    """Raise RequestFailedError for a setting that cannot have this value now."""
    for name, value in changed.items():
        if name in _FORBIDDEN:
            msg = f"{name} is not changed by a request"
            raise RequestFailedError(msg, code=ResponseCode.NO_PERMISSION)
        if name in _SETTINGS:
            msg = (
                f"{name} does not change while the node runs: set {_SETTINGS[name]} in its"
                " configuration file, and start it again"
            )
            raise _refused(msg)
        if name == AUTO_CREATE and value not in {"true", "false"}:
            raise _refused(f"{name} is true or false, not {value:.40}")
        if name == QUEUE_NUMS and not 1 <= (read_integer(value) or 0) <= QUEUE_NUMS_MAX:
            raise _refused(f"{name} is 1 to {QUEUE_NUMS_MAX}, not {value:.40}")
        if name not in {AUTO_CREATE, QUEUE_NUMS}:
            raise _refused(f"this broker has no setting {name:.100}")


def _refused(reason: str) -> RequestFailedError:
    return RequestFailedError(reason, code=ResponseCode.SYSTEM_ERROR)


def _port_of(address: str | None) -> str | None:
    return None if address is None else address.rpartition(":")[2]
