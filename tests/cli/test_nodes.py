"""`hastore master` and `hastore slave` as processes: ready, stopped, and every bad input."""

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

from tests.support.commands.running import (
    ANY_PORT,
    WITHIN_S,
    command,
    environment,
    hastore,
    is_one_line_with_a_next_step,
    node,
    status_of,
    wait_for_status,
)

MASTER = ("master", "--listen", ANY_PORT, "--ha-listen", ANY_PORT)


def test_a_node_says_where_it_is(tmp_path):
    """node.json for scripts, a ready record in the log, and status by directory or address."""
    with node("master", tmp_path / "D", "--broker-role", "async_master", "--name", "n1") as master:
        assert master.info["schema"] == "hastore.node/1"
        assert master.info["role"] == "ASYNC_MASTER"
        assert re.fullmatch(r"127\.0\.0\.1:\d+", master.address)
        by_directory = json.loads(hastore("status", master.data, "-o", "json").stdout)
        by_address = json.loads(hastore("status", master.address, "-o", "json").stdout)
        assert by_directory["process_id"] == by_address["process_id"] == master.process.pid
        assert by_directory["schema"] == "hastore.status/1"
        assert by_directory["name"] == "n1"
        assert master.stop() == 0
        records = [json.loads(line) for line in master.log.read_text().splitlines()]
    ready = next(record for record in records if record["event"] == "ready")
    assert ready["address"] == master.address
    assert ready["next"] == f"hastore slave --master {master.ha_address} --data DIR"


def test_people_get_a_ready_line_with_the_next_command(tmp_path):
    """With the console log the ready line says what listens where, and what to type."""
    with node("master", tmp_path / "D", "--log-format", "console") as master:
        text = master.wait_for_text("  next  ")
    assert f"ready: SYNC_MASTER hastore-a, log {master.data} ends at 0\n" in text
    assert f"       clients {master.address}, slaves {master.ha_address}\n" in text
    assert f"  next  hastore slave --master {master.ha_address} --data DIR\n" in text
    assert "\x1b[" not in text


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_stops_a_node_cleanly(tmp_path, signum, code):
    """Exit 0 on SIGTERM, else 128 + signal, within 5 s; node.json and abort are gone."""
    with node("master", tmp_path / "D") as master:
        assert hastore("produce", "t", "-n", "30", "--addr", master.data).returncode == 20
        assert (master.data / "abort").exists()
        assert master.stop(signum) == code
        assert "Traceback" not in master.log.read_text()
    names = {path.name for path in (tmp_path / "D").iterdir()}
    assert "node.json" not in names
    assert "abort" not in names


def test_a_slave_stops_cleanly_too(tmp_path):
    """Also while its master is away."""
    with node("slave", tmp_path / "D", "--master", "127.0.0.1:1") as slave:
        assert slave.info["ha_address"] is None
        status = hastore("status", slave.data)
        assert "connecting" in status.stdout or "backing-off" in status.stdout
        assert slave.stop(signal.SIGINT) == 130


def test_a_killed_node_leaves_its_file_and_starts_again(tmp_path):
    """After kill -9 node.json is there, nobody answers (exit 3), and a restart just works."""
    data = tmp_path / "D"
    with node("master", data) as master:
        hastore("produce", "t", "-n", "5", "--addr", data)
        assert master.stop(signal.SIGKILL) == -signal.SIGKILL
    done = hastore("status", data)
    assert done.returncode == 3
    assert is_one_line_with_a_next_step(done.stderr)
    with node("master", data) as master:
        assert "t/" in hastore("produce", "t", "-n", "1", "--addr", data).stdout
        assert wait_for_status(data, lambda status: status["put_counts"])["max_offset"] > 5_000


def test_check_config_prints_the_configuration_and_starts_nothing(tmp_path):
    """The output is TOML with the origin of each value; the directory is not made."""
    done = hastore(*MASTER, "--data", tmp_path / "D", "--check-config", HASTORE_HA_MAX_GAP="1GiB")
    assert done.returncode == 0
    assert tomllib.loads(done.stdout)["ha"]["max_gap"] == "1GiB"
    assert re.search(r'max_gap = "1GiB" +# HASTORE_HA_MAX_GAP', done.stdout)
    assert not (tmp_path / "D").exists()


# -- bad input: one line, a next step, the exit code, and nothing is lost --------------------------


def refused(done: subprocess.CompletedProcess[str], code: int, *said: str) -> None:
    """Check an error's form, code and words."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert is_one_line_with_a_next_step(done.stderr), done.stderr
    for text in said:
        assert text in done.stderr


def test_wrong_role(tmp_path):
    """A master cannot be a SLAVE; the next step is the command that can."""
    done = hastore(*MASTER, "--data", tmp_path / "D", "--broker-role", "slave")
    refused(done, 2, "wrong role", "hastore slave --master")
    assert not (tmp_path / "D").exists()


@pytest.mark.parametrize("flag", ["--listen", "--ha-listen"])
def test_port_in_use(tmp_path, flag):
    """The address and its purpose are named."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = hastore(*MASTER, "--data", tmp_path / "D", flag, address)
    refused(done, 1, f"cannot listen on {address}", "Address already in use", f"{flag} 127.0.0.1:0")


def test_address_of_another_machine(tmp_path):
    """An address that is not ours cannot be listened on."""
    done = hastore(*MASTER, "--data", tmp_path / "D", "--listen", "192.0.2.1:10911")
    refused(done, 1, "cannot listen on 192.0.2.1:10911")


def test_directory_locked_by_another_process(tmp_path):
    """The second node is refused, the first goes on."""
    with node("master", tmp_path / "D") as master:
        said = f"process {master.process.pid}, a SYNC_MASTER, runs there: hastore status"
        refused(hastore(*MASTER, "--data", master.data), 6, "held by another process", said)
        assert json.loads((master.data / "node.json").read_text())["pid"] == master.process.pid
        assert hastore("status", master.data).returncode == 0


def test_not_a_store(tmp_path):
    """A directory with somebody's letters is left as it is."""
    (tmp_path / "letter.txt").write_text("dear reader")
    refused(hastore(*MASTER, "--data", tmp_path), 6, "letter.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_file_in_place_of_the_directory(tmp_path):
    """A file is no data directory."""
    (tmp_path / "D").write_text("x")
    refused(hastore(*MASTER, "--data", tmp_path / "D"), 1, "D")


def test_wrong_file_size(tmp_path):
    """Both sizes are named; without the flag the directory's own is taken."""
    data = tmp_path / "D"
    with node("master", data, file_size="64KiB") as master:
        hastore("produce", "t", "-n", "200", "--addr", data)
        master.stop()
    refused(hastore(*MASTER, "--data", data, "--mapped-file-size", "1MiB"), 6, "65536", "1048576")
    with node("master", data, file_size=None):
        assert status_of(data)["mapped_file_size"] == 65_536


def test_unreadable_directory(tmp_path):
    """No permission is said as such."""
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
    """What to put before a command so that even root heeds the modes of files."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root reads everything here, and there is no setpriv")
    lost = "-dac_override,-dac_read_search"
    return [setpriv, f"--bounding-set={lost}", f"--inh-caps={lost}"]


def test_disk_full_when_the_first_file_is_made(tmp_path):
    """A new log that cannot have its first file does not start, and says so."""
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


def test_disk_full_when_a_later_file_is_made(tmp_path):
    """The put is refused and says why; the node lives, and what was stored stays readable."""
    data = tmp_path / "D"
    with node("master", data, file_size="64KiB") as master:
        resource.prlimit(master.process.pid, resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
        done = hastore("produce", "t", "-n", "8", "--size", "30000", "--addr", data, "-o", "json")
        result = json.loads(done.stdout)
        assert done.returncode == result["exit_code"] == 23
        assert result["counts"]["CREATE_MAPPED_FILE_FAILED"] >= 1
        assert "no space to create" in result["reasons"]["CREATE_MAPPED_FILE_FAILED"]
        stored = result["counts"]["SLAVE_NOT_AVAILABLE"]
        assert hastore("status", data).returncode == 0
        assert master.stop() == 0
    assert stored == 8 - result["counts"]["CREATE_MAPPED_FILE_FAILED"]


def test_bad_toml_key(tmp_path):
    """The file, the key and the nearest key."""
    file = tmp_path / "h.toml"
    file.write_text('[ha]\nslave_timout = "3s"\n')
    done = hastore(*MASTER, "--data", tmp_path / "D", "-c", file)
    refused(done, 2, f"{file}: no such key: [ha] slave_timout", "[ha] slave_timeout")


def test_a_misspelt_variable_is_told_and_ignored(tmp_path):
    """It may belong to somebody else, so it is a note and no error."""
    done = hastore(*MASTER, "--data", tmp_path / "D", "--check-config", HASTORE_HA_MAXGAP="1GiB")
    assert done.returncode == 0
    assert "did you mean HASTORE_HA_MAX_GAP?" in done.stderr


def test_a_second_signal_ends_at_once(tmp_path):
    """When a clean stop is not wanted after all, abort stays and the next start checks the tail."""
    with node("master", tmp_path / "D") as master:
        # Frozen in between, the node finds both signals when it runs on.
        master.process.send_signal(signal.SIGSTOP)
        master.process.send_signal(signal.SIGTERM)
        master.process.send_signal(signal.SIGINT)
        master.process.send_signal(signal.SIGCONT)
        assert master.process.wait(WITHIN_S) in {130, 143}
        assert "Traceback" not in master.log.read_text()


def test_the_ha_port_instead_of_the_client_port_is_named(tmp_path):
    """Every command that asks a node says which port it needs; the node refuses the connection."""
    with node("master", tmp_path / "D") as master:
        for command in ("status", "explain"):
            refused(hastore(command, master.ha_address), 3, "not its HA port")
        for command in ("produce", "consume"):
            done = hastore(command, "orders", "--addr", master.ha_address, stdin=b"a line\n")
            refused(done, 3, "not its HA port")
        status = wait_for_status(master.data, lambda status: status["refused"])
    assert status["refused"][0]["reason"]
