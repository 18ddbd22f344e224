"""The recovery benchmark measures starts after a crash."""

from pathlib import Path

from tests.bench.recovery_bench import FILES, bare_s, build, start_s


def test_each_measured_start_follows_the_same_crash(tmp_path: Path) -> None:
    """The bare loop reads the records of one file."""
    crashed = build(tmp_path, file_size=4 * 1024 * 1024)
    for _ in range(2):
        crashed.again()
        took_s, note = start_s(crashed)
        assert took_s > 0
        assert f"of {FILES + 1} files" in note  # files so small that the last batch rolls once more
        assert " 0 MiB written again" not in note
    assert bare_s(tmp_path / "commitlog" / f"{0:020d}") > 0
