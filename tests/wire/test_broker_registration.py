"""Registrations at name servers: by hand, and as a real name server was sent them."""

import json

import attrs
import pytest

from hastore.quantities import parse_address
from hastore.wire.broker_registration import BrokerRegistration
from hastore.wire.config_tables import DataVersion, TopicConfig

ONE = BrokerRegistration(
    cluster="c",
    broker_name="bk",
    broker_id=0,
    address=("10.0.0.1", 10911),
    ha_address=("10.0.0.1", 10912),
    topics={"T1": TopicConfig(topic="T1", read_queue_nums=4, write_queue_nums=2, perm=6)},
    version=DataVersion(state_version=7, timestamp_ms=1_700_000_000_000, counter=3),
)


# What gzip writes behind those bytes, & 0x7FFFFFFF.
CRC = 473377462


def test_a_registration_by_hand():
    """Field by field; the CRC32 is that of these bytes, without the highest bit."""
    body = ONE.body()
    assert body == (
        b'{"topicConfigSerializeWrapper": {"topicConfigTable": {"T1": {"topicName": "T1",'
        b' "readQueueNums": 4, "writeQueueNums": 2, "perm": 6, "topicFilterType": "SINGLE_TAG",'
        b' "topicSysFlag": 0, "order": false, "attributes": {}}}, "dataVersion":'
        b' {"stateVersion": 7, "timestamp": 1700000000000, "counter": 3},'
        b' "topicQueueMappingInfoMap": {}, "topicQueueMappingDetailMap": {},'
        b' "mappingDataVersion": {"stateVersion": 0, "timestamp": 1700000000000, "counter": 0}},'
        b' "filterServerList": []}'
    )
    assert ONE.fields(body) == {
        "brokerName": "bk",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "c",
        "brokerId": "0",
        "haServerAddr": "10.0.0.1:10912",
        "compressed": "false",
        "bodyCrc32": str(CRC),
        "enableActingMaster": "false",
    }


def test_the_crc_has_31_bits():
    """A name server reads it as a signed number."""
    for counter in range(100):
        registration = attrs.evolve(ONE, version=DataVersion(counter=counter))
        assert 0 <= int(registration.fields(registration.body())["bodyCrc32"]) < 1 << 31


def registrations(folder):
    """Return the recorded requests 103 that a name server took, and 104."""
    cases = json.loads((folder / "autoswitch" / "namesrv" / "cases.json").read_text())
    return [case for case in cases if case.get("code") in {103, 104}]


def test_what_a_real_name_server_was_sent(recorded_golden):
    """Each recorded registration has our bytes, and the CRC that the server checked."""
    if not (recorded_golden / "autoswitch" / "namesrv").is_dir():
        pytest.skip(f"RocketMQ's recorded files are not there: {recorded_golden}")
    compared = 0
    for case in registrations(recorded_golden):
        ext = {name: _text(value) for name, value in case["ext"].items()}
        if case["code"] == 104:
            registration = attrs.evolve(
                ONE, broker_id=int(ext["brokerId"]), address=parse_address(ext["brokerAddr"])
            )
            assert registration.unregister_fields() == ext
            continue
        wrapper = json.loads(case["body"])["topicConfigSerializeWrapper"]
        version = wrapper["dataVersion"]
        registration = BrokerRegistration(
            cluster=ext["clusterName"],
            broker_name=ext["brokerName"],
            broker_id=int(ext["brokerId"]),
            address=parse_address(ext["brokerAddr"]),
            ha_address=parse_address(ext["haServerAddr"]),
            topics={
                name: TopicConfig.from_dict(name, row)
                for name, row in wrapper["topicConfigTable"].items()
            },
            version=DataVersion(
                state_version=version["stateVersion"],
                timestamp_ms=version["timestamp"],
                counter=version["counter"],
            ),
        )
        body = registration.body()
        assert body == case["body"].encode()
        fields = registration.fields(body)
        ext.pop("heartbeatTimeoutMillis", None)
        if case["case"] in {"wrong body CRC", "no enableActingMaster field, crc 0"}:
            ext["bodyCrc32"] = fields["bodyCrc32"]
        assert fields == ext, case["case"]
        compared += 1
    assert compared == 13


def _text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)
