"""The numbers of RocketMQ's remoting protocol 4.x: requests, responses, flags, languages.

Only the codes that hastore answers, sends or reads are here.  Sources: RocketMQ 4.9.8
``RequestCode``, ``ResponseCode``, ``RemotingSysResponseCode``, ``LanguageCode``, ``MQVersion``.
"""

from __future__ import annotations

import enum
from typing import Final

FLAG_RESPONSE: Final = 1  # bit 0: this frame answers a request
FLAG_ONE_WAY: Final = 2  # bit 1: nobody waits for an answer

# MQVersion.V4_9_8: what a peer that looks may expect of us.
PROTOCOL_VERSION: Final = 409


class RequestCode(enum.IntEnum):
    """What a client asks."""

    SEND_MESSAGE = 10
    GET_BROKER_RUNTIME_INFO = 28
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    GET_ROUTEINFO_BY_TOPIC = 105
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    GET_BROKER_HA_STATUS = 907


class ResponseCode(enum.IntEnum):
    """What a node answers."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17


class SerializeType(enum.IntEnum):
    """How a header is written: the top byte of a frame's second word."""

    JSON = 0
    ROCKETMQ = 1


# LanguageCode: names in JSON headers, numbers (the index) in binary ones.
LANGUAGES: Final = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
)
LANGUAGE: Final = "PYTHON"
LANGUAGE_NUMBERS: Final = {name: number for number, name in enumerate(LANGUAGES)}
