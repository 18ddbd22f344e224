"""hastore writes RocketMQ's golden files from recorded figures, with the same SHA-256."""

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
    """Return RocketMQ's files below a part of a store, with their digests."""
    prefix = f"{name}/{part}/"
    found = {file: digest for file, digest in digests.load().items() if file.startswith(prefix)}
    assert len(found) == FILES[part].get(name, USUAL[part])
    return found


@pytest.mark.parametrize("part", FILES)
@pytest.mark.parametrize("name", digests.STORES)
def test_hastore_writes_rocketmqs_files_byte_for_byte(name, part):
    """Log, consume queues and index are written from the formula, with the same file names."""
    written = {
        f"{name}/{file}": digests.sha256(data)
        for file, data in stores.store(name).files.items()
        if file.startswith(f"{part}/")
    }
    assert written == expected(name, part)


@pytest.mark.parametrize(("name", "file"), manifests.names().items())
def test_manifests_follow_from_the_formula(name, file):
    """They hold what RocketMQ read back, and are written from the figures alone."""
    assert digests.sha256(manifests.manifest(name).encode()) == digests.load()[file]


@pytest.mark.parametrize("file", STREAMS)
def test_the_ha_sessions_bytes_are_rocketmqs(file):
    """Hastore's headers and reports make up both directions of both sessions."""
    assert digests.sha256(streams.files()[file]) == digests.load()[file]


def test_the_golden_directory_is_complete(golden):
    """On a disk no file differs from the table, is missing or is unknown; zeros are holes."""
    assert digests.differing(digests.of_directory(golden)) == []
    assert (golden / "crashed" / "commitlog" / f"{393_216:020d}").stat().st_blocks == 0


def test_a_directory_with_a_wrong_byte_is_refused(tmp_path, monkeypatch):
    """The error names the file, so that no test uses the directory."""
    files = directory.files()
    files["replica/commitlog/" + "0" * 20] = b"\1" + files["replica/commitlog/" + "0" * 20][1:]
    monkeypatch.setattr(directory, "files", lambda: files)
    with pytest.raises(AssertionError, match=r"\['replica/commitlog/0{20}'\]"):
        directory.write(tmp_path / "g")


def test_times_survive_their_encoding_as_words():
    """A word may encode any step between two times, including none."""
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


def test_the_committed_files_follow_from_the_recorded_ones(recorded_golden):
    """Table and figures are derived again from RocketMQ's files."""
    assert digests.TABLE.read_text() == digests.table_of(recorded_golden)
    assert recorded.FIGURES.read_text() == derivation.figures_of(recorded_golden)


def test_the_session_arrived_in_the_recorded_pieces(recorded_golden):
    """The sizes are those of the recording proxy's reads."""
    assert streams.pieces() == digests.arrived(recorded_golden)
