"""`hastore pipeline …` as a user runs it: most tests share a session, one starts a process."""

import functools
import json
import signal
import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from hastore.pipeline.spark.table_file import write_table
from hastore_cli.main import main
from tests.patience import PROCESS_WITHIN_S
from tests.pipeline.bare_python import bare_python
from tests.pipeline.conftest import TEST_CONF
from tests.support.commands.in_process import run_command
from tests.support.commands.running import environment, is_one_line_with_a_next_step
from tests.support.store.log_builder import LogBuilder
from tests.support.waiting import wait_until

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def run(spark, capsysbinary):
    """Run a command in the tests' process and session; return exit code, stdout and stderr."""
    return functools.partial(run_command, capsysbinary)


@pytest.fixture
def damaged(tmp_path):
    """Write a store with one flipped byte; return it and the offset of that record."""
    log = LogBuilder().fill(30)
    path = log.write(tmp_path / "damaged", data=log.flipped(log.offsets[20] + 100))
    return path, log.offsets[20]


def test_verify_of_an_undamaged_store_exits_with_0(run, store):
    """It prints one JSON document on stdout, and nothing on stderr."""
    code, out, err = run("pipeline", "run", "verify", store, "-o", "json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["schema"] == "hastore.pipeline/1"
    assert document["summary"]["messages"] == 30
    assert document["rows"] == document["files"] == []
    assert not document["found"]


def test_verify_of_a_damaged_store_exits_with_4(run, damaged, tmp_path, spark):
    """It prints a table with the offset; its Parquet file of all findings replaces an older one."""
    path, offset = damaged
    out_dir = tmp_path / "found"
    write_table(spark.range(7), str(out_dir), "verify.parquet")
    code, out, err = run("pipeline", "run", "verify", path, "--out", out_dir)
    assert (code, err) == (4, "")
    assert "bad-body-crc" in out
    assert str(offset) in out
    assert f"{out_dir}/verify.parquet" in "".join(out.splitlines())
    assert [entry.name for entry in out_dir.iterdir()] == ["verify.parquet"]
    table = spark.read.parquet(str(out_dir / "verify.parquet")).collect()
    assert [row["offset"] for row in table] == [offset]


def test_failed_table_keeps_the_older_one(spark, tmp_path):
    """No partial file is left."""
    write_table(spark.range(7), str(tmp_path), "t.parquet")
    with pytest.raises(PySparkException, match="halfway"):
        write_table(spark.range(9).selectExpr("raise_error('halfway')"), str(tmp_path), "t.parquet")
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.parquet"]
    assert spark.read.parquet(str(tmp_path / "t.parquet")).count() == 7


@pytest.mark.parametrize(
    "job",
    [
        ("verify",),
        ("audit", "{whole}"),
        ("rpo", "{history}"),
        ("report",),
        ("export", "--to=a.csv"),
    ],
)
def test_missing_store_is_refused_before_spark_starts(job, run, tmp_path, monkeypatch):
    """Spark takes seconds to start; a typing mistake is reported at once."""
    (tmp_path / "history").write_text("")
    whole = LogBuilder().fill(3).write(tmp_path / "whole")
    words = [word.format(whole=whole, history=tmp_path / "history") for word in job]
    monkeypatch.setattr("hastore_cli.pipeline.run.running_spark", None)
    code, _, err = run("pipeline", "run", *words, tmp_path / "nowhere")
    assert (code, "nowhere: no such directory" in err) == (6, True), err


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (("rpo", "{tmp}/none.jsonl", "{whole}"), "none.jsonl is not a file"),
        (("report", "{whole}", "--history", "{tmp}/none.jsonl"), "there is no file"),
        (("report", "{whole}", "--metrics", "{tmp}/none.jsonl"), "there is no file"),
        (("export", "{whole}", "--to", "{tmp}/a"), "does not say which format"),
        (("export", "{whole}", "--to", "{tmp}/there.csv"), "is there already"),
        (("export", "{whole}", "--to", "{tmp}/a.csv", "--start", "soon"), "'soon' is not"),
    ],
)
def test_bad_options_are_reported_before_spark_starts(job, message, run, tmp_path, monkeypatch):
    """Files are missing or in the way, formats or times invalid."""
    (tmp_path / "there.csv").write_text("")
    whole = LogBuilder().fill(3).write(tmp_path / "whole")
    words = [word.format(whole=whole, tmp=tmp_path) for word in job]
    monkeypatch.setattr("hastore_cli.pipeline.run.running_spark", None)
    code, out, err = run("pipeline", "run", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert is_one_line_with_a_next_step(err), err


@pytest.mark.parametrize(
    ("arguments", "expected", "message"),
    [
        (["{tmp}/nowhere"], 6, "nowhere: no such directory"),
        (["{tmp}/empty"], 6, "empty"),
        (["{tmp}/no-*-match"], 2, "no-*-match matches no directory"),
        (["{tmp}/whole", "--out", "{tmp}/file"], 1, "a file is in the way"),
        (["{tmp}/whole", "--conf", "nothing"], 2, "is not NAME=VALUE"),
        (["{tmp}/whole", "--py-files", "{tmp}/nowhere.zip"], 2, "does not exist"),
        (["{tmp}/whole", "--py-files", "{tmp}/a,b"], 2, "has a comma"),
        (["{tmp}/whole", "-o", "xml"], 2, "xml"),
        (["{tmp}/whole", "--no-such-option"], 2, "--no-such-option"),
        ([], 2, "DIR"),
    ],
)
@pytest.mark.usefixtures("store")
def test_bad_input_is_one_line_with_a_next_step(run, tmp_path, arguments, expected, message):
    """The exit code says what kind of error it is; nothing is written."""
    (tmp_path / "empty").mkdir()
    for name in ("file", "a,b"):
        (tmp_path / name).write_text("")
    before = sorted(tmp_path.rglob("*"))
    given = [argument.replace("{tmp}", str(tmp_path)) for argument in arguments]
    code, out, err = run("pipeline", "run", "verify", *given)
    assert code == expected, err
    assert out == ""
    assert is_one_line_with_a_next_step(err), err
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before


def test_list_and_show_describe_every_job(run):
    """Each listed job has a page, and its examples name it."""
    code, out, _ = run("pipeline", "list", "-o", "json")
    assert code == 0
    jobs = [job["name"] for job in json.loads(out)["jobs"]]
    assert "verify" in jobs
    for name in jobs:
        code, out, _ = run("pipeline", "show", name, "-o", "json")
        info = json.loads(out)["job"]
        assert (code, info["name"]) == (0, name)
        assert any(f"hastore pipeline run {name} " in example for example in info["examples"])
        code, out, _ = run("pipeline", "run", name, "--help")
        assert code == 0
        assert f"hastore pipeline run {name} [OPTIONS]" in out
    assert run("pipeline", "show", "verify")[1].startswith("verify: ")


def test_job_runs_in_its_own_process_with_the_worker_package(spark, store, tmp_path):
    """Workers import hastore only from the package; stdout is the document, stderr empty."""
    package = tmp_path / "workers.zip"
    assert main(["pipeline", "package", "--out", str(package)]) == 0
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    python = bare_python(tmp_path / "bare")
    kept = environment(PYSPARK_PYTHON=str(python), TMPDIR=str(scratch))
    del kept["PYTHONPATH"]
    for name in ("JAVA_HOME", "SPARK_CONF_DIR", "SPARK_LOCAL_IP"):  # set for the fixture's session
        kept.pop(name, None)
    command = [sys.executable, "-c", "from hastore_cli.main import main; raise SystemExit(main())"]
    target = tmp_path / "all.jsonl"
    arguments = ["pipeline", "run", "export", store, "--to", target]
    arguments += ["--master", "local[1]", "-o", "json"]
    # The settings of the tests' session; the test that sends a signal uses a user's defaults.
    for name in TEST_CONF:
        arguments += ["--conf", f"{name}={spark.conf.get(name)}"]
    done = subprocess.run(
        [*command, *arguments, "--py-files", package],
        cwd=tmp_path,  # not the root of the repository, from which python -m imports
        env=kept | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["summary"]["messages"] == 30
    assert len(target.read_text().splitlines()) == 30
    assert list(scratch.iterdir()) == []


def start_job(tmp_path, *arguments):
    """Start a job in a new process; return it and the directory of its temporary files."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-c", "from hastore_cli.main import main; raise SystemExit(main())"]
    process = subprocess.Popen(
        [*command, "pipeline", "run", *arguments, "--master", "local[1]"],
        env=environment(TMPDIR=str(scratch)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process, scratch


def check_end(process, sent, is_time):
    """Send a signal once ``is_time()`` is true; check the exit code, and for tracebacks."""

    def is_time_or_dead():
        assert process.poll() is None, process.communicate()
        return is_time()

    wait_until(is_time_or_dead)
    process.send_signal(sent)
    _, stderr = process.communicate(timeout=PROCESS_WITHIN_S)
    assert process.returncode == 128 + sent, stderr
    assert "Traceback" not in stderr
    assert "bug" not in stderr


@pytest.mark.soak
def test_signal_ends_a_running_job_and_removes_its_files(store, tmp_path):
    """The job does not wait for Spark's answer; it has a user's default settings."""
    target = tmp_path / "out" / "all.jsonl"
    process, scratch = start_job(tmp_path, "export", store, "--to", target)
    check_end(process, signal.SIGTERM, lambda: list(target.parent.glob(".all.jsonl.unfinished/*")))
    assert list(target.parent.iterdir()) == []
    assert list(scratch.glob("hastore-spark-*")) == []
