"""`hastore pipeline …` as a person runs it; within one session, but for one whole process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from hastore.pipeline.spark.table_file import write_table
from hastore_cli.main import main
from tests.patience import PROCESS_WITHIN_S
from tests.pipeline.conftest import TEST_CONF
from tests.support.commands.running import environment, is_one_line_with_a_next_step
from tests.support.store.log_builder import LogBuilder

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def run(spark, capsysbinary):
    """Runs a command in this process, in the session of the tests: exit code, stdout, stderr."""

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsysbinary.readouterr()
        return code, captured.out.decode(), captured.err.decode()

    return call


@pytest.fixture
def store(tmp_path):
    """A whole store of 30 messages."""
    return LogBuilder().fill(30).write(tmp_path / "whole")


@pytest.fixture
def damaged(tmp_path):
    """A store with one byte flipped, and the offset of its record."""
    log = LogBuilder().fill(30)
    path = log.write(tmp_path / "damaged", data=log.flipped(log.offsets[20] + 100))
    return path, log.offsets[20]


def test_verify_of_a_whole_store_exits_with_0(run, store):
    """One JSON document on stdout and nothing on stderr."""
    code, out, err = run("pipeline", "run", "verify", store, "-o", "json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["schema"] == "hastore.pipeline/1"
    assert document["summary"]["messages"] == 30
    assert document["rows"] == document["files"] == []
    assert not document["found"]


def test_verify_of_a_damaged_store_exits_with_4_and_writes_all(run, damaged, tmp_path, spark):
    """A table for a person that names the offset; all findings as Parquet instead of older ones."""
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


def test_a_table_that_fails_leaves_the_older_one(spark, tmp_path):
    """Nothing is written halfway, and no part stays."""
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
def test_what_is_no_store_is_refused_before_spark_starts(job, run, tmp_path, monkeypatch):
    """A session takes seconds to start; a typing mistake is told at once."""
    (tmp_path / "history").write_text("")
    whole = LogBuilder().fill(3).write(tmp_path / "whole")
    words = [word.format(whole=whole, history=tmp_path / "history") for word in job]
    monkeypatch.setattr("hastore_cli.pipeline.run.running_spark", None)
    code, _, err = run("pipeline", "run", *words, tmp_path / "nowhere")
    assert (code, "nowhere: no such directory" in err) == (6, True), err


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (("rpo", "{tmp}/none.jsonl", "{whole}"), "none.jsonl is not a file"),
        (("report", "{whole}", "--history", "{tmp}/none.jsonl"), "there is no file"),
        (("report", "{whole}", "--metrics", "{tmp}/none.jsonl"), "there is no file"),
        (("export", "{whole}", "--to", "{tmp}/a"), "does not say which format"),
        (("export", "{whole}", "--to", "{tmp}/there.csv"), "is there already"),
        (("export", "{whole}", "--to", "{tmp}/a.csv", "--start", "soon"), "'soon' is not"),
    ],
)
def test_mistakes_are_told_before_spark_starts(job, said, run, tmp_path, monkeypatch):
    """Files that are missing or in the way, formats and times that nobody knows."""
    (tmp_path / "there.csv").write_text("")
    whole = LogBuilder().fill(3).write(tmp_path / "whole")
    words = [word.format(whole=whole, tmp=tmp_path) for word in job]
    monkeypatch.setattr("hastore_cli.pipeline.run.running_spark", None)
    code, out, err = run("pipeline", "run", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert is_one_line_with_a_next_step(err), err


@pytest.mark.parametrize(
    ("arguments", "expected", "said"),
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
def test_bad_input_is_one_line_with_a_next_step(run, tmp_path, arguments, expected, said):
    """An exit code of its own, no traceback, and nothing is written."""
    (tmp_path / "empty").mkdir()
    for name in ("file", "a,b"):
        (tmp_path / name).write_text("")
    before = sorted(tmp_path.rglob("*"))
    given = [argument.replace("{tmp}", str(tmp_path)) for argument in arguments]
    code, out, err = run("pipeline", "run", "verify", *given)
    assert code == expected, err
    assert out == ""
    assert is_one_line_with_a_next_step(err), err
    assert said in err
    assert sorted(tmp_path.rglob("*")) == before


def test_list_and_show_tell_of_every_job(run):
    """Each job that is listed has a page, and its examples name it."""
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


def test_one_process_from_its_start_to_its_end(spark, store, tmp_path):
    """Workers have nothing of hastore but the package; stdout is the document, stderr is empty."""
    package = tmp_path / "workers.zip"
    assert main(["pipeline", "package", "--out", str(package)]) == 0
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    python = bare_python(tmp_path / "bare")
    kept = environment(PYSPARK_PYTHON=str(python), TMPDIR=str(scratch))
    del kept["PYTHONPATH"]
    for name in ("JAVA_HOME", "SPARK_CONF_DIR", "SPARK_LOCAL_IP"):  # the fixture's session's own
        kept.pop(name, None)
    command = [sys.executable, "-c", "from hastore_cli.main import main; raise SystemExit(main())"]
    target = tmp_path / "all.jsonl"
    arguments = ["pipeline", "run", "export", store, "--to", target]
    arguments += ["--master", "local[1]", "-o", "json"]
    # As the tests' session takes its plans; with a user's conf one runs where a signal is sent.
    for name in TEST_CONF:
        arguments += ["--conf", f"{name}={spark.conf.get(name)}"]
    done = subprocess.run(
        [*command, *arguments, "--py-files", package],
        cwd=tmp_path,  # not the root of the repository: python -m looks there, too
        env=kept | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["summary"]["messages"] == 30
    assert len(target.read_text().splitlines()) == 30
    assert list(scratch.iterdir()) == []


def started(tmp_path, *arguments):
    """A process of its own that runs a job, and where it keeps its temporary files."""
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


def ends_by(process, sent, is_time):
    """Send a signal once it is time; the exit code tells of it, and stderr of nothing else."""
    deadline = time.monotonic() + PROCESS_WITHIN_S
    while not is_time():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(sent)
    _, told = process.communicate(timeout=PROCESS_WITHIN_S)
    assert process.returncode == 128 + sent, told
    assert "Traceback" not in told
    assert "bug" not in told


def test_a_signal_while_a_job_is_busy_ends_it(store, tmp_path):
    """Its answer is not waited for, and what it was writing goes; all conf is a user's."""
    target = tmp_path / "out" / "all.jsonl"
    process, scratch = started(tmp_path, "export", store, "--to", target)
    ends_by(process, signal.SIGTERM, lambda: list(target.parent.glob(".all.jsonl.unfinished/*")))
    assert list(target.parent.iterdir()) == []
    assert list(scratch.glob("hastore-spark-*")) == []


def bare_python(folder: Path) -> Path:
    """An interpreter that has Spark and the compiled packages, and nothing else."""
    import isal
    import numpy as np
    import py4j
    import pyarrow as pa
    import pyspark

    folder.mkdir()
    for module in (isal, np, py4j, pa, pyspark):
        path = Path(module.__file__).parent
        (folder / path.name).symlink_to(path)
        libraries = path.with_name(f"{path.name}.libs")
        if libraries.exists():
            (folder / libraries.name).symlink_to(libraries)
    python = folder / "python"
    base = getattr(sys, "_base_executable", sys.executable)
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{folder}"\nexec {base} -S "$@"\n')
    python.chmod(0o755)
    no_hastore = subprocess.run(
        [python, "-c", "import hastore"],
        cwd=folder,
        check=False,
        capture_output=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert b"No module named 'hastore'" in no_hastore.stderr
    return python
