"""Consume queues against a dict: puts, commits, flushes, restarts, crashes, truncation, expiry."""

import contextlib
import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hastore.errors import DiskFullError
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.scripted_disk import disk_full
from tests.support.store.consume_queues import ROOT, all_units, flush, open_queues

QUEUES = [("a", 0), ("a", 1), ("b", 0)]


class ConsumeQueueMachine(RuleBasedStateMachine):
    """``log`` holds the log's records; units of records below ``flushed`` are durable."""

    @initialize(file_size=st.sampled_from([100, 400, 1_000, 4_000]), data=st.data())
    def start(self, file_size, data):
        self.file_size = file_size
        self.disk = FakeDisk()
        self.log = []  # (topic, queue_id, queue_offset, physic_offset, size, tags_code)
        self.end = self.min = self.flushed = 0
        self.next_offsets = {key: data.draw(st.sampled_from([0, 7, 1_234])) for key in QUEUES}
        self.store = open_queues(self.disk, file_size=file_size)

    # -- the log ---------------------------------------------------------------------------------

    @rule(key=st.sampled_from(QUEUES), count=st.integers(1, 120), size=st.integers(91, 300))
    def put(self, key, count, size):
        for _ in range(count):
            index = self.next_offsets[key]
            record = (*key, index, self.end, size, index % 5 - 2)
            self.next_offsets[key] = index + 1
            self.log.append(record)
            self.store.put(*record)
            self.end += size

    @rule(bytes_lost=st.integers(0, 20_000))
    def truncate(self, bytes_lost):
        """Remove whole records at the log's end, which are not dispatched again."""
        wanted = max(self.end - bytes_lost, self.min)
        while self.log and self.end > wanted:
            topic, queue_id, index, offset, _, _ = self.log.pop()
            self.next_offsets[topic, queue_id] = index
            self.end = offset
        self.flushed = min(self.flushed, self.end)
        self.store.truncate(self.end)

    @rule(share=st.floats(0, 1))
    def expire(self, share):
        offsets = [record[3] for record in self.log if record[3] <= self.flushed]
        if offsets:  # only flushed records expire
            self.min = max(self.min, offsets[int(share * (len(offsets) - 1))])
        self.store.delete_expired(self.min)

    # -- the queues ------------------------------------------------------------------------------

    @rule()
    def commit(self):
        self.store.commit()
        self.compare()

    @rule(reaches=st.integers(0, 20))
    def commit_on_a_full_disk(self, reaches):
        self.disk.fail("pwrite", disk_full(), reaches=reaches)
        with contextlib.suppress(DiskFullError):
            self.store.commit()
        self.disk.heal()

    @rule()
    def flush(self):
        self.store.commit()
        flush(self.store)
        self.flushed = self.end

    @rule()
    def restart(self):
        self.flush()
        self.store.close()
        self.disk = self.disk.kill()
        self.reopen(last_exit_ok=True)

    @rule()
    def kill(self):
        self.disk = self.disk.kill()
        self.reopen()

    @rule(seed=st.integers(0, 2**32), share=st.floats(0, 1))
    def cut_power(self, seed, share):
        choice = random.Random(seed)
        self.disk = self.disk.cut_power(lambda: choice.random() < share)
        self.reopen()

    def reopen(self, *, last_exit_ok=False):
        """Start like a node: truncate, expire, then dispatch from the last flush."""
        self.store = open_queues(self.disk, file_size=self.file_size, last_exit_ok=last_exit_ok)
        self.store.truncate(self.end)
        self.store.delete_expired(self.min)
        for record in self.log:
            if record[3] >= max(self.flushed, self.min):
                self.store.put(*record)
        self.store.commit()
        self.compare()

    # -- checks ----------------------------------------------------------------------------------

    def compare(self):
        for key in QUEUES:
            expected = {
                record[2]: record[3:]
                for record in self.log
                if record[:2] == key and record[3] >= self.min
            }
            queue = self.store.find(*key)
            if queue is None:
                assert not expected
                continue
            assert queue.max_offset == self.next_offsets[key]
            self.store.delete_expired(self.min)
            assert all_units(queue) == expected

    @invariant()
    def files_lie_end_to_end(self):
        if not hasattr(self, "store"):
            return
        for queue in self.store:
            starts = [file.start for file in queue.files]
            assert starts == [starts[0] + i * self.file_size for i in range(len(starts))]
            names = [f"{start:020d}" for start in starts]
            assert list(self.disk.files(f"{ROOT}/{queue.topic}/{queue.queue_id}/")) == names


TestConsumeQueues = ConsumeQueueMachine.TestCase
TestConsumeQueues.settings = settings(stateful_step_count=30)
