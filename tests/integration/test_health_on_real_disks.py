"""What commands say of a node whose disk refuses it something: file systems that really do.

The node is a process; its directories are on ext4 images of a few MiB.  ``tests/broker/
test_health_of_a_node`` has the other errors of the kernel, and each table.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commands.in_process import hastore_here
from tests.support.commands.running import Node, node
from tests.support.waiting import wait_until
from tests.support.worlds.loop_disk import LoopDisk, loop_disks

__all__ = ["loop_disks"]

MIB = 1024 * 1024
ASYNC = ("--broker-role", "ASYNC_MASTER")
FAST = {"HASTORE_STORE_CLEAN_INTERVAL": "200ms", "HASTORE_STORE_CREATE_TIMEOUT": "1s"}
ANY_LEVEL = ("--warn-disk", "100", "--crit-disk", "100")


def check(place: object, *options: str) -> tuple[int, str]:
    """Return the exit code and the text of ``hastore check``."""
    done = hastore_here("check", place, *options)
    return done.returncode, done.stdout.partition(" | ")[0]


def doctor(place: object) -> dict[str, tuple[str, str]]:
    """Return the result and the text of each of doctor's checks."""
    done = hastore_here("doctor", place, "-o", "json")
    found = json.loads(done.stdout)["findings"]
    return {each["check"]: (each["result"], each["what"]) for each in found}


def is_healthy(place: object) -> bool:
    """Whether ``hastore wait --healthy`` is met now."""
    return hastore_here("wait", place, "--healthy", "--timeout", "0s").returncode == 0


def produce(master: Node, count: int, size: int) -> dict[str, int]:
    """Put messages; return their numbers by status."""
    sent = ("-n", str(count), "--size", str(size), "--addr", master.data, "-o", "json")
    counts: dict[str, int] = json.loads(hastore_here("produce", "t", *sent).stdout)["counts"]
    return counts


def remount(disk: LoopDisk, mode: str) -> bool:
    """Let a mounted disk be read-only, or writable again; return whether it is."""
    command = ["mount", "-o", f"remount,{mode}", disk.path]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_master_without_an_inode_for_its_next_file(
    tmp_path: Path, loop_disks: Callable[..., LoopDisk]
) -> None:
    """Its disk is nearly empty; it is healthy again once there are inodes, without a put."""
    disk = loop_disks(tmp_path / "a", "-N", "128", size=24 * MIB)
    with node("master", tmp_path / "a", *ASYNC, file_size="256KiB", **FAST) as master:
        assert produce(master, 10, 1_000)["SEND_OK"] == 10
        assert is_healthy(master.data)
        taken = []
        try:
            while True:
                path = disk.path / "lost+found" / str(len(taken))
                path.touch()
                taken.append(path)
        except OSError:
            pass
        assert "CREATE_MAPPED_FILE_FAILED" in produce(master, 40, 20_000)
        code, text = check(master.data)
        assert (code, "puts are refused" in text, "No space left" in text) == (2, True, True)
        assert "no inodes free" in text
        found = doctor(master.data)
        assert (found["puts"][0], found["disk"][0]) == ("bad", "bad")
        assert not is_healthy(master.data)
        assert "puts are refused" in hastore_here("status", master.data).stdout
        for path in taken:
            path.unlink()
        wait_until(lambda: is_healthy(master.data))


@pytest.mark.parametrize("directory", ["commitlog", "consumequeue", "config"])
def test_the_disk_of_a_directory_that_is_a_link(
    tmp_path: Path, loop_disks: Callable[..., LoopDisk], directory: str
) -> None:
    """All figures are those by which the node refuses puts, not those of the data directory."""
    disk = loop_disks(tmp_path / "disk", size=24 * MIB)
    data = tmp_path / "a"
    data.mkdir()
    (disk.path / "own").mkdir()
    (data / directory).symlink_to(disk.path / "own")
    with node("master", data, *ASYNC, file_size="256KiB", **FAST) as master:
        assert produce(master, 10, 1_000)["SEND_OK"] == 10
        disk.fill(leave=MIB)
        wait_until(lambda: "SERVICE_NOT_AVAILABLE" in produce(master, 1, 10))
        code, text = check(data)
        assert code == 2
        assert f"the disk of {directory} is 9" in text  # of the refusal
        assert f"disk of {directory} 9" in text  # of the rule
        result, what = doctor(data)["disk"]
        assert result == "bad"
        assert what.startswith(f"disk of {directory} 9")
        status = json.loads(hastore_here("status", data, "-o", "json").stdout)
        assert status["disks"][0]["directories"] == [directory]
        assert status["disk_used_ratio"] == status["disks"][0]["used_ratio"] > 0.9
        assert status["disk_free_bytes"] <= 2 * MIB
        disk.make_room()
        wait_until(lambda: check(data, *ANY_LEVEL)[0] == 0)


def test_tables_on_a_disk_that_became_read_only(
    tmp_path: Path, loop_disks: Callable[..., LoopDisk]
) -> None:
    """Puts are taken, while offsets and topics would be lost."""
    disk = loop_disks(tmp_path / "disk", size=24 * MIB)
    data = tmp_path / "a"
    data.mkdir()
    (disk.path / "own").mkdir()
    (data / "config").symlink_to(disk.path / "own")
    with node("master", data, *ASYNC, **FAST) as master:
        assert is_healthy(data)
        wait_until(lambda: remount(disk, "ro"))  # busy while the node writes a table
        assert produce(master, 10, 100)["SEND_OK"] == 10
        wait_until(lambda: check(data)[0] == 2)
        assert "topics are not stored" in check(data)[1]
        assert doctor(data)["stored"][0] == "bad"
        assert not is_healthy(data)
        shown = hastore_here("status", data).stdout
        assert "topics are not stored" in shown
        assert "Read-only file system" in " ".join(shown.split())
        assert remount(disk, "rw")
        wait_until(lambda: is_healthy(data))
