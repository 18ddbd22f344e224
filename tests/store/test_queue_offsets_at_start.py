"""Queue offsets after a start: what a record or a consume queue may say, and what it may not."""

import pytest

from hastore.store.topic_queue_table import TopicQueueTable
from tests.store.fake_disk import FakeDisk, fake_env
from tests.store.open_log import append, open_log


@pytest.mark.parametrize("text", ["7" * 5000, "1000000", "-3", "0", "x"])
def test_a_senseless_batch_count_counts_as_one(text):
    """A client's INNER_NUM neither keeps the store from opening nor skews the queue offsets."""
    disk = FakeDisk()
    log = open_log(fake_env(disk), mapped_file_size=16_384)
    append(log, sys_flag=0x80, properties={"INNER_NUM": text})
    assert append(open_log(fake_env(disk.kill()), mapped_file_size=None)).queue_offset == 1


def test_a_queue_offset_beyond_any_field_is_not_noted():
    """A record whose queue offset is the greatest there is leaves its queue usable."""
    table = TopicQueueTable()
    table.note(b"t", 0, 2**63)
    assert table.queue_count == 0
    table.note(b"t", 0, 2**63 - 1)
    assert table.find("t").next_offsets == {0: 2**63 - 1}
