"""A master process and messages for it, for tests of commands that query a node."""

import json
from contextlib import contextmanager

import trio

from hastore.client.admin import AdminClient
from hastore.quantities import parse_address
from tests.support.commands.in_process import hastore_here
from tests.support.commands.running import node
from tests.support.waiting import eventually


@contextmanager
def master_with(data, *, file_size="4MiB", **extra):
    """Run an ASYNC_MASTER on free ports."""
    role = ("--broker-role", "ASYNC_MASTER")
    with node("master", data, *role, file_size=file_size, **extra) as running:
        yield running


def produce(address, topic, bodies, *arguments):
    """Send bodies, and wait until they may be read; return the entries that `produce` prints."""
    text = "".join(f"{body}\n" for body in bodies).encode()
    sent = hastore_here("produce", topic, "--addr", address, "-o", "json", *arguments, stdin=text)
    assert sent.returncode == 0, sent.stderr
    trio.run(_wait_readable, address)
    return json.loads(sent.stdout)["messages"]


async def _wait_readable(address):
    async def is_readable():
        return (await admin.runtime_info())["dispatchBehindBytes"] == "0"

    async with AdminClient.connect(parse_address(address)) as admin:
        await eventually(is_readable, "all that is confirmed can be read")
