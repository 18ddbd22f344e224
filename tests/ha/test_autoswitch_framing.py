"""The autoswitch framing on a fake disk: plain frames, epochs before bytes, the confirm offset."""

import random

import pytest

from hastore.epoch_history import EpochEntry, EpochHistory
from hastore.errors import BelowConfirmMarkError, DeposedMasterError, DiskError, ProtocolError
from hastore.ha.autoswitch_framing import AutoswitchFraming
from hastore.ha.slave_cursor import FrameVerdict, SlaveCursor
from hastore.ha.slave_framing import NOT_PLAIN, LinkStart
from hastore.status import SlaveStart
from hastore.store.epoch_file import EpochFile
from hastore.store.node_identity import ConfirmMark, NodeIdentity
from hastore.wire.autoswitch_frames import FRAME_HEADER, FrameHeader, Handshake, HandshakeAnswer
from hastore.wire.double_read_buffer import DoubleReadBuffer
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeOffload, fake_env
from tests.support.env.scripted_disk import disk_full

UUID = "0b5c6d7e-0000-4000-8000-000000000001"


def history(*entries):
    return EpochHistory(tuple(EpochEntry(*entry) for entry in entries))


class Log:
    """A log as the framing sees it."""

    path = "/d"

    def __init__(self, max_offset=0, min_offset=0):
        self.max_offset, self.min_offset = max_offset, min_offset
        self.flushed_offset = max_offset

    def first_message_end(self, physic_offset):
        """Messages have five bytes, and one begins at each offset that is asked for."""
        return physic_offset + 5 if physic_offset + 5 <= self.max_offset else None


class Rig:
    """A framing, its disk, and a master's answer."""

    def __init__(self, disk=None):
        self.disk = disk or FakeDisk()
        self.disk.make_dirs("/d")
        self.env = fake_env(self.disk, offload=FakeOffload())
        self.identity = NodeIdentity.open(
            self.disk, "/d", node_id=2, group="g1", last_exit_ok=True, boot_id=None,
            randomness=random.Random(1),
        )  # fmt: skip
        self.file = EpochFile(self.disk, "/d/epochFileCheckpoint")
        self.framing = AutoswitchFraming(
            env=self.env,
            identity=self.identity,
            epoch_file=self.file,
            history=self.file.load(),
            handshake=Handshake(node_id=2),
            confirm_offset=0,
        )

    async def link(self, answer, log):
        async def exchange(request, decode):
            assert request == Handshake(node_id=2).encode()
            return decode(memoryview(answer.encode()))[0]

        return await self.framing.shake_hands(exchange, log)

    def plain(self, size, offset, label, confirm):
        header = FRAME_HEADER.pack(2, size, offset, *label, confirm)
        return self.framing.plain_header(memoryview(header), 0)

    async def take(self, size, offset, label, confirm=None):
        """Take one frame the long way; return whether epochs were stored."""
        header = FrameHeader(size, offset, EpochEntry(*label), confirm).encode()
        found = self.framing.header(memoryview(header), 0)
        assert found == (offset, size)
        needs = self.framing.needs_epochs(offset, size)
        if needs:
            await self.framing.store_epochs()
        return needs


THREE = HandshakeAnswer(max_offset=2_555, epochs=history((1, 0), (2, 1_222), (3, 1_733)))


async def test_only_frames_of_an_epoch_that_is_stored_are_plain():
    """Any other is read the long way: a new label, an epoch's end, an unknown confirm offset."""
    rig = Rig()
    await rig.link(THREE, Log())
    assert rig.plain(10, 0, (1, 0), 5) == NOT_PLAIN  # nothing is stored yet
    assert await rig.take(10, 0, (1, 0))
    assert rig.plain(20, 10, (1, 0), 5) == (10, 20)
    assert rig.plain(1_212, 10, (1, 0), 5) == (10, 1_212)
    assert rig.plain(1_213, 10, (1, 0), 5) == NOT_PLAIN
    assert rig.plain(20, 10, (1, 1), 5) == NOT_PLAIN
    assert rig.plain(20, 10, (2, 1_222), 5) == NOT_PLAIN
    assert rig.plain(20, 10, (1, 0), -1) == NOT_PLAIN
    assert not await rig.take(1_212, 10, (2, 1_222))  # RocketMQ's label: the next epoch
    assert rig.plain(100, 1_222, (2, 1_222), 5) == NOT_PLAIN
    assert await rig.take(100, 1_222, (2, 1_222))
    assert rig.plain(100, 1_322, (2, 1_222), 5) == (1_322, 100)
    assert rig.file.load() == history((1, 0), (2, 1_222))


async def test_a_frame_of_another_state_is_not_plain():
    """And refused by the long way."""
    rig = Rig()
    await rig.link(THREE, Log())
    await rig.take(10, 0, (1, 0))
    header = memoryview(FRAME_HEADER.pack(1, 20, 10, 1, 0, 5))
    assert rig.framing.plain_header(header, 0) == NOT_PLAIN
    with pytest.raises(ProtocolError, match="state 1 where a frame"):
        rig.framing.header(header, 0)


async def test_an_epoch_that_cannot_be_stored_is_not_counted():
    """The next link stores it again; until then no byte of it is appended."""
    rig = Rig()
    await rig.link(THREE, Log())
    rig.disk.fail("write_file", disk_full())
    with pytest.raises(DiskError):
        await rig.take(10, 0, (1, 0))
    assert rig.framing.history == rig.file.load() == history()


async def test_the_confirm_offset_never_falls_and_never_passes_our_end():
    """Also over links; None keeps it."""
    rig = Rig()
    await rig.link(THREE, Log())
    await rig.take(100, 0, (1, 0), confirm=2_555)
    assert rig.framing.appended(100)
    assert rig.framing.confirm_offset == 100
    assert rig.plain(50, 100, (1, 0), 120) == (100, 50)
    assert rig.framing.appended(150)
    assert rig.framing.confirm_offset == 120
    await rig.take(0, 150, (1, 0), confirm=None)
    assert not rig.framing.appended(150)
    await rig.link(THREE, Log(150))
    await rig.take(0, 150, (1, 0), confirm=7)
    assert not rig.framing.appended(150)
    assert rig.framing.confirm_offset == 120


async def test_the_newest_epoch_is_durable_before_a_report():
    """A deposed master is not followed after a restart either."""
    rig = Rig()
    await rig.link(THREE, Log())
    again = Rig(rig.disk.kill())
    assert again.identity.current.seen_epoch == 3
    older = HandshakeAnswer(max_offset=10, epochs=history((1, 0), (2, 5)))
    with pytest.raises(DeposedMasterError):
        await again.link(older, Log())
    assert again.framing.epochs is None


async def test_a_log_shorter_than_its_confirm_mark_needs_no_cut():
    """Its end was lost with the power; what is there stays. A cut below the mark is an alarm."""
    rig = Rig()
    rig.file.store(history((1, 0)))
    rig = Rig(rig.disk)
    rig.identity.raise_confirm_mark(ConfirmMark(epoch=1, offset=900, master_uuid=UUID))
    answer = HandshakeAnswer(max_offset=2_000, epochs=history((1, 0), (2, 800)))
    assert await rig.link(answer, Log(700)) == LinkStart(
        point=700, asked_min=0, epoch_ends=frozenset({0, 800})
    )
    with pytest.raises(BelowConfirmMarkError):
        await rig.link(answer, Log(1_000))


async def test_what_all_members_have_is_known_from_masters_that_wait_for_us():
    """The frames of a RocketMQ master that does not wait are below its confirm offset."""
    rig = Rig()
    framing = rig.framing
    await rig.link(THREE, Log())
    await rig.take(100, 0, (1, 0), confirm=2_555)  # RocketMQ's, or bytes of long ago
    assert framing.appended(100)
    assert framing.kept_offset == 0
    await rig.take(0, 100, (1, 0), confirm=100)
    framing.appended(100)
    assert framing.kept_offset == 0
    assert rig.plain(50, 100, (1, 0), 90) == (100, 50)
    framing.appended(150)
    assert framing.kept_offset == 90
    await rig.take(0, 150, (1, 0), confirm=150)  # a heartbeat of that master
    framing.appended(150)
    assert framing.kept_offset == 150
    assert rig.plain(50, 150, (1, 0), 200) == (150, 50)
    framing.appended(200)
    assert framing.kept_offset == 150
    await rig.take(10, 200, (1, 0), confirm=200)
    framing.appended(210)
    assert framing.kept_offset == 200


async def test_nothing_is_cut_below_what_all_members_have():
    """Neither by this link's successor nor after a restart, as far as it was on the disk."""
    rig = Rig()
    log = Log()
    await rig.link(HandshakeAnswer(max_offset=0, epochs=history((1, 0))), log)
    await rig.take(100, 0, (1, 0), confirm=0)
    await rig.take(0, 100, (1, 0), confirm=100)
    log.max_offset = 100
    rig.framing.appended(100)
    lost = HandshakeAnswer(max_offset=90, epochs=history((1, 0), (2, 90)))
    with pytest.raises(BelowConfirmMarkError):
        await rig.link(lost, log)
    # Of the message at 96 only a part was acknowledged: it was never PUT_OK.
    torn = HandshakeAnswer(max_offset=96, epochs=history((1, 0), (2, 96)))
    assert (await rig.link(torn, log)).point == 96
    log.flushed_offset = 95
    rig.framing.keep_mark()
    again = Rig(rig.disk.kill())
    assert again.identity.current.confirm_mark == ConfirmMark(epoch=1, offset=95)
    again.framing.keep_mark()  # before any link
    with pytest.raises(BelowConfirmMarkError):
        await again.link(lost, log)


# -- the cursor and the appender -------------------------------------------------------------------


async def test_heartbeats_while_comparing_mean_nothing_until_they_repeat():
    """RocketMQ's master sends one before the first bytes; after the second we say what is wrong."""
    rig = Rig()
    rig.file.store(history((1, 0)))
    rig = Rig(rig.disk)
    await rig.link(HandshakeAnswer(max_offset=900, epochs=history((1, 0))), Log(500))
    cursor = SlaveCursor(SlaveStart.EARLIEST, rig.framing)
    assert cursor.first_report(0) == 0
    assert cursor.first_report(100) == 100
    beat = FrameHeader(0, 100, EpochEntry(1, 0), None).encode()
    for expected in (None, "sends nothing from 100 on"):
        buffer = DoubleReadBuffer(4_096)
        buffer.free()[: len(beat)] = beat
        buffer.received(len(beat))
        verdict, frame = cursor.next_frame(buffer, 100, 500)
        assert (verdict, frame.size) == (FrameVerdict.APPEND, 0)
        assert (expected is None) is (cursor.warning is None)
    assert "sends nothing from 100 on" in str(cursor.warning)
