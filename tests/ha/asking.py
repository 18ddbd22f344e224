"""A slave that asks its master's client port, and what it learned there."""

import contextlib
from functools import partial

import trio

from hastore.broker.node.slave import run_slave
from hastore.env.real import real_env


class Asked:
    """Records the addresses that are asked, and always returns the same answer."""

    def __init__(self, found, takes_s=0.0):
        self.found = found
        self.takes_s = takes_s
        self.addresses = []

    async def __call__(self, address):
        self.addresses.append(address)
        await trio.sleep(self.takes_s)
        return self.found


@contextlib.asynccontextmanager
async def slave_that_asks(config, ask):
    async with trio.open_nursery() as nursery:
        slave = await nursery.start(partial(run_slave, config, real_env(), ask_client_port=ask))
        yield slave
        slave.stop()
