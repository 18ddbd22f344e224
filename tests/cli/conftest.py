"""What the tests of several commands share."""

import pytest

from hastore_cli.main import main


@pytest.fixture
def run(capsysbinary):
    """Runs a command in this process: exit code, stdout, stderr."""

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsysbinary.readouterr()
        return code, captured.out.decode(), captured.err.decode()

    return call
