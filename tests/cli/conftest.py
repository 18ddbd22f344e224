"""The fixture that runs a command in the test process."""

import functools

import pytest

from tests.support.commands.in_process import run_command


@pytest.fixture
def run(capsysbinary):
    """A function that runs a command and returns its exit code, stdout and stderr."""
    return functools.partial(run_command, capsysbinary)
