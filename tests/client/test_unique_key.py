"""UNIQ_KEY: its form, its timestamp and its uniqueness."""

from __future__ import annotations

import random
from datetime import UTC, datetime

from hastore.client.unique_key import UniqueKeyMaker

NOW_MS = 1_795_240_062_273


def test_a_key_has_rocketmqs_form():
    """32 upper-case hex digits: producer, milliseconds since the month began, counter."""
    key = UniqueKeyMaker(random.Random(1), NOW_MS).make(NOW_MS + 5)
    assert len(key) == 32
    assert key == key.upper()
    month = datetime.fromtimestamp(NOW_MS / 1000, UTC).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    assert int(key[20:28], 16) == NOW_MS + 5 - int(month.timestamp() * 1000)
    assert key[28:] == "0001"


def test_keys_are_unique_while_the_clock_stands_still():
    """When the counter has wrapped around, the producer's part is incremented."""
    maker = UniqueKeyMaker(random.Random(1), NOW_MS)
    keys = [maker.make(NOW_MS) for _ in range(200_000)]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {32}


def test_two_producers_have_different_keys():
    """Their keys differ in eighty random bits."""
    randomness = random.Random(1)
    one, two = (UniqueKeyMaker(randomness, NOW_MS).make(NOW_MS) for _ in range(2))
    assert one[:20] != two[:20]
    assert one[20:] == two[20:]


def test_keys_keep_their_form_when_the_clock_jumps():
    """They have 32 digits before the month began and a year after it."""
    maker = UniqueKeyMaker(random.Random(1), NOW_MS)
    assert len(maker.make(NOW_MS - 40 * 86_400_000)) == 32
    assert len(maker.make(NOW_MS + 400 * 86_400_000)) == 32
