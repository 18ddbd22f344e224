"""`hastore master` and `hastore slave` as processes: start, stop and invalid input."""

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tomllib

import pytest
import trio

from hastore.client.admin import AdminClient
from hastore.env.real import real_env
from hastore.quantities import parse_address
from hastore_cli.app.log_output import LogConfig
from hastore_cli.node import runner
from hastore_cli.node.file import NODE_FILE
from tests.support.commands.in_process import hastore_here, status_of, wait_for_status
from tests.support.commands.running import (
    ANY_PORT,
    WITHIN_S,
    command,
    environment,
    hastore,
    is_one_line_with_a_next_step,
    node,
)
from tests.support.nodes.harness import master_config
from tests.support.waiting import wait_until

MASTER = ("master", "--listen", ANY_PORT, "--ha-listen", ANY_PORT)


def test_node_publishes_its_addresses(tmp_path):
    """In node.json and in its ready event; `status` accepts its directory or its address."""
    with node("master", tmp_path / "D", "--broker-role", "async_master", "--name", "n1") as master:
        assert master.info["schema"] == "hastore.node/1"
        assert master.info["role"] == "ASYNC_MASTER"
        assert re.fullmatch(r"127\.0\.0\.1:\d+", master.address)
        by_directory = json.loads(hastore_here("status", master.data, "-o", "json").stdout)
        by_address = json.loads(hastore_here("status", master.address, "-o", "json").stdout)
        assert by_directory["process_id"] == by_address["process_id"] == master.process.pid
        assert by_directory["schema"] == "hastore.status/1"
        assert by_directory["name"] == "n1"
        assert master.stop() == 0
        records = [json.loads(line) for line in master.log.read_text().splitlines()]
    ready = next(record for record in records if record["event"] == "ready")
    assert ready["address"] == master.address
    assert ready["next"] == f"hastore slave --master {master.ha_address} --data DIR"


def test_ready_line_of_a_groups_master_starts_a_node_of_the_group(tmp_path):
    """A classic slave would be refused."""
    group = ("--ha-protocol", "autoswitch", "--node-id", "1", "--node-group", "g1")
    with node("master", tmp_path / "D", "--log-format", "console", *group) as master:
        text = master.wait_for_text("  next  ")
    command = f"hastore node --master {master.ha_address} --node-id N --node-group g1 --data DIR"
    assert f"  next  {command}\n" in text


def test_ready_line_has_the_next_command(tmp_path):
    """With the console log format it also lists the listening addresses."""
    with node("master", tmp_path / "D", "--log-format", "console") as master:
        text = master.wait_for_text("  next  ")
    assert f"ready: SYNC_MASTER hastore-a, log {master.data} ends at 0\n" in text
    assert f"       clients {master.address}, slaves {master.ha_address}\n" in text
    assert f"  next  hastore slave --master {master.ha_address} --data DIR\n" in text
    assert "\x1b[" not in text


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_stops_a_node_cleanly(tmp_path, signum, code):
    """Exit 0 on SIGTERM, else 128 + signal, within 5 s; node.json and abort are gone."""
    with node("master", tmp_path / "D") as master:
        assert hastore_here("produce", "t", "-n", "30", "--addr", master.data).returncode == 20
        assert (master.data / "abort").exists()
        assert master.stop(signum) == code
        assert "Traceback" not in master.log.read_text()
    names = {path.name for path in (tmp_path / "D").iterdir()}
    assert "node.json" not in names
    assert "abort" not in names


def test_slave_without_a_master_stops_cleanly(tmp_path):
    """The slave is still trying to connect."""
    with node("slave", tmp_path / "D", "--master", "127.0.0.1:1") as slave:
        assert slave.info["ha_address"] is None
        status = hastore_here("status", slave.data)
        assert "connecting" in status.stdout or "backing-off" in status.stdout
        assert slave.stop(signal.SIGINT) == 130


def test_killed_node_leaves_node_json_and_restarts(tmp_path):
    """After kill -9, `status` exits with 3; the next start needs no repair."""
    data = tmp_path / "D"
    with node("master", data) as master:
        hastore_here("produce", "t", "-n", "5", "--addr", data)
        assert master.stop(signal.SIGKILL) == -signal.SIGKILL
    done = hastore_here("status", data)
    assert done.returncode == 3
    assert is_one_line_with_a_next_step(done.stderr)
    with node("master", data) as master:
        assert "t/" in hastore_here("produce", "t", "-n", "1", "--addr", data).stdout
        assert wait_for_status(data, lambda status: status["put_counts"])["max_offset"] > 5_000


def test_check_config_prints_the_configuration_and_starts_nothing(tmp_path):
    """The output is TOML with the origin of each value; the data directory is not created."""
    done = hastore_here(
        *MASTER, "--data", tmp_path / "D", "--check-config", HASTORE_HA_MAX_GAP="1GiB"
    )
    assert done.returncode == 0
    assert tomllib.loads(done.stdout)["ha"]["max_gap"] == "1GiB"
    assert re.search(r'max_gap = "1GiB" +# HASTORE_HA_MAX_GAP', done.stdout)
    assert not (tmp_path / "D").exists()


# -- invalid input: one line, a next step, an exit code, and no data is lost -----------------------


def refused(done: subprocess.CompletedProcess[str], code: int, *expected: str) -> None:
    """Check an error's exit code, form and text."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert is_one_line_with_a_next_step(done.stderr), done.stderr
    for text in expected:
        assert text in done.stderr


def test_slave_role_for_a_master_is_refused(tmp_path):
    """The next step is the command that starts a slave."""
    done = hastore(*MASTER, "--data", tmp_path / "D", "--broker-role", "slave")
    refused(done, 2, "wrong role", "hastore slave --master")
    assert not (tmp_path / "D").exists()


def test_a_switch_of_a_node_takes_no_value(tmp_path):
    """``--learner`` turns it on; left out, the file and the variable count."""
    slave = ["slave", "--master", "127.0.0.1:1", "--data", tmp_path / "D", "--check-config"]
    group = ["--ha-protocol", "autoswitch", "--node-id", "2", "--node-group", "g1"]
    done = hastore_here(*slave, *group, "--learner")
    assert re.search(r"^learner = true +# --learner$", done.stdout, re.MULTILINE), done
    done = hastore_here(*slave, *group, HASTORE_HA_LEARNER="yes")
    assert re.search(r"^learner = true +# HASTORE_HA_LEARNER$", done.stdout, re.MULTILINE), done
    assert re.search("^learner = false +# default$", hastore_here(*slave).stdout, re.MULTILINE)
    done = hastore_here(*slave, "--learner")
    assert done.returncode == 2
    assert "only the autoswitch protocol has learners" in done.stderr


def test_node_of_a_group_changes_its_role(tmp_path):
    """node.json, `status` and the ready line follow; its process stays the same."""
    ids = ["--node-id", 1, "--node-group", "g1", "--group-ids", "1"]
    with node("node", tmp_path / "D", *ids, "--log-format", "console") as one:
        text = one.wait_for_text("  next  ")
        assert f"ready: SLAVE hastore-a, log {one.data} ends at 0\n" in text
        assert "node 1 of g1, waits for a role" in text
        assert status_of(one.data)["state"] == "unassigned"
        address = parse_address(one.address)
        wish = {"epoch": 1, "master_id": 1, "master_address": address}
        trio.run(tell, address, wish)
        status = wait_for_status(one.data, lambda status: status["role"] == "SYNC_MASTER")
        assert status["process_id"] == one.process.pid
        assert status["address"] == one.address
        wait_until(lambda: json.loads((one.data / NODE_FILE).read_bytes())["role"] != "SLAVE")
        done = hastore_here("produce", "orders", "--addr", one.data, input="hello\n")
        assert done.returncode == 0, done.stderr
        assert one.stop() == 0
    with node("node", tmp_path / "D", *ids) as one:  # a start is never a promotion
        assert status_of(one.data)["state"] == "unassigned"


async def tell(address, wish):
    async with AdminClient.connect(address) as admin:
        await admin.change_role(**wish)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "nodes of a replica group"),
        (["--node-id", 1, "--node-group", "g1", "--ha-protocol", "classic"], "autoswitch"),
        (["--node-id", 1, "--node-group", "g1", "--group-ids", "2,3"], "lacks this node"),
        (["--node-id", 1, "--node-group", "g1", "--group-ids", "1,1"], "names a number twice"),
        (["--node-id", 1, "--node-group", "g1", "--in-sync-replicas", "most"], "most"),
    ],
)
def test_node_of_no_group_is_refused(tmp_path, flags, text):
    """One line with a next step, and no directory."""
    done = hastore_here("node", "--data", tmp_path / "D", *flags)
    refused(done, 2, text)
    assert not (tmp_path / "D").exists()


@pytest.mark.parametrize("flag", ["--listen", "--ha-listen", "--observer-listen"])
def test_port_in_use_is_refused(tmp_path, flag):
    """The error names the address, and the next step the flag."""
    of_group = ("--ha-protocol", "autoswitch", "--node-id", "1", "--node-group", "g1")
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = hastore(*MASTER, "--data", tmp_path / "D", *of_group, flag, address)
    refused(done, 1, f"cannot listen on {address}", "Address already in use", f"{flag} 127.0.0.1:0")


def test_address_of_another_machine_is_refused(tmp_path):
    """192.0.2.1 is reserved for documentation, so no machine has it."""
    done = hastore_here(*MASTER, "--data", tmp_path / "D", "--listen", "192.0.2.1:10911")
    refused(done, 1, "cannot listen on 192.0.2.1:10911")


def test_directory_locked_by_another_process_is_refused(tmp_path):
    """The error names the process of the first node, which keeps running."""
    with node("master", tmp_path / "D") as master:
        expected = f"process {master.process.pid}, a SYNC_MASTER, runs there: hastore status"
        refused(hastore(*MASTER, "--data", master.data), 6, "held by another process", expected)
        assert json.loads((master.data / "node.json").read_text())["pid"] == master.process.pid
        assert hastore("status", master.data).returncode == 0


def test_directory_with_other_files_is_refused(tmp_path):
    """The directory keeps its only file."""
    (tmp_path / "letter.txt").write_text("dear reader")
    refused(hastore_here(*MASTER, "--data", tmp_path), 6, "letter.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_file_as_data_directory_is_refused(tmp_path):
    """The error names the path."""
    (tmp_path / "D").write_text("x")
    refused(hastore_here(*MASTER, "--data", tmp_path / "D"), 1, "D")


def test_file_size_other_than_the_stores_is_refused(tmp_path):
    """The error names both sizes; without the flag, the store's size is used."""
    data = tmp_path / "D"
    with node("master", data, file_size="64KiB") as master:
        hastore_here("produce", "t", "-n", "200", "--addr", data)
        master.stop()
    refused(
        hastore_here(*MASTER, "--data", data, "--mapped-file-size", "1MiB"), 6, "65536", "1048576"
    )
    with node("master", data, file_size=None):
        assert status_of(data)["mapped_file_size"] == 65_536


def test_unreadable_directory_is_refused(tmp_path):
    """Root runs the command without its power over file modes."""
    data = tmp_path / "D"
    data.mkdir(mode=0)
    refused(
        subprocess.run(
            [*without_power_over_modes(), *command(*MASTER, "--data", data)],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        ),
        1,
        "Permission denied",
    )


def without_power_over_modes() -> list[str]:
    """A command prefix that makes even root obey file modes."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root ignores file modes, and setpriv is not installed")
    lost = "-dac_override,-dac_read_search"
    return [setpriv, f"--bounding-set={lost}", f"--inh-caps={lost}"]


def test_disk_full_at_the_first_file_prevents_the_start(tmp_path):
    """A limit on the file size stands in for the full disk."""
    done = subprocess.run(
        command(*MASTER, "--data", tmp_path / "D", "--log-level", "error"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    refused(done, 1, "no space to create")


def test_disk_full_at_a_later_file_refuses_puts(tmp_path):
    """The output gives the reason; the node keeps running."""
    data = tmp_path / "D"
    with node("master", data, file_size="64KiB") as master:
        resource.prlimit(master.process.pid, resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
        done = hastore_here(
            "produce", "t", "-n", "8", "--size", "30000", "--addr", data, "-o", "json"
        )
        result = json.loads(done.stdout)
        assert done.returncode == result["exit_code"] == 23
        assert result["counts"]["CREATE_MAPPED_FILE_FAILED"] >= 1
        assert "no space to create" in result["reasons"]["CREATE_MAPPED_FILE_FAILED"]
        stored = result["counts"]["SLAVE_NOT_AVAILABLE"]
        assert hastore_here("status", data).returncode == 0
        assert master.stop() == 0
    assert stored == 8 - result["counts"]["CREATE_MAPPED_FILE_FAILED"]


def test_unknown_toml_key_is_refused(tmp_path):
    """The error names the file, the key and the nearest key."""
    file = tmp_path / "h.toml"
    file.write_text('[ha]\nslave_timout = "3s"\n')
    done = hastore_here(*MASTER, "--data", tmp_path / "D", "-c", file)
    refused(done, 2, f"{file}, line 2: no such key: [ha] slave_timout", "[ha] slave_timeout")


def test_misspelt_variable_is_reported_and_ignored(tmp_path):
    """It may belong to another program, so this is no error."""
    done = hastore_here(
        *MASTER, "--data", tmp_path / "D", "--check-config", HASTORE_HA_MAXGAP="1GiB"
    )
    assert done.returncode == 0
    assert "did you mean HASTORE_HA_MAX_GAP?" in done.stderr


def test_a_node_that_ends_by_itself_is_an_error(tmp_path, monkeypatch, capsys):
    """Without a signal and without an error: a service manager starts it again."""
    start = runner._start

    async def start_and_stop(*args):
        node = await start(*args)
        node.stop()
        return node

    monkeypatch.setattr(runner, "_start", start_and_stop)
    config = master_config(tmp_path / "D")
    assert trio.run(runner._run_until_signal, config, LogConfig(), real_env()) == 1
    assert "the node has ended, and nobody asked it to" in capsys.readouterr().err


def test_second_signal_ends_a_node_at_once(tmp_path):
    """It skips the clean stop, so abort stays and the next start checks the tail."""
    with node("master", tmp_path / "D") as master:
        # The node is frozen, so both signals are pending when it continues.
        master.process.send_signal(signal.SIGSTOP)
        master.process.send_signal(signal.SIGTERM)
        master.process.send_signal(signal.SIGINT)
        master.process.send_signal(signal.SIGCONT)
        assert master.process.wait(WITHIN_S) in {130, 143}
        assert "Traceback" not in master.log.read_text()


def test_commands_sent_to_the_ha_port_name_the_mistake(tmp_path):
    """The node refuses the connection and lists it in its status."""
    with node("master", tmp_path / "D") as master:
        for command in ("status", "explain"):
            refused(hastore_here(command, master.ha_address), 3, "not its HA port")
        for command in ("produce", "consume"):
            done = hastore_here(command, "orders", "--addr", master.ha_address, stdin=b"a line\n")
            refused(done, 3, "not its HA port")
        status = wait_for_status(master.data, lambda status: status["refused"])
    assert status["refused"][0]["reason"]
