"""What runs a node for real: the systemd unit, and its notifications, against a socket of ours."""

import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from hastore_cli.node.notify import notify
from tests.support.commands.running import ANY_PORT, WITHIN_S, command, environment, node
from tests.support.repository import REPO_ROOT

UNIT = REPO_ROOT / "deploy/systemd/hastore-node.service"
EXPOSURE_MAX = 2.5


def listener(address):
    """A datagram socket as systemd has one."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.settimeout(WITHIN_S)
    sock.bind(address)
    return sock


def received(sock):
    """The next datagram, as pairs."""
    lines = sock.recv(4096).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


# -- notifications -------------------------------------------------------------------------------


def test_a_node_says_when_it_serves_and_when_it_stops(tmp_path):
    """READY=1 once clients can connect, STOPPING=1 at the signal."""
    path = tmp_path / "notify"
    with listener(str(path)) as sock:
        process = subprocess.Popen(
            command(
                "master", "--data", tmp_path / "D", "--listen", ANY_PORT, "--ha-listen", ANY_PORT
            ),
            env=environment(NOTIFY_SOCKET=str(path)),
            stderr=subprocess.DEVNULL,
        )
        try:
            ready = received(sock)
            assert ready["READY"] == "1"
            found = re.fullmatch(r"SYNC_MASTER, clients 127\.0\.0\.1:(\d+)", ready["STATUS"])
            assert found is not None, ready
            socket.create_connection(("127.0.0.1", int(found[1])), WITHIN_S).close()
            # Keys and passwords are in its memory: no core dump of it is written.
            limits = Path(f"/proc/{process.pid}/limits").read_text()
            assert re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE), limits
            process.send_signal(signal.SIGTERM)
            assert received(sock)["STOPPING"] == "1"
            assert process.wait(WITHIN_S) == 0
        finally:
            process.kill()
            process.wait()


def test_a_node_says_that_it_reloads(tmp_path):
    """RELOADING=1 with the time that systemd 253 asks for, then READY=1 again."""
    path = tmp_path / "notify"
    with (
        listener(str(path)) as sock,
        node("master", tmp_path / "D", has_terminal=False, NOTIFY_SOCKET=str(path)) as master,
    ):
        ready = received(sock)
        asked_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        master.process.send_signal(signal.SIGHUP)
        reloading = received(sock)
        assert reloading["RELOADING"] == "1"
        assert int(reloading["MONOTONIC_USEC"]) >= asked_us
        assert received(sock) == ready


@pytest.mark.parametrize("abstract", [False, True])
def test_a_value_is_one_line(tmp_path, abstract):
    """Also where the socket has no file."""
    name = f"hastore-test-{tmp_path.name}-{tmp_path.parent.name}"
    address = f"\0{name}" if abstract else str(tmp_path / "s")
    with listener(address) as sock:
        environ = {"NOTIFY_SOCKET": f"@{name}" if abstract else address}
        notify(environ, READY="1", STATUS="a\nREADY=0")
        assert received(sock) == {"READY": "1", "STATUS": "a READY=0"}


@pytest.mark.parametrize("path", ["", "relative", "/nowhere/at/all", "@nobody-listens-here"])
def test_without_a_listener_nothing_happens(path):
    """A node need not run under systemd, and outlives it."""
    notify({"NOTIFY_SOCKET": path}, READY="1")
    notify({}, READY="1")


# -- the unit ------------------------------------------------------------------------------------


def analyze(*arguments):
    """Run systemd-analyze; skip the test where it is not installed."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("no systemd-analyze: it is part of systemd")
    return subprocess.run(
        [tool, "--no-pager", *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture
def unit(tmp_path):
    """The unit as a file whose programs and sections are here."""
    program = shutil.which("true")
    text = UNIT.read_text()
    for used in ("/opt/hastore/bin/hastore", "/bin/kill"):
        text = text.replace(used, program)
    copy = tmp_path / UNIT.name
    copy.write_text(text)
    return copy


def test_the_unit_is_valid(unit):
    """Without a word of systemd-analyze verify."""
    done = analyze("verify", str(unit))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_unit_exposes_little(unit):
    """Its exposure is what the network leaves; a worse one is an error of systemd-analyze."""
    limit = str(round(EXPOSURE_MAX * 10))
    done = analyze("security", "--offline=true", f"--threshold={limit}", str(unit))
    assert done.returncode == 0, done.stdout
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) <= EXPOSURE_MAX


def test_the_unit_starts_a_node_that_notifies_and_keeps_its_boot_id_readable():
    """No restart after what a person must see; boot_id decides who may be master."""
    lines = UNIT.read_text().splitlines()
    assert "Type=notify" in lines
    assert "RemoveIPC=no" in lines, "a killed node finds in /dev/shm what it had acknowledged"
    assert "ExecReload=/bin/kill -HUP $MAINPID" in lines
    assert "RestartPreventExitStatus=2 4 6" in lines
    assert not [line for line in lines if line.startswith("ProcSubset=")]
    (start,) = [line for line in lines if line.startswith("ExecStart=")]
    words = start.partition("=")[2].split()
    assert words[:2] == ["/opt/hastore/bin/hastore", "node"]
    helped = subprocess.run(command("node", "--help"), capture_output=True, text=True, check=True)
    assert all(word in helped.stdout for word in words if word.startswith("-"))
