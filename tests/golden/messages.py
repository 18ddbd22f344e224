"""The messages of the golden stores: the formula by which a driver put them into RocketMQ.

::

    0 to n-1   the n-th of 280 (``propcrc``: 40): topic, queue, size and properties count up
    n          three delayed messages: levels 1, 3 and 18 of GoldenA's queue 2
    n + 3      a transaction: prepared, committed, rolled back
    n + 6      IPv6 hosts: the producer's, the broker's, both
    n + 9      no properties at all
    n + 10     a topic of 200 bytes, which takes a V2 record
    n + 11     a batch of five, put in one call

Bodies are letters: byte j of the body with seed s is letter (5 s + 7 j + j // 32) % 26.  Properties
are in the iteration order of Java's HashMap.
"""

import attrs

from hastore.config import DEFAULT_DELAY_LEVELS
from hastore.message import Message
from hastore.store.record.delay_levels import DelayLevels
from hastore.store.record.delay_message import to_schedule

SIZES = (0, 1, 7, 64, 100, 255, 256, 1000, 1024, 3000, 5000)
TOPICS = ("GoldenA", "GoldenB", "Golden_C")
TAGS = ("TagA", "TagB", "TagC", "TagD")
BORN_HOST = ("10.1.2.3", 34_567)
BORN_HOST_V6 = ("2001:db8::1", 40_000)
STORE_HOST = ("127.0.0.1", 10_911)
STORE_HOST_V6 = ("fe80::9", 10_911)
LONG_TOPIC = "LongTopic_" + "".join(chr(97 + (10 + j) % 26) for j in range(190))
UNIQ_KEY_FIRST = 1000
BATCH_COUNT = 5
PREPARED, COMMITTED, ROLLED_BACK = 0x4, 0x8, 0xC
V6_BORN, V6_STORE, MULTI_TAGS = 0x10, 0x20, 0x2
LEVELS = DelayLevels.parse(DEFAULT_DELAY_LEVELS)


@attrs.frozen
class Given:
    """One message as it is stored, without offsets and times."""

    message: Message
    store_host: tuple[str, int] = STORE_HOST
    ends_transaction: bool = False  # the one of the prepared message before it
    is_in_batch: bool = False


def letters(seed, size):
    return bytes(97 + (5 * seed + 7 * j + j // 32) % 26 for j in range(size))


def java_hash(text):
    """Return Java's ``String.hashCode`` of a text without surrogates."""
    value = 0
    for letter in text:
        value = (31 * value + ord(letter)) & 0xFFFFFFFF
    return value - (value >> 31 << 32)


def in_hash_map_order(properties):
    """Return the entries in the order of a Java HashMap with 16 buckets."""

    def bucket(item):
        value = java_hash(item[0]) & 0xFFFFFFFF
        return (value ^ value >> 16) & 15

    return dict(sorted(properties.items(), key=bucket))


def uniq_key(number):
    return f"{UNIQ_KEY_FIRST + number:032X}"


def ordinary(i):
    """Return the i-th ordinary message; each property is present with a different period."""
    properties = {}
    if i % 6 != 5:
        properties["TAGS"] = TAGS[i % 4] + "-中文" * (i % 9 == 0)
    if i % 4 != 3:
        properties["KEYS"] = f"K{i} K{i // 2} dup" if i % 4 == 2 else f"K{i}"
    if i % 5 == 0:
        properties["user-p"] = f"v{i} é"
    if i % 7 == 0:
        properties["TRACE_ON"] = "true"
    return Message(
        TOPICS[i % 3],
        letters(i, SIZES[(7 * i + i // 11) % 11]),
        queue_id=i % 4,
        flag=i % 3,
        sys_flag=MULTI_TAGS if i % 13 == 0 else 0,
        properties=properties,
    )


def special():
    """Yield the messages after the ordinary ones."""
    for level in (1, 3, 18):
        properties = {"KEYS": f"KD{level}", "TAGS": "TagDelay", "DELAY": str(level)}
        yield Given(Message("GoldenA", letters(level, 120), queue_id=2, properties=properties))
    for kind in (PREPARED, COMMITTED, ROLLED_BACK):
        properties = {"KEYS": f"KTx{kind}", "TAGS": "TagTx", "TRAN_MSG": "true"}
        yield Given(
            Message("GoldenTx", letters(kind, 90), sys_flag=kind, properties=properties),
            ends_transaction=kind != PREPARED,
        )
    for number, flags in enumerate((V6_BORN, V6_STORE, V6_BORN | V6_STORE)):
        yield Given(
            Message(
                "GoldenV6",
                letters(number + 1, 50),
                queue_id=number,
                born_host=BORN_HOST_V6 if flags & V6_BORN else BORN_HOST,
                properties={"KEYS": f"KV6{number + 1}", "TAGS": "TagV6"},
            ),
            STORE_HOST_V6 if flags & V6_STORE else STORE_HOST,
        )
    yield Given(Message("GoldenNoProps", letters(5, 33)))
    properties = {"KEYS": "KLong", "TAGS": "TagLong"}
    yield Given(Message(LONG_TOPIC, letters(6, 77), properties=properties))
    for number in range(BATCH_COUNT):
        properties = {"KEYS": f"KBatch{number}", "TAGS": "TagBatch", "WAIT": "true"}
        body = letters(number, 40 + number)
        message = Message("GoldenBatch", body, queue_id=1, properties=properties)
        yield Given(message, is_in_batch=True)


def messages(ordinary_count):
    """Return all messages of a store, in the order in which they were put."""
    given = [Given(ordinary(i)) for i in range(ordinary_count)] + list(special())
    return [_completed(number, one) for number, one in enumerate(given)]


def _completed(number, given):
    """Add UNIQ_KEY and born host, and return the message in its stored form."""
    message = given.message
    if message.properties is not None:
        message = attrs.evolve(
            message, properties={**message.properties, "UNIQ_KEY": uniq_key(number)}
        )
        message = to_schedule(message, LEVELS)
        message = attrs.evolve(message, properties=in_hash_map_order(message.properties))
    if message.born_host != BORN_HOST_V6:
        message = attrs.evolve(message, born_host=BORN_HOST)
    return attrs.evolve(given, message=message)
