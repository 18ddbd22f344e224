"""Fixtures for every test: hypothesis profiles, and copies of what real RocketMQ wrote."""

import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

REPO_ROOT = Path(__file__).resolve().parents[1]

# Each failure is named, whatever goes wrong while it is rendered.
pytest_plugins = ["tests.failure_reports"]

# dev: quick, new examples each time. ci: more, and the same each time, so that a red run can be
# repeated. nightly: as many as a night has room for. Chosen by HYPOTHESIS_PROFILE.
settings.register_profile("dev", deadline=None, max_examples=100)
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=300,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("nightly", deadline=None, max_examples=20_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


def pytest_configure() -> None:
    """Let Ctrl-C reach the processes that tests start, also where this run ignores it.

    A shell starts what it puts in the background with SIGINT ignored, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Undo what a command that ran in this process did to the logging of all that follow."""
    logger = logging.getLogger("hastore")
    handlers, propagate, level = logger.handlers[:], logger.propagate, logger.level
    raise_exceptions = logging.raiseExceptions
    yield
    logger.handlers[:] = handlers
    logger.propagate = propagate
    logger.setLevel(level)
    logging.raiseExceptions = raise_exceptions


@pytest.fixture(scope="session")
def golden() -> Path:
    """Directory of what real RocketMQ wrote: read it, and open only copies (`golden_copy`)."""
    path = Path(os.environ.get("HASTORE_GOLDEN", REPO_ROOT.parent / "shared" / "golden"))
    if not path.is_dir():
        pytest.skip(f"no golden data at {path}; set HASTORE_GOLDEN to its directory")
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
        for path in (target, *target.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        return target

    return copy
