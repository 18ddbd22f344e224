"""Signals and a kill while Spark starts, works or stops leave no process and no file."""

import os
import signal
import subprocess
import sys
import uuid

import pytest

pytest.importorskip("pyspark")

from tests.pipeline.conftest import TEST_CONF
from tests.pipeline.interrupted_at import INSTANTS, running
from tests.support.commands.running import environment
from tests.support.repository import REPO_ROOT
from tests.support.store.log_builder import LogBuilder
from tests.support.waiting import wait_until

# Each test starts a JVM, so all of them run in one worker, but not in that of the tests' session.
pytestmark = [pytest.mark.xdist_group("spark-starts"), pytest.mark.timeout(600)]
WITHIN_S = 500
IN_THE_STOP = ("the stop begins", "the context is stopped", "the JVM ends")
# One before there is a process, two while it starts; SIGTERM comes in a job.
FEW = (
    "pyspark is imported",
    "Java has begun",
    "the context is built",
)


@pytest.fixture
def scratch(tmp_path):
    """Make the directory for the temporary files of the process."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def start(tmp_path, scratch):
    """Yield a function that starts a job in a new process group and signals it at an instant."""
    store = LogBuilder().fill(30).write(tmp_path / "n1")
    mark = uuid.uuid4().hex

    def call(instant, sent):
        job = ["verify", store]
        if instant in IN_THE_STOP:  # this job is short
            job = ["export", store, "--to", tmp_path / "all.jsonl"]
        job = ["pipeline", "run", *job, "--master", "local[1]"]
        for name, value in TEST_CONF.items():
            job += ["--conf", f"{name}={value}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.interrupted_at", instant, sent.name, *job],
            cwd=REPO_ROOT,
            env=environment(TMPDIR=str(scratch), HASTORE_TEST_MARK=mark),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return process, mark

    yield call
    for number in running(mark):
        os.kill(number, signal.SIGKILL)


def check_end(start, scratch, instant, sent, expected_stderr):
    """Check that output and exit code name the signal, and that no process or file is left."""
    process, mark = start(instant, sent)
    out, err = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, out, err) == (128 + sent, "", expected_stderr)
    assert running(mark) == {}
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    "instant",
    [name if name in FEW else pytest.param(name, marks=pytest.mark.soak) for name in INSTANTS],
)
def test_ctrl_c_prints_one_line_and_leaves_nothing(start, scratch, instant):
    """The messages of the JVM and of py4j are not printed, no matter what Spark is doing."""
    expected_stderr = "\n" if instant == "command line" else "interrupted\n"  # before Spark is used
    check_end(start, scratch, instant, signal.SIGINT, expected_stderr)


@pytest.mark.parametrize(
    "sent",
    [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.soak)],
    ids=["SIGTERM", "SIGHUP"],
)
@pytest.mark.parametrize(
    "instant",
    [
        "the job is busy",
        pytest.param("Java has begun", marks=pytest.mark.soak),
        pytest.param("the context is built", marks=pytest.mark.soak),
    ],
)
def test_other_signals_end_a_job_too(start, scratch, instant, sent):
    """They leave nothing either; the exit code is that of the signal."""
    check_end(start, scratch, instant, sent, f"ended by {sent.name}\n")


@pytest.mark.parametrize(
    "instant",
    [
        "the script has begun",
        pytest.param("Java has begun", marks=pytest.mark.soak),
        pytest.param("the context is built", marks=pytest.mark.soak),
        pytest.param("the job is busy", marks=pytest.mark.soak),
    ],
)
def test_jvm_ends_after_its_process_was_killed(start, instant):
    """The process cannot clean up, but the JVM sees the end of its input."""
    process, mark = start(instant, signal.SIGKILL)
    process.communicate(timeout=WITHIN_S)  # waits for all processes that hold its output
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: not running(mark), within_s=WITHIN_S, every_s=0.1)


@pytest.mark.soak
def test_program_continues_after_an_interrupted_session(tmp_path, scratch):
    """It catches KeyboardInterrupt and starts another session; py4j prints nothing."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [sys.executable, program],
        cwd=REPO_ROOT,
        env=environment(TMPDIR=str(scratch), HASTORE_TEST_MARK=mark),
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
        start_new_session=True,  # it sends the signal to its process group
    )
    assert (done.stderr, done.stdout) == ("", "in its start\nin its work\n7 True\n")
    assert running(mark) == {}
    assert list(scratch.iterdir()) == []


PROGRAM = """
import signal

from pyspark import SparkContext
from pyspark.sql.classic.dataframe import DataFrame

from hastore.pipeline import spark_session
from tests.pipeline.conftest import TEST_CONF
from tests.pipeline.interrupted_at import Interruption, in_java


def interrupt_within(owner, name):
    original = getattr(owner, name)

    def wrapper(*args):
        setattr(owner, name, original)
        Interruption(signal.SIGINT).send_once(in_java)
        return original(*args)

    setattr(owner, name, wrapper)


handler = signal.getsignal(signal.SIGINT)
interrupt_within(SparkContext, "_initialize_context")
try:
    with spark_session("local[1]"):
        print("started all the same")
except KeyboardInterrupt:
    print("in its start")
interrupt_within(DataFrame, "collect")
try:
    with spark_session("local[1]") as spark:
        spark.range(7).collect()
except KeyboardInterrupt:
    print("in its work")
with spark_session("local[1]") as spark:
    print(spark.range(7).count(), signal.getsignal(signal.SIGINT) is handler)
"""
