"""Read remoting commands from a stream of bytes, however it is split; encode commands.

``feed`` the bytes of one recv, then call ``next_command`` until it returns None.  Before it,
``take_sends`` and ``take_replies`` read many usual frames at once.  A complete frame is read in
place; only the beginning of an incomplete one is kept.

Invariants: at most ``frame_size_max`` + one recv is ever kept; a size is checked as soon as its
four bytes are there, before memory is reserved; after an error the stream is unusable, and the same
error is raised again.  With ``sizes`` a header or body above what its code may have is not kept:
the body is skipped as it comes, and the command says so (``size_fault``).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, final

from hastore.errors import ProtocolError
from hastore.wire.json_header import decode_json_header, encode_json_header
from hastore.wire.remoting_codes import SerializeType
from hastore.wire.remoting_command import (
    FRAME_PREFIX,
    FRAME_SIZE_FIELD,
    RemotingCommand,
    check_frame_size,
    frame_head,
    header_size_of,
)
from hastore.wire.request_sizes import SMALL_SIZE_MAX, check_header_begin
from hastore.wire.rocketmq_header import decode_rocketmq_header, encode_rocketmq_header
from hastore.wire.usual_frames import take_replies, take_sends

if TYPE_CHECKING:
    from hastore.message import Message
    from hastore.wire.request_sizes import RequestSizes
    from hastore.wire.usual_frames import OkReply, ReplyTo

_PREFIX_SIZE: Final = FRAME_PREFIX.size
_LOOK_SIZE: Final = _PREFIX_SIZE + 64  # a large header is recognised as a send's by its beginning
_prefix_at: Final = FRAME_PREFIX.unpack_from


def encode_command(command: RemotingCommand) -> bytes:
    """Return ``command`` as one frame, in its serialize type.  Raises ProtocolError."""
    return encode_head(command, len(command.body)) + command.body


def encode_head(command: RemotingCommand, body_size: int) -> bytes:
    """Return the frame of ``command`` without its body, which is sent separately.

    Raises ProtocolError for a value that does not fit its field.
    """
    try:
        if command.serialize_type is SerializeType.JSON:
            header = encode_json_header(command)
        else:
            header = encode_rocketmq_header(command)
        return frame_head(command.serialize_type, header, body_size)
    except (struct.error, UnicodeError, RecursionError) as error:
        msg = f"a command with code {command.code} cannot be encoded: {error}"
        raise ProtocolError(msg) from error


@final
class FrameReader:
    """The incoming half of one connection; no I/O."""

    __slots__ = (
        "_data",
        "_error",
        "_head",
        "_header_end",
        "_partial",
        "_position",
        "_sizes",
        "_skip",
        "_wanted",
        "consumed",
        "frame_size",
        "frame_size_max",
        "header_size",
    )

    def __init__(self, frame_size_max: int, sizes: RequestSizes | None = None) -> None:
        self.frame_size_max = frame_size_max
        self._sizes = sizes  # None: of each code up to ``frame_size_max``
        self.consumed = 0  # bytes of the stream before the next frame
        self.frame_size = 0  # bytes of the last command's frame, prefix included
        self.header_size = 0  # bytes of its header
        self._data: bytes | bytearray = b""  # complete frames begin at _position
        self._position = 0
        self._partial = bytearray()  # the beginning of a frame
        self._wanted = FRAME_SIZE_FIELD  # size of _partial at which the next step can be read
        self._header_end = FRAME_SIZE_FIELD  # size of _partial at which its header is complete
        self._head: RemotingCommand | None = None  # of a frame whose body is still to come
        self._skip = 0  # bytes of a refused body that are still to come
        self._error: ProtocolError | None = None

    @property
    def buffered_size(self) -> int:
        """Bytes that are kept and not yet read as commands."""
        return len(self._partial) + len(self._data) - self._position

    @property
    def is_skipping(self) -> bool:
        """Whether the body of a refused request is still to come."""
        return self._skip > 0

    @property
    def is_in_header(self) -> bool:
        """Whether a frame has begun whose header is still incomplete."""
        return 0 < len(self._partial) < self._header_end

    def feed(self, data: bytes) -> None:
        """Add received bytes; only after ``next_command`` has returned None."""
        assert self._position == len(self._data), "take all commands before the next bytes"
        self._position = 0
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        if not self._partial:
            self._data = data
            return
        self._partial += data
        if len(self._partial) < self._wanted:
            self._data = b""
            return
        self._data = self._partial
        self._partial = bytearray()

    def clear(self) -> None:
        """Drop all bytes: the stream has ended."""
        self._partial = bytearray()
        self._data = b""
        self._position = 0
        self._head = None

    def take_sends(
        self, count_max: int, born_host: tuple[str, int]
    ) -> list[tuple[Message, ReplyTo]]:
        """Return the usual send requests before the next command, at most ``count_max``."""
        begin = self._position
        if self._error is not None or self._head is not None or begin == len(self._data):
            return []
        sends, end = take_sends(self._data, begin, count_max, self.frame_size_max, born_host)
        self._position = end
        self.consumed += end - begin
        return sends

    def take_replies(self) -> list[OkReply]:
        """Return the usual OK replies before the next command."""
        begin = self._position
        if self._error is not None or begin == len(self._data):
            return []
        replies, end = take_replies(self._data, begin, self.frame_size_max)
        self._position = end
        self.consumed += end - begin
        return replies

    def reply_at(self, position: int) -> RemotingCommand:
        """Return one of the replies just taken as a command."""
        frame_size, header_word = _prefix_at(self._data, position)
        end = position + FRAME_SIZE_FIELD + frame_size
        return _decode(self._data, position, header_word, end)

    def next_command(self) -> RemotingCommand | None:
        """Return the next complete command; None when more bytes are needed.

        Raises ProtocolError (FrameTooLargeError) with the position in the stream.
        """
        if self._error is not None:
            raise self._error
        try:
            return self._next_command()
        except ProtocolError as error:
            error.args = (f"{error}, in the frame at byte {self.consumed} of the stream",)
            self._error = error
            raise

    def _next_command(self) -> RemotingCommand | None:
        refused = self._head
        if refused is not None and refused.size_fault is not None and not self._skip:
            self._head = None  # all of its body has come
            return refused
        data = self._data
        begin = self._position
        available = len(data) - begin
        if not available:
            self._data = b""
            self._position = 0
            return None
        if available < _PREFIX_SIZE:
            if available < FRAME_SIZE_FIELD:
                self._keep(begin, FRAME_SIZE_FIELD, _PREFIX_SIZE)
                return None
            frame_size = int.from_bytes(data[begin : begin + FRAME_SIZE_FIELD], "big")
            check_frame_size(frame_size, self.frame_size_max)
            self._keep(begin, _PREFIX_SIZE, _PREFIX_SIZE)
            return None
        frame_size, header_word = _prefix_at(data, begin)
        check_frame_size(frame_size, self.frame_size_max)
        header_size = header_size_of(header_word, frame_size)
        if self._sizes is not None and frame_size > SMALL_SIZE_MAX:
            return self._next_large(self._sizes, begin, frame_size, header_word)
        if available < FRAME_SIZE_FIELD + frame_size:
            self._keep(begin, FRAME_SIZE_FIELD + frame_size, _PREFIX_SIZE + header_size)
            return None
        end = begin + FRAME_SIZE_FIELD + frame_size
        command = _decode(data, begin, header_word, end)
        self.header_size = header_size
        self._end_frame(begin, end)
        return command

    def _next_large(
        self, sizes: RequestSizes, begin: int, frame_size: int, header_word: int
    ) -> RemotingCommand | None:
        """Read a frame whose size depends on its code: its header first, then its body."""
        data = self._data
        self.header_size = header_size = header_word & 0xFFFFFF
        body_begin = begin + _PREFIX_SIZE + header_size
        end = begin + FRAME_SIZE_FIELD + frame_size
        command = self._head
        if command is None:
            beginning = bytes(data[begin + _PREFIX_SIZE : min(body_begin, begin + _LOOK_SIZE)])
            check_header_begin(header_size, header_word >> 24, beginning)
            if len(data) < body_begin:
                self._keep_until(begin, body_begin, header_end=body_begin)
                return None
            command = _decode(data, begin, header_word, body_begin)
            command.size_fault = sizes.fault(command, header_size, end - body_begin)
        if command.size_fault is not None:
            self._skip = max(end - len(data), 0)
            self._end_frame(begin, end)
            self._head = command
            return self._next_command()
        if len(data) < end:
            self._head = command
            self._keep_until(begin, end, header_end=body_begin)
            return None
        command.body = bytes(memoryview(data)[body_begin:end])
        self._end_frame(begin, end)
        return command

    def _end_frame(self, begin: int, end: int) -> None:
        self._head = None
        if end < len(self._data):
            self._position = end
        else:  # a body of megabytes is not kept beside the command that has it
            self._data, self._position = b"", 0
        self.frame_size = size = end - begin
        self.consumed += size

    def _keep_until(self, begin: int, wanted_end: int, *, header_end: int) -> None:
        """Keep the incomplete frame at ``begin`` until there are bytes up to ``wanted_end``."""
        self._keep(begin, wanted_end - begin, header_end - begin)

    def _keep(self, begin: int, wanted: int, header_end: int) -> None:
        self._partial += self._data[begin:]
        self._data = b""
        self._position = 0
        self._wanted = wanted
        self._header_end = header_end


def _decode(data: bytes | bytearray, begin: int, header_word: int, end: int) -> RemotingCommand:
    """Return the complete frame ``data[begin:end]`` as a command.  Raises ProtocolError."""
    body_begin = begin + _PREFIX_SIZE + (header_word & 0xFFFFFF)
    view = memoryview(data)  # a body of many megabytes is copied once
    header, body = bytes(view[begin + _PREFIX_SIZE : body_begin]), bytes(view[body_begin:end])
    serialize_type = header_word >> 24
    if serialize_type == SerializeType.JSON:
        return decode_json_header(header, body)
    if serialize_type == SerializeType.ROCKETMQ:
        return decode_rocketmq_header(header, body)
    msg = f"serialize type {serialize_type} is neither JSON (0) nor ROCKETMQ (1)"
    raise ProtocolError(msg)
