"""The daemon of Spark's Python workers, called as by the JVM."""

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


def stderr_after_a_hang_up(module):
    """Start a daemon, request a worker and hang up before the answer; return the stderr."""
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
        number, _, answer = struct.unpack("!ii2s", peer.recv(10, socket.MSG_WAITALL))
        assert answer == b"ok"
        worker = os.pidfd_open(number)
        # A reset, as if the JVM closed before it has read everything: no answer can be written.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with os.fdopen(worker):
        assert select.select([worker], [], [], 60)[0]  # the worker has ended
    daemon.stdin.close()  # Spark ends a daemon this way
    with daemon.stderr:
        stderr = daemon.stderr.read().decode()
    daemon.stdout.close()
    daemon.wait(PROCESS_WITHIN_S)
    return stderr


def test_hang_up_of_a_reader_prints_nothing():
    """Spark hangs up after a ``limit``; its own daemon prints an error, so the test can fail."""
    assert "BrokenPipeError" in stderr_after_a_hang_up("pyspark.daemon")
    assert stderr_after_a_hang_up("hastore.pipeline.spark.worker_daemon") == ""
