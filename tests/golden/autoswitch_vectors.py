"""Recorded AutoSwitch HA sessions of RocketMQ 5: each message's fields and its bytes.

Each session is the beginning of one connection, its messages in order.  Of a transfer only the
header is there; ``size`` bytes of the log followed.  Recorded from RocketMQ 5.3.4-SNAPSHOT.
"""

import attrs

from hastore.epoch_history import EpochEntry, EpochHistory
from hastore.wire.autoswitch_frames import FrameHeader, Handshake, HandshakeAnswer, encode_report


@attrs.frozen(kw_only=True)
class Report:
    """A slave's report."""

    max_offset: int

    def encode(self):
        return encode_report(self.max_offset)


def history(*entries):
    return EpochHistory(tuple(EpochEntry(*entry) for entry in entries))


@attrs.frozen
class Session:
    """One connection: the recording it was taken from, what it shows, its messages and bytes."""

    recording: str
    shows: str
    messages: tuple[tuple[object, str], ...]

    def raw(self, *kinds):
        """Return the bytes of all messages of these kinds."""
        return b"".join(bytes.fromhex(text) for m, text in self.messages if isinstance(m, kinds))


SESSIONS = (
    Session(
        "autoswitch_1/stream_1",
        "An empty slave: the heartbeat says -1, then two frames of one file.",
        (
            (Handshake(node_id=2), "00000001 0000 0000 0000000000000002"),
            (
                HandshakeAnswer(max_offset=0, epochs=history((1, 0))),
                "00000001 0000000c 0000000000000000 00000001 00000001 0000000000000000",
            ),
            (Report(max_offset=0), "00000002 0000000000000000"),
            (
                FrameHeader(0, None, EpochEntry(1, 0), 0),
                "00000002 00000000 ffffffffffffffff 00000001 0000000000000000 0000000000000000",
            ),
            (
                FrameHeader(32_768, 0, EpochEntry(1, 0), 49_128),
                "00000002 00008000 0000000000000000 00000001 0000000000000000 000000000000bfe8",
            ),
            (
                FrameHeader(16_360, 32_768, EpochEntry(1, 0), 49_128),
                "00000002 00003fe8 0000000000008000 00000001 0000000000000000 000000000000bfe8",
            ),
            (Report(max_offset=32_768), "00000002 0000000000008000"),
            (Report(max_offset=49_128), "00000002 000000000000bfe8"),
            (
                FrameHeader(14_501, 49_128, EpochEntry(1, 0), 63_629),
                "00000002 000038a5 000000000000bfe8 00000001 0000000000000000 000000000000f88d",
            ),
        ),
    ),
    Session(
        "empty_master/stream_a_1",
        "A master without a log: heartbeats of -1 until the first message comes.",
        (
            (Handshake(node_id=2), "00000001 0000 0000 0000000000000002"),
            (
                HandshakeAnswer(max_offset=0, epochs=history((1, 0))),
                "00000001 0000000c 0000000000000000 00000001 00000001 0000000000000000",
            ),
            (Report(max_offset=0), "00000002 0000000000000000"),
            (
                FrameHeader(0, None, EpochEntry(1, 0), 0),
                "00000002 00000000 ffffffffffffffff 00000001 0000000000000000 0000000000000000",
            ),
            (
                FrameHeader(0, None, EpochEntry(1, 0), 0),
                "00000002 00000000 ffffffffffffffff 00000001 0000000000000000 0000000000000000",
            ),
            (Report(max_offset=0), "00000002 0000000000000000"),
            (
                FrameHeader(0, None, EpochEntry(1, 0), 0),
                "00000002 00000000 ffffffffffffffff 00000001 0000000000000000 0000000000000000",
            ),
            (Report(max_offset=0), "00000002 0000000000000000"),
            (
                FrameHeader(211, 0, EpochEntry(1, 0), 211),
                "00000002 000000d3 0000000000000000 00000001 0000000000000000 00000000000000d3",
            ),
            (Report(max_offset=211), "00000002 00000000000000d3"),
        ),
    ),
    Session(
        "epochs_first_frame/stream_a_1",
        "Three epochs: the frame that is cut at an epoch's end carries the next epoch.",
        (
            (Handshake(node_id=2), "00000001 0000 0000 0000000000000002"),
            (
                HandshakeAnswer(max_offset=2_555, epochs=history((1, 0), (2, 1_222), (3, 1_733))),
                (
                    "00000001 00000024 00000000000009fb 00000003 00000001 0000000000000000"
                    " 00000002 00000000000004c6 00000003 00000000000006c5"
                ),
            ),
            (Report(max_offset=0), "00000002 0000000000000000"),
            (
                FrameHeader(0, 0, EpochEntry(1, 0), 2_555),
                "00000002 00000000 0000000000000000 00000001 0000000000000000 00000000000009fb",
            ),
            (
                FrameHeader(1_222, 0, EpochEntry(2, 1_222), 2_555),
                "00000002 000004c6 0000000000000000 00000002 00000000000004c6 00000000000009fb",
            ),
            (
                FrameHeader(511, 1_222, EpochEntry(3, 1_733), 2_555),
                "00000002 000001ff 00000000000004c6 00000003 00000000000006c5 00000000000009fb",
            ),
            (
                FrameHeader(822, 1_733, EpochEntry(3, 1_733), 2_555),
                "00000002 00000336 00000000000006c5 00000003 00000000000006c5 00000000000009fb",
            ),
            (Report(max_offset=1_222), "00000002 00000000000004c6"),
            (Report(max_offset=1_733), "00000002 00000000000006c5"),
            (Report(max_offset=2_555), "00000002 00000000000009fb"),
        ),
    ),
    Session(
        "epochs_without_messages/stream_a_2",
        "Four epochs; a slave that has a log reports its end.",
        (
            (Handshake(node_id=2), "00000001 0000 0000 0000000000000002"),
            (
                HandshakeAnswer(
                    max_offset=1_855,
                    epochs=history((1, 0), (4, 611), (7, 1_222), (8, 1_433)),
                ),
                (
                    "00000001 00000030 000000000000073f 00000008 00000001 0000000000000000"
                    " 00000004 0000000000000263 00000007 00000000000004c6 00000008"
                    " 0000000000000599"
                ),
            ),
            (Report(max_offset=1_433), "00000002 0000000000000599"),
            (
                FrameHeader(0, 1_433, EpochEntry(8, 1_433), 1_855),
                "00000002 00000000 0000000000000599 00000008 0000000000000599 000000000000073f",
            ),
            (
                FrameHeader(422, 1_433, EpochEntry(8, 1_433), 1_855),
                "00000002 000001a6 0000000000000599 00000008 0000000000000599 000000000000073f",
            ),
            (Report(max_offset=1_855), "00000002 000000000000073f"),
            (Report(max_offset=1_855), "00000002 000000000000073f"),
        ),
    ),
    Session(
        "failover/stream_epoch2_1",
        "The old master is back as a slave: it cut its log to 47,859.",
        (
            (Handshake(node_id=1), "00000001 0000 0000 0000000000000001"),
            (
                HandshakeAnswer(max_offset=71_173, epochs=history((1, 0), (2, 47_859))),
                (
                    "00000001 00000018 0000000000011605 00000002 00000001 0000000000000000"
                    " 00000002 000000000000baf3"
                ),
            ),
            (Report(max_offset=47_859), "00000002 000000000000baf3"),
            (
                FrameHeader(0, 47_859, EpochEntry(2, 47_859), 71_173),
                "00000002 00000000 000000000000baf3 00000002 000000000000baf3 0000000000011605",
            ),
            (
                FrameHeader(17_677, 47_859, EpochEntry(2, 47_859), 71_173),
                "00000002 0000450d 000000000000baf3 00000002 000000000000baf3 0000000000011605",
            ),
            (
                FrameHeader(5_637, 65_536, EpochEntry(2, 47_859), 71_173),
                "00000002 00001605 0000000000010000 00000002 000000000000baf3 0000000000011605",
            ),
            (Report(max_offset=65_536), "00000002 0000000000010000"),
            (Report(max_offset=71_173), "00000002 0000000000011605"),
        ),
    ),
    Session(
        "slave_ahead/stream_a_2",
        "The slave repeats its handshake, and is answered once.",
        (
            (Handshake(node_id=2), "00000001 0000 0000 0000000000000002"),
            (Handshake(node_id=2), "00000001 0000 0000 0000000000000002"),
            (
                HandshakeAnswer(max_offset=3_005, epochs=history((1, 0), (3, 2_444))),
                (
                    "00000001 00000018 0000000000000bbd 00000003 00000001 0000000000000000"
                    " 00000003 000000000000098c"
                ),
            ),
            (Report(max_offset=2_444), "00000002 000000000000098c"),
            (
                FrameHeader(0, 2_444, EpochEntry(3, 2_444), 3_005),
                "00000002 00000000 000000000000098c 00000003 000000000000098c 0000000000000bbd",
            ),
            (
                FrameHeader(561, 2_444, EpochEntry(3, 2_444), 3_005),
                "00000002 00000231 000000000000098c 00000003 000000000000098c 0000000000000bbd",
            ),
            (Report(max_offset=3_005), "00000002 0000000000000bbd"),
        ),
    ),
    Session(
        "sync_from_last_file/stream_a_1",
        "From the last file on: the label is the epoch's start, before the first offset.",
        (
            (
                Handshake(node_id=2, from_last_file=True),
                "00000001 0001 0000 0000000000000002",
            ),
            (
                HandshakeAnswer(max_offset=160_666, epochs=history((1, 0), (2, 77_093))),
                (
                    "00000001 00000018 000000000002739a 00000002 00000001 0000000000000000"
                    " 00000002 0000000000012d25"
                ),
            ),
            (Report(max_offset=0), "00000002 0000000000000000"),
            (
                FrameHeader(0, 131_072, EpochEntry(2, 77_093), 160_666),
                "00000002 00000000 0000000000020000 00000002 0000000000012d25 000000000002739a",
            ),
            (
                FrameHeader(29_594, 131_072, EpochEntry(2, 77_093), 160_666),
                "00000002 0000739a 0000000000020000 00000002 0000000000012d25 000000000002739a",
            ),
            (Report(max_offset=160_666), "00000002 000000000002739a"),
        ),
    ),
    Session(
        "async_learner/stream_a_1",
        "A learner: all else is the same.",
        (
            (
                Handshake(node_id=3, is_learner=True),
                "00000001 0000 0001 0000000000000003",
            ),
            (
                HandshakeAnswer(max_offset=11_797, epochs=history((1, 0))),
                "00000001 0000000c 0000000000002e15 00000001 00000001 0000000000000000",
            ),
            (Report(max_offset=0), "00000002 0000000000000000"),
            (
                FrameHeader(0, 0, EpochEntry(1, 0), 11_797),
                "00000002 00000000 0000000000000000 00000001 0000000000000000 0000000000002e15",
            ),
            (
                FrameHeader(11_797, 0, EpochEntry(1, 0), 11_797),
                "00000002 00002e15 0000000000000000 00000001 0000000000000000 0000000000002e15",
            ),
            (Report(max_offset=11_797), "00000002 0000000000002e15"),
            (
                FrameHeader(1_605, 11_797, EpochEntry(1, 0), 13_402),
                "00000002 00000645 0000000000002e15 00000001 0000000000000000 000000000000345a",
            ),
            (Report(max_offset=13_402), "00000002 000000000000345a"),
        ),
    ),
)

# Epoch files: the entries, and the text.
EPOCH_FILES = (
    (history((1, 0)), "1\n1725254278\n1-0\n"),
    (history((1, 0), (2, 47_859)), "2\n1485490322\n1-0\n2-47859\n"),
    (history((1, 0), (2, 192_204)), "2\n1573859342\n1-0\n2-192204\n"),
    (history((1, 0), (2, 1_222), (3, 1_733)), "3\n206610122\n1-0\n2-1222\n3-1733\n"),
)
