"""A master process and messages for it, for tests of commands that query a node."""

import json
from contextlib import contextmanager

from tests.support.commands.in_process import hastore_here
from tests.support.commands.running import node


@contextmanager
def master_with(data, *, file_size="4MiB", **extra):
    """Run an ASYNC_MASTER on free ports."""
    role = ("--broker-role", "ASYNC_MASTER")
    with node("master", data, *role, file_size=file_size, **extra) as running:
        yield running


def produce(address, topic, bodies, *arguments):
    """Send bodies; return the entries that `produce -o json` prints for them."""
    text = "".join(f"{body}\n" for body in bodies).encode()
    sent = hastore_here("produce", topic, "--addr", address, "-o", "json", *arguments, stdin=text)
    assert sent.returncode == 0, sent.stderr
    return json.loads(sent.stdout)["messages"]
