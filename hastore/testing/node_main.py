"""One node as a process: ``python -m hastore.testing.node_main SETTINGS PARENT``.

SETTINGS is a `NodeStart` as JSON, PARENT the id of the process that starts it.  It writes ``ready``
to stdout once it serves; SIGTERM stops it cleanly; its log goes to stderr.  The kernel kills it
when the thread that started it ends, so no node outlives its tests.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
from functools import partial
from typing import Final

import trio

from hastore.broker.node.group_node import GroupNode, run_group_node
from hastore.broker.node.master import Master, run_master
from hastore.broker.node.slave import Slave, run_slave
from hastore.config import GroupNodeConfig, MasterConfig
from hastore.env.real import real_env
from hastore.errors import HastoreError
from hastore.printable import escaped
from hastore.testing.loop_thread import lone
from hastore.testing.node_settings import NodeStart

READY: Final = b"ready\n"
_PR_SET_PDEATHSIG: Final = 1
_ORPHANED: Final = 2
_FAILED: Final = 1


def main() -> int:
    """Run the node until SIGTERM; return the exit code."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    settings, parent = NodeStart.from_dict(json.loads(sys.argv[1])), int(sys.argv[2])
    if os.getppid() != parent:  # the parent died before prctl
        return _ORPHANED
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    try:
        trio.run(_run, settings)
    except (HastoreError, ExceptionGroup) as error:
        if not isinstance(lone(error), HastoreError):
            raise
        sys.stderr.write(f"error: {escaped(str(lone(error)))}\n")
        return _FAILED
    return 0


async def _run(settings: NodeStart) -> None:
    config, env = settings.node_config(), real_env()
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            node: GroupNode | Master | Slave
            if isinstance(config, GroupNodeConfig):
                run = partial(run_group_node, ask_client_port=settings.ask_client_port)
                node = await nursery.start(run, config, env)
            elif isinstance(config, MasterConfig):
                node = await nursery.start(run_master, config, env)
            else:
                node = await nursery.start(run_slave, config, env)
            os.write(sys.stdout.fileno(), READY)
            async for _ in signals:
                node.stop()
                break


if __name__ == "__main__":
    sys.exit(main())
