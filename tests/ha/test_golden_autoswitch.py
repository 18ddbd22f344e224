"""Replay AutoSwitch streams, recorded from real RocketMQ 5, into our slave.

Streams of an empty slave are fed as they are.  A recorded slave that had a log reported the
consistent point itself; ours begins below it, to compare, so the master's bytes of that overlap are
put before the recorded frames.  What cannot be replayed, and why: ``CANNOT``.
"""

import json
import subprocess

import attrs
import pytest
import trio

import hastore
from hastore.broker.node.slave_store import cut_slave_store
from hastore.config import HAConfig
from hastore.env.real import real_env
from hastore.epoch_history import EpochHistory
from hastore.errors import ForeignGroupError, ProtocolError
from hastore.ha.ha_client import HAClient, LinkEndedError
from hastore.ha.ha_link import HALink
from hastore.ha.slave_appender import CutNeededError
from hastore.status import HAProtocol, PutMessageStatus, SlaveStart
from hastore.store.epoch_file import EPOCH_FILE, decode_epochs
from hastore.store.node_identity import IDENTITY_FILE, NodeIdentity, read_identity
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_verify import verify_log
from hastore.wire.autoswitch_frames import (
    HANDSHAKE,
    HANDSHAKE_SIZE,
    REPORT,
    REPORT_SIZE,
    FrameHeader,
    HandshakeAnswer,
)
from tests.support.nodes.autoswitch_master import (
    autoswitch_master,
    epochs_in,
    make_member,
    member_config,
)
from tests.support.nodes.harness import log_bytes, master_config
from tests.support.waiting import eventually

SIZES = (1, 2, 3, 5, 8, 11, 12, 13, 35, 36, 37, 64, 1000, 1448, 32_768, 2**20, 2**22)
FEW_SIZES = (7, 1448, 2**22)
# Of slaves that began without a log.
NEW_SLAVES = (
    "async_learner/stream_a_1",
    "autoswitch_1/stream_1",
    "confirm_offset/stream_a_1",
    "confirm_offset/stream_b_1",
    "confirm_restart/stream_a_1",
    "empty_master/stream_a_1",
    "epochs_first_frame/stream_a_1",
    "epochs_first_frame_lost/stream_a_1",
    "epochs_without_messages/stream_a_1",
    "expand_shrink/stream_a_1",
    "failover/stream_epoch1_1",
    "failover_crash/stream_epoch1_1",
    "failover_live/stream_a_1",
    "hazard_half_record_promotion/stream_a_1",
    "hazard_refused_epoch/stream_a_1",
    "hazard_same_epoch_restart/stream_a_1",
    "hazard_stale_tail/stream_a_1",
    "slave_ahead/stream_a_1",
    "slave_without_epoch_file/stream_a_1",
    "sync_from_last_file/stream_a_1",
    "truncate_to_zero/stream_a_1",
)
# Connections of one slave, in order; the first without a log.
CHAINS = (
    ("autoswitch_1/stream_1", "autoswitch_2/stream_1", "autoswitch_2/stream_2"),
    tuple(f"epochs_without_messages/stream_a_{n}" for n in (1, 2, 3)),
    tuple(f"expand_shrink/stream_a_{n}" for n in (1, 3, 5)),
    ("slave_ahead/stream_a_1", "slave_ahead/stream_a_2"),
    ("slave_without_epoch_file/stream_a_1", "slave_without_epoch_file/stream_a_2"),
    ("hazard_refused_epoch/stream_a_1", "hazard_refused_epoch/stream_a_2"),
)
CANNOT = {
    # The log that the slave had was not recorded.
    "failover_live": ("stream_a_2", "stream_b_1"),
    "hazard_refused_epoch": ("stream_b_1",),
    "hazard_stale_tail": ("stream_b_1", "stream_b_2"),
    # Connections that end with the handshake's answer: the figures are vectors of LinkEpochs.
    "hazard_same_epoch_restart": ("stream_a_3", "stream_a_4", "stream_a_5"),
    "no_common_epoch": tuple(f"stream_a_{n}" for n in (1, 2, 3, 4, 5)),
    "truncate_not_aligned": tuple(f"stream_a_{n}" for n in (1, 2, 3, 4)),
}
ALONE = (
    "failover/stream_epoch2_1",
    "failover_crash/stream_epoch2_1",
    "hazard_offset_before_first_epoch/stream_a_1",
    "hazard_same_epoch_restart/stream_a_2",
)


@attrs.frozen
class Recording:
    """One recorded connection."""

    answer: HandshakeAnswer
    answer_bytes: bytes
    frames: tuple[tuple[FrameHeader, bytes], ...]  # with the header's bytes
    handshake: bytes
    reports: tuple[int, ...]

    @classmethod
    def read(cls, recorded_golden, name):
        path = recorded_golden / "autoswitch" / name
        m2s = memoryview(path.with_name(f"{path.name}_m2s.bin").read_bytes())
        s2m = path.with_name(f"{path.name}_s2m.bin").read_bytes()
        answer, position = HandshakeAnswer.decode(m2s)
        answer_bytes, frames = bytes(m2s[:position]), []
        while len(m2s) - position >= 36:
            header = FrameHeader.decode(m2s, position)
            end = position + 36 + header.body_size
            frames.append((header, bytes(m2s[position:end])))
            position = end
        begin = HANDSHAKE_SIZE
        while s2m[begin : begin + 4] == b"\0\0\0\1":  # RocketMQ's slave repeats its handshake
            begin += HANDSHAKE_SIZE
        reports = [
            REPORT.unpack_from(s2m, at)[1]
            for at in range(begin, len(s2m) - REPORT_SIZE + 1, REPORT_SIZE)
        ]
        return cls(answer, answer_bytes, tuple(frames), s2m[:HANDSHAKE_SIZE], tuple(reports))

    @property
    def start(self):
        """The offset of the first byte."""
        return next((h.physic_offset for h, _ in self.frames if h.body_size), self.reports[0])

    @property
    def end(self):
        return max(
            (h.physic_offset + h.body_size for h, _ in self.frames if h.body_size), default=0
        )

    @property
    def body(self):
        return b"".join(data[36:] for _, data in self.frames)

    @property
    def news(self):
        """The reports without the first one and the repeats while idle."""
        return list(dict.fromkeys(self.reports[1:]))

    def epochs_of(self, begin, end):
        """Return the epochs of a log with these bytes."""
        entries = (e for e in self.answer.epochs.entries if e.start_offset <= end)
        return EpochHistory(tuple(entries)).drop_expired(begin)


class ScriptedSocket:
    """Returns a master's bytes in pieces: the answer, and after the first report the frames.

    ``frames_from`` returns them for the first report.
    """

    def __init__(self, answer, frames_from, sizes):
        self.data = memoryview(answer)
        self.frames_from = frames_from
        self.sizes = iter(sizes)
        self.sent = bytearray()

    async def recv_into(self, buffer):
        if not self.data and self.frames_from is not None and len(self.sent) > HANDSHAKE_SIZE:
            first_report = REPORT.unpack_from(self.sent, HANDSHAKE_SIZE)[1]
            self.data, self.frames_from = memoryview(self.frames_from(first_report)), None
        count = min(next(self.sizes, 0), len(buffer), len(self.data))
        buffer[:count] = self.data[:count]
        self.data = self.data[count:]
        return count

    async def send(self, data, flags=0):
        self.sent += data
        return len(data)

    @property
    def reports(self):
        data = self.sent[HANDSHAKE_SIZE:]
        return [offset for _, offset in REPORT.iter_unpack(bytes(data))]


def fixed_sizes(size):
    while True:
        yield size


def around_frames(recording, shift):
    """Yield the sizes of pieces that end ``shift`` bytes after the end of each frame."""
    yield len(recording.answer_bytes)
    ends, position = [], 0
    for _, data in recording.frames:
        position += len(data)
        ends.append(position + shift)
    position = 0
    for end in ends:
        if end > position:
            yield end - position
            position = end
    yield from fixed_sizes(2**22)


def config_for(path, recording):
    """Return the configuration with which our slave sends the recorded handshake."""
    _, from_last_file, is_learner, node_id = HANDSHAKE.unpack(recording.handshake)
    return member_config(
        path,
        ("127.0.0.1", 1),
        node_id=node_id,
        slave_from=SlaveStart.LAST_FILE if from_last_file else SlaveStart.EARLIEST,
        is_learner=is_learner == 1,
    )


async def feed(path, recording, sizes, overlap=lambda _start: b""):
    """Feed the recorded half to a slave; return the socket.  Raises what ends the link otherwise.

    ``overlap`` returns the master's frames from the slave's first report to the first recorded one.
    """

    def frames_from(first_report):
        return overlap(first_report) + b"".join(data for _, data in recording.frames)

    async with hastore.open_slave(config_for(path, recording)) as slave:
        env = attrs.evolve(slave.env, receive=lambda sock, buffer: sock.recv_into(buffer))
        client = HAClient(
            env,
            slave.config,
            slave.commit_log,
            slave.flush_manager,
            slave.allocate_service,
            framing=slave.ha_client.framing,
        )
        sock = ScriptedSocket(recording.answer_bytes, frames_from, sizes)
        link = client.link = HALink(
            sock,
            client.link.frame_sizes,
            None,
            trio.current_time(),
            lambda _sock, _data: 0,
            client.framing.encode_report,
        )
        client._appender.reset(await client.framing.shake_hands(client._exchange, slave.commit_log))
        link.queue_report(client._cursor.first_report(client._appender.position))
        await link.send_reports()
        with pytest.raises(LinkEndedError):
            await client._read(sock)
        assert not sock.data
        confirmed = [h.confirm_offset for h, _ in recording.frames if h.confirm_offset is not None]
        assert client.framing.confirm_offset <= max([*confirmed, 0])
    assert bytes(sock.sent[:HANDSHAKE_SIZE]) == recording.handshake
    return sock


async def check_new_slave(recorded_golden, path, name, sizes):
    """Feed a new slave; check bytes and epochs, and return its new reports after the first."""
    recording = Recording.read(recorded_golden, name)
    sock = await feed(path, recording, sizes(recording))
    size = recording.end - recording.start
    assert log_bytes(path, size) == recording.body
    assert epochs_in(path) == recording.epochs_of(recording.start, recording.end)
    assert sock.reports[0] == recording.reports[0] == 0
    assert sock.reports == sorted(sock.reports)
    _, *reports = dict.fromkeys(sock.reports)
    heartbeats = sum(not header.body_size for header, _ in recording.frames)
    assert len(sock.reports) <= 1 + len(reports) + heartbeats  # those are answered
    assert set(reports) <= set(recording.news)
    assert reports[-1] == recording.end
    return recording, reports


def test_every_recorded_stream_is_named_here(recorded_golden):
    """A new recording must be replayed, or it must be said why not."""
    found = {
        f"{p.parent.name}/{p.name.removesuffix('_m2s.bin')}"
        for p in (recorded_golden / "autoswitch").glob("*/*_m2s.bin")
    }
    cannot = {f"{directory}/{stream}" for directory, names in CANNOT.items() for stream in names}
    assert found == {*NEW_SLAVES, *(name for chain in CHAINS for name in chain), *ALONE, *cannot}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["autoswitch_1/stream_1", "epochs_first_frame/stream_a_1"])
async def test_recorded_streams_at_every_chunk_size(recorded_golden, tmp_path, name, size):
    """The slave's log is the recorded one; its reports are among the recorded ones."""
    await check_new_slave(recorded_golden, tmp_path / "s", name, lambda _: fixed_sizes(size))


@pytest.mark.parametrize("size", FEW_SIZES)
@pytest.mark.parametrize("name", NEW_SLAVES)
async def test_every_new_slave_at_some_chunk_sizes(recorded_golden, tmp_path, name, size):
    """Learners, copies from the last file, empty masters, several epochs."""
    await check_new_slave(recorded_golden, tmp_path / "s", name, lambda _: fixed_sizes(size))


@pytest.mark.parametrize("shift", [-1, 0, 1])
@pytest.mark.parametrize("name", NEW_SLAVES)
async def test_streams_cut_around_the_ends_of_frames(recorded_golden, tmp_path, name, shift):
    """Frame by frame the reports are those of RocketMQ's slave, all of them."""
    recording, reports = await check_new_slave(
        recorded_golden, tmp_path / "s", name, lambda recording: around_frames(recording, shift)
    )
    if shift == 0:
        assert [0, *reports] == list(dict.fromkeys([0, *recording.news]))


def unpacked(archive, to):
    to.mkdir()
    subprocess.run(["tar", "-xSJf", archive, "-C", to], check=True)
    (root,) = to.iterdir()
    return root


@pytest.mark.parametrize(
    ("name", "archive"),
    [
        ("autoswitch_1/stream_1", "a1_slave"),
        ("epochs_first_frame/stream_a_1", "slave"),
        ("sync_from_last_file/stream_a_1", "slave"),
    ],
)
async def test_log_and_epoch_file_are_those_of_rocketmqs_slave(
    recorded_golden, tmp_path, name, archive
):
    """Byte for byte, where the recorded slave's directory was kept."""
    recording, _ = await check_new_slave(
        recorded_golden, tmp_path / "s", name, lambda _: fixed_sizes(1448)
    )
    directory = recorded_golden / "autoswitch" / name.partition("/")[0]
    theirs = unpacked(directory / f"{archive}.tar.xz", tmp_path / "theirs")
    size = recording.end - recording.start
    assert log_bytes(tmp_path / "s", size) == log_bytes(theirs, size)
    assert (tmp_path / "s" / EPOCH_FILE).read_bytes() == (theirs / EPOCH_FILE).read_bytes()


async def test_the_first_epoch_is_not_lost(recorded_golden, tmp_path):
    """RocketMQ's slave never learned it without a leading heartbeat: 2-1222, 3-1733."""
    name = "epochs_first_frame_lost/stream_a_1"
    await check_new_slave(recorded_golden, tmp_path / "s", name, lambda _: fixed_sizes(1000))
    assert str(epochs_in(tmp_path / "s")) == "1-0, 2-1222, 3-1733"
    theirs = json.loads(
        (recorded_golden / "autoswitch/epochs_first_frame_lost/eflS.records.json").read_text()
    )
    assert theirs["epochs"] == [[2, 1_222], [3, 1_733]]


async def test_a_slave_with_half_a_record_is_promoted_at_a_whole_one(recorded_golden, tmp_path):
    """The recorded hazard_half_record_promotion: RocketMQ needs 5 s, or waits for ever."""
    name, path = "hazard_half_record_promotion/stream_a_1", tmp_path / "s"
    recording, _ = await check_new_slave(recorded_golden, path, name, lambda _: fixed_sizes(1448))
    identity = read_identity(real_env().disk, str(path))
    config = master_config(
        path,
        file_size=65_536,
        ha=HAConfig(protocol=HAProtocol.AUTOSWITCH),
        node_id=identity.node_id,
        replica_group=identity.group,
    )
    async with hastore.open_master(config) as master:
        assert (recording.end, master.max_offset) == (1_122, 422)
        put = await master.put(hastore.Message("H", b"after"))
        assert (put.status, put.physic_offset) == (PutMessageStatus.PUT_OK, 422)
    assert str(epochs_in(path)) == "1-0, 2-422"
    assert verify_log(real_env().disk, find_log(real_env().disk, str(path))).is_whole


# -- slaves with a log -----------------------------------------------------------------------------


def overlap_of(recording, masters_log):
    """Return a function that makes the frames between a first report and the recorded ones."""

    def frames(first_report):
        data, position, epochs = b"", first_report, recording.answer.epochs
        while position < recording.start:
            writer = epochs.at(position)
            end = min(recording.start, epochs.end_of(writer) or recording.start)
            end = min(end, position - position % 65_536 + 65_536, position + 3_000)
            header = FrameHeader(end - position, position, writer, None)
            data += header.encode() + masters_log[position:end]
            position = end
        return data

    return frames


@pytest.mark.parametrize("size", FEW_SIZES)
@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain[1])
async def test_a_slave_goes_on_where_the_recorded_one_did(recorded_golden, tmp_path, chain, size):
    """After its own first connection; where the recorded one cut its log, so does ours."""
    path, masters_log, log_end = tmp_path / "s", b"", 0
    for name in chain:
        recording = Recording.read(recorded_golden, name)
        begin = recording.start if recording.body else len(masters_log)
        masters_log = masters_log[:begin] + recording.body
        overlap = overlap_of(recording, masters_log)
        if (path / EPOCH_FILE).exists() and recording.start < log_end:
            with pytest.raises(CutNeededError) as caught:
                await feed(path, recording, fixed_sizes(size), overlap)
            assert caught.value.physic_offset == recording.start == recording.reports[0]
            cut(path, recording, caught.value)
        sock = await feed(path, recording, fixed_sizes(size), overlap)
        log_end = len(masters_log)
        assert log_bytes(path, len(masters_log)) == masters_log
        assert epochs_in(path) == recording.epochs_of(0, len(masters_log))
        first, *reports = sock.reports
        assert first <= recording.start
        assert {r for r in reports if r > recording.start} <= set(recording.reports)
        assert sock.reports[-1] == recording.reports[-1] == len(masters_log)


def cut(path, recording, needed):
    """Cut the closed store, as run_slave does."""
    env = real_env()
    identity_path = f"{path}/{IDENTITY_FILE}"
    identity = NodeIdentity(env.disk, identity_path, read_identity(env.disk, str(path)))
    cut_slave_store(env, config_for(path, recording), identity, needed, "a recorded failover")


FAILOVERS = ("failover", "failover_crash")
THEIR_SIZES = {
    "mapped_file_size_consume_queue": 1_000,
    "max_hash_slot_num": 200,
    "max_index_num": 400,
}


def units_in(store):
    """Return the bytes of every queue, without the files' ends that nothing was written to."""
    root, found = store / "consumequeue", {}
    for queue in sorted(root.glob("*/*")):
        data = b"".join(path.read_bytes() for path in sorted(queue.iterdir())).rstrip(b"\0")
        if data:  # a queue of which all was cut is empty
            found[str(queue.relative_to(root))] = data
    return found


def former_master(recorded_golden, tmp_path, name):
    """Return the diverged directory, the new master's log and the recorded figures."""
    recording = recorded_golden / "autoswitch" / name
    manifest = json.loads((recording / "manifest.json").read_text())
    former = unpacked(recording / "oldmaster_before.tar.xz", tmp_path / "former")
    successor = unpacked(recording / "newmaster_after.tar.xz", tmp_path / "successor")
    make_member(former, epochs_in(former), node_id=1)
    log = log_bytes(successor)[: manifest["new_master_max"]]
    return former, log, (successor / EPOCH_FILE).read_bytes(), manifest


@pytest.mark.parametrize("name", FAILOVERS)
async def test_a_recorded_former_master_is_cut_where_rocketmq_cut_it(
    recorded_golden, tmp_path, name
):
    """Over a real socket, by run_slave: the new master's bytes, units and epochs."""
    former, log, epoch_file, manifest = former_master(recorded_golden, tmp_path, name)
    entries = decode_epochs(epoch_file).entries
    async with autoswitch_master(log, *entries, is_java=True) as master:
        config = member_config(former, master.address, node_id=1, store=THEIR_SIZES)
        async with hastore.open_slave(config) as slave:
            await eventually(lambda: slave.max_offset == len(log))
            assert slave.last_cut.physic_offset == manifest["consistent_point"]
            assert slave.last_cut.end_offset == manifest["old_master_max"]
            await eventually(lambda: slave.reput_message_service.committed_offset == len(log))
    assert log_bytes(former, len(log)) == log
    assert (former / EPOCH_FILE).read_bytes() == epoch_file
    assert len(list((former / "trimmed").glob("cut-*.json"))) == 1
    assert verify_log(real_env().disk, find_log(real_env().disk, str(former))).is_whole
    (successor,) = (tmp_path / "successor").iterdir()
    assert units_in(former) == units_in(successor)


@pytest.mark.parametrize("size", FEW_SIZES)
@pytest.mark.parametrize("name", FAILOVERS)
async def test_the_recorded_stream_after_a_failover(recorded_golden, tmp_path, name, size):
    """The first link compares and is ended by the cut, the second takes the recorded frames."""
    former, log, epoch_file, manifest = former_master(recorded_golden, tmp_path, name)
    recording = Recording.read(recorded_golden, f"{name}/stream_epoch2_1")
    overlap = overlap_of(recording, log)
    with pytest.raises(CutNeededError) as caught:
        await feed(former, recording, fixed_sizes(size), overlap)
    assert caught.value.physic_offset == recording.reports[0] == manifest["consistent_point"]
    cut(former, recording, caught.value)
    sock = await feed(former, recording, fixed_sizes(size), overlap)
    assert log_bytes(former, len(log)) == log
    assert (former / EPOCH_FILE).read_bytes() == epoch_file
    assert {r for r in sock.reports if r > recording.start} <= set(recording.reports)
    assert sock.reports[-1] == recording.reports[-1]


async def test_an_epoch_that_began_again_is_foreign(recorded_golden, tmp_path):
    """The recorded hazard_same_epoch_restart: 1-0 became 1-1222; RocketMQ's slave never stops."""
    first = "hazard_same_epoch_restart/stream_a_1"
    await check_new_slave(recorded_golden, tmp_path / "s", first, lambda _: fixed_sizes(1448))
    second = Recording.read(recorded_golden, "hazard_same_epoch_restart/stream_a_2")
    with pytest.raises(ForeignGroupError, match="epochs 1-0 and the master's 1-1222"):
        await feed(tmp_path / "s", second, fixed_sizes(1448))


async def test_bytes_before_the_first_epoch_are_refused(recorded_golden, tmp_path):
    """The recorded hazard_offset_before_first_epoch: RocketMQ's slave took them."""
    name = "hazard_offset_before_first_epoch/stream_a_1"
    with pytest.raises(ProtocolError, match="epoch 1-1222 at 0: its list says 1-1222"):
        await feed(tmp_path / "s", Recording.read(recorded_golden, name), fixed_sizes(1448))
    assert not any((tmp_path / "s" / "commitlog").iterdir())
