"""The fixture that runs a command in the test process."""

import pytest

from hastore_cli.main import main


@pytest.fixture
def run(capsysbinary):
    """A function that runs a command and returns its exit code, stdout and stderr."""

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsysbinary.readouterr()
        return code, captured.out.decode(), captured.err.decode()

    return call
