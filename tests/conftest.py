"""For every test: hypothesis profiles, Ctrl-C, logging; the golden stores are a plugin's."""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Each failure is named, nothing is left behind, and RocketMQ's stores are written from figures.
pytest_plugins = ["tests.failure_reports", "tests.golden.fixtures", "tests.janitor"]

# dev: quick, new examples each time. ci: more, and the same each time, so that a red run can be
# repeated. nightly: as many as a night has room for. Chosen by HYPOTHESIS_PROFILE.
settings.register_profile(
    "dev", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
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
