"""The session: what is set, what is refused, and that `hastore` is a format without registering."""

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


def test_the_format_is_found_without_a_register_call(spark, tmp_path):
    """A session of its own, in which nobody registered anything, reads a store by name."""
    store = LogBuilder().fill(40).write(tmp_path / "n1")
    fresh = spark.newSession()
    frame = fresh.read.format("hastore").load(str(store))
    assert frame.where("record_ok").count() == 40


def test_a_session_that_runs_is_used_and_left(spark):
    """Who calls a job from a notebook keeps the session."""
    with session.spark_session("local[1]") as same:
        assert same is spark
    assert spark.range(3).count() == 3


def test_times_are_utc_and_nothing_listens_but_loopback(spark):
    """Whatever the machine's zone and name are."""
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.getConf().get("spark.driver.host") == "127.0.0.1"
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_java_has_its_temporary_files_where_they_are_removed(spark):
    """Also those that Spark does not put into spark.local.dir."""
    folder = spark.sparkContext._jvm.java.lang.System.getProperty("java.io.tmpdir")
    assert folder == spark.sparkContext.getConf().get("spark.local.dir")


def test_workers_come_from_a_daemon_that_has_imported_what_reads(spark):
    """On a local master; it is what each plan of a read would import again."""
    daemon = spark.sparkContext.getConf().get("spark.python.daemon.module")
    assert daemon == "hastore.pipeline.spark.worker_daemon"
    settings = session._builder("spark://h:7077", {}, "/tmp")._options
    assert "spark.python.daemon.module" not in settings
    settings = session._builder("local[2]", {"spark.pyspark.python": "/else"}, "/tmp")._options
    assert "spark.python.daemon.module" not in settings


def test_the_collector_is_the_users_where_java_has_options(monkeypatch):
    """Two collectors, and Java does not start; a cluster's driver is left as it is."""
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


def test_all_that_use_the_session_are_in_one_worker(request):
    """pytest-xdist appends the group to the id; where it does not, each worker starts a JVM."""
    if "PYTEST_XDIST_WORKER" in os.environ and request.config.option.loadgroup:
        assert request.node.nodeid.endswith("@spark")


@pytest.mark.parametrize("master", ["bogus", "local[", "spark:", "127.0.0.1:7077", "mesos://h:1"])
def test_a_master_that_is_none_is_refused_before_anything_starts(master):
    """With what may stand there."""
    with pytest.raises(ConfigError, match="is not a Spark master") as refused:
        session._master(master, {})
    assert "spark://HOST:PORT" in refused.value.hint


@pytest.mark.parametrize(
    "master", ["local", "local[4]", "local[*]", "spark://h:7077", "yarn", "k8s://https://h:443"]
)
def test_masters_of_every_kind_are_taken(master):
    """From --master, else from the conf, else local[*]."""
    assert session._master(master, {}) == master
    assert session._master(None, {"spark.master": master}) == master


def test_spark_defaults_win_over_ours_and_conf_over_both(tmp_path, monkeypatch):
    """What a user's spark-defaults.conf sets hastore does not; --conf is the last word."""
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


def test_the_environment_is_as_it_was_afterwards(tmp_path, monkeypatch):
    """What was set for Spark's launcher goes, and a JAVA_HOME of the user comes back."""
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


def test_a_cluster_is_not_told_that_the_driver_is_on_the_loopback(tmp_path, monkeypatch):
    """Executors of other machines must reach it."""
    monkeypatch.setattr(session, "find_java_home", lambda: "/stand-in")
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    with session._environment(str(tmp_path), is_local=False, python=None):
        assert "SPARK_LOCAL_IP" not in os.environ
    assert "spark.driver.host" not in session._builder("yarn", {}, "/scratch")._options


def test_an_error_of_ours_is_found_in_what_spark_says():
    """Class, text and hint come back out of a traceback."""
    told = Exception(
        "An error occurred while calling o1.count.\n: Traceback (most recent call last):\n"
        "  File x\nhastore.errors.NotAStoreError: /d is no store\nnext: check the path\n"
    )
    error = own_error(told)
    assert type(error).__name__ == "NotAStoreError"
    assert str(error) == "/d is no store"
    assert error.hint == "check the path"
    assert own_error(Exception("hastore is not named as an error here")) is None
    assert own_error(Exception("hastore.elsewhere.OddError: no module of ours")) is None


def test_an_error_that_leaves_the_session_can_still_be_read(spark, monkeypatch, tmp_path):
    """Of the same class, with what it said while there was a JVM; what it came from as well."""
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


def test_workers_without_hastore_are_told_of_in_one_line():
    """With the command that builds what they need."""
    told = Exception("x\nModuleNotFoundError: No module named 'hastore.pipeline'\n")
    error = spark_error(told)
    assert isinstance(error, HastoreError)
    assert str(error) == "the Python of Spark's workers has no hastore"
    assert "hastore pipeline package" in error.hint


def test_any_other_error_of_spark_is_one_line():
    """The first line that says something, without the frames of the JVM."""
    error = spark_error(Exception("An error occurred while calling o5.load.\n: boom\n\tat a.b.C"))
    assert str(error) == "Spark: boom"
