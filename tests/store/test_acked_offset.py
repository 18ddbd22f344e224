"""What a process has acknowledged is known to the next one, in the same boot only."""

import signal
import subprocess
import sys
import uuid
from pathlib import Path

import attrs
import pytest

from hastore.env.real import real_env
from hastore.errors import StoreLockedError
from hastore.store.acked_offset import AckedOffset
from tests.support.env.fake_env import fake_env

UUID = "0b5c6d7e-0000-4000-8000-000000000001"
_CHILD = """
import os, signal, sys
from hastore.env.real import real_env
from hastore.store.acked_offset import AckedOffset
acked = AckedOffset.hold(real_env(), sys.argv[1])
acked.begin(0)
for offset in range(1, 1001):
    acked.raise_to(offset)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def directory():
    """Return a new directory's uuid; its file is removed afterwards."""
    name = str(uuid.uuid4())
    yield name
    for folder in ("/dev/shm", "/run"):
        Path(f"{folder}/hastore-{name}").unlink(missing_ok=True)


def test_the_number_outlives_a_killed_process(directory):
    """SIGKILL takes nothing that was stored through the map."""
    child = subprocess.run([sys.executable, "-c", _CHILD, directory], check=False)
    assert child.returncode == -signal.SIGKILL
    held = AckedOffset.hold(real_env(), directory)
    assert held is not None, "no memory file system here: /dev/shm, /run"
    assert held.kept() == 1_000
    held.close()


def test_one_process_holds_a_number(directory):
    """A second one runs on a copy of the directory."""
    held = AckedOffset.hold(real_env(), directory)
    with pytest.raises(StoreLockedError):
        AckedOffset.hold(real_env(), directory)
    held.close()
    again = AckedOffset.hold(real_env(), directory)
    again.close()


def test_another_boot_knows_no_number(directory):
    """The page cache is gone, so the number proves nothing."""
    held = AckedOffset.hold(real_env(), directory)
    assert held.kept() is None
    held.begin(7)
    held.close()
    rebooted = AckedOffset.hold(attrs.evolve(real_env(), boot_id="another"), directory)
    assert rebooted.kept() is None
    rebooted.close()
    assert AckedOffset.hold(attrs.evolve(real_env(), boot_id=None), directory) is None


def test_a_file_that_others_may_write_is_not_used(directory):
    """Anybody may make files in /dev/shm."""
    path = Path(f"/dev/shm/hastore-{directory}")
    path.touch()
    path.chmod(0o666)
    held = AckedOffset.hold(real_env(), directory)
    assert held is None or not path.stat().st_size
    if held is not None:
        held.close()


def test_it_rises_by_acks_and_falls_by_cuts_only():
    """What ``raise_to`` and ``lower`` do with numbers on the wrong side."""
    env = fake_env()
    acked = AckedOffset.hold(env, UUID)
    acked.begin(10)
    acked.raise_to(9)
    assert acked.kept() == 10
    acked.raise_to(12)
    acked.lower(13)
    assert acked.kept() == 12
    acked.lower(11)
    acked.close()
    again = AckedOffset.hold(env, UUID)
    assert again.kept() == 11
    again.close(remove=True)
    assert AckedOffset.hold(env, UUID).kept() is None
