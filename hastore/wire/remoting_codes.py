"""The numbers of RocketMQ's remoting protocol 4.x: requests, responses, flags, languages.

Only codes that hastore answers, sends or reads.  Sources: RocketMQ 4.9.8
``RequestCode``, ``ResponseCode``, ``RemotingSysResponseCode``, ``LanguageCode``, ``MQVersion``.
"""

from __future__ import annotations

import enum
from typing import Final

FLAG_RESPONSE: Final = 1  # bit 0: this frame answers a request
FLAG_ONE_WAY: Final = 2  # bit 1: nobody waits for an answer

# Codes that fit a binary header, which has 16 bits for them; JSON can spell any.
CODE_MIN: Final = -0x8000
CODE_MAX: Final = 0x7FFF

# MQVersion.V4_9_8: the version that peers see.
PROTOCOL_VERSION: Final = 409


class RequestCode(enum.IntEnum):
    """The code of a request."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17  # CREATE_TOPIC in earlier versions
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    GET_CONSUMER_LIST_BY_GROUP = 38
    NOTIFY_CONSUMER_IDS_CHANGED = 40  # sent by the broker to its clients
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    REGISTER_BROKER = 103  # sent to name servers only, as is the next
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216  # sent to name servers only
    RESET_CONSUMER_CLIENT_OFFSET = 220  # sent by the broker to its clients
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    GET_CONSUMER_RUNNING_INFO = 307  # also sent by the broker to its clients, as the next
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    SEND_BATCH_MESSAGE = 320
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326  # sent by the broker to its clients
    GET_BROKER_HA_STATUS = 907
    GET_BROKER_EPOCH_CACHE = 1007  # RocketMQ 5, as the next
    NOTIFY_BROKER_ROLE_CHANGED = 1008
    # hastore's own: above RocketMQ's numbers, and within a binary header's 16 bits.
    EXPLAIN_PUTS = 28_101
    LOG_DIGEST = 28_102
    PROMISE_NOT_TO_STAND = 28_103
    GROUP_LOG = 28_104
    COUNT_MESSAGES = 28_105
    LOG_BYTES = 28_106


# Role requests and hastore's own: who may send them can read the log, or choose the master.
OWN_REQUESTS: Final = frozenset(
    {
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        RequestCode.EXPLAIN_PUTS,
        RequestCode.LOG_DIGEST,
        RequestCode.PROMISE_NOT_TO_STAND,
        RequestCode.GROUP_LOG,
        RequestCode.COUNT_MESSAGES,
        RequestCode.LOG_BYTES,
    }
)
# What only an administrator's key may ask: mqadmin and stock slaves ask these, too.
ADMIN_REQUESTS: Final = OWN_REQUESTS | {
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.VIEW_BROKER_STATS_DATA,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.GET_BROKER_EPOCH_CACHE,
}


class ResponseCode(enum.IntEnum):
    """The code of an answer."""

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
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207


class SerializeType(enum.IntEnum):
    """The encoding of a header: the top byte of a frame's second word."""

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
