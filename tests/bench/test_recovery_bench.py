"""The recovery benchmark measures what it says."""

from pathlib import Path

from tests.bench.recovery_bench import FILES, bare_s, build, start_s


def test_the_start_that_is_measured_is_one_after_a_crash(tmp_path: Path) -> None:
    """The same crash each time; the bare loop reads every record of a file."""
    crashed = build(tmp_path, file_size=4 * 1024 * 1024)
    for _ in range(2):
        crashed.again()
        took_s, note = start_s(crashed)
        assert took_s > 0
        assert f"of {FILES + 1} files" in note  # so small that the last batch rolls once more
        assert " 0 MiB written again" not in note
    assert bare_s(tmp_path / "commitlog" / f"{0:020d}") > 0
