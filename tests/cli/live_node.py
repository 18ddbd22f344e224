"""A master process, and messages for it, for the tests of commands that ask a node."""

import json
from contextlib import contextmanager

from tests.support.commands.running import hastore, node


@contextmanager
def master_with(data, *, file_size="4MiB", **extra):
    """A master that waits for no slave, on any free ports."""
    role = ("--broker-role", "ASYNC_MASTER")
    with node("master", data, *role, file_size=file_size, **extra) as running:
        yield running


def produce(address, topic, bodies, *arguments):
    """Send bodies; gives what `produce -o json` says of each."""
    text = "".join(f"{body}\n" for body in bodies).encode()
    sent = hastore("produce", topic, "--addr", address, "-o", "json", *arguments, stdin=text)
    assert sent.returncode == 0, sent.stderr
    return json.loads(sent.stdout)["messages"]
