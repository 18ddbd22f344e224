"""What newcomers type first and get wrong, run as processes."""

import json
import socket
from contextlib import ExitStack, contextmanager

import pytest

from tests.support.commands.in_process import hastore_here, wait_for_status
from tests.support.commands.running import node

pytestmark = pytest.mark.timeout(300)


def two_ports() -> tuple[int, int]:
    """Return two adjacent free ports, the lower for clients, as in RocketMQ and hastore."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = first.getsockname()[1]
            try:
                stack.enter_context(socket.create_server(("127.0.0.1", port + 1)))
            except (OSError, OverflowError):
                continue
            return port, port + 1


@contextmanager
def master_on_two_ports(data, file_size):
    """Run a master whose client port is one below its HA port."""
    for attempt in range(10):  # another process may take a port in between
        client, ha = (f"127.0.0.1:{port}" for port in two_ports())
        with ExitStack() as stack:
            try:
                running = stack.enter_context(
                    node("master", data, "--listen", client, "--ha-listen", ha, file_size=file_size)
                )
            except AssertionError as error:
                if attempt == 9 or "Address already in use" not in str(error):
                    raise
                continue
            yield running
            return


def test_slave_pointed_at_the_client_port_exits_and_names_the_ha_port(tmp_path):
    """Exit 2, with one line and the intended command."""
    with node("master", tmp_path / "D1") as master:
        done = hastore_here("slave", "--data", tmp_path / "D2", "--master", master.address)
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    port = master.ha_address.rpartition(":")[2]
    assert errors == [
        f"error: {master.address} is the client port; the HA port is {port}",
        f"  next  hastore slave --master {master.ha_address}",
    ]


def test_slave_takes_the_file_size_from_its_master(tmp_path):
    """It asks the master's client port; the copied log files are equal."""
    with master_on_two_ports(tmp_path / "D1", "64KiB") as master:
        sent = hastore_here("produce", "t", "-n", "200", "--size", "1000", "--addr", master.data)
        assert sent.returncode == 20, sent.stderr
        end = json.loads(hastore_here("status", master.data, "-o", "json").stdout)["max_offset"]
        assert end > 3 * 65_536
        with node("slave", tmp_path / "D2", "--master", master.ha_address, file_size=None) as slave:
            status = wait_for_status(slave.data, lambda status: status["max_offset"] == end)
            assert status["mapped_file_size"] == 65_536
            records = [json.loads(line) for line in slave.log.read_text().splitlines()]
    assert [r["file_size"] for r in records if r["event"] == "masters_file_size_taken"] == [65_536]
    assert {r["level"] for r in records} == {"info"}
    done = hastore_here("log", "diff", tmp_path / "D1", tmp_path / "D2")
    assert done.returncode == 0, done.stdout


def test_wrong_file_size_is_refused_before_anything_is_copied(tmp_path):
    """The slave's state is failed, and its log names both sizes and the option to change."""
    with (
        master_on_two_ports(tmp_path / "D1", "64KiB") as master,
        node("slave", tmp_path / "D2", "--master", master.ha_address, file_size="128KiB") as slave,
    ):
        status = wait_for_status(slave.data, lambda status: status["state"] == "failed")
        assert status["max_offset"] == 0
        records = [json.loads(line) for line in slave.log.read_text().splitlines()]
    wrong = [record for record in records if record["level"] != "info"]
    assert [record["event"] for record in wrong] == ["ha_gave_up"]
    assert "131072" in wrong[0]["reason"]
    assert "--mapped-file-size 65536, or none" in wrong[0]["next"]
