"""Setup for all tests: plugins, hypothesis profiles, garbage collection and logging."""

import gc
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from hastore.testing.leftovers import forget_acked_offsets

# They report each failure, write RocketMQ's golden stores, remove what a run leaves behind, and
# look for secrets in all output.
pytest_plugins = [
    "tests.failure_reports",
    "tests.golden.fixtures",
    "tests.janitor",
    "tests.secret_watch",
]

# dev: few examples, new ones each time. ci: some more, and the same each time, so that a failure
# can be repeated; 300 of them cost a minute and a half of CPU time more. soak: for the C extension
# under sanitizers. nightly: as many as fit into a night. HYPOTHESIS_PROFILE chooses one.
settings.register_profile(
    "dev", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=100,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", deadline=None, max_examples=5_000, print_blob=True)
settings.register_profile("nightly", deadline=None, max_examples=20_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

COLLECTED_AFTER_S = 0.01  # a collection takes 2 ms


def pytest_collection_finish() -> None:
    """Exempt what 7,000 collected tests have made from garbage collection.

    Otherwise each full collection during a test goes through all of it, which takes a third of the
    time of a test that makes many objects.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _what_is_left_open_fails_here(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect a test's garbage, sockets among it, and what its nodes left in memory files."""
    uses_files = "tmp_path" in request.fixturenames
    directory: Path | None = request.getfixturevalue("tmp_path") if uses_files else None
    began = time.monotonic()
    yield
    if time.monotonic() - began > COLLECTED_AFTER_S:
        gc.collect()
        if directory is not None:
            forget_acked_offsets(directory)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Restore the logging after a test that ran a command in this process."""
    logger = logging.getLogger("hastore")
    handlers, propagate, level = logger.handlers[:], logger.propagate, logger.level
    raise_exceptions = logging.raiseExceptions
    yield
    logger.handlers[:] = handlers
    logger.propagate = propagate
    logger.setLevel(level)
    logging.raiseExceptions = raise_exceptions


class _NamesAndValues(logging.Formatter):
    """Shows an event's name and values, which are stable; its sentence may change."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        event = dict(record.msg) if isinstance(record.msg, dict) else record.message
        return f"{record.levelname} {record.name} {event}"


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """pytest's, whose ``text`` has the events' names and values."""
    caplog.handler.setFormatter(_NamesAndValues())
    return caplog
