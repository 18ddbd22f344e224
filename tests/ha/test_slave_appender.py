"""How a slave stores its master's bytes, and what it reads back from its own log."""

import itertools

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from hastore.errors import DiskError, ExpiredError, FileSizeMismatchError
from hastore.ha.file_size_watch import ends_with_blank
from hastore.ha.slave_appender import FRAMES_PER_TURN_MAX, CutNeededError, SlaveAppender
from hastore.ha.slave_framing import LinkStart
from hastore.store.commit_log import CommitLog
from hastore.store.record.message_codec import encode_blank
from hastore.wire.double_read_buffer import DoubleReadBuffer
from hastore.wire.ha_frames import encode_header
from tests.support.env.fake_env import FakeOffload, fake_env
from tests.support.store.log_builder import LogBuilder
from tests.support.store.open_log import append_data, make_file, open_log

FILE_SIZE = 64 * 1024
FAKE_BLANKS = encode_blank(8) * 2_000


@attrs.define(eq=False)
class Slave:
    """An appender over a log on a fake disk; ``walked`` are the ranges that it has read back."""

    offload: FakeOffload
    log: CommitLog
    walked: list[tuple[int, int]]
    appender: SlaveAppender = attrs.field(init=False)

    def __attrs_post_init__(self):
        self.appender = SlaveAppender(
            env=fake_env(offload=self.offload),
            commit_log=self.log,
            flush_manager=self,
            allocate_service=self,
            master=("127.0.0.1", 10_912),
            notify_dispatch=lambda: None,
            last_message_offset=lambda: None,
        )

    def notify_appended(self):
        pass

    async def wait_for_file(self):
        make_file(self.log)

    async def receive(self, data, ends):
        """Append ``data`` from the log's end on, in frames that end at ``ends``."""
        start = self.log.max_offset
        for end in ends:
            await self.appender.append(start, memoryview(data)[start:end])
            start = end

    @property
    def walked_bytes(self):
        return sum(end - start for start, end in self.walked)


@pytest.fixture
def slave(monkeypatch):
    offload = FakeOffload()
    slave = Slave(offload, open_log(master=False, mapped_file_size=FILE_SIZE), [])
    read = CommitLog.read

    def recorded_read(log, physic_offset, size):
        data = read(log, physic_offset, size)
        slave.walked.append((physic_offset, physic_offset + len(data)))
        return data

    monkeypatch.setattr(CommitLog, "read", recorded_read)
    return slave


def fake_blank_ends(data):
    """Return the ends of frames that look like a BLANK's end, inside bodies of FAKE_BLANKS."""
    bodies = []
    while (found := data.find(FAKE_BLANKS, bodies[-1] + 1 if bodies else 0)) >= 0:
        bodies.append(found)
    return [end for body in bodies for end in range(body + 800, body + len(FAKE_BLANKS), 800)]


def file_of_fake_blanks(count=3, **fields):
    log = LogBuilder(file_size=FILE_SIZE)
    for _ in range(count):
        log.add(FAKE_BLANKS, **fields)
    return log


async def test_each_byte_of_a_body_of_blanks_is_walked_once(slave):
    """Every frame that ends in the body causes a walk, which continues the last one."""
    data = bytes(file_of_fake_blanks().data)
    ends = fake_blank_ends(data)
    assert len(ends) > 50
    await slave.receive(data, [*ends, len(data)])
    assert slave.offload.runs == len(ends)
    assert slave.walked_bytes == ends[-1]
    assert slave.log.max_offset == len(data)


async def test_ordinary_frames_cause_no_walk(slave):
    """They end at records, at files and inside records; none looks like the end of a BLANK."""
    log = LogBuilder(file_size=FILE_SIZE).fill(2_000)
    data = bytes(log.data)
    files = range(FILE_SIZE, len(data), FILE_SIZE)
    pieces = [offset + 50 for offset in log.offsets[::7]]
    await slave.receive(data, sorted({*log.offsets[1:], *files, *pieces, len(data)}))
    assert len(files) > 4
    assert not slave.offload.runs


async def test_real_blank_after_fake_ones_reveals_the_masters_file_size(slave):
    """A walk that fake BLANKs caused ends at the real one."""
    log = LogBuilder(file_size=FILE_SIZE // 2).add(FAKE_BLANKS).add(bytes(8_000))
    fakes = fake_blank_ends(bytes(log.data))
    log.add(bytes(9_000))
    data = bytes(log.data)
    with pytest.raises(FileSizeMismatchError, match=f"are {FILE_SIZE // 2} bytes"):
        await slave.receive(data, [*fakes, FILE_SIZE // 2])
    assert slave.walked_bytes == FILE_SIZE // 2


async def test_the_next_file_is_walked_from_its_own_start(slave):
    """The result for one file does not apply to the next."""
    log = file_of_fake_blanks(count=3)
    log.blank(FILE_SIZE - len(log.data))
    first = fake_blank_ends(bytes(log.data))
    log.add(FAKE_BLANKS)
    data = bytes(log.data)
    second = fake_blank_ends(data)[len(first) :]
    await slave.receive(data, [*first, FILE_SIZE, *second])
    assert slave.walked[-1][1] == second[-1]
    assert FILE_SIZE in [start for start, _ in slave.walked]
    assert slave.walked_bytes == first[-1] + second[-1] - FILE_SIZE


@pytest.mark.parametrize("is_new_link", [True, False], ids=["a new link", "a log cut back"])
async def test_walk_starts_again_after_a_new_link_or_a_truncation(slave, is_new_link):
    """The new walk begins at the start of the file."""
    data = bytes(file_of_fake_blanks().data)
    ends = fake_blank_ends(data)
    await slave.receive(data, ends[:3])
    slave.walked.clear()
    if is_new_link:
        slave.appender.reset()
        slave.appender.position = ends[2]
    else:
        shorter = open_log(fake_env(), master=False, mapped_file_size=FILE_SIZE)
        append_data(shorter, 0, data[: ends[0]])
        slave.appender.commit_log = slave.log = shorter
        slave.appender.position = ends[0]
    next_end = slave.log.max_offset + 800
    await slave.receive(data, [next_end])
    assert slave.walked == [(0, next_end)]


async def test_walk_resumes_after_a_read_error(slave, monkeypatch):
    """The error ends the link; bytes walked before it are not walked again."""
    data = bytes(file_of_fake_blanks().data)
    ends = fake_blank_ends(data)
    await slave.receive(data, ends[:2])

    def broken(log, physic_offset, size):
        raise DiskError("cannot read F: Input/output error", path="F")

    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "read", broken)
        with pytest.raises(DiskError):
            await slave.receive(data, ends[2:3])
    assert not slave.appender.is_waiting
    await slave.receive(data, ends[3:4])
    assert slave.walked_bytes == ends[3]


async def test_walk_counts_as_waiting_for_the_local_disk(slave):
    """The master's silence does not count during the walk, and counts again afterwards."""
    data = bytes(file_of_fake_blanks().data)
    await slave.receive(data, [50])  # the file exists, so nothing waits for it
    slave.offload.hang()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slave.receive, data, fake_blank_ends(data)[:1])
        await trio.testing.wait_all_tasks_blocked()
        was_waiting = slave.appender.is_waiting
        slave.offload.go_on()
    assert was_waiting
    assert not slave.appender.is_waiting


def framed(data, ends, start=0):
    """Return ``data`` as frames whose bodies end at ``ends``."""
    stream = b""
    for end in ends:
        stream += encode_header(start, end - start) + data[start:end]
        start = end
    return stream


def buffer_of(stream, size=1 << 20):
    buffer = DoubleReadBuffer(size)
    with buffer.free() as room:
        room[: len(stream)] = stream
    buffer.received(len(stream))
    return buffer


def two_files():
    log = LogBuilder(file_size=FILE_SIZE)
    for index in range(90):
        log.add(bytes([index]) * 1_000)
    assert len(log.data) > FILE_SIZE
    return bytes(log.data)


@given(
    st.lists(st.integers(min_value=1, max_value=80_000), min_size=1, max_size=30),
    st.integers(min_value=0, max_value=50),
    st.booleans(),
)
def test_append_frames_takes_plain_frames_and_leaves_all_others(sizes, cut, one_ends_the_file):
    """Bytes, position and what is left in the buffer agree; no frame of two files is taken."""
    data = two_files()
    ends = {min(end, len(data)) for end in itertools.accumulate(sizes)}
    ends = sorted(ends | {FILE_SIZE, FILE_SIZE + 10} if one_ends_the_file else ends)
    slave = Slave(FakeOffload(), open_log(master=False, mapped_file_size=FILE_SIZE), [])
    make_file(slave.log)
    append_data(slave.log, 0, data[:1])
    slave.appender.reset()
    slave.appender.position = 1
    stream = framed(data, [end for end in ends if end > 1], 1)
    stream = stream[: max(len(stream) - cut, 0)]
    buffer = buffer_of(stream)
    appended = slave.appender.append_frames(buffer)
    position = slave.appender.position
    assert position == slave.log.max_offset
    assert slave.log.read(0, position) == data[: min(position, FILE_SIZE)]
    taken = [end for end in ends if 1 < end <= position]
    assert (appended is None) == (not taken)
    if appended is not None:
        bounds = [1, *taken]
        assert appended.frames == len(taken)
        assert appended.last_size == bounds[-1] - bounds[-2]
        assert appended.size_before == (bounds[-2] - bounds[-3] if len(taken) > 1 else 0)
    left = bytes(buffer.view[buffer.dispatch_position : buffer.write_position])
    assert stream.endswith(left)
    assert len(stream) - len(left) == sum(12 for _ in taken) + (position - 1 if taken else 0)
    following = [end for end in ends if end > position]
    if following and following[0] <= FILE_SIZE and following[0] - position + 12 <= len(left):
        with memoryview(data)[position : following[0]] as body:
            assert ends_with_blank(body) != (following[0] == FILE_SIZE)


@pytest.mark.parametrize(
    "stream",
    [
        encode_header(1, 0),  # a heartbeat
        encode_header(2, 5) + b"bytes",  # not where our log ends
        encode_header(1, -5) + b"bytes",
        encode_header(1, 16) + bytes(8) + encode_blank(8),  # no file of ours ends there
        encode_header(1, FILE_SIZE) + bytes(FILE_SIZE),  # longer than our file
        encode_header(1, 5) + b"byte",
        encode_header(1, 5)[:11],
    ],
)
def test_append_frames_takes_no_other_frame(slave, stream):
    """``append`` and the cursor decide about them."""
    make_file(slave.log)
    append_data(slave.log, 0, b"\0")
    slave.appender.position = 1
    buffer = buffer_of(stream)
    assert slave.appender.append_frames(buffer) is None
    assert (buffer.unparsed, slave.log.max_offset, slave.appender.position) == (len(stream), 1, 1)


def test_frames_before_a_failed_write_reach_flush_and_dispatch(monkeypatch):
    """The error ends the link, but they are in the log."""
    slave = Slave(FakeOffload(), open_log(master=False, mapped_file_size=FILE_SIZE), [])
    make_file(slave.log)
    append_data(slave.log, 0, b"\0")
    slave.appender.position = 1
    woken, real = [], CommitLog.append_data

    def fails_second(log, physic_offset, data):
        if physic_offset > 1:
            raise DiskError("planted", path="/d")
        return real(log, physic_offset, data)

    monkeypatch.setattr(CommitLog, "append_data", fails_second)
    slave.appender.notify_dispatch = lambda: woken.append(slave.log.max_offset)
    buffer = buffer_of(encode_header(1, 5) + b"first" + encode_header(6, 6) + b"second")
    with pytest.raises(DiskError):
        slave.appender.append_frames(buffer)
    assert woken == [slave.appender.position] == [6]


def test_append_frames_stops_after_a_turns_frames(slave):
    """A read buffer full of tiny frames would hold up all other tasks."""
    make_file(slave.log)
    append_data(slave.log, 0, b"\0")
    slave.appender.position = 1
    count = FRAMES_PER_TURN_MAX + 1
    buffer = buffer_of(b"".join(encode_header(at, 1) + b"x" for at in range(1, count + 1)))
    assert slave.appender.append_frames(buffer).frames == FRAMES_PER_TURN_MAX
    assert slave.appender.append_frames(buffer).frames == 1


async def test_bytes_after_the_point_are_not_compared(slave):
    """The master's log has grown since the handshake: a frame may pass the point."""
    data = bytes(range(1, 201)) * 50
    make_file(slave.log)
    append_data(slave.log, 0, data)
    slave.appender.reset(LinkStart(point=6_000, asked_min=100))
    start = slave.appender.position
    assert 100 <= start <= 6_000 - 4_096
    masters = data[start:6_000] + b"other"
    with pytest.raises(CutNeededError) as caught:
        await slave.appender.append(start, memoryview(masters))
    assert (caught.value.physic_offset, caught.value.end_offset) == (6_000, 10_000)
    assert slave.log.max_offset == 10_000


def test_nothing_is_cut_if_the_master_has_deleted_what_was_to_be_compared(slave):
    """Its log begins at the point, or after it."""
    make_file(slave.log)
    append_data(slave.log, 0, bytes(range(1, 201)) * 50)
    slave.appender.begin_later(6_000)
    with pytest.raises(ExpiredError, match="nothing is left to compare"):
        slave.appender.reset(LinkStart(point=6_000, asked_min=0))
    slave.appender.reset(LinkStart(point=10_000, asked_min=0))
    assert slave.appender.position == 6_000
