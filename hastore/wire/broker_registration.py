"""A broker's registration at a RocketMQ name server: REGISTER_BROKER, UNREGISTER_BROKER.

::

    103  ext: brokerName brokerAddr clusterName haServerAddr brokerId compressed=false
              bodyCrc32 enableActingMaster=false
         body: {"topicConfigSerializeWrapper": {"topicConfigTable": {"T": {…}},
                  "dataVersion": {"stateVersion": epoch, "timestamp": ms, "counter": n},
                  "topicQueueMappingInfoMap": {}, "topicQueueMappingDetailMap": {},
                  "mappingDataVersion": {…}}, "filterServerList": []}
    104  ext: brokerName brokerAddr clusterName brokerId

``bodyCrc32`` is the CRC32 of the body without its highest bit.  A name server ignores a master
(broker id 0) whose ``stateVersion`` is below that of the one it knows, so the epoch goes there.  It
refuses a broker id that it does not know yet and that registers exactly one topic.

Sources: RocketMQ 5.3 ``RegisterBrokerRequestHeader``, ``RegisterBrokerBody``, and the answers of
its ``RouteInfoManager``, recorded.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from hastore.quantities import format_address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.wire.config_tables import DataVersion, TopicConfig

_CRC_MASK: Final = 0x7FFF_FFFF


@final
@attrs.frozen(kw_only=True)
class BrokerRegistration:
    """A broker as name servers are to know it; ``broker_id`` 0 is a master's."""

    cluster: str
    broker_name: str
    broker_id: int
    address: tuple[str, int]  # for clients
    ha_address: tuple[str, int]  # for slaves
    topics: Mapping[str, TopicConfig]
    version: DataVersion

    def body(self) -> bytes:
        """Return the body of 103."""
        version = {
            "stateVersion": self.version.state_version,
            "timestamp": self.version.timestamp_ms,
            "counter": self.version.counter,
        }
        wrapper = {
            "topicConfigTable": {name: _topic_json(topic) for name, topic in self.topics.items()},
            "dataVersion": version,
            "topicQueueMappingInfoMap": {},
            "topicQueueMappingDetailMap": {},
            # Of the mappings of static topics, of which there are none.
            "mappingDataVersion": {**version, "stateVersion": 0, "counter": 0},
        }
        return json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []}).encode()

    def fields(self, body: bytes) -> dict[str, str]:
        """Return the ext fields of 103 with this body."""
        return {
            **self.unregister_fields(),
            "haServerAddr": format_address(self.ha_address),
            "compressed": "false",
            "bodyCrc32": str(zlib.crc32(body) & _CRC_MASK),
            "enableActingMaster": "false",
        }

    def unregister_fields(self) -> dict[str, str]:
        """Return the ext fields of 104."""
        return {
            "brokerName": self.broker_name,
            "brokerAddr": format_address(self.address),
            "clusterName": self.cluster,
            "brokerId": str(self.broker_id),
        }


def _topic_json(topic: TopicConfig) -> dict[str, Any]:
    return {
        "topicName": topic.topic,
        "readQueueNums": topic.read_queue_nums,
        "writeQueueNums": topic.write_queue_nums,
        "perm": topic.perm,
        "topicFilterType": topic.topic_filter_type,
        "topicSysFlag": topic.topic_sys_flag,
        "order": topic.order,
        "attributes": {},
    }
