"""What a process has acknowledged is known to the next one, in the same boot only."""

import signal
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from hastore.env.machine_memory import forget
from hastore.env.real import real_env
from hastore.errors import StoreLockedError
from hastore.store.acked_offset import AckedOffset
from hastore.store.node_identity import NodeIdentity
from tests.support.env.fake_env import fake_env

TOKENS = [f"0b5c6d7e-0000-4000-8000-00000000000{n}" for n in range(4)]
_CHILD = """
import os, signal, sys
from tests.store.test_acked_offset import AckedOffset, identity_of, real_env
acked = AckedOffset.hold(real_env(), identity_of(real_env(), sys.argv[1]))
acked.prepare(0)
for offset in range(1, 1001):
    acked.raise_to(offset)
os.kill(os.getpid(), signal.SIGKILL)
"""


def identity_of(env, data_dir="/d"):
    """Open a directory, as a start does."""
    return NodeIdentity.open(
        env.disk,
        data_dir,
        node_id=1,
        group="g1",
        last_exit_ok=True,
        boot_id=env.boot_id,
        randomness=env.randomness,
    )


@pytest.fixture
def identity(tmp_path):
    """Return that of a new directory, whose number is forgotten afterwards."""
    found = identity_of(real_env(), str(tmp_path))
    yield found
    forget(found.current.uuid)


@pytest.fixture
def env():
    """Return an environment with an empty directory ``/d``."""
    env = fake_env()
    env.disk.make_dirs("/d")
    return env


def test_the_number_outlives_a_killed_process(tmp_path, identity):
    """SIGKILL takes nothing that was stored through the map."""
    child = subprocess.run([sys.executable, "-c", _CHILD, str(tmp_path)], check=False)
    assert child.returncode == -signal.SIGKILL
    held = AckedOffset.hold(real_env(), identity)
    assert held is not None, "no memory file system here: /dev/shm, /run"
    assert held.kept() == 1_000
    held.close()


def test_one_process_holds_a_number(identity):
    """A second one runs on a copy of the directory."""
    held = AckedOffset.hold(real_env(), identity)
    with pytest.raises(StoreLockedError):
        AckedOffset.hold(real_env(), identity)
    held.close()
    again = AckedOffset.hold(real_env(), identity)
    again.close()


def test_another_boot_knows_no_number(identity):
    """The page cache is gone, so the number proves nothing."""
    held = AckedOffset.hold(real_env(), identity)
    assert held.kept() is None
    held.begin(7)
    held.close()
    rebooted = AckedOffset.hold(attrs.evolve(real_env(), boot_id="another"), identity)
    assert rebooted.kept() is None
    rebooted.close()
    assert AckedOffset.hold(attrs.evolve(real_env(), boot_id=None), identity) is None


def test_a_file_that_others_may_write_is_not_used(identity):
    """Anybody may make files in /dev/shm."""
    path = Path(f"/dev/shm/hastore-{identity.current.uuid}")
    path.touch()
    path.chmod(0o666)
    held = AckedOffset.hold(real_env(), identity)
    assert held is None or not path.stat().st_size
    if held is not None:
        held.close()


def test_it_rises_by_acks_and_falls_by_cuts_only(env):
    """What ``raise_to`` and ``lower`` do with numbers on the wrong side."""
    identity = identity_of(env)
    acked = AckedOffset.hold(env, identity)
    acked.begin(10)
    acked.raise_to(9)
    assert acked.kept() == 10
    acked.raise_to(12)
    acked.lower(13)
    assert acked.kept() == 12
    acked.lower(11)
    acked.close()
    assert AckedOffset.hold(env, identity).kept() == 11


def test_a_start_that_is_refused_leaves_the_number_of_the_owner(env):
    """A copy that ends lower, and was refused its id, has the same uuid and the same memory."""
    identity = identity_of(env)
    identity.claim(None, TOKENS[1])
    acked = AckedOffset.hold(env, identity)
    acked.prepare(0)
    identity.claimed()
    acked.raise_to(1_000)
    acked.close()
    env.disk.make_dirs("/copy")
    env.disk.write_file("/copy/identity.json", env.disk.read_file("/d/identity.json"))
    copy = identity_of(env, "/copy")
    refused = AckedOffset.hold(env, copy)
    assert refused.kept() == 1_000
    refused.prepare(600)
    copy.claim(TOKENS[1], TOKENS[2])
    refused.close()
    assert AckedOffset.hold(env, identity_of(env)).kept() == 1_000


def test_a_number_of_an_earlier_start_proves_nothing(env):
    """A later one acknowledged more, and had another memory: that of a container, for example."""
    container = fake_env()
    identity = identity_of(env)
    for token, memory, number in ((1, env, 1_000), (2, container, 5_000)):
        acked = AckedOffset.hold(attrs.evolve(env, machine_memory=memory.machine_memory), identity)
        acked.prepare(0)
        identity.claim(identity.current.token, TOKENS[token])
        identity.claimed()
        acked.raise_to(number)
        acked.close()
    assert AckedOffset.hold(env, identity).kept() is None


@pytest.mark.parametrize("dies_at", ["prepared", "recorded", "claimed"])
def test_a_start_that_is_killed_before_its_claim_leaves_the_evidence(env, dies_at):
    """Either token is the directory's until the claim is known to be accepted."""
    identity = identity_of(env)
    identity.claim(None, TOKENS[1])
    acked = AckedOffset.hold(env, identity)
    acked.prepare(0)
    identity.claimed()
    acked.raise_to(70)
    acked.close()
    identity = identity_of(env)
    acked = AckedOffset.hold(env, identity)
    acked.prepare(60)
    if dies_at != "prepared":
        identity.claim(TOKENS[1], TOKENS[2])
    if dies_at == "claimed":
        identity.claimed()
    acked.close()
    assert AckedOffset.hold(env, identity_of(env)).kept() == (60 if dies_at == "claimed" else 70)


def test_two_starts_that_are_killed_during_their_claims_leave_the_evidence(env):
    """The claim of the first one was accepted, and it did not hear of that."""
    identity = identity_of(env)
    identity.claim(None, TOKENS[0])
    acked = AckedOffset.hold(env, identity)
    acked.prepare(0)
    identity.claimed()
    acked.raise_to(70)
    acked.close()
    for matched, token in ((0, 1), (1, 2)):
        identity = identity_of(env)
        acked = AckedOffset.hold(env, identity)
        acked.prepare(70)
        identity.claim(TOKENS[matched], TOKENS[token])
        acked.close()
    assert AckedOffset.hold(env, identity_of(env)).kept() == 70


def test_a_start_without_a_claim_stores_its_number_with_its_first_acknowledgement(env):
    """A group without a coordinator has no tokens."""
    acked = AckedOffset.hold(env, identity_of(env))
    acked.prepare(60)
    assert acked.kept() is None
    acked.raise_to(50)
    assert acked.kept() == 60
    acked.raise_to(70)
    acked.close()
    assert AckedOffset.hold(env, identity_of(env)).kept() == 70
