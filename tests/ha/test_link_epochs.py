"""The epochs of a link: where two logs agree, which labels fit, what is stored before a frame."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.epoch_history import ENTRIES_MAX, EpochEntry, EpochHistory
from hastore.errors import DeposedMasterError, ExpiredError, ForeignGroupError, ProtocolError
from hastore.ha.link_epochs import LinkEpochs, check_is_not_deposed
from hastore.wire.autoswitch_frames import FrameHeader, HandshakeAnswer
from tests.golden.autoswitch_vectors import SESSIONS


def history(*entries):
    return EpochHistory(tuple(EpochEntry(*entry) for entry in entries))


def answer_of(max_offset, *entries):
    return HandshakeAnswer(max_offset=max_offset, epochs=history(*entries))


def agree(own, end_offset, answer, min_offset=0):
    return LinkEpochs.agree(
        history(*own), min_offset=min_offset, end_offset=end_offset, answer=answer
    )


def frame(offset, size, label, confirm=None):
    return FrameHeader(size, offset, label and EpochEntry(*label), confirm)


# -- the consistent point --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "end", "masters", "masters_end", "point"),
    [
        # RocketMQ's recorded truncations.
        ([(1, 0)], 75_710, [(1, 0), (2, 47_859)], 71_173, 47_859),  # failover
        ([(1, 0)], 192_204, [(1, 0), (2, 192_204)], 205_601, 192_204),  # autoswitch_2
        ([(1, 0), (2, 2_444)], 4_888, [(1, 0), (3, 2_444)], 3_005, 2_444),  # slave_ahead
        ([(1, 0)], 2_433, [(1, 0)], 1_222, 1_222),  # truncate_not_aligned
        # KIP-101: the former master's tail, and one that the new master's epoch has overtaken.
        ([(1, 0)], 100, [(1, 0), (2, 60)], 200, 60),
        ([(1, 0)], 100, [(1, 0), (2, 60), (3, 80)], 200, 60),
        # KIP-279: two failovers, and an epoch that one log does not have.
        ([(1, 0), (2, 60)], 100, [(1, 0), (3, 60)], 200, 60),
        ([(1, 0), (3, 50)], 100, [(1, 0), (2, 50), (4, 80)], 200, 50),
        # Nothing to be cut.
        ([(1, 0)], 100, [(1, 0)], 200, 100),
        ([(1, 0), (2, 100)], 100, [(1, 0), (3, 100)], 200, 100),
        # An entry whose bytes were lost with the power.
        ([(1, 0), (2, 150)], 100, [(1, 0), (2, 150)], 200, 100),
    ],
)
def test_the_logs_agree_up_to_the_consistent_point(own, end, masters, masters_end, point):
    """The newest epoch with the same start in both: up to where one of them ends it."""
    assert agree(own, end, answer_of(masters_end, *masters)).point == point


def test_without_a_log_there_is_nothing_to_agree_on():
    """Whatever the epoch file says: it was stored before the first byte came."""
    for own in ([], [(1, 0)], [(7, 0)]):
        link = agree(own, 0, answer_of(1_222, (1, 0), (2, 611)))
        assert (link.point, link.own) == (0, history())


def test_logs_without_a_common_epoch_are_of_different_groups():
    """The recorded no_common_epoch, hazard_same_epoch_restart, and a master without epochs."""
    for masters in ([(5, 0)], [(1, 1_222)], []):
        with pytest.raises(ForeignGroupError, match="foreign group: this slave's epochs 1-0") as e:
            agree([(1, 0)], 411, answer_of(1_833, *masters))
        assert (e.value.master_offset, e.value.slave_offset) == (1_833, 411)


def test_a_log_without_epochs_is_nobodys():
    """RocketMQ would check nothing (slave_without_epoch_file), and append to any log."""
    with pytest.raises(ForeignGroupError, match="no epoch says who wrote it") as caught:
        agree([], 2_444, answer_of(2_955, (1, 0)))
    assert "empty --data directory" in caught.value.hint


@pytest.mark.parametrize(
    ("own", "own_min", "masters", "masters_end"),
    [
        ([(1, 0)], 0, [(1, 0)], 0),  # truncate_to_zero: the master has lost its log
        ([(1, 0)], 65_536, [(1, 0), (2, 40_000)], 50_000),  # the rest has expired here
        ([(1, 0)], 65_536, [(1, 0), (2, 65_536)], 70_000),
        ([(3, 500)], 0, [(3, 500)], 500),  # the master's epochs begin there
    ],
)
def test_nothing_is_cut_if_no_byte_below_the_point_can_be_compared(
    own, own_min, masters, masters_end
):
    """Every group begins with 1-0: equal epochs alone prove little."""
    with pytest.raises(ExpiredError, match="too far behind: by its epochs"):
        agree(own, 75_000, answer_of(masters_end, *masters), own_min)


def test_a_point_below_our_first_byte_is_too_far_behind():
    """Also if our log, all of it, would be cut."""
    with pytest.raises(ExpiredError, match="up to 40000 only"):
        agree([(1, 0)], 65_536, answer_of(50_000, (1, 0), (2, 40_000)), 65_536)


def test_a_log_that_ends_where_its_first_byte_would_be_needs_no_cut():
    """Its only file is empty; so nothing is to be compared either."""
    link = agree([(2, 77_093)], 131_072, answer_of(160_666, (1, 0), (2, 77_093)), 131_072)
    assert link.point == 131_072


def test_a_master_of_an_older_epoch_is_refused():
    """It was deposed; one without an epoch, too."""
    check_is_not_deposed(answer_of(10), 0)
    check_is_not_deposed(answer_of(10, (3, 0)), 3)
    with pytest.raises(DeposedMasterError, match="is in epoch 2, and this node has seen epoch 3"):
        check_is_not_deposed(answer_of(10, (2, 0)), 3)
    with pytest.raises(DeposedMasterError, match="is in no epoch") as caught:
        check_is_not_deposed(answer_of(10), 3)
    assert (caught.value.epoch, caught.value.seen_epoch) == (None, 3)


# -- frames ----------------------------------------------------------------------------------------

THREE = answer_of(2_555, (1, 0), (2, 1_222), (3, 1_733))


@pytest.mark.parametrize(
    ("offset", "size", "label"),
    [
        (0, 1_222, (1, 0)),  # hastore's: its own epoch
        (0, 1_222, (2, 1_222)),  # RocketMQ's: the next one, where the frame ends there
        (1_222, 511, (2, 1_222)),
        (1_222, 511, (3, 1_733)),
        (1_733, 822, (3, 1_733)),
        (5_000, 100, (3, 1_733)),
        (0, 0, (1, 0)),
        (1_222, 0, (2, 1_222)),
        (None, 0, (1, 0)),
        (700, 0, None),
    ],
)
def test_a_label_that_fits_the_masters_list(offset, size, label):
    """Every frame of the recordings is labelled in one of these ways."""
    agree([], 0, THREE).check(frame(offset, size, label))


@pytest.mark.parametrize(
    ("offset", "size", "label", "why"),
    [
        (0, 1_000, (2, 1_222), "epoch 2-1222 at 0"),  # it ends before epoch 2
        (0, 1_222, (3, 1_733), "epoch 3-1733 at 0"),
        (1_300, 5, (1, 0), "epoch 1-0 at 1300"),  # epochs never fall
        (0, 5, (1, 5), "epoch 1-5 at 0"),  # not in the list
        (0, 1_223, (1, 0), "1223 bytes, beyond 1222"),
        (0, 1_733, (3, 1_733), "epoch 3-1733 at 0"),
        (1_733, 5, (4, 1_733), "is in epoch 4 now, and this link began in epoch 3"),
    ],
)
def test_a_label_that_does_not_fit_ends_the_link(offset, size, label, why):
    """Which epoch wrote the bytes would be a guess."""
    with pytest.raises(ProtocolError, match=why):
        agree([], 0, THREE).check(frame(offset, size, label))


def test_an_offset_before_the_first_epoch_is_refused():
    """The recorded hazard: nobody knows who wrote the byte."""
    with pytest.raises(ProtocolError, match="its list says 1-1222"):
        agree([], 0, answer_of(1_833, (1, 1_222))).check(frame(0, 0, (1, 1_222)))
    with pytest.raises(ProtocolError, match="began in no epoch"):
        agree([], 0, answer_of(0)).check(frame(0, 5, (1, 0)))


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.recording)
def test_the_recorded_labels_fit(session):
    """All of the sessions of the vectors."""
    (answer,) = (m for m, _ in session.messages if isinstance(m, HandshakeAnswer))
    link = agree([], 0, answer)
    for message, _ in session.messages:
        if isinstance(message, FrameHeader):
            link.check(message)


# -- what is stored --------------------------------------------------------------------------------


def test_each_epoch_is_stored_before_its_first_byte():
    """From the master's list; RocketMQ's label would bring epoch 2 with the bytes of epoch 1."""
    link = agree([], 0, THREE)
    assert link.history_with(0, 1_222, 0) == history((1, 0))
    assert link.history_with(1_222, 511, 0) == history((1, 0), (2, 1_222))
    assert link.history_with(1_733, 0, 0) == THREE.epochs
    assert link.history_with(1_733, 822, 0) == THREE.epochs


def test_a_copy_from_the_last_file_has_the_epochs_of_its_bytes():
    """The recorded sync_from_last_file: 2-77093, and the log begins at 131072."""
    link = agree([], 0, answer_of(160_666, (1, 0), (2, 77_093)))
    assert link.history_with(131_072, 29_594, 131_072) == history((2, 77_093))


def test_bytes_that_we_have_change_no_epochs():
    """Not even while a cut is needed: what is to be cut still has its own."""
    link = agree([(1, 0), (2, 2_444)], 4_888, answer_of(3_005, (1, 0), (3, 2_444)))
    assert link.history_with(500, 1_944, 0) is None
    assert link.history_with(500, 0, 0) is None
    # Killed before the cut, we would call the bytes of epoch 2 those of epoch 1, or of epoch 3.
    assert link.history_with(500, 2_505, 0) is None
    assert link.history_with(3_005, 0, 0) is None
    link = agree([(1, 0)], 300, answer_of(900, (1, 0)))
    assert link.history_with(100, 200, 0) is None
    assert link.history_with(100, 201, 0) == history((1, 0))


def test_after_the_cut_the_masters_epoch_replaces_ours():
    """The recorded slave_ahead: 2-2444 was dropped, and 3-2444 took its place."""
    answer = answer_of(3_005, (1, 0), (3, 2_444))
    link = agree([(1, 0)], 2_444, answer)
    assert link.history_with(2_444, 561, 0) == answer.epochs


def test_an_equal_start_is_a_replacement():
    """The recorded hazard_refused_epoch: epoch 2 brought no byte to us, and epoch 3 begins there.

    RocketMQ refuses the entry without a word.  Then both logs say 2-822, and differ from there on.
    """
    link = agree([(1, 0), (2, 822)], 822, answer_of(2_000, (1, 0), (3, 822)))
    assert link.history_with(822, 100, 0) == history((1, 0), (3, 822))


def test_epochs_without_a_message_are_stored():
    """The recorded epochs_without_messages."""
    answer = answer_of(1_855, (1, 0), (4, 611), (7, 1_222), (8, 1_433))
    assert agree([(1, 0)], 611, answer).history_with(611, 0, 0) == history((1, 0), (4, 611))
    link = agree([(1, 0), (4, 611), (7, 1_222)], 1_433, answer)
    assert link.history_with(1_433, 422, 0) == answer.epochs


def test_too_many_epochs_are_refused():
    """A handshake has room for a thousand."""
    own = [(n, n) for n in range(ENTRIES_MAX)]
    link = agree(own, 5_000, answer_of(6_000, (999, 999), (1_000, 5_000)))
    with pytest.raises(ProtocolError, match="more than 1000 epochs"):
        link.history_with(5_000, 10, 0)
    assert link.history_with(5_000, 10, 100) is not None  # the oldest have expired


# -- properties ------------------------------------------------------------------------------------


@st.composite
def forked_logs(draw):
    """Two logs of one group as who wrote each byte, and the epochs of both.

    They have a common beginning; then each goes on with epochs of its own, as after failovers.
    """

    def grow(log, entries, epochs):
        for epoch in epochs:
            entries = [e for e in entries if e[1] < len(log)] + [(epoch, len(log))]
            log = log + [epoch] * draw(st.integers(0, 5))
        return log, entries

    numbers = draw(st.lists(st.sampled_from("cab"), min_size=1, max_size=8))
    common = [n for n, who in enumerate(numbers, 1) if who == "c"]
    first = max(common, default=0)
    log, entries = grow([], [], [0, *common])
    own = grow(log, entries, [n for n, who in enumerate(numbers, 1) if who == "a" and n > first])
    other = grow(log, entries, [n for n, who in enumerate(numbers, 1) if who == "b" and n > first])
    return own, other


@given(forked_logs(), st.data())
def test_a_slave_ends_with_the_masters_bytes_and_epochs(logs, data):
    """Cut at the point, then fed in frames of one epoch; each byte's epoch is stored before it."""
    (own_log, own_entries), (log, entries) = logs
    answer = answer_of(len(log), *entries)
    stored = history(*own_entries)
    try:
        link = LinkEpochs.agree(stored, min_offset=0, end_offset=len(own_log), answer=answer)
    except (ExpiredError, ForeignGroupError):
        return
    assert own_log[: link.point] == log[: link.point]
    own_log, stored = own_log[: link.point], stored.cut(link.point) if own_log else history()
    link = LinkEpochs.agree(stored, min_offset=0, end_offset=len(own_log), answer=answer)
    while len(own_log) < len(log):
        at = len(own_log)
        writer = answer.epochs.at(at)
        end = min(answer.epochs.end_of(writer) or len(log), len(log))
        size = data.draw(st.integers(1, end - at))
        following = answer.epochs.end_of(writer) == at + size
        label = answer.epochs.at(at + size) if following and data.draw(st.booleans()) else writer
        link.check(FrameHeader(size, at, label, None))
        stored = link.history_with(at, size, 0) or stored
        own_log += log[at : at + size]
        assert all(stored.at(n) == answer.epochs.at(n) for n in range(at, at + size))
    assert own_log == log
    heard = link.history_with(len(log), 0, 0)
    assert heard == answer.epochs.drop_expired(0)
