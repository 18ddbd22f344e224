"""The positions of a record's fields, as RocketMQ's sources and golden files have them."""

import pytest

from hastore.store.record.layout import (
    BODY_POSITIONS,
    BORN_HOST_V6_FLAG,
    HOST_FLAGS,
    RECORD_SIZE_MIN,
    STORE_HOST_V6_FLAG,
    head_struct,
    position_of,
)


def test_positions_of_fields():
    """They are those of the diagram in the module's docstring."""
    names = ("size", "magic", "queue_id", "queue_offset", "stored_offset", "sys_flag", "born_ms")
    assert [position_of(name) for name in names] == [0, 4, 12, 20, 28, 36, 40]
    assert [position_of("store_ms", flags) for flags in (0, HOST_FLAGS)] == [56, 68]
    assert BODY_POSITIONS == {
        0: 88,
        BORN_HOST_V6_FLAG: 100,
        STORE_HOST_V6_FLAG: 100,
        HOST_FLAGS: 112,
    }
    assert RECORD_SIZE_MIN == 91


def test_a_struct_reads_the_named_fields_only():
    """What lies between them is skipped, what follows the last is not needed."""
    reader = head_struct("magic", "stored_offset")
    assert reader.size == 36
    head = bytes(4) + (7).to_bytes(4) + b"x" * 20 + (9).to_bytes(8)
    assert reader.unpack(head) == (7, 9)


@pytest.mark.parametrize(
    "names", [("magic", "size"), ("sice", "magic"), ("magic", "offset"), ("size", "size")]
)
def test_names_in_another_order_or_misspelt_are_a_programmers_error(names):
    """They would otherwise be skipped, and every field be read as another."""
    with pytest.raises(AssertionError):
        head_struct(*names)
