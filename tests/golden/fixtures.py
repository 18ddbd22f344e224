"""The plugin that gives every test the golden stores, and says what was skipped without the rest.

``golden`` is written by this repository (``directory``): every file of it has the bytes that
RocketMQ wrote, or the fixture fails.  ``recorded_golden`` is what RocketMQ itself wrote, which no
clone has.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.golden import digests, directory

NOT_THERE = "RocketMQ's recorded files are not there"


@pytest.fixture(scope="session")
def golden(tmp_path_factory) -> Path:
    """Directory of the golden stores: read them, and open only copies (`golden_copy`)."""
    path = tmp_path_factory.mktemp("golden")
    directory.write(path)
    return path


@pytest.fixture
def golden_copy(golden: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copies one golden store into the test's own directory, sparse and writable."""

    def copy(name: str, *, to: str | None = None) -> Path:
        target = tmp_path / (to or name)
        # cp knows holes; shutil would fill them.
        cp = shutil.which("cp")
        assert cp is not None
        subprocess.run([cp, "-r", "--sparse=always", "--", golden / name, target], check=True)
        return target

    return copy


@pytest.fixture(scope="session")
def recorded_golden() -> Path:
    """Directory of the very files that RocketMQ wrote; the test is skipped without it."""
    path = digests.recorded_directory()
    if not path.is_dir():
        pytest.skip(f"{NOT_THERE}: {path}")
    return path


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """Say in one line, and below all others, how many tests need what is not there."""
    stats = terminalreporter.stats
    skipped = stats.get("skipped", [])
    of_ours = [report for report in skipped if NOT_THERE in str(report.longrepr)]
    if not of_ours:
        return (yield)
    stats["skipped"] = [report for report in skipped if report not in of_ours]
    try:
        return (yield)
    finally:
        stats["skipped"] = skipped
        count = f"{len(of_ours)} test needs" if len(of_ours) == 1 else f"{len(of_ours)} tests need"
        path = _shown(digests.recorded_directory())
        terminalreporter.write_line(
            f"{count} RocketMQ's recorded files ({path}), not there: skipped"
        )


def _shown(path):
    """The directory as a person looks for it: beside this repository, or where it was said."""
    try:
        return Path("..") / path.relative_to(Path(__file__).resolve().parents[3])
    except ValueError:
        return path
