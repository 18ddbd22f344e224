"""What real RocketMQ wrote is written by hastore from figures, and has the same SHA-256."""

import pytest

from tests.golden import __main__ as derivation
from tests.golden import digests, directory, manifests, recorded, stores, streams

FILES = {
    "commitlog": {"propcrc": 1, "crashed": 7, "crashed_torn": 7, "crashed_torn_props": 7},
    "consumequeue": {},
    "index": {"propcrc": 1},
}
STREAMS = ("ha_stream_m2s.bin", "ha_stream_s2m.bin", "ha_stream_2_m2s.bin", "ha_stream_2_s2m.bin")
USUAL = {"commitlog": 6, "consumequeue": 22, "index": 2}


def expected(name, part):
    """RocketMQ's files below a part of a store, with their digests."""
    prefix = f"{name}/{part}/"
    found = {file: digest for file, digest in digests.load().items() if file.startswith(prefix)}
    assert len(found) == FILES[part].get(name, USUAL[part])
    return found


@pytest.mark.parametrize("part", FILES)
@pytest.mark.parametrize("name", digests.STORES)
def test_what_hastore_writes_from_the_formula_is_rocketmqs_byte_for_byte(name, part):
    """Every file by its name: the log, the consume queues, the index."""
    written = {
        f"{name}/{file}": digests.sha256(data)
        for file, data in stores.store(name).files.items()
        if file.startswith(f"{part}/")
    }
    assert written == expected(name, part)


@pytest.mark.parametrize(("name", "file"), manifests.names().items())
def test_what_rocketmq_read_back_follows_from_the_formula(name, file):
    """Each manifest's text, from the figures alone."""
    assert digests.sha256(manifests.manifest(name).encode()) == digests.load()[file]


@pytest.mark.parametrize("file", STREAMS)
def test_the_frames_and_reports_of_a_session_are_rocketmqs(file):
    """Both halves of both sessions, by our own headers and reports."""
    assert digests.sha256(streams.files()[file]) == digests.load()[file]


def test_the_golden_directory_is_whole(golden):
    """Written to a disk, no file of the table is wrong, missing, or one too many."""
    assert digests.differing(digests.of_directory(golden)) == []
    assert (golden / "crashed" / "commitlog" / f"{393_216:020d}").stat().st_blocks == 0


def test_a_directory_that_differs_is_refused(tmp_path, monkeypatch):
    """One wrong byte in one file of all, and nobody tests against it."""
    files = directory.files()
    files["replica/commitlog/" + "0" * 20] = b"\1" + files["replica/commitlog/" + "0" * 20][1:]
    monkeypatch.setattr(directory, "files", lambda: files)
    with pytest.raises(AssertionError, match=r"\['replica/commitlog/0{20}'\]"):
        directory.write(tmp_path / "g")


def test_times_are_read_as_they_were_written():
    """The words give back the times, whatever the steps are."""
    pairs = [(100, 100), (100, 107), (110, 110), (120, 121), (121, 121)]
    first_ms, words = recorded.times_of(pairs)
    assert (first_ms, words) == (100, ". +7 3 10+1 .")
    figures = stores.FIGURES.stores["clean"]
    clean = recorded.Recorded(
        ordinary=0,
        index_files=[],
        checkpoint=figures.checkpoint,
        first_ms=first_ms,
        times=words,
    )
    assert list(clean.born_and_stored_ms()) == pairs


def test_the_table_and_the_figures_are_those_of_the_recorded_files(recorded_golden):
    """Derived again from what RocketMQ wrote, both committed files are the same."""
    assert digests.TABLE.read_text() == digests.table_of(recorded_golden)
    assert recorded.FIGURES.read_text() == derivation.figures_of(recorded_golden)


def test_the_session_arrived_in_the_recorded_pieces(recorded_golden):
    """What each read of the recording proxy brought."""
    assert streams.pieces() == digests.arrived(recorded_golden)
