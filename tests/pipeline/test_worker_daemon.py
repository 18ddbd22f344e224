"""The daemon of Spark's Python workers, as the JVM talks to it."""

import os
import select
import socket
import struct
import subprocess
import sys

import pytest

from tests.patience import PROCESS_WITHIN_S

pytest.importorskip("pyspark")

SECRET = b"open"


def what_is_told_of_a_hang_up(module):
    """Start a daemon, ask a worker of it for something, and take no answer; gives its stderr."""
    daemon = subprocess.Popen(
        [sys.executable, "-m", module, "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ
        | {
            "PYTHON_WORKER_FACTORY_SECRET": SECRET.decode(),
            "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",  # Spark's default
        },
    )
    (port,) = struct.unpack("!i", daemon.stdout.read(4))
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(struct.pack("!i", len(SECRET)) + SECRET)
        number, _, said = struct.unpack("!ii2s", peer.recv(10, socket.MSG_WAITALL))
        assert said == b"ok"
        worker = os.pidfd_open(number)
        # A reset, as of a JVM that leaves before it has read all: no answer can be written.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with os.fdopen(worker):
        assert select.select([worker], [], [], 60)[0]  # it has ended by itself
    daemon.stdin.close()  # so Spark ends a daemon
    with daemon.stderr:
        told = daemon.stderr.read().decode()
    daemon.stdout.close()
    daemon.wait(PROCESS_WITHIN_S)
    return told


def test_a_reader_that_hangs_up_is_no_error():
    """Spark does so after a ``limit``; that its own daemon tells of it shows that this is one."""
    assert "BrokenPipeError" in what_is_told_of_a_hang_up("pyspark.daemon")
    assert what_is_told_of_a_hang_up("hastore.pipeline.spark.worker_daemon") == ""
