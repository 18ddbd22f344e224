"""A session has safe settings, refuses bad masters, and knows `hastore` without registration."""

import os

import pytest

pytest.importorskip("pyspark")

from pyspark import SparkContext
from pyspark.errors import AnalysisException

from hastore.errors import ConfigError, HastoreError
from hastore.pipeline.spark import session
from hastore.pipeline.spark.errors import keep_text, own_error, spark_error
from tests.support.store.log_builder import LogBuilder

pytestmark = pytest.mark.xdist_group("spark")


def test_format_is_found_without_registration(spark, tmp_path):
    """A new session that registered nothing reads a store by the format's name."""
    store = LogBuilder().fill(40).write(tmp_path / "n1")
    fresh = spark.newSession()
    frame = fresh.read.format("hastore").load(str(store))
    assert frame.where("record_ok").count() == 40


def test_running_session_is_reused_and_kept(spark):
    """A job called from a notebook does not end the notebook's session."""
    with session.spark_session("local[1]") as same:
        assert same is spark
    assert spark.range(3).count() == 3


def test_session_uses_utc_and_listens_on_loopback_only(spark):
    """It does not depend on the machine's time zone or name."""
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.getConf().get("spark.driver.host") == "127.0.0.1"
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_java_temporary_files_are_in_the_removed_directory(spark):
    """Spark does not put all of them into spark.local.dir."""
    folder = spark.sparkContext._jvm.java.lang.System.getProperty("java.io.tmpdir")
    assert folder == spark.sparkContext.getConf().get("spark.local.dir")


def test_local_workers_come_from_our_daemon(spark):
    """It has imported the reader; otherwise each plan of a read would import it again."""
    daemon = spark.sparkContext.getConf().get("spark.python.daemon.module")
    assert daemon == "hastore.pipeline.spark.worker_daemon"
    settings = session._builder("spark://h:7077", {}, "/tmp")._options
    assert "spark.python.daemon.module" not in settings
    settings = session._builder("local[2]", {"spark.pyspark.python": "/else"}, "/tmp")._options
    assert "spark.python.daemon.module" not in settings


def test_users_java_options_decide_the_garbage_collector(monkeypatch):
    """With two collectors Java does not start; a cluster's driver is left unchanged."""
    name, extra = "spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions"
    for variable in session._JAVA_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    assert session._builder("local[2]", {}, "/tmp")._options[name] == "-XX:+UseParallelGC"
    assert name not in session._builder("spark://h:7077", {}, "/tmp")._options
    assert name not in session._builder("local[2]", {extra: "-XX:+UseG1GC"}, "/tmp")._options
    for variable in session._JAVA_VARIABLES:
        with monkeypatch.context() as patch:
            patch.setenv(variable, "-XX:+UseG1GC")
            assert name not in session._builder("local[2]", {}, "/tmp")._options


def test_session_tests_run_in_one_xdist_worker(request):
    """pytest-xdist appends the group to the id; else each worker would start a JVM."""
    if "PYTEST_XDIST_WORKER" in os.environ and request.config.option.loadgroup:
        assert request.node.nodeid.endswith("@spark")


@pytest.mark.parametrize("master", ["bogus", "local[", "spark:", "127.0.0.1:7077", "mesos://h:1"])
def test_invalid_master_is_refused_before_spark_starts(master):
    """The hint shows valid masters."""
    with pytest.raises(ConfigError, match="is not a Spark master") as refused:
        session._master(master, {})
    assert "spark://HOST:PORT" in refused.value.hint


@pytest.mark.parametrize(
    "master", ["local", "local[4]", "local[*]", "spark://h:7077", "yarn", "k8s://https://h:443"]
)
def test_accepts_every_kind_of_master(master):
    """It comes from --master, else from the conf, else it is local[*]."""
    assert session._master(master, {}) == master
    assert session._master(None, {"spark.master": master}) == master


def test_spark_defaults_override_ours_and_conf_overrides_both(tmp_path, monkeypatch):
    """Hastore does not set what a user's spark-defaults.conf sets; --conf comes last."""
    (tmp_path / "spark-defaults.conf").write_text(
        "# comment\nspark.master  spark://h:7077\nspark.driver.memory 5g\nspark.ui.enabled true\n"
        "  spark.sql.shuffle.partitions = 99\nspark.sql.warehouse.dir:/w\n\nspark.nothing\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert session._master(None, {}) == "spark://h:7077"
    set_by_us = session._builder("local[2]", {"spark.ui.enabled": "false"}, "/scratch")._options
    assert "spark.driver.memory" not in set_by_us
    assert "spark.sql.shuffle.partitions" not in set_by_us
    assert "spark.sql.warehouse.dir" not in set_by_us
    assert set_by_us["spark.ui.enabled"] == "false"
    assert set_by_us["spark.sql.session.timeZone"] == "UTC"


def test_environment_is_restored(tmp_path, monkeypatch):
    """Variables for Spark's launcher are removed, and the user's JAVA_HOME is set again."""
    monkeypatch.setattr(session, "find_java_home", lambda: "/stand-in")
    monkeypatch.setenv("JAVA_HOME", "/usr/own")
    for name in ("PYSPARK_PYTHON", "SPARK_CONF_DIR", "SPARK_LOCAL_IP"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    with session._environment(str(tmp_path), is_local=True, python="./env/bin/python"):
        assert os.environ["JAVA_HOME"] == "/stand-in"
        assert os.environ["PYSPARK_PYTHON"] == "./env/bin/python"
        assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
        assert (tmp_path / "conf" / "log4j2.properties").exists()
    assert dict(os.environ) == before


def test_driver_of_a_cluster_is_not_on_the_loopback(tmp_path, monkeypatch):
    """Executors on other machines must reach it."""
    monkeypatch.setattr(session, "find_java_home", lambda: "/stand-in")
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    with session._environment(str(tmp_path), is_local=False, python=None):
        assert "SPARK_LOCAL_IP" not in os.environ
    assert "spark.driver.host" not in session._builder("yarn", {}, "/scratch")._options


def test_our_error_is_found_in_the_text_of_spark():
    """Class, text and hint are read from a traceback."""
    raised = Exception(
        "An error occurred while calling o1.count.\n: Traceback (most recent call last):\n"
        "  File x\nhastore.errors.NotAStoreError: /d is no store\nnext: check the path\n"
    )
    error = own_error(raised)
    assert type(error).__name__ == "NotAStoreError"
    assert str(error) == "/d is no store"
    assert error.hint == "check the path"
    assert own_error(Exception("hastore is not named as an error here")) is None
    assert own_error(Exception("hastore.elsewhere.OddError: no module of ours")) is None


def test_error_keeps_its_text_after_the_session_ends(spark, monkeypatch, tmp_path):
    """So does its cause, and the class stays the same."""
    frame = spark.read.format("hastore")
    with pytest.raises(AnalysisException) as caught:
        frame.load(str(tmp_path)).collect()
    try:
        raise ValueError("own") from caught.value
    except ValueError as error:
        keep_text(error)
    monkeypatch.setattr(SparkContext, "_jvm", None)
    assert "hastore.errors.NotAStoreError" in str(caught.value)
    assert type(caught.value).__name__ == "AnalysisException"
    with pytest.raises(AnalysisException):
        raise caught.value


def test_workers_without_hastore_are_one_line_with_a_hint():
    """The hint has the command that builds the missing package."""
    raised = Exception("x\nModuleNotFoundError: No module named 'hastore.pipeline'\n")
    error = spark_error(raised)
    assert isinstance(error, HastoreError)
    assert str(error) == "the Python of Spark's workers has no hastore"
    assert "hastore pipeline package" in error.hint


def test_other_errors_of_spark_become_one_line():
    """It is the first meaningful line, without the JVM's stack."""
    error = spark_error(Exception("An error occurred while calling o5.load.\n: boom\n\tat a.b.C"))
    assert str(error) == "Spark: boom"
