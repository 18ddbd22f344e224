from collections.abc import Callable, Mapping

from hastore.message import Message
from hastore.store.record.layout import Buffer

INTERFACE: int

def encode_record(
    file: memoryview,
    position: int,
    end: int,
    topic_field: bytes,
    magic: int,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physic_offset: int,
    middle: bytes,
    body: bytes,
    properties: Mapping[str, str] | None,
    crc32: Callable[[bytes], int],
    has_prop_crc: bool,
    size_max: int,
    /,
) -> int: ...
def scan_records(
    buffer: Buffer,
    position: int,
    physic_offset: int,
    file_size: int,
    count_max: int,
    schedule_topic: bytes,
    crc32: Callable[[Buffer], int] | None,
    /,
) -> tuple[int, int, int, int, list[tuple[str, int, int, bytes]], bytes]: ...
def walk_records(
    buffer: Buffer,
    position: int,
    physic_offset: int,
    torn_from: int,
    has_queues: bool,
    crc32: Callable[[Buffer], int] | None,
    /,
) -> tuple[int, int, int, list[tuple[bytes, int, int]]]: ...
def fill_index(
    numbers: memoryview,
    dirty: bytearray,
    page_shift: int,
    number: int,
    begin_ms: int,
    keys: bytes,
    tail: bytearray,
    /,
) -> tuple[int, int]: ...
def java_hash(text: str, begun: int = 0, /) -> int: ...
def take_sends(
    data: Buffer,
    position: int,
    count_max: int,
    frame_size_max: int,
    born_host: tuple[str, int],
    message_type: type[Message],
    field_names: tuple[str, ...],
    /,
) -> tuple[list[tuple[Message, tuple[int, int, str | None] | None]], int]: ...
def first_lost_name(checks: tuple[bytes, ...], /) -> int: ...
def serve_syncs(requests: int, results: int, /) -> bytes: ...
