"""What a slave asks client ports: whether ``--master`` names one, and for its master's file size.

The HA protocol carries neither.  The master's client port is expected one below its HA port,
RocketMQ's and hastore's default; its answer counts only if it names this HA port as its own.

    slave                                    port
    four requests, in one send          -->
                                        <--  answers to those that it knows, in any order

The port may be a RocketMQ master's HA port, which takes the last eight bytes that it reads for a
report, and an offset for an acknowledgement.  So a request's body is padding that reads as the
report -1, which masters ignore.

Sources of the names: RocketMQ ``BrokerController.getAllConfigsFormatString``
(``mapedFileSizeCommitLog`` in 4.x, ``mappedFileSizeCommitLog`` in 5.x), ``haListenPort``.
"""

from __future__ import annotations

import contextlib
import enum
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.access.key_file import read_key_file
from hastore.access.own_key import OwnKey
from hastore.access.signature import DENIED_FIELD, signed_fields
from hastore.concurrency.tcp import describe, send_all
from hastore.config import MAPPED_FILE_SIZE_MAX, MAPPED_FILE_SIZE_MIN
from hastore.errors import (
    FileSizeMismatchError,
    NodeIdTakenError,
    ProtocolError,
    UnreachableError,
    WrongPortError,
)
from hastore.quantities import read_digits
from hastore.status import BrokerRole, HAProtocol
from hastore.tls.connecting import connect_client_port
from hastore.topic import DEFAULT_TOPIC
from hastore.trace import logger
from hastore.wire import liberal_json
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.property_text import read_java_properties
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from hastore.wire.remoting_command import RemotingCommand

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hastore.access.signature import AccessKey
    from hastore.config import AccessConfig, SlaveConfig
    from hastore.env.interface import Env
    from hastore.store.commit_log import CommitLog
    from hastore.tls.client_tls import ClientTls
    from hastore.tls.tls_contexts import TlsContexts

    AskClientPort = Callable[[tuple[str, int]], Awaitable["ClientPort | None"]]

ASK_TIMEOUT_S: Final = 5.0
_ANSWER_SIZE_MAX: Final = 1024 * 1024
_RECEIVE_SIZE: Final = 64 * 1024
_PORT_MAX: Final = 65_535
_PADDING: Final = b"\xff" * 16  # at least one whole report of -1, however the frame is aligned
QUESTIONS: Final = (
    RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
)
_FILE_SIZE_NAMES: Final = ("mapedFileSizeCommitLog", "mappedFileSizeCommitLog")

# A client port closes at once on bytes that are no request; a RocketMQ master that refuses a log
# closes at the second report, after 5 s.
CLOSED_AT_ONCE_S: Final = 3.0
_CHECKS_MAX: Final = 3
# A master listens for slaves a moment before it listens for clients.  It is asked again only once:
# a hastore master closes a link without a report after 10 s.
_ASK_AGAIN_S: Final = 1.0
_SIZE_LINKS_MAX: Final = 2  # another master may close earlier; then its file size stays unknown
_PROTOCOLS: Final = {protocol.value: protocol for protocol in HAProtocol}
_HTTP: Final = b"HTTP/"
_HINT: Final = "use a master's HA port, by default 10912: hastore slave --master HOST:10912"

_log = logger("ha")


class PortKind(enum.Enum):
    """What kind of server answers; OTHER speaks remoting, but is neither."""

    NODE = "node"
    NAME_SERVER = "name server"
    OTHER = "other"


@attrs.frozen(kw_only=True)
class RefusedThere:
    """A master's refusal, as its client port tells it."""

    reason: str
    hint: str | None  # what to do
    is_id_taken: bool  # another node of the replica group has its id


@attrs.frozen(kw_only=True)
class ClientPort:
    """A client port's answer about its node; None is unknown."""

    kind: PortKind
    ha_port: int | None = None  # 1 to 65535
    master: str | None = None  # HOST:PORT of a slave's master; None for a master
    mapped_file_size: int | None = None  # bytes, within the limits of the configuration
    max_offset: int | None = None  # the end of its log (exclusive), in bytes
    ha_protocol: HAProtocol | None = None  # of its HA port
    replica_group: str | None = None  # hastore's; of other brokers not known
    node_id: int | None = None  # likewise
    denial: str | None = None  # why it answers nothing: it needs an access key
    # Its refusals of peers of its HA port lately, by their address HOST:PORT.
    refusals: Mapping[str, RefusedThere] = attrs.field(factory=dict)


def own_key(access: AccessConfig, env: Env) -> AccessKey | None:
    """Return the key with which a node signs; None: it has none.  Blocks.  Raises ConfigError."""
    return None if access.key_file is None else read_key_file(env.disk, access.key_file)


@final
@attrs.define(eq=False)
class NodesAsker:
    """Asks client ports as a node does: with its access key, and its certificate in force."""

    key: OwnKey  # read again for each question
    tls: TlsContexts | None  # None: plain

    async def __call__(self, address: tuple[str, int]) -> ClientPort | None:
        """Ask one."""
        tls = None if self.tls is None else self.tls.client
        return await ask_client_port(address, access_key=await self.key.read(), tls=tls)


def asker_of(access: AccessConfig, env: Env) -> AskClientPort:
    """Return what asks client ports with a node's own key, if it has one.

    Raises ConfigError if the key cannot be used now.
    """
    own_key(access, env)
    return NodesAsker(OwnKey(env, access.key_file), None)


def with_contexts(ask: AskClientPort | None, tls: TlsContexts | None) -> AskClientPort | None:
    """Return what asks with a node's contexts, too: those in force at each question.

    An asker that ``asker_of`` did not make is returned unchanged.
    """
    return NodesAsker(ask.key, tls) if isinstance(ask, NodesAsker) else ask


async def ask_client_port(
    address: tuple[str, int],
    *,
    access_key: AccessKey | None = None,
    tls: ClientTls | None = None,
) -> ClientPort | None:
    """Ask; return None if nothing speaks remoting there within ``ASK_TIMEOUT_S``."""
    answers: dict[int, RemotingCommand] = {}
    with (
        trio.move_on_after(ASK_TIMEOUT_S),
        contextlib.suppress(OSError, UnreachableError, ProtocolError),
        await connect_client_port(address, ASK_TIMEOUT_S, tls) as sock,
    ):
        await send_all(sock, questions(access_key))
        reader = FrameReader(_ANSWER_SIZE_MAX)
        while len(answers) < len(QUESTIONS) and (data := await sock.recv(_RECEIVE_SIZE)):
            reader.feed(data)
            while (command := reader.next_command()) is not None:
                if command.is_response and command.opaque in QUESTIONS:
                    answers[command.opaque] = command
    return read_answers(answers)


def questions(access_key: AccessKey | None = None) -> bytes:
    """Return the bytes of all requests; each one's opaque is its code."""
    # Every broker has this topic; a name server answers either way.
    fields: Mapping[str, Any] = {"topic": DEFAULT_TOPIC}
    if access_key is not None:
        fields = signed_fields(access_key, fields, _PADDING)
    return b"".join(
        encode_command(RemotingCommand(code=code, opaque=code, ext_fields=fields, body=_PADDING))
        for code in QUESTIONS
    )


def read_answers(answers: Mapping[int, RemotingCommand]) -> ClientPort | None:
    """Return what the answers, by request code, say of the port; None without any."""
    if not answers:
        return None
    for answer in answers.values():
        if DENIED_FIELD in answer.ext_fields and answer.opaque == RequestCode.GET_BROKER_HA_STATUS:
            return ClientPort(kind=PortKind.NODE, denial=answer.remark or "access denied")
    good = {code: each for code, each in answers.items() if each.code == ResponseCode.SUCCESS}
    status = _object(good.get(RequestCode.GET_BROKER_HA_STATUS)).get("hastore")
    if isinstance(status, dict):
        return _of_status(status)
    answered = good.get(RequestCode.GET_BROKER_CONFIG)
    config = {} if answered is None else read_java_properties(answered.body)
    info = _object(good.get(RequestCode.GET_BROKER_RUNTIME_INFO)).get("table")
    if config or isinstance(info, dict):
        sizes = [config[name] for name in _FILE_SIZE_NAMES if name in config]
        return ClientPort(
            kind=PortKind.NODE,
            ha_port=_port(config.get("haListenPort")),
            mapped_file_size=_file_size(sizes[0]) if sizes else None,
            max_offset=_number(info.get("commitLogMaxOffset")) if isinstance(info, dict) else None,
            ha_protocol=_protocol(config),
        )
    route = answers.get(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    is_name_server = route is not None and route.code in {
        ResponseCode.SUCCESS,
        ResponseCode.TOPIC_NOT_EXIST,
    }
    return ClientPort(kind=PortKind.NAME_SERVER if is_name_server else PortKind.OTHER)


def _of_status(status: Mapping[str, Any]) -> ClientPort:
    link = status.get("master_link")
    is_slave = status.get("role") == BrokerRole.SLAVE.value
    return ClientPort(
        kind=PortKind.NODE,
        ha_port=_port(str(status.get("ha_address") or "").rpartition(":")[2]),
        master=str(link.get("address")) if is_slave and isinstance(link, dict) else None,
        mapped_file_size=_file_size(status.get("mapped_file_size")),
        max_offset=_number(status.get("max_offset")),
        ha_protocol=_PROTOCOLS.get(str(status.get("ha_protocol"))),
        replica_group=group if isinstance(group := status.get("replica_group"), str) else None,
        node_id=_number(status.get("node_id")),
        refusals=_refusals(status.get("refused")),
    )


def _refusals(rows: object) -> dict[str, RefusedThere]:
    found = {}
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and isinstance(row.get("reason"), str):
            hint = row.get("hint")
            found[str(row.get("address"))] = RefusedThere(
                reason=row["reason"],
                hint=hint if isinstance(hint, str) else None,
                is_id_taken=row.get("is_id_taken") is True,
            )
    return found


def _protocol(config: Mapping[str, str]) -> HAProtocol | None:
    """Return what a RocketMQ broker speaks; 4.x has no such setting."""
    mode = config.get("enableControllerMode")
    if mode is None:
        return None
    return HAProtocol.AUTOSWITCH if mode == "true" else HAProtocol.CLASSIC


def _object(answer: RemotingCommand | None) -> dict[str, Any]:
    if answer is None:
        return {}
    try:
        return liberal_json.loads_object(answer.body, "an answer")
    except ProtocolError:
        return {}


def _number(value: object) -> int | None:
    return read_digits(str(value))


def _port(value: object) -> int | None:
    port = _number(value)
    return port if port is not None and 0 < port <= _PORT_MAX else None


def _file_size(value: object) -> int | None:
    size = _number(value)
    return (
        size if size is not None and MAPPED_FILE_SIZE_MIN <= size <= MAPPED_FILE_SIZE_MAX else None
    )


@final
@attrs.define(eq=False)
class MasterPort:
    """The port that ``--master`` names, and the client port one below."""

    config: SlaveConfig
    commit_log: CommitLog
    ask_client_port: AskClientPort | None  # None: nothing is checked or asked
    _checks: int = attrs.field(default=0, init=False)
    _protocol_checks: int = attrs.field(default=0, init=False)
    _refusal_checks: int = attrs.field(default=0, init=False)  # without an answer
    _size_links: int = attrs.field(default=0, init=False)  # on which the file size was asked for

    async def learn_file_size(self) -> None:
        """Set the file size of a log without files to the master's.

        Raises FileSizeMismatchError if another size is configured, WrongPortError for a master of
        another replica group: no handshake names one, and an empty log has nothing to compare.
        """
        log, chosen = self.commit_log, self.config.store.mapped_file_size
        may_ask = self.ask_client_port is not None and self._size_links < _SIZE_LINKS_MAX
        if not may_ask or log.has_files:
            return
        self._size_links += 1
        began = trio.current_time()
        found = await self._ask_master()
        if found is None and chosen is None and trio.current_time() - began < _ASK_AGAIN_S:
            await trio.sleep(_ASK_AGAIN_S)
            found = await self._ask_master()
        if found is not None:
            self._check_group(found)
        if found is None or found.mapped_file_size in {None, log.file_size}:
            return
        size = found.mapped_file_size
        assert size is not None
        if chosen is not None:
            raise FileSizeMismatchError(
                f"this slave's files are to have {chosen} bytes, those of master"
                f" {describe(self.config.master)} have {size}",
                path=log.path,
                size_found=size,
                size_wanted=chosen,
                hint=f"--mapped-file-size {size}, or none: a new slave uses its master's",
            )
        log.choose_file_size(size)
        _log.info("masters_file_size_taken", file_size=size, master=describe(self.config.master))

    def _check_group(self, found: ClientPort) -> None:
        own, theirs = self.config.replica_group, found.replica_group
        if own is None or theirs in {None, own}:
            self._compare_ids(found)
            return
        raise WrongPortError(
            f"the master at {describe(self.config.master)} is of replica group {theirs}, and this"
            f" node of {own}; nothing was changed",
            hint=f"name a master of {own}; or start a node of {theirs}, with --node-group {theirs}"
            " and an empty --data directory",
        )

    def _compare_ids(self, found: ClientPort) -> None:
        """Log a master that ``group_ids`` lacks: a group's name may be used twice."""
        ids = self.config.group_ids
        if ids is None or found.node_id is None or found.node_id in ids:
            return
        _log.warning(
            "group_ids_differ",
            reason=f"the master at {describe(self.config.master)} is node {found.node_id}, and"
            f" [node] group_ids of this node names {', '.join(map(str, ids))}",
            next="if that is another group, give this one another name: [node] group; else add it"
            " to group_ids",
        )

    async def masters_end(self) -> int | None:
        """Return the end of the master's log; None if unknown."""
        found = await self._ask_master()
        return None if found is None else found.max_offset

    async def why_refused(self, own_address: tuple[str, int] | None) -> ProtocolError | None:
        """Return why the master refused the link from ``own_address``; None if it does not say so.

        No HA protocol has an error frame; the master's client port names refused peers.  A port
        that gives no answer is asked a few times at most, and again after a link in step.
        """
        if own_address is None or self._refusal_checks >= _CHECKS_MAX:
            return None
        found = await self._ask_master()
        if found is None:
            self._refusal_checks += 1
            return None
        refusal = found.refusals.get(describe(own_address))
        if refusal is None:
            return None
        error = NodeIdTakenError if refusal.is_id_taken else ProtocolError
        return error(f"the master has refused this slave: {refusal.reason}", hint=refusal.hint)

    def link_in_step(self) -> None:
        """Ask again why the next link is refused: what did not answer may have been restarted."""
        self._refusal_checks = 0

    async def _ask_master(self) -> ClientPort | None:
        host, ha_port = self.config.master
        if self.ask_client_port is None or ha_port <= 1:
            return None
        found = await self.ask_client_port((host, ha_port - 1))
        return found if found is not None and found.ha_port == ha_port else None

    # -- is it an HA port at all? ----------------------------------------------------------------

    def check_first_bytes(self, data: memoryview) -> None:
        """Raise WrongPortError for the answer of a web server."""
        if self.ask_client_port is not None and bytes(data[: len(_HTTP)]) == _HTTP:
            msg = f"{describe(self.config.master)} speaks HTTP: it is not a master's HA port"
            raise WrongPortError(msg, hint=_HINT)

    async def check_closed_link(self, lasted_s: float) -> None:
        """Ask whether a port that closed an unused link is a client port.

        Raises WrongPortError if it is.  Asks a few times at most.
        """
        may_ask = self.ask_client_port is not None and self._checks < _CHECKS_MAX
        if not may_ask or lasted_s > CLOSED_AT_ONCE_S:
            return
        self._checks += 1
        assert self.ask_client_port is not None
        found = await self.ask_client_port(self.config.master)
        if found is not None:
            raise wrong_port(self.config.master, found)

    async def check_protocol(self) -> None:
        """Ask whether a master that did not answer speaks the other protocol.

        Raises WrongPortError if it does.  Asks a few times at most.
        """
        if self.ask_client_port is None or self._protocol_checks >= _CHECKS_MAX:
            return
        self._protocol_checks += 1
        found, own = await self._ask_master(), self.config.ha.protocol
        if found is None or found.ha_protocol in {None, own}:
            return
        assert found.ha_protocol is not None
        spoken = found.ha_protocol.value
        raise WrongPortError(
            f"the HA port {describe(self.config.master)} speaks {spoken}, and this slave"
            f" {own.value}; nothing was changed",
            hint=f"start both with the same [ha] protocol, here with --ha-protocol {spoken}",
        )


def wrong_port(address: tuple[str, int], found: ClientPort) -> WrongPortError:
    """Return the error that says what ``address`` is, with the port that was meant if known."""
    named, (host, port) = describe(address), address
    if found.kind is PortKind.NAME_SERVER:
        return WrongPortError(f"{named} is a name server, not a master", hint=_HINT)
    if found.master is not None:
        return WrongPortError(
            f"{named} is the client port of a slave, and a slave has no HA port",
            hint=f"use its master's: hastore slave --master {found.master}",
        )
    if found.ha_port == port:  # ports are mapped in between
        return WrongPortError(
            f"{named} leads to a client port; its master listens for slaves on port {port} itself",
            hint="map a port to the master's HA port, and use that port for --master",
        )
    if found.ha_port is not None:
        said, ha_port = f"the HA port is {found.ha_port}", found.ha_port
    else:
        said, ha_port = f"the HA port is usually {port + 1}", port + 1
    return WrongPortError(
        f"{named} is the client port; {said}",
        hint=f"hastore slave --master {describe((host, ha_port))}",
    )
