"""A master process with messages, for the tests of commands that ask a node."""

import json
from contextlib import contextmanager

from tests.cli.running import hastore, node


@contextmanager
def master_with(data, *arguments):
    """A master in ``data`` and a `produce` that must succeed."""
    with node("master", data, "--broker-role", "ASYNC_MASTER", *arguments) as running:
        yield running


def produce(address, topic, bodies, *arguments):
    """Send bodies; gives what `produce -o json` says of each."""
    text = "".join(f"{body}\n" for body in bodies).encode()
    sent = hastore("produce", topic, "--addr", address, "-o", "json", *arguments, stdin=text)
    assert sent.returncode == 0, sent.stderr
    return json.loads(sent.stdout)["messages"]
