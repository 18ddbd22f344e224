"""Routes, heartbeats, HA status, runtime info and unknown codes."""

from __future__ import annotations

import json

import attrs
import pytest

from hastore.broker.groups.broker_data import BrokerData
from hastore.broker.observe.broker_stats import BrokerStats
from hastore.broker.observe.ha_runtime_info import ha_runtime_info, runtime_info
from hastore.broker.observe.node_status import MasterLink, NodeStatus, SlaveRow
from hastore.broker.port.request_processors import RequestProcessors
from hastore.config import RemotingConfig
from hastore.env.real import real_env
from hastore.status import BrokerRole, PutMessageStatus
from hastore.wire.remoting_codes import SerializeType
from hastore.wire.remoting_command import RemotingCommand
from tests.support.nodes.in_memory_target import InMemoryTarget
from tests.support.nodes.statuses import GROUP_MASTER

LOCAL = ("10.0.0.7", 10911)


class FakeClient:
    peer = ("10.0.0.8", 4711)
    local_address = LOCAL
    is_closed = False

    owner = "address 10.0.0.8"
    owner_of_offsets = owner
    in_order_waiting = 0

    def notify(self, command):
        pass

    def give_nonce(self):
        return None


def make_processors(target=None):
    config = RemotingConfig()
    data = BrokerData.make(real_env(), config, None)
    return RequestProcessors(real_env(), target or InMemoryTarget(), config, data)


def ask(code, target=None, *, body=b"", **fields):
    request = RemotingCommand(code=code, opaque=5, ext_fields=fields, body=body)
    response = make_processors(target).process(request, FakeClient())
    assert response.is_response
    assert response.opaque == 5
    return response


@pytest.mark.parametrize(
    ("topic", "queues"),
    [
        ("TBW102", 8),
        ("orders", 8),
        ("a|b-c_D9", 8),
        ("x" * 127, 8),
        ("%RETRY%group", 1),
        ("%DLQ%group", 1),
    ],
)
def test_every_legal_topic_has_a_route_to_the_master(topic, queues):
    """A master is its own name server and returns a route for any such topic."""
    response = ask(105, topic=topic)
    assert response.code == 0
    assert json.loads(response.body) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "127.0.0.1:10911"},
                "brokerName": "hastore-a",
                "cluster": "DefaultCluster",
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "hastore-a",
                "perm": 6,
                "readQueueNums": queues,
                "topicSynFlag": 0,
                "writeQueueNums": queues,
            }
        ],
    }


@pytest.mark.parametrize("topic", ["", "a b", "ü", "a/b", "x" * 128, "\ud800"])
def test_an_illegal_topic_has_no_route(topic):
    """It counts as a topic that does not exist, and the remark says why."""
    response = ask(105, topic=topic)
    assert response.code == 17
    assert "topic" in response.remark


def test_a_route_without_a_topic_is_refused():
    """The remark names the missing field."""
    response = ask(105)
    assert (response.code, response.remark) == (1, "ext field topic is missing")


@pytest.mark.parametrize(
    ("bound", "reported"),
    [
        (("0.0.0.0", 10911), "10.0.0.7:10911"),
        (None, "10.0.0.7:10911"),
        (("::1", 7), "[::1]:7"),
    ],
)
def test_a_wildcard_address_becomes_the_one_that_the_client_used(bound, reported):
    """A client can only come back to an address that it can reach."""
    response = ask(105, InMemoryTarget(address=bound), topic="T")
    assert json.loads(response.body)["brokerDatas"][0]["brokerAddrs"] == {"0": reported}


def test_a_slaves_route_has_no_write_queues():
    """It does not present the slave as a master, and its queues are read-only."""
    route = json.loads(ask(105, InMemoryTarget(role=BrokerRole.SLAVE), topic="T").body)
    assert route["brokerDatas"][0]["brokerAddrs"] == {"1": "127.0.0.1:10911"}
    assert route["queueDatas"][0]["writeQueueNums"] == 0
    assert route["queueDatas"][0]["perm"] == 4


@pytest.mark.parametrize(
    "body",
    [
        b'{"clientID":"c","consumerDataSet":[],"producerDataSet":[{"groupName":"g"}]}\n',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":1,"t":{0:"x"}}]}',
    ],
)
async def test_heartbeats_of_stock_clients_are_accepted(body):
    """C++ clients add a newline, and Java clients write bare integer keys."""
    assert ask(34, body=body).code == 0


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'"' + bytes(1 << 10) + b'"'])
def test_an_invalid_heartbeat_is_refused(body):
    """If it is not a JSON object, the error names the heartbeat."""
    response = ask(34, body=body)
    assert response.code == 1
    assert "heartbeat" in response.remark


def test_unregistering_a_producer_succeeds():
    """UNREGISTER_CLIENT has nothing to undo for a client that does not consume."""
    assert ask(35, clientID="c").code == 0


def test_an_unknown_request_code_is_not_supported():
    """The answer is code 3, with the request's code in the remark."""
    response = ask(999)
    assert (response.code, response.remark) == (3, "request type 999 not supported")


def test_answers_keep_the_serialize_type():
    """A binary request is answered in binary."""
    request = RemotingCommand(code=35, serialize_type=SerializeType.ROCKETMQ)
    response = make_processors().process(request, FakeClient())
    assert response.serialize_type is SerializeType.ROCKETMQ


def test_the_ha_status_includes_the_whole_node_status():
    """The answer to 907 has RocketMQ's fields, with hastore's own beside them."""
    target = InMemoryTarget()
    info = json.loads(ask(907, target).body)
    assert info["master"] is True
    assert NodeStatus.from_dict(info["hastore"]) == target.status()


def test_the_ha_status_lists_slaves_in_rocketmqs_fields():
    """Each slave has its ack, its lag and whether it is in sync."""
    row = SlaveRow(
        address="10.0.0.2:4000",
        state="streaming",
        sent_offset=900,
        ack_offset=800,
        lag_bytes=200,
        connected_s=5.0,
        last_report_age_s=0.1,
        rate_bytes_per_s=12.6,
        sent_bytes=900,
    )
    new = attrs.evolve(row, address="n", sent_offset=None, ack_offset=None, lag_bytes=None)
    far = attrs.evolve(row, address="f", lag_bytes=256 << 20)
    status = attrs.evolve(InMemoryTarget().status(), max_offset=1000, slaves=(row, new, far))
    info = ha_runtime_info(status, now_ms=5)
    assert (info["masterCommitLogMaxOffset"], info["inSyncSlaveNums"]) == (1000, 1)
    assert info["haClientRuntimeInfo"] == {}
    assert info["haConnectionInfo"][0] == {
        "addr": "10.0.0.2:4000",
        "slaveAckOffset": 800,
        "diff": 200,
        "inSync": True,
        "transferredByteInSecond": 13,
        "transferFromWhere": 900,
    }
    assert [row["inSync"] for row in info["haConnectionInfo"]] == [True, False, False]
    assert info["haConnectionInfo"][1]["diff"] == -1


def test_in_a_replica_group_the_set_says_which_slaves_are_in_sync():
    """Not their lag: as RocketMQ answers in controller mode."""
    near = GROUP_MASTER.slaves[0]
    learner = attrs.evolve(near, node_id=3, node_role="learner")
    far = attrs.evolve(near, lag_bytes=1 << 30)
    status = attrs.evolve(GROUP_MASTER, slaves=(near, learner, far))
    info = ha_runtime_info(status, now_ms=5)
    assert [row["inSync"] for row in info["haConnectionInfo"]] == [True, False, True]
    assert info["inSyncSlaveNums"] == 2


def test_the_ha_status_describes_a_slaves_link_in_rocketmqs_fields():
    """A slave reports its master, its own end and when it last received something."""
    link = MasterLink(
        address="10.0.0.1:10912",
        state="streaming",
        reason=None,
        hint=None,
        reported_offset=700,
        master_offset=800,
        last_read_age_s=0.5,
        rate_bytes_per_s=3.0,
        received_bytes=700,
        connections=1,
    )
    target = InMemoryTarget(role=BrokerRole.SLAVE)
    status = attrs.evolve(target.status(), master_link=link, max_offset=700)
    info = ha_runtime_info(status, now_ms=10_000)
    assert (info["master"], info["masterCommitLogMaxOffset"]) == (False, 800)
    assert info["haClientRuntimeInfo"] == {
        "masterAddr": "10.0.0.1:10912",
        "transferredByteInSecond": 3,
        "maxOffset": 700,
        "lastReadTimestamp": 9_500,
        "lastWriteTimestamp": 0,
        "masterFlushOffset": 0,
        "activated": True,
    }
    silent = attrs.evolve(status, master_link=attrs.evolve(link, last_read_age_s=None))
    assert ha_runtime_info(silent, now_ms=10)["haClientRuntimeInfo"]["lastReadTimestamp"] == 0


def test_the_runtime_info_is_a_table_of_text():
    """The answer to 28 has RocketMQ's keys."""
    target = InMemoryTarget()
    target.counts[PutMessageStatus.PUT_OK] = 7
    target.counts[PutMessageStatus.FLUSH_SLAVE_TIMEOUT] = 2
    target.counts[PutMessageStatus.MESSAGE_ILLEGAL] = 1
    stats = BrokerStats()
    table = runtime_info(target.status(), 100_000_000, stats, now=5.0, earliest_store_ms=-1)
    assert all(isinstance(value, str) for value in table.values())
    assert table["putMessageTimesTotal"] == "9"
    assert table["putMessageFailedTimes"] == "1"
    assert table["commitLogMinOffset"] == table["commitLogMaxOffset"] == "0"
    assert table["runtime"] == "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"
    assert table["bootTimestamp"] == "6216000"
    assert table["putTps"] == table["getTransferedTps"] == "0.00 0.00 0.00"
    assert table["earliestMessageTimeStamp"] == "-1"
