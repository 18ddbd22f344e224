"""Feeds the C extension random and mutated bytes, and compares it with its twins in Python.

    python -m tests.native.fuzz --seed 7 --seconds 60

Prints the seed and how many inputs were tried; a difference ends it, and names the input's number.
The same seed tries the same inputs in the same order.  Buffers for C have exactly the bytes' size,
so that a sanitizer sees the first byte read outside.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

if "HASTORE_SANITIZED_DIR" in os.environ:
    import tests.native.sanitized  # noqa: F401 - replaces the extension

from isal import isal_zlib

from hastore.dispatch import record_scan
from hastore.env.name_check import lost_name
from hastore.message import Message
from hastore.native.in_use import extension, state
from hastore.store.record.java_hash import hash_in_python
from hastore.store.record.layout import PROP_CRC_SIZE, RECORD_SIZE_MIN
from hastore.store.record.message_encoder import MessageEncoder
from hastore.store.record.record_check import prop_crc_property
from hastore.store.record.topic_queue_table import TopicQueues, TopicQueueTable
from hastore.store.recovery import record_walk
from hastore.wire import usual_frames
from tests.hostile.corpus_files import recorded
from tests.support.store.encoded_records import records_of
from tests.support.what_is_read import take_nothing, what_is_sent

FILE_SIZE = 1 << 20
NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63)
TOPICS = ("orders", "a", "Ärger", "SCHEDULE_TOPIC_XXXX", "v2" * 100)
FRAMES = [*recorded("client_port").values(), *recorded("to_client").values()]
# "__crc32_" becomes "__CRC32#", which no message may have.
PROPERTIES = (
    None, {"KEYS": "a b  c", "TAGS": "x"}, {"UNIQ_KEY": "F" * 32}, {"KEYS": "日本"},
    {"__crc32_": "a"}, {"KEYS": "a", "__crc32_": "123"}, {"__crc32_": "0123456789"},
)  # fmt: skip
HOSTS = (("127.0.0.1", 10911), ("::1", 10911))
TEXTS = ("a", "", "é", "日" * 9_000, "v" * 32_700, "\0", "\x01", "\x02", "\ud800", "\udc80", '"\\')


def exactly(data: bytes) -> memoryview:
    """Return a copy with nothing allocated after its last byte."""
    return memoryview((ctypes.c_char * len(data)).from_buffer_copy(data)).cast("B")


def mutated_records(random: Random, start: int) -> bytes:
    """Return some records, most of them with damage."""
    messages = [
        Message(
            random.choice(TOPICS),
            random.randbytes(random.choice((0, 1, 40, 1_000))),
            queue_id=random.choice((0, 1, -1, 70_000)),
            properties=random.choice(PROPERTIES),
            sys_flag=random.choice((0, 0, 0, 0, 1, 4, 8, 12, 0x80)),
            born_host=random.choice((None, ("10.0.0.1", 1), ("2001:db8::1", 65_535))),
        )
        for _ in range(random.randint(1, 6))
    ]
    data = records_of(
        messages, start, store_host=random.choice(HOSTS), has_prop_crc=random.random() < 0.5
    )
    data = data.replace(b"__crc32_", b"__CRC32#")
    for _ in range(random.choice((0, 1, 1, 2, 8))):
        mutate(random, data)
    if random.random() < 0.3:
        seal(data)
    return bytes(data)


def seal(data: bytearray) -> None:
    """End each record with the right ``__CRC32#``, so that only its other rules refuse it."""
    at = 0
    while len(data) - at >= RECORD_SIZE_MIN:
        end = at + int.from_bytes(data[at : at + 4], signed=True)
        if not at + RECORD_SIZE_MIN <= end <= len(data):
            break
        data[end - PROP_CRC_SIZE : end] = prop_crc_property(data[at : end - PROP_CRC_SIZE])
        at = end


def mutate(random: Random, data: bytearray) -> None:
    """Change a byte, a length or a run, or cut bytes out of it."""
    at = random.randrange(len(data) + 1)
    match random.randrange(6):
        case 0:
            data[at : at + 1] = random.randbytes(1)
        case 1:
            size = random.choice((1, 2, 4, 8))
            data[at : at + size] = (random.choice(NUMBERS) % 256**size).to_bytes(size)
        case 2:
            data[at : at + 30] = bytes(len(data[at : at + 30]))
        case 3:
            del data[at:]
        case 4:
            del data[at : at + random.randint(1, 40)]
        case _:
            data[at:at] = random.randbytes(random.randint(1, 40))


def bytes_of(random: Random, start: int) -> bytes:
    """Return records, or bytes that are none."""
    if random.random() < 0.1:
        return random.randbytes(random.randrange(400))
    return mutated_records(random, start)


def fuzz_scan(random: Random) -> None:
    """Compare what a scan of a chunk finds."""
    start = random.choice((0, 3 * FILE_SIZE, FILE_SIZE - 400))
    data = bytes_of(random, start)
    at, count_max, check_crc = 0, random.choice((1, 3, 5_000)), random.random() < 0.5
    if random.random() < 0.1:
        at = random.randrange(len(data) + 10)
    arguments = (at, start + at, FILE_SIZE, count_max)
    wanted = record_scan.scan_records_in_python(data, *arguments, check_crc=check_crc)
    found = record_scan.scan_records_in_c(exactly(data), *arguments, check_crc=check_crc)
    assert found == wanted


def fuzz_walk(random: Random) -> None:
    """Compare where a start's walk of a chunk ends, and the queue offsets that it finds."""
    start = random.choice((0, 3 * FILE_SIZE, 2**62))
    data = bytes_of(random, start)
    torn_from, check_crc = random.randrange(-100, 2_000), random.random() < 0.8
    has_table = random.random() < 0.7
    one, other = [TopicQueueTable() if has_table else None for _ in range(2)]
    wanted = record_walk.walk_records_in_python(data, start, one, torn_from, check_crc=check_crc)
    found = record_walk.walk_records_in_c(data, start, other, torn_from, check_crc=check_crc)
    assert found == wanted
    if one is not None and other is not None:
        assert [(name, topic.next_offsets) for name, topic in other.topics.items()] == [
            (name, topic.next_offsets) for name, topic in one.topics.items()
        ]
    crc32 = record_walk._crc32 if check_crc else None
    extension.walk_records(exactly(data), 0, start, start + torn_from, has_table, crc32)


def fuzz_hash(random: Random) -> None:
    """Compare the hash of a text."""
    text = "".join(chr(random.choice((65, 255, 0x20AC, 0xD800, 0x1F600))) for _ in range(9))
    begun = random.randrange(-(2**31), 2**31)
    assert extension.java_hash(text, begun) == hash_in_python(text, begun)


def fuzz_index(random: Random) -> None:
    """Feed sizes that need not fit each other: an error, or numbers within the slots."""
    slots = random.randrange(5)
    numbers = exactly(random.randbytes(4 * slots))
    dirty = exactly(bytes(random.randrange(3)))
    keys = bytearray()
    for _ in range(random.randrange(4)):
        hashed = random.choice((0, 7, 2**31 - 1, 2**31, -1))
        keys += hashed.to_bytes(8, "little", signed=True) + random.randbytes(16)
    if random.random() < 0.2:
        mutate(random, keys)
    tail = bytearray(random.randrange(30))
    shift, number = random.choice((-1, 0, 10, 30, 31)), random.choice((0, 1, 50, 2**31 - 1))
    try:
        extension.fill_index(
            numbers, dirty, shift, number, random.choice(NUMBERS[:-1]), exactly(bytes(keys)), tail
        )
    except ValueError:
        return
    assert not len(keys) % 24


def fuzz_frames(random: Random) -> None:
    """Compare what is read of recorded frames with what its twin and the general code read."""
    stream = bytearray().join(random.choices(FRAMES, k=random.randint(1, 3)))
    for _ in range(random.choice((0, 1, 2, 4))):
        mutate(random, stream)
    whole, position = bytes(stream), random.choice((0, 0, 0, random.randrange(2_000)))
    limits = position, 9, 1 << 16, ("10.0.0.1", 1)
    found = usual_frames.take_sends_in_c(exactly(whole), *limits)
    assert found == usual_frames.take_sends_in_python(whole, *limits)
    sent = what_is_sent(whole, usual_frames.take_sends_in_c)
    assert sent == what_is_sent(whole, take_nothing)


def message_of(random: Random) -> Message:
    """Return a message with values that may not fit."""
    numbers = (0, 1, -1, 2**31 - 1, 2**31, 2**70)
    texts = {random.choice(TEXTS[:4]): random.choice(TEXTS) for _ in range(random.randrange(3))}
    return Message(
        random.choice(TOPICS),
        random.randbytes(random.choice((0, 1, 40, 1_000, 1_001))),
        properties=random.choice((None, texts, {"TAGS": "x"}, {"__CRC32#": "1"})),
        queue_id=random.choice(numbers),
        flag=random.choice(numbers),
        sys_flag=random.choice((0, 0, 1, 8)),
        born_host=random.choice((None, ("10.0.0.1", 1), ("2001:db8::1", 65_535))),
    )


def fuzz_encode(random: Random) -> None:
    """Compare a message's record; what C leaves to Python changes no byte."""
    message, has_prop_crc = message_of(random), random.random() < 0.5
    encoder = MessageEncoder(
        store_host=random.choice(HOSTS), max_message_size=1_000, append_prop_crc=has_prop_crc
    )
    queues = TopicQueues(message.topic.encode(), encoder.bare_properties)
    middle = encoder.encode_middle(message, 1_700_000_000_000)
    if not isinstance(middle, bytes):
        return
    wanted = encoder.encode(message, queues, 5, 6_000_000_000, 1_700_000_000_000)
    size = len(wanted) if isinstance(wanted, bytes) else 500
    file, position = exactly(b"-" * (size + 30)), random.randrange(20)
    end = position + size + random.choice((-1, 0, 10))
    found = extension.encode_record(
        file, position, end, queues.topic_field, queues.magic, message.queue_id, message.flag, 5,
        6_000_000_000, middle, message.body, message.properties, isal_zlib.crc32, has_prop_crc,
        encoder.record_size_max,
    )  # fmt: skip
    if found:
        assert isinstance(wanted, bytes)
        assert found == size <= end - position
        written = b"-" * position + wanted
        assert bytes(file) == written + b"-" * (len(file) - len(written))
    else:
        assert bytes(file) == b"-" * len(file)
        if message.properties in (None, {"TAGS": "x"}):  # nothing unusual: C writes it, too
            assert end < position + size or not isinstance(wanted, bytes)


def fuzz_names(random: Random) -> None:
    """Compare which name is lost; bytes that are no check are of no name."""
    checks = []
    for _ in range(random.randrange(4)):
        path = random.choice(("/", "/dev/null", "/dev/null/a", "/not/there", "/" + "a" * 300))
        found = Path(path if path in {"/", "/dev/null"} else "/").stat()
        inode = found.st_ino + (random.random() < 0.2)
        checks.append(struct.pack("=QQ", found.st_dev, inode) + path.encode() + b"\0")
    expected = next((at for at, check in enumerate(checks) if lost_name(check) is not None), -1)
    assert extension.first_lost_name(tuple(checks)) == expected
    cut = tuple(check[: random.randrange(len(check))] for check in checks)
    assert extension.first_lost_name(cut) == -1


FUZZERS: tuple[Callable[[Random], None], ...] = (
    fuzz_scan,
    fuzz_walk,
    fuzz_hash,
    fuzz_index,
    fuzz_frames,
    fuzz_encode,
    fuzz_names,
)


def run(seed: int, seconds: float, count_max: int | None = None) -> int:
    """Try inputs until the time is over, or that many; return how many were tried."""
    random = Random(seed)
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end and count != count_max:
        fuzz = random.choice(FUZZERS)
        try:
            fuzz(random)
        except Exception as error:
            error.add_note(f"input {count} of seed {seed}, {fuzz.__name__}")
            raise
        count += 1
    return count


def main() -> None:
    """Fuzz, and print what is needed to do it again."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=None, help="default: a random one")
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    seed = Random().getrandbits(32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}; the extension is {state}", flush=True)
    print(f"{run(seed, arguments.seconds)} inputs, no difference")


if __name__ == "__main__":
    main()
