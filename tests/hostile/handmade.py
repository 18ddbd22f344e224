"""Handmade streams: unidentified peers at the wrong port, and frames that lie about themselves."""

import json
import struct

from hastore.wire.frame_reader import encode_command
from hastore.wire.ha_frames import encode_header
from hastore.wire.remoting_command import RemotingCommand
from tests.support.nodes.raw_client import send_command
from tests.support.nodes.reading import pull_command

INT64_MAX = 2**63 - 1

NOT_OURS = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl/8\r\nAccept: */*\r\n\r\n",
    "tls": bytes.fromhex("16030100f5010000f10303") + bytes(range(234)),
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "redis": b"*1\r\n$4\r\nPING\r\n",
    "postgres": struct.pack("!II", 84, 196608) + b"user\0x\0\0",
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    "one byte": b"\0",
    "nothing": b"",
}


def _json_frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("!II", 4 + len(header) + len(body), len(header)) + header + body


def _pull(**changes) -> bytes:
    """Return a pull with some fields replaced by invalid ones."""
    command = pull_command()
    command.ext_fields = dict(command.ext_fields) | changes
    return encode_command(command)


def _json_request(code: int, body: bytes, **fields: str) -> bytes:
    return encode_command(RemotingCommand(code=code, opaque=1, ext_fields=fields, body=body))


DEEP = b"[" * 100_000
WIDE = json.dumps({f"k{n}": "v" for n in range(20_000)}).encode()

CLIENT_PORT = NOT_OURS | {
    "claims 4 GiB": struct.pack("!II", 0xFFFF_FFFF, 0) + b"x" * 100,
    "claims 2 GiB": struct.pack("!II", 0x7FFF_FFFF, 20),
    "claims 200 MiB": struct.pack("!II", 200 << 20, 20) + b"x" * 100,
    "claims all that is allowed": struct.pack("!II", 16 << 20, 100),
    "a header larger than its frame": struct.pack("!II", 8, 0xFFFFFF) + b"abcd",
    "no room for a header": struct.pack("!II", 0, 0),
    "half a prefix": b"\0\0\0",
    "header of brackets": _json_frame(DEEP),
    "header of objects": _json_frame(b'{"code":' * 50_000),
    "header of many fields": _json_frame(b'{"code":310,"extFields":' + WIDE + b"}"),
    "header of digits": _json_frame(b'{"code":' + b"9" * 10_000 + b"}"),
    "header with NaN": _json_frame(b'{"code":NaN,"opaque":Infinity}'),
    "header with a list for a code": _json_frame(b'{"code":[310],"opaque":{}}'),
    "header without a code": _json_frame(b"{}"),
    "header of UTF-16": _json_frame('{"code":310}'.encode("utf-16")),
    "header with half a surrogate": _json_frame(
        b'{"code":310,"extFields":{"b":"\\ud800","e":"0","f":"0","g":"0","h":"0"}}'
    ),
    "code too large": _json_frame(b'{"code":99999999999999999999}'),
    "code below zero": _json_frame(b'{"code":-1,"opaque":-1,"flag":-1}'),
    "pull at a negative offset": _pull(queueOffset="-1"),
    "pull at a very negative offset": _pull(queueOffset=str(-(2**63))),
    "pull past the end": _pull(queueOffset="1000000"),
    "pull at 2^63-1": _pull(queueOffset=str(INT64_MAX)),
    "pull at 2^63": _pull(queueOffset=str(INT64_MAX + 1)),
    "pull of a billion": _pull(maxMsgNums=str(10**9)),
    "pull of none": _pull(maxMsgNums="-5"),
    "pull of queue -1": _pull(queueId="-1"),
    "pull of queue 2^31-1": _pull(queueId=str(2**31 - 1)),
    "pull for ever": _pull(sysFlag="2", suspendTimeoutMillis=str(INT64_MAX), queueOffset="1000"),
    "pull with a wild filter": _pull(sysFlag="4", subscription="a||" * 5000),
    "pull that commits 2^63-1": _pull(sysFlag="1", commitOffset=str(INT64_MAX)),
    "message of no body": encode_command(send_command(1, body=b"")),
    "message beyond the limit": encode_command(send_command(1, body=bytes(300_000))),
    "message of a prepared transaction": encode_command(send_command(1, ext_fields={"f": "4"})),
    "message with a topic of dots": encode_command(send_command(1, topic="../../etc/passwd")),
    "message with an empty topic": encode_command(send_command(1, topic="")),
    "message with a long topic": encode_command(send_command(1, topic="t" * 70_000)),
    "message with 64 KiB of properties": encode_command(
        send_command(1, properties={"k": "v" * 65_000})
    ),
    "batch that says it is longer": _json_request(320, struct.pack("!i", 2**31 - 1) + bytes(16)),
    "heartbeat of brackets": _json_request(34, DEEP),
    "heartbeat of nothing": _json_request(34, b""),
    "heartbeat of wrong kinds": _json_request(
        34, b'{"clientID":7,"consumerDataSet":{"a":1},"producerDataSet":"x"}'
    ),
    "lock of brackets": _json_request(41, DEEP),
    "message by an id past the end": _json_request(33, b"", offset=str(INT64_MAX)),
    "message by an id inside a record": _json_request(33, b"", offset="17"),
    "message by a negative id": _json_request(33, b"", offset="-17"),
    "offset by a time beyond time": _json_request(
        29, b"", topic="T", queueId="0", timestamp=str(INT64_MAX)
    ),
    "returned message at a wild offset": _json_request(
        36, b"", offset=str(INT64_MAX), group="g", delayLevel="3", originTopic="T"
    ),
    "committed offset below zero": _json_request(
        15, b"", consumerGroup="g", topic="T", queueId="0", commitOffset=str(-(2**63))
    ),
    "an answer to nobody": encode_command(RemotingCommand(code=0, opaque=1, flag=1)),
}

HA_PORT = NOT_OURS | {
    "-1 first": struct.pack("!q", -1),
    "-2^63 first": struct.pack("!q", -(2**63)),
    "2^63-1 first": struct.pack("!q", INT64_MAX),
    "past the end": struct.pack("!q", 10**9),
    "mid-record": struct.pack("!q", 77),
    "a new slave that acknowledges 2^63-1": struct.pack("!qq", 0, INT64_MAX),
    "a new slave that goes back": struct.pack("!qqq", 0, 50, 49),
    "a new slave that says -1": struct.pack("!qq", 1, -1),
    "the last file, then past the end": struct.pack("!qq", 2, 10**9),
    "7 bytes of a report": bytes(7),
    "a thousand wishes": bytes(8000),
}

TO_SLAVE = NOT_OURS | {
    "an offset below zero": encode_header(-1, 0),
    "a body below zero": encode_header(0, -1),
    "a body of 2 GiB": encode_header(0, 2**31 - 1) + bytes(1000),
    "a body of all but the buffer": encode_header(0, 4 * 1024 * 1024 - 12) + bytes(5000),
    "a body one larger than the buffer": encode_header(0, 4 * 1024 * 1024 - 11),
    "an offset of 2^63-1": encode_header(INT64_MAX, 0),
    "bytes at 2^63-1": encode_header(INT64_MAX - 4, 4) + bytes(4),
    "heartbeats elsewhere": encode_header(5, 0) + encode_header(10**9, 0),
    "half a header": encode_header(0, 100)[:7],
    "http/1.1 400": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
}

_OK_FIELDS = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "0"}


def _response(**changes) -> bytes:
    given = {"code": 0, "opaque": 1, "flag": 1, "ext_fields": _OK_FIELDS} | changes
    return encode_command(RemotingCommand(**given))


TO_CLIENT = NOT_OURS | {
    "http/1.1 400": b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "claims 4 GiB": struct.pack("!II", 0xFFFF_FFFF, 0),
    "an ok for another request": _response(opaque=77_777),
    "an ok twice": _response(opaque=2) * 2,
    "an ok that is a request": _response(flag=0),
    "an ok for nothing": _response(opaque=2, ext_fields={}),
    "an ok with words for numbers": _response(opaque=2, ext_fields=_OK_FIELDS | {"queueId": "x"}),
    "an ok with a wild id": _response(opaque=2, ext_fields=_OK_FIELDS | {"msgId": "zz"}),
    "a code that nobody knows": _response(opaque=2, code=-77),
    "a status that nobody knows": _response(opaque=2, code=1, ext_fields={"putStatus": "FINE"}),
    "a thousand notices": encode_command(RemotingCommand(code=40, opaque=9, flag=2)) * 1000,
    "header of brackets": _json_frame(DEEP),
}
