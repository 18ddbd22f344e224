"""SIGHUP at a real node: a reload without a terminal and under nohup, a clean stop on one."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import ssl
import subprocess
import sys

import pytest

from tests.patience import PROCESS_WITHIN_S
from tests.support.certificates import DAY
from tests.support.commands.in_process import hastore_here, wait_for_status
from tests.support.commands.running import ANY_PORT, Node, command, environment, node
from tests.support.nodes.access_keys import (
    ACCOUNTS,
    ADMIN_KEY,
    POOR_KEY,
    write_key,
    write_private,
)
from tests.support.nodes.tls_files import make_tls_files
from tests.support.waiting import wait_until

RICHER = ACCOUNTS + "  topicPerms: [orders=PUB]\n"  # the last account is the-poor


def lines_of(running, event):
    """The log records of an event."""
    records = [json.loads(line) for line in running.log.read_text().splitlines() if line[:1] == "{"]
    return [record for record in records if record["event"] == event]


def reloads_of(running, count):
    """Send SIGHUP; return the records of all reloads once there are ``count``."""
    running.process.send_signal(signal.SIGHUP)
    wait_until(lambda: len(lines_of(running, "reloaded")) == count, running.log.read_text)
    return lines_of(running, "reloaded")


def test_without_a_terminal_a_node_reloads_and_keeps_its_links(tmp_path):
    """Permissions are taken whole or not at all; the slave stays on the same connection."""
    acl = write_private(tmp_path / "acl.yml", ACCOUNTS)
    admin = write_key(tmp_path / "admin.toml", ADMIN_KEY)
    poor = write_key(tmp_path / "poor.toml", POOR_KEY)
    keys = ("--access-file", acl, "--access-key-file", admin)

    def send():
        done = hastore_here(
            "produce", "orders", "-n", 1, "--addr", master.address, HASTORE_ACCESS_KEY_FILE=poor
        )
        return done.returncode

    def status(condition):
        return wait_for_status(master.data, condition, admin)

    with (
        node("master", tmp_path / "M", *keys, has_terminal=False) as master,
        node("slave", tmp_path / "S", "--master", master.ha_address, *keys, has_terminal=False),
    ):
        before = status(lambda status: status["slaves"])["slaves"]
        assert send() == 23  # rejected: it needs PUB on topic orders
        write_private(tmp_path / "acl.yml", RICHER)
        (line,) = reloads_of(master, 1)
        assert (line["taken"], line["not_taken"], line["level"]) == (["permissions"], {}, "info")
        assert send() == 0
        write_private(tmp_path / "acl.yml", "accounts: [")
        line = reloads_of(master, 2)[-1]
        assert (line["taken"], line["level"]) == ([], "warning")
        assert "acl.yml, line 1 is not YAML" in line["not_taken"]["permissions"]
        assert send() == 0
        after = status(lambda _: True)
        links = [[each["address"] for each in slaves] for slaves in (before, after["slaves"])]
        assert links[0] == links[1]
        assert not lines_of(master, "ha_slave_gone")
        assert len(lines_of(master, "ha_slave_connected")) == 1
        assert after["access"]["fault"]
        assert master.stop() == 0


def test_a_certificate_is_taken_and_encrypted_links_stay(tmp_path):
    """New connections get the new one; the slave's, by TLS with both certificates, goes on."""
    files = make_tls_files(tmp_path)
    ca, made = str(files.authority.ca), files.authority.issue("short", hosts=["127.0.0.1"])
    own = ("--tls-cert", made.cert, "--tls-key", made.key, "--tls-ca", ca, "--ha-tls")
    ha = ("--ha-tls-allowed-names", "*", "--tls", "enforcing")

    def end_of_certificate():
        context = ssl.create_default_context(cafile=ca)
        host, _, port = master.address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), PROCESS_WITHIN_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as encrypted,
        ):
            return ssl.cert_time_to_seconds(encrypted.getpeercert()["notAfter"])

    with (
        node("master", tmp_path / "M", *own, *ha, has_terminal=False) as master,
        node("slave", tmp_path / "S", "--master", master.ha_address, *own, "--tls", "enforcing"),
    ):
        wait_until(lambda: lines_of(master, "ha_slave_connected"), master.log.read_text)
        before = end_of_certificate()
        files.authority.issue("short", hosts=["127.0.0.1"], valid=(-DAY, 5 * DAY))
        (line,) = reloads_of(master, 1)
        assert (line["taken"], line["not_taken"]) == (["certificate"], {})
        assert end_of_certificate() > before + DAY.total_seconds()
        done = hastore_here("produce", "t", "-n", 3, "--addr", master.address, "--tls-ca", ca)
        assert (done.returncode, "PUT_OK" in done.stdout + done.stderr) == (0, True), done.stderr
        assert len(lines_of(master, "ha_slave_connected")) == 1
        assert not lines_of(master, "ha_slave_gone")
        assert master.stop() == 0


def test_a_node_without_such_files_says_so(tmp_path):
    """SIGHUP is no stop, also where there is nothing to read."""
    with node("master", tmp_path / "D", has_terminal=False) as master:
        (line,) = reloads_of(master, 1)
        assert (line["taken"], line["not_taken"]) == ([], {})
        assert master.stop() == 0


# -- on a terminal ---------------------------------------------------------------------------------

LEADER = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@contextlib.contextmanager
def node_on_a_terminal(data, *before):
    """Run a master as the leader of a terminal's session; yield it, and what ends the terminal."""
    ours, theirs = pty.openpty()
    log = data.with_name("log")
    arguments = ("--data", data, "--listen", ANY_PORT, "--ha-listen", ANY_PORT)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", LEADER, *before, *command("master", *arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=output if before else theirs,
            env=environment(),
            cwd=data.parent,  # nohup writes a file there
        )
    os.close(theirs)
    hang_up = contextlib.ExitStack()
    hang_up.callback(os.close, ours)
    running = Node(process, data, log)
    try:
        running.wait_ready()
        yield running, hang_up.close
    finally:
        process.kill()
        process.wait()
        hang_up.close()


@pytest.mark.parametrize("is_gone", [True, False])
def test_on_a_terminal_a_hang_up_is_a_clean_stop(tmp_path, is_gone):
    """By a signal, or because the terminal is gone, and with it whom to tell."""
    with node_on_a_terminal(tmp_path / "D") as (master, hang_up):
        if is_gone:
            hang_up()
        else:
            master.process.send_signal(signal.SIGHUP)
        assert master.process.wait(PROCESS_WITHIN_S) == 129
    names = {path.name for path in (tmp_path / "D").iterdir()}
    assert not names & {"node.json", "abort"}


def test_under_nohup_a_node_outlives_its_terminal(tmp_path):
    """The hang-up is a reload like any other."""
    with node_on_a_terminal(tmp_path / "D", "nohup") as (master, hang_up):
        reloads_of(master, 1)
        hang_up()
        wait_until(lambda: len(lines_of(master, "reloaded")) == 2, master.log.read_text)
        assert master.stop() == 0
