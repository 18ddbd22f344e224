"""What a server and a client read from a stream of frames, with some reader of the usual ones."""

from collections.abc import Callable
from typing import Any

import pytest

from hastore.client.send_result import PendingSend
from hastore.errors import HastoreError, ProtocolError
from hastore.wire import frame_reader
from hastore.wire.frame_reader import FrameReader
from hastore.wire.remoting_command import RemotingCommand
from hastore.wire.send_message import is_batch, read_message

PEER = ("10.1.2.3", 4711)
FRAME_SIZE_MAX = 1 << 16


def what_is_sent(stream: bytes, take_sends: Callable[..., Any]) -> list[object]:
    """Return what a server sees: messages, refusals, other commands, the error at the end."""
    found: list[object] = []
    reader = FrameReader(FRAME_SIZE_MAX)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_reader, "take_sends", take_sends)
        reader.feed(stream)
        try:
            while True:
                sends = reader.take_sends(2, PEER)
                found += sends
                if sends:
                    continue
                command = reader.next_command()
                if command is None:
                    return [*found, reader.buffered_size, reader.consumed]
                found.append(send_of(command))
        except ProtocolError as error:
            return [*found, str(error)]


def send_of(command: RemotingCommand) -> object:
    """Return a command as take_sends does, if it is a request to send one message."""
    if command.is_response or command.code not in {10, 310} or is_batch(command):
        return command
    try:
        message = read_message(command, PEER)
    except ProtocolError as error:
        return command, str(error)
    key = message.properties.get("UNIQ_KEY") if message.properties else None
    return message, None if command.is_one_way else (command.opaque, command.serialize_type, key)


def take_nothing(_data: object, position: int, *_limits: object) -> tuple[list[Any], int]:
    """Read no frame as a usual one: a reader that leaves all to the general code."""
    return [], position


def what_is_answered(stream: bytes, take_replies: Callable[..., Any]) -> list[object]:
    """Return what a client's sends see: results, errors, and the error at the end."""
    found = []
    reader = FrameReader(FRAME_SIZE_MAX)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_reader, "take_replies", take_replies)
        reader.feed(stream)
        try:
            while True:
                for reply in reader.take_replies():
                    pending = PendingSend(reply[0], "T", 4, "key")
                    pending.answer_ok(reply)
                    found.append((reader.reply_at(reply[4]), outcome_of(pending)))
                command = reader.next_command()
                if command is None:
                    return [*found, reader.buffered_size]
                pending = PendingSend(command.opaque, "T", 4, "key")
                if command.is_response:
                    pending.answer(command)
                    found.append((command, outcome_of(pending)))
        except ProtocolError as error:
            return [*found, str(error)]


def outcome_of(pending: PendingSend) -> tuple[object, ...]:
    """Return a result, or the error that it raises."""
    try:
        return pending.opaque, pending.status, pending.result()
    except HastoreError as error:
        return pending.opaque, pending.status, type(error), str(error)
