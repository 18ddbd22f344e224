"""A program that starts Spark itself may be run without its venv on PATH."""

import shlex
import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

from hastore.pipeline.spark.java_home import find_java_home
from tests.pipeline.conftest import TEST_CONF
from tests.support.commands.running import environment
from tests.support.store.log_builder import LogBuilder

pytestmark = [pytest.mark.xdist_group("spark-starts"), pytest.mark.timeout(600)]
WITHIN_S = 500

PROGRAM = """
import sys

from pyspark.sql import SparkSession

from hastore.pipeline import read, register

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
python = spark.sparkContext.pythonExec
register(spark)
print(spark.read.format("hastore").load(sys.argv[1]).count())
print(read(spark, sys.argv[1], columns=["topic"]).first().topic)
print(python == spark.sparkContext.pythonExec == "python3")  # for all else it stays
spark.stop()
"""


@pytest.fixture
def other_python_env(tmp_path):
    """Return an environment in which `python3` is another interpreter, which does not work."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tools / "python3").chmod(0o755)
    kept = environment(PATH=f"{tools}:/usr/bin:/bin", SPARK_LOCAL_IP="127.0.0.1")
    kept["JAVA_HOME"] = find_java_home()
    conf = [word for pair in TEST_CONF.items() for word in ("--conf", "=".join(pair))]
    kept["PYSPARK_SUBMIT_ARGS"] = shlex.join([*conf, "pyspark-shell"])
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_CONF_DIR"):
        kept.pop(name, None)
    return kept


def test_registered_source_runs_in_the_interpreter_of_the_program(tmp_path, other_python_env):
    """The `python3` on PATH is not used."""
    store = LogBuilder().fill(30).write(tmp_path / "n1")
    program = tmp_path / "tables.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program, store],
        cwd=tmp_path,
        env=other_python_env,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "30\norders\nTrue\n"), done.stderr
