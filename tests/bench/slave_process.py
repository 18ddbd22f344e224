"""A slave that copies a log and measures the time: DIR HOST:PORT BYTES [GROUP|- [CERT KEY CA]].

Prints {"bytes", "seconds", "readable_s", "cpu_s", "rss_anon_mib"}.  The clocks start when the log
is first seen to have bytes; those are not counted.  ``readable_s`` and ``cpu_s``, the CPU time of
this process, end when consumers can read all of it.
"""

from __future__ import annotations

import json
import os
import sys
import time

import trio

import hastore
from hastore.config import HAConfig, SlaveConfig, StoreConfig, TlsConfig
from hastore.status import HAProtocol
from tests.bench.catch_up_bench import FILE_SIZE
from tests.bench.nodes import TOPIC, anonymous_mib


async def copy(
    path: str, master: str, size: int, group: str | None = None, *tls: str
) -> dict[str, float]:
    """Run a slave, or node 2 of a replica group, until its log has ``size`` bytes."""
    host, _, port = master.rpartition(":")
    cert, key, ca = tls or (None, None, None)
    is_classic = group in {None, "-"}
    config = SlaveConfig(
        store=StoreConfig(data_dir=path, mapped_file_size=FILE_SIZE),
        master=(host, int(port)),
        listen=None,
        ha=HAConfig(
            protocol=HAProtocol.CLASSIC if is_classic else HAProtocol.AUTOSWITCH, tls=bool(tls)
        ),
        tls=TlsConfig(cert_file=cert, key_file=key, ca_file=ca),
        node_id=None if is_classic else 2,
        replica_group=None if is_classic else group,
    )
    async with hastore.open_slave(config) as slave:
        while not slave.max_offset:
            await trio.sleep(0)
        began_at, began_s = slave.max_offset, trio.current_time()
        began_cpu_s = time.process_time()
        while slave.max_offset < size:
            await trio.sleep(0.002)
        seconds = trio.current_time() - began_s
        while slave.status().dispatch_behind_bytes:
            await trio.sleep(0.002)
        readable_s = trio.current_time() - began_s
        assert slave.message_store.max_offset_in_queue(TOPIC, 0) > 0
        return {
            "bytes": size - began_at,
            "seconds": seconds,
            "readable_s": readable_s,
            "cpu_s": time.process_time() - began_cpu_s,
            "rss_anon_mib": anonymous_mib(os.getpid()),
        }


if __name__ == "__main__":
    print(json.dumps(trio.run(copy, sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])))
