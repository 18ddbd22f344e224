"""A leaked secret fails the test that has planted it, wherever it is."""

import re
import subprocess
import sys

import pytest

from tests.support import planted_secrets
from tests.support.commands.running import environment
from tests.support.repository import REPO_ROOT

# A marker of its own: this test's output is watched, too.
_CONFTEST = """
from tests.support import planted_secrets

planted_secrets.PLANTED = "leaked-here"
pytest_plugins = ["tests.secret_watch"]
"""

_TESTS = """
import logging, os, subprocess, sys
import pytest
from tests.support.planted_secrets import plant

SECRET = "leaked-" + "here"

def test_out():
    print(SECRET)

def test_err():
    print(SECRET, file=sys.stderr)

def test_log():
    logging.getLogger("hastore").warning({"event": "e", "reason": SECRET})

def test_log_and_failure():
    logging.getLogger("hastore").warning(SECRET)
    assert 1 == 2

@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_process(stream):
    script = f"import sys; print('leaked', 'here', sep='-', file=sys.{stream})"
    subprocess.run([sys.executable, "-c", script], capture_output=True)

def test_file(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "n1.log").write_bytes(b"\\xff" + SECRET.encode())

@pytest.fixture
def late(tmp_path):
    yield tmp_path
    (tmp_path / "node.json").write_text(SECRET)

def test_late_file(late):
    pass

@pytest.fixture
def teardown():
    yield
    print(SECRET)

def test_teardown(teardown):
    pass

def test_clean(tmp_path):
    plant(tmp_path / "key", SECRET)
    (tmp_path / "key").rename(tmp_path / "moved")
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "0").write_text(SECRET)
    (tmp_path / "log").write_text("***")
    os.mkfifo(tmp_path / "fifo")
    subprocess.run([sys.executable, "-c", "print('leaked')"], capture_output=True)
"""


def test_each_way_out_is_watched(tmp_path):
    """Output, logs, processes and files; a planted file and a store are no leaks."""
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_leaks.py").write_text(_TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", str(tmp_path)],
        cwd=tmp_path,
        env=environment(PYTEST_ADDOPTS="", PYTHONPATH=f"{REPO_ROOT}"),
        capture_output=True,
        text=True,
        check=False,
    )
    ends = re.findall(r"^(FAILED|ERROR) \S+::(\S+)", done.stdout, re.MULTILINE)
    outcomes = {name: kind for kind, name in ends}
    failed = {"test_out", "test_err", "test_log", "test_log_and_failure"}
    failed |= {"test_process[stdout]", "test_process[stderr]"}
    late = ("test_file", "test_late_file", "test_teardown")
    wanted = dict.fromkeys(failed, "FAILED") | dict.fromkeys(late, "ERROR")
    assert outcomes == wanted, done.stdout
    assert "PASSED test_leaks.py::test_clean" in done.stdout
    assert "a secret of the test is in Captured log call" in done.stdout
    assert "assert 1 == 2" in done.stdout
    assert re.search(r"a secret of the test is in \S+/d/n1\.log", done.stdout)


def test_every_key_of_the_tests_has_the_marker():
    """Otherwise it would not be looked for."""
    from tests.support.nodes import access_keys

    keys = [each for each in vars(access_keys).values() if isinstance(each, access_keys.AccessKey)]
    assert len(keys) > 3
    assert all(planted_secrets.PLANTED in key.secret.reveal() for key in keys)


@pytest.mark.parametrize("text", [None, "", b"", "nothing", b"nothing"])
def test_other_text_is_none(text):
    """Also none at all, as of a process without a pipe."""
    planted_secrets.check_text(text, "x")
