"""Asks a port whether it is a node's client port, and which HA port the node has.

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
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from hastore.concurrency.tcp import connect, tune
from hastore.config import MAPPED_FILE_SIZE_MAX, MAPPED_FILE_SIZE_MIN
from hastore.errors import ProtocolError, UnreachableError
from hastore.status import BrokerRole
from hastore.wire import liberal_json
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from hastore.wire.remoting_command import RemotingCommand

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    AskClientPort = Callable[[tuple[str, int]], Awaitable["ClientPort | None"]]

ASK_TIMEOUT_S: Final = 5.0
_ANSWER_SIZE_MAX: Final = 1024 * 1024
_RECEIVE_SIZE: Final = 64 * 1024
_PORT_MAX: Final = 65_535
_DIGITS_MAX: Final = 19  # of a Java long
_PADDING: Final = b"\xff" * 16  # at least one whole report of -1, however the frame is aligned
_ANY_TOPIC: Final = "TBW102"  # every broker has it; a name server answers either way
_QUESTIONS: Final = (
    RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
)
_FILE_SIZE_NAMES: Final = ("mapedFileSizeCommitLog", "mappedFileSizeCommitLog")


class PortKind(enum.Enum):
    """What kind of server answers; OTHER speaks remoting, but is neither."""

    NODE = "node"
    NAME_SERVER = "name server"
    OTHER = "other"


@attrs.frozen(kw_only=True)
class ClientPort:
    """A client port's answer about its node; None is unknown."""

    kind: PortKind
    ha_port: int | None = None  # 1 to 65535
    master: str | None = None  # HOST:PORT of a slave's master; None for a master
    mapped_file_size: int | None = None  # bytes, within the limits of the configuration
    max_offset: int | None = None  # the end of its log (exclusive), in bytes


async def ask_client_port(address: tuple[str, int]) -> ClientPort | None:
    """Ask; return None if nothing speaks remoting there within ``ASK_TIMEOUT_S``."""
    answers: dict[int, RemotingCommand] = {}
    with (
        trio.move_on_after(ASK_TIMEOUT_S),
        contextlib.suppress(OSError, UnreachableError, ProtocolError),
        await connect(address, ASK_TIMEOUT_S) as sock,
    ):
        tune(sock)
        await _send(sock, questions())
        reader = FrameReader(_ANSWER_SIZE_MAX)
        while len(answers) < len(_QUESTIONS) and (data := await sock.recv(_RECEIVE_SIZE)):
            reader.feed(data)
            while (command := reader.next_command()) is not None:
                if command.is_response and command.opaque in _QUESTIONS:
                    answers[command.opaque] = command
    return read_answers(answers)


async def _send(sock: trio.socket.SocketType, data: bytes) -> None:
    while data:
        data = data[await sock.send(data) :]


def questions() -> bytes:
    """Return the bytes of all requests; each one's opaque is its code."""
    return b"".join(
        encode_command(
            RemotingCommand(code=code, opaque=code, ext_fields={"topic": _ANY_TOPIC}, body=_PADDING)
        )
        for code in _QUESTIONS
    )


def read_answers(answers: Mapping[int, RemotingCommand]) -> ClientPort | None:
    """Return what the answers, by request code, say of the port; None without any."""
    if not answers:
        return None
    good = {code: each for code, each in answers.items() if each.code == ResponseCode.SUCCESS}
    status = _object(good.get(RequestCode.GET_BROKER_HA_STATUS)).get("hastore")
    if isinstance(status, dict):
        return _of_status(status)
    config = _properties(good.get(RequestCode.GET_BROKER_CONFIG))
    info = _object(good.get(RequestCode.GET_BROKER_RUNTIME_INFO)).get("table")
    if config or isinstance(info, dict):
        sizes = [config[name] for name in _FILE_SIZE_NAMES if name in config]
        return ClientPort(
            kind=PortKind.NODE,
            ha_port=_port(config.get("haListenPort")),
            mapped_file_size=_file_size(sizes[0]) if sizes else None,
            max_offset=_number(info.get("commitLogMaxOffset")) if isinstance(info, dict) else None,
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
    )


def _object(answer: RemotingCommand | None) -> dict[str, Any]:
    if answer is None:
        return {}
    try:
        return liberal_json.loads_object(answer.body, "an answer")
    except ProtocolError:
        return {}


def _properties(answer: RemotingCommand | None) -> dict[str, str]:
    """Return the ``name=value`` lines of a broker's configuration."""
    if answer is None:
        return {}
    lines = answer.body.decode(errors="replace").splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _number(value: object) -> int | None:
    text = str(value)
    is_one = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    return int(text) if is_one else None


def _port(value: object) -> int | None:
    port = _number(value)
    return port if port is not None and 0 < port <= _PORT_MAX else None


def _file_size(value: object) -> int | None:
    size = _number(value)
    return (
        size if size is not None and MAPPED_FILE_SIZE_MIN <= size <= MAPPED_FILE_SIZE_MAX else None
    )
