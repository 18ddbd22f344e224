"""The JVM's process is started and ended, with scripts in place of ``spark-submit``."""

import os
import shlex
import signal
import struct

import pytest

pytest.importorskip("pyspark")

from hastore.errors import HastoreError
from hastore.pipeline.spark.java_process import JavaProcess, _members

ANSWER = "$_PYSPARK_DRIVER_CONN_INFO_PATH"
ANSWERS = f'cat "$GIVEN" > {ANSWER}.part; mv {ANSWER}.part {ANSWER}'


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Yield a function that writes the script to start; its answer is port 7 and a secret."""
    home = tmp_path / "bin"
    home.mkdir()
    given = tmp_path / "given"
    given.write_bytes(struct.pack("!ii", 7, 6) + b"secret")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setenv("GIVEN", str(given))

    def make(text):
        path = home / "spark-submit"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    return make


def test_process_ends_with_its_input(script, tmp_path):
    """The JVM does the same; processes that it started and left are ended, too."""
    script(f"(trap '' HUP; exec sleep 1000) & {ANSWERS}; cat >/dev/null")
    java = JavaProcess()
    assert java.start({}, str(tmp_path)) == (7, "secret")
    session = java._process.pid
    assert len(list(_members(session))) >= 2
    assert not java.is_gone
    java.end()
    assert list(_members(session)) == []
    assert java.is_gone
    assert java._process.returncode == 0


def test_settings_become_arguments(script, tmp_path):
    """The arguments from the user's environment come after them."""
    script(f'echo "$@" > {tmp_path}/arguments; {ANSWERS}; cat >/dev/null')
    java = JavaProcess()
    java.start({"spark.app.name": "a b", "spark.ui.enabled": "false"}, str(tmp_path))
    java.end()
    arguments = (tmp_path / "arguments").read_text()
    assert arguments == "--conf spark.app.name=a b --conf spark.ui.enabled=false pyspark-shell\n"


def test_temporary_files_are_in_the_scratch_directory(script, tmp_path, monkeypatch):
    """A killed JVM leaves them there; the user's options come last, so they take precedence."""
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xss16m")
    script(f'echo "$SPARK_SUBMIT_OPTS" > {tmp_path}/options; {ANSWERS}; cat >/dev/null')
    java = JavaProcess()
    java.start({}, str(tmp_path))
    java.end()
    options = shlex.split((tmp_path / "options").read_text())
    assert options == [f"-Djava.io.tmpdir={tmp_path}", "-XX:-UsePerfData", "-Xss16m"]


def test_process_that_ends_before_its_answer_is_an_error(script, tmp_path):
    """The error has the exit code, and says where to look."""
    script("exit 3")
    java = JavaProcess()
    with pytest.raises(HastoreError, match="ended before Spark was up, with exit code 3") as raised:
        java.start({}, str(tmp_path))
    assert "output above" in raised.value.hint
    java.end()


def test_interruption_before_the_start_ends_the_process(script, tmp_path):
    """The signal came while the process was being created, when it could not be killed yet."""
    script("exec sleep 1000")
    java = JavaProcess()
    java.interrupt()
    with pytest.raises(HastoreError, match=f"exit code -{signal.SIGKILL:d}"):
        java.start({}, str(tmp_path))
    java.end()


def test_second_interruption_kills_the_process(script, tmp_path):
    """The first only asks the JVM to end, so that it can sign off from a cluster."""
    script(f"trap : TERM; {ANSWERS}; while :; do read line || sleep 1; done")
    java = JavaProcess(interrupt_signal=signal.SIGTERM)
    java.start({}, str(tmp_path))
    java.interrupt()
    assert java.is_gone
    assert java._process.poll() is None
    java.interrupt()
    assert java._process.wait(60) == -signal.SIGKILL
    java.end()


def test_process_has_its_own_session_and_group(script, tmp_path):
    """So Ctrl-C in the terminal does not reach it."""
    script(f"{ANSWERS}; cat >/dev/null")
    java = JavaProcess()
    java.start({}, str(tmp_path))
    assert os.getsid(java._process.pid) == os.getpgid(java._process.pid) == java._process.pid
    java.end()
