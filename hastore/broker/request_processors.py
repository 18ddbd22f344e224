"""Answers to everything that is not a message: routes, heartbeats, status, and what is unknown.

A master is its own name server: it answers GET_ROUTEINFO_BY_TOPIC for any topic with a route to
itself, so a stock client needs no other.  A heartbeat or a farewell is acknowledged; nothing is
kept of it, because nothing here depends on who is connected.

Invariant: every request gets exactly one response command; a malformed one gets SYSTEM_ERROR with
a remark that names the fault.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from hastore.broker.ha_runtime_info import ha_runtime_info, runtime_info
from hastore.broker.put_message import topic_fault
from hastore.concurrency.tcp import describe
from hastore.errors import ProtocolError
from hastore.status import BrokerRole
from hastore.wire import liberal_json
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from hastore.wire.remoting_command import RemotingCommand, required_text_field

if TYPE_CHECKING:
    from hastore.broker.request_target import RequestTarget
    from hastore.env.interface import Env

_HEARTBEAT_SIZE_MAX: Final = 1024 * 1024
_WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not bound
_PERM_READ: Final = 4
_PERM_READ_WRITE: Final = 6
_MASTER_ID: Final = "0"
_SLAVE_ID: Final = "1"


@final
@attrs.define(eq=False)
class RequestProcessors:
    """Answers requests on behalf of ``target``."""

    env: Env
    target: RequestTarget
    queue_nums: int

    def process(self, request: RemotingCommand, local_address: tuple[str, int]) -> RemotingCommand:
        """Answer one request that came in on ``local_address``."""
        try:
            match request.code:
                case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                    return self._route(request, local_address)
                case RequestCode.HEART_BEAT:
                    return self._heartbeat(request)
                case RequestCode.UNREGISTER_CLIENT:
                    return request.response(ResponseCode.SUCCESS)
                case RequestCode.GET_BROKER_HA_STATUS:
                    return self._ha_status(request)
                case RequestCode.GET_BROKER_RUNTIME_INFO:
                    return self._runtime_info(request)
                case code:
                    return request.response(
                        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                        remark=f"request type {code} not supported",
                    )
        except ProtocolError as error:
            return request.response(ResponseCode.SYSTEM_ERROR, remark=str(error))

    def _route(self, request: RemotingCommand, local_address: tuple[str, int]) -> RemotingCommand:
        topic = required_text_field(request.ext_fields, "topic")
        fault = topic_fault(topic)
        if fault is not None:
            return request.response(ResponseCode.TOPIC_NOT_EXIST, remark=fault)
        target = self.target
        address = target.address
        if address is None or address[0] in _WILDCARDS:
            address = local_address  # the client knows this one: it is the one it used
        is_slave = target.role is BrokerRole.SLAVE
        route = {
            "brokerDatas": [
                {
                    "brokerAddrs": {_SLAVE_ID if is_slave else _MASTER_ID: describe(address)},
                    "brokerName": target.name,
                    "cluster": target.cluster,
                }
            ],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": target.name,
                    "perm": _PERM_READ if is_slave else _PERM_READ_WRITE,
                    "readQueueNums": self.queue_nums,
                    "topicSynFlag": 0,
                    "writeQueueNums": 0 if is_slave else self.queue_nums,
                }
            ],
        }
        return _with_json(request, route)

    def _heartbeat(self, request: RemotingCommand) -> RemotingCommand:
        if len(request.body) > _HEARTBEAT_SIZE_MAX:
            msg = f"a heartbeat of {len(request.body)} bytes; at most {_HEARTBEAT_SIZE_MAX}"
            raise ProtocolError(msg)
        liberal_json.loads_object(request.body, "the heartbeat")
        return request.response(ResponseCode.SUCCESS)

    def _ha_status(self, request: RemotingCommand) -> RemotingCommand:
        status = self.target.node_status()
        return _with_json(request, ha_runtime_info(status, self.env.wall_clock.now_ms()))

    def _runtime_info(self, request: RemotingCommand) -> RemotingCommand:
        status = self.target.node_status()
        return _with_json(request, {"table": runtime_info(status, self.env.wall_clock.now_ms())})


def _with_json(request: RemotingCommand, value: dict[str, Any]) -> RemotingCommand:
    body = json.dumps(value, separators=(",", ":")).encode()
    return request.response(ResponseCode.SUCCESS, body=body)
