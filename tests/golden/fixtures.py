"""The plugin with the golden stores' fixtures; it also reports the tests skipped without files.

``golden`` is written by this repository (``directory``): every file has RocketMQ's bytes, or the
fixture fails.  ``recorded_golden`` holds the files that RocketMQ itself wrote, which are not in the
repository.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.golden import digests, directory

NO_RECORDED_FILES = "RocketMQ's recorded files are not there"


@pytest.fixture(scope="session")
def golden(tmp_path_factory) -> Path:
    """Return the directory of the golden stores; only copies (`golden_copy`) may be opened."""
    path = tmp_path_factory.mktemp("golden")
    directory.write(path)
    return path


@pytest.fixture
def golden_copy(golden: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that makes a sparse, writable copy of a golden store for the test."""

    def copy(name: str, *, to: str | None = None) -> Path:
        target = tmp_path / (to or name)
        # cp keeps holes; shutil would fill them.
        cp = shutil.which("cp")
        assert cp is not None
        subprocess.run([cp, "-r", "--sparse=always", "--", golden / name, target], check=True)
        return target

    return copy


@pytest.fixture(scope="session")
def recorded_golden() -> Path:
    """Return the directory of the files that RocketMQ wrote; without it the test is skipped."""
    path = digests.recorded_directory()
    if not path.is_dir():
        pytest.skip(f"{NO_RECORDED_FILES}: {path}")
    return path


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """Report in one last line how many tests were skipped without RocketMQ's files."""
    stats = terminalreporter.stats
    skipped = stats.get("skipped", [])
    of_ours = [report for report in skipped if NO_RECORDED_FILES in str(report.longrepr)]
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
    """Return the directory for a message: relative to this repository, or as it was configured."""
    try:
        return Path("..") / path.relative_to(Path(__file__).resolve().parents[3])
    except ValueError:
        return path
