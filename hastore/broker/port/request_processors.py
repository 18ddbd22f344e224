"""Answers to all requests but sent messages: one table from request code to processor.

A node is its own name server: it answers GET_ROUTEINFO_BY_TOPIC with a route to itself, or to its
whole group (``routes``), so a stock client needs no other.

Invariants: every request gets exactly one response; a malformed one gets SYSTEM_ERROR and a remark
that names the fault.  A connection's heartbeats, locks and what undoes them (34, 35, 41, 42) are
carried out in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.access.signature import NONCE_FIELD
from hastore.broker.client_requests import ClientRequests
from hastore.broker.clock.clock_readings import WALL_TIME
from hastore.broker.groups.consumer_manager import ConsumerManager
from hastore.broker.groups.consumer_processors import ConsumerProcessors
from hastore.broker.observe.broker_stats import BrokerStats
from hastore.broker.observe.ha_runtime_info import ha_runtime_info, runtime_info
from hastore.broker.port.admin_processors import AdminProcessors
from hastore.broker.port.client_control_processors import ClientControlProcessors
from hastore.broker.port.config_processors import ConfigProcessors
from hastore.broker.port.role_processor import RoleProcessor
from hastore.broker.port.routes import brokers_of, route_json
from hastore.broker.port.send_back_processor import SendBackProcessor
from hastore.broker.port.statistics_processors import StatisticsProcessors
from hastore.broker.pulls.cold_reader import ColdReader
from hastore.broker.pulls.message_by_offset import MessageByOffset
from hastore.broker.pulls.pull_message_processor import PullMessageProcessor
from hastore.broker.pulls.query_message_processor import QueryMessageProcessor
from hastore.broker.puts.reply_message_processor import ReplyMessageProcessor
from hastore.broker.puts.send_message_processor import SendMessageProcessor
from hastore.broker.reply import Answer, ClientConnection, Later
from hastore.concurrency.peers import one_spelling
from hastore.concurrency.turns import Turns
from hastore.errors import (
    DiskError,
    HastoreError,
    ProtocolError,
    QuotaUsedUpError,
    RequestFailedError,
)
from hastore.topic import DEFAULT_TOPIC
from hastore.wire.config_tables import GROUP_ONLY
from hastore.wire.liberal_json import TURN_SIZE
from hastore.wire.pieces import Pieces, at_once, if_short
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from hastore.wire.remoting_command import (
    RemotingCommand,
    json_response,
    required_text_field,
    text_field,
)
from hastore.wire.request_sizes import RequestSizes

if TYPE_CHECKING:
    from hastore.broker.access.access_guard import AccessGuard
    from hastore.broker.groups.broker_data import BrokerData
    from hastore.broker.request_target import RequestTarget
    from hastore.config import RemotingConfig
    from hastore.env.interface import Env

# Answers that are small, and need not wait for room.
_SMALL: Final = frozenset(
    {
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.VIEW_MESSAGE_BY_ID,  # a record is a second answer
        RequestCode.LOG_DIGEST,
        RequestCode.COUNT_MESSAGES,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
    }
)

_ANY_OFFSET: Final = 2**63  # above those of all pulls

_InOrder = Callable[[RemotingCommand, ClientConnection], Pieces[RemotingCommand]]
_Written = Callable[[RemotingCommand], Pieces[RemotingCommand]]
_Now = Callable[[RemotingCommand, ClientConnection], RemotingCommand]
# Later: the answer itself, which waits for its own turn.
_InTurn = Callable[[RemotingCommand, ClientConnection], Awaitable[Answer | Later | None]]


@final
@attrs.define(eq=False)
class RequestProcessors:
    """Answers requests on behalf of ``target``."""

    env: Env
    target: RequestTarget
    config: RemotingConfig
    data: BrokerData
    guard: AccessGuard | None = None  # None: everybody may read everything
    sizes: RequestSizes = attrs.field(init=False)  # of requests
    sends: SendMessageProcessor = attrs.field(init=False)  # which connections use themselves
    admin: AdminProcessors = attrs.field(init=False)
    consumers: ConsumerManager = attrs.field(init=False)
    pulls: PullMessageProcessor = attrs.field(init=False)
    by_offset: MessageByOffset = attrs.field(init=False)
    stats: BrokerStats = attrs.field(factory=BrokerStats, init=False)
    client_requests: ClientRequests = attrs.field(factory=ClientRequests, init=False)
    reading: Turns = attrs.field(factory=Turns, init=False)  # of long requests
    skipping: Turns = attrs.field(factory=Turns, init=False)  # of bodies that are refused
    writing: Turns = attrs.field(factory=Turns, init=False)  # of long answers
    _cold_reader: ColdReader = attrs.field(init=False)
    _in_order: dict[int, _InOrder] = attrs.field(init=False)
    _of_group: dict[int, _Written] = attrs.field(init=False)
    _now: dict[int, _Now] = attrs.field(init=False)
    _in_turn: dict[int, _InTurn] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the processors and the tables."""
        target, data = self.target, self.data
        self.sizes = RequestSizes(target.message_store.config.max_message_size)
        self.consumers = ConsumerManager(
            self.config.consumer_timeout_ms,
            lambda group: data.groups.find(group).notify_consumer_ids_changed_enable,
        )
        self._cold_reader = cold_reader = ColdReader(self.env.offload)
        self.pulls = PullMessageProcessor(
            target, self.config, data, self.consumers, self.stats, cold_reader, self.guard
        )
        data.topics.deletion_watchers.append(self.pulls.holds.topic_deleted)
        data.topics.users.append(self._is_topic_used)
        consumer = ConsumerProcessors(target, self.config, data, self.consumers)
        self.by_offset = MessageByOffset(target, cold_reader, self.guard)
        query = QueryMessageProcessor(
            target, self.config, self.env.offload, cold_reader, self.by_offset
        )
        statistics = StatisticsProcessors(
            target, data, self.consumers, self.stats, self.env.wall_clock, cold_reader
        )
        settings = ConfigProcessors(target, data.topics, self.env.wall_clock.now_ms)
        control = ClientControlProcessors(
            target,
            data,
            self.consumers,
            self.client_requests,
            self.by_offset,
            lambda topic, queue_id: self.pulls.holds.notify(topic, queue_id, _ANY_OFFSET),
            cold_reader,
        )
        self.admin = admin = AdminProcessors(target, data, self.env.offload)
        back = SendBackProcessor(target, data, self.by_offset)
        roles = RoleProcessor(target)
        self.sends = SendMessageProcessor(target, data.topics)
        replies = ReplyMessageProcessor(
            target,
            self.config,
            self.sends,
            self.consumers.producers,
            self.client_requests,
            self.env.wall_clock,
        )
        # Answered at once unless the request is long, or an earlier one of its connection waits:
        # then in turn, and in pieces.
        self._in_order = {
            RequestCode.HEART_BEAT: consumer.heartbeat,
            RequestCode.UNREGISTER_CLIENT: _in_one_piece(consumer.unregister),
            RequestCode.LOCK_BATCH_MQ: consumer.lock,
            RequestCode.UNLOCK_BATCH_MQ: lambda request, _client: consumer.unlock(request),
        }
        # Answered at once unless the answer is long: then in turn, and in pieces.
        self._of_group = {
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer.client_ids,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: consumer.connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: statistics.producers,
        }
        # Answered at once: what they need is in memory, and the answer is short.
        self._now = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_HA_STATUS: self._ha_status,
            RequestCode.UPDATE_BROKER_CONFIG: _without_client(settings.update_config),
            RequestCode.GET_BROKER_CONFIG: _without_client(settings.get_config),
            RequestCode.CLEAN_UNUSED_TOPIC: _without_client(admin.clean_unused_topic),
            RequestCode.QUERY_CONSUMER_OFFSET: _without_client(consumer.query_offset),
            RequestCode.UPDATE_CONSUMER_OFFSET: consumer.update_offset,
            RequestCode.GET_MAX_OFFSET: _without_client(query.max_offset),
            RequestCode.GET_MIN_OFFSET: _without_client(query.min_offset),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _without_client(
                statistics.system_topics
            ),
            RequestCode.VIEW_BROKER_STATS_DATA: _without_client(statistics.stats_data),
            RequestCode.PROMISE_NOT_TO_STAND: _without_client(roles.promise),
        }
        # Answered when everything before them has been sent: the answers are large, or wait.
        self._in_turn = {
            RequestCode.PULL_MESSAGE: self.pulls.pull,
            RequestCode.GET_BROKER_RUNTIME_INFO: _awaited(self._runtime_info),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _awaited(query.search_offset),
            RequestCode.GET_EARLIEST_MSG_STORETIME: _awaited(query.earliest_store_time),
            RequestCode.QUERY_MESSAGE: _awaited(query.query_message),
            RequestCode.VIEW_MESSAGE_BY_ID: query.view_message,
            RequestCode.GET_ALL_TOPIC_CONFIG: self._compare_clocks(admin.all_topics),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._written(admin.all_groups),
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._written(admin.all_offsets),
            RequestCode.GET_ALL_DELAY_OFFSET: _made_in_turn(admin.all_delay_offsets),
            RequestCode.EXPLAIN_PUTS: _made_in_turn(admin.explain),
            RequestCode.LOG_DIGEST: _awaited(admin.log_digest),
            RequestCode.LOG_BYTES: _awaited(admin.log_bytes),
            RequestCode.GET_BROKER_EPOCH_CACHE: _awaited(admin.epoch_cache),
            RequestCode.GROUP_LOG: _awaited(admin.group_log),
            RequestCode.COUNT_MESSAGES: _awaited(admin.count_messages),
            RequestCode.UPDATE_AND_CREATE_TOPIC: _awaited(admin.create_topic),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _awaited(admin.create_group),
            RequestCode.DELETE_TOPIC_IN_BROKER: _awaited(admin.delete_topic),
            RequestCode.DELETE_SUBSCRIPTIONGROUP: _awaited(admin.delete_group),
            RequestCode.GET_TOPIC_STATS_INFO: _awaited(statistics.topic_stats),
            RequestCode.GET_CONSUME_STATS: _awaited(statistics.consume_stats),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _awaited(statistics.groups_of_topic),
            RequestCode.QUERY_CONSUME_TIME_SPAN: _awaited(statistics.time_span),
            RequestCode.GET_BROKER_CONSUME_STATS: _awaited(statistics.all_consume_stats),
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _awaited(control.reset_offsets),
            RequestCode.GET_CONSUMER_RUNNING_INFO: control.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: control.consume_directly,
            RequestCode.CONSUMER_SEND_MSG_BACK: back.send_back,
            RequestCode.SEND_REPLY_MESSAGE: replies.push,
            RequestCode.SEND_REPLY_MESSAGE_V2: replies.push,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: roles.role_changed,
        }

    def process(
        self, request: RemotingCommand, client: ClientConnection
    ) -> RemotingCommand | Later:
        """Return the answer to a request, or how to make it in its turn."""
        in_turn = self._in_turn.get(request.code)
        if in_turn is not None:
            make = partial(self._answer_in_turn, in_turn, request, client)
            return Later(make, is_large=request.code not in _SMALL)
        in_order = self._in_order.get(request.code)
        if in_order is not None:
            return self._process_in_order(in_order, request, client)
        of_group = self._of_group.get(request.code)
        if of_group is not None:
            return self._process_of_group(of_group, request, client)
        now = self._now.get(request.code)
        if now is None:
            return request.response(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f"request type {request.code} not supported",
            )
        try:
            return now(request, client)
        except HastoreError as error:
            return self._failure(request, client, error)

    def _process_in_order(
        self, process: _InOrder, request: RemotingCommand, client: ClientConnection
    ) -> RemotingCommand | Later:
        if len(request.body) <= TURN_SIZE and not client.in_order_waiting:
            try:
                return at_once(process(request, client))
            except HastoreError as error:
                return self._failure(request, client, error)

        async def read(request: RemotingCommand, client: ClientConnection) -> Answer | None:
            return await self.reading.run(process(request, client))

        return Later(partial(self._answer_in_turn, read, request, client), is_in_order=True)

    def _process_of_group(
        self, process: _Written, request: RemotingCommand, client: ClientConnection
    ) -> RemotingCommand | Later:
        try:
            answer = if_short(process(request))
        except HastoreError as error:
            return self._failure(request, client, error)
        if answer is not None:
            return answer
        return Later(partial(self._answer_in_turn, self._written(process), request, client))

    async def _answer_in_turn(
        self, process: _InTurn, request: RemotingCommand, client: ClientConnection
    ) -> Answer | None:
        try:
            answer = await process(request, client)
        except HastoreError as error:
            return self._failure(request, client, error)
        if not isinstance(answer, Later):
            return answer
        if not request.is_one_way:
            make = partial(self._answer_in_turn, _made_by(answer), request, client)
            client.answer_later(attrs.evolve(answer, make=make))
        return None

    def _failure(
        self, request: RemotingCommand, client: ClientConnection, error: HastoreError
    ) -> RemotingCommand:
        """Return the answer for a request that failed, also by a disk error."""
        if isinstance(error, QuotaUsedUpError):
            self.target.quota_refusals.record(client.peer, error)
        if isinstance(error, RequestFailedError):
            return request.response(error.code, remark=str(error))
        kind = "" if isinstance(error, ProtocolError) else f"{type(error).__name__}: "
        return request.response(ResponseCode.SYSTEM_ERROR, remark=f"{kind}{error}")

    def _is_topic_used(self, topic: str) -> bool:
        """Whether a topic has messages, or had any, or has a consumer."""
        log = self.target.message_store.commit_log
        return bool(log.next_queue_offsets(topic)) or self.consumers.has_topic(topic)

    def client_gone(self, client: ClientConnection) -> None:
        """Forget a connection that has ended."""
        self.pulls.holds.client_gone(client)
        self.client_requests.client_gone(client)
        self.consumers.client_gone(client)

    # -- the node itself -------------------------------------------------------------------------

    def _route(self, request: RemotingCommand, client: ClientConnection) -> RemotingCommand:
        topic = required_text_field(request.ext_fields, "topic")
        config = self.data.topics.find(topic)
        brokers = brokers_of(self.target, client.local_address)
        is_own = text_field(request.ext_fields, GROUP_ONLY) is not None
        if is_own or (config is None and topic == DEFAULT_TOPIC):  # it is about this node
            brokers = brokers[:1]
        route = route_json(brokers, topic, config)
        if not route["brokerDatas"]:
            fault = self.data.topics.fault_of(topic)
            return request.response(ResponseCode.TOPIC_NOT_EXIST, remark=fault)
        return json_response(request, route)

    def _written(self, process: _Written) -> _InTurn:
        """Adapt a request whose answer may be long."""

        async def processed(request: RemotingCommand, _client: ClientConnection) -> Answer | None:
            return await self.writing.run(process(request))

        return processed

    def _compare_clocks(self, process: _Written) -> _InTurn:
        """Adapt a request that a slave makes each second: it shows its clock and sees ours."""

        async def processed(request: RemotingCommand, client: ClientConnection) -> Answer | None:
            answer, clocks = await self.writing.run(process(request)), self.target.peer_clocks
            if WALL_TIME in request.ext_fields:
                host = client.peer[0]
                if self.target.has_peer_at(host):
                    own_host = client.local_address[0]
                    who = f"the slave at {one_spelling(host)}"
                    clocks.hear(who, host, request.ext_fields, own_host=own_host)
                answer.ext_fields = {**answer.ext_fields, **clocks.fields()}
            return answer

        return processed

    def _ha_status(self, request: RemotingCommand, client: ClientConnection) -> RemotingCommand:
        status, nonce = self.target.status(), client.give_nonce()
        answer = json_response(request, ha_runtime_info(status, self.env.wall_clock.now_ms()))
        if nonce is not None:
            answer.ext_fields = {NONCE_FIELD: nonce}
        return answer

    async def _runtime_info(self, request: RemotingCommand) -> RemotingCommand:
        status = self.target.status()
        now_ms = self.env.wall_clock.now_ms()
        store = self.target.message_store
        try:
            first_ms = await self._cold_reader.run(store.commit_log, store.earliest_time_steps())
        except DiskError:
            first_ms = -1  # as of an empty log: a slave asks this, too, and needs the answer
        table = runtime_info(
            status, now_ms, self.stats, now=trio.current_time(), earliest_store_ms=first_ms
        )
        return json_response(request, {"table": table})


# -- adapters ------------------------------------------------------------------------------------


def _without_client(process: Callable[[RemotingCommand], RemotingCommand]) -> _Now:
    """Adapt a processor that does not need the client."""

    def processed(request: RemotingCommand, _client: ClientConnection) -> RemotingCommand:
        return process(request)

    return processed


def _in_one_piece(process: _Now) -> _InOrder:
    """Adapt a processor of short requests."""

    def processed(request: RemotingCommand, client: ClientConnection) -> Pieces[RemotingCommand]:
        yield from ()
        return process(request, client)

    return processed


def _made_in_turn(process: Callable[[RemotingCommand], RemotingCommand]) -> _InTurn:
    """Adapt such a processor to an answer in its turn."""

    async def processed(request: RemotingCommand, _client: ClientConnection) -> Answer | None:
        return process(request)

    return processed


def _awaited(process: Callable[[RemotingCommand], Awaitable[RemotingCommand]]) -> _InTurn:
    """Adapt an async processor that does not need the client."""

    async def processed(request: RemotingCommand, _client: ClientConnection) -> Answer | None:
        return await process(request)

    return processed


def _made_by(later: Later) -> _InTurn:
    async def made(_request: RemotingCommand, _client: ClientConnection) -> Answer | None:
        return await later.make()

    return made
