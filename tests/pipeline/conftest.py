"""A small store, and one Spark session for the whole run: its start takes longer than most tests.

A module that uses it is marked ``pytest.mark.xdist_group("spark")``, so that all of them run in
one worker.
"""

import importlib.util

import pytest

from hastore.errors import ConfigError
from tests.support.store.log_builder import LogBuilder

# Short queries gain nothing from the second compiler, from threads that collect garbage, from
# compiled plans and expressions, or from plans that are changed after each stage.  With one
# compiler the JVM's code cache has 48 MB, and nothing more is compiled once it is full; many tests
# need more.  Spark searches an error of foreachBatch for an interruption with a regular expression
# that recurses once a character: the default stack is too small for a traceback.  The bytecode of
# Spark's own classes is not verified, which is a tenth of a start.
TEST_CONF = {
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m -Xss16m"
        " -Xms1g -Xmn500m -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    ),
    "spark.driver.memory": "1g",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="session")
def spark():
    """Yield a session on two cores; skip the test if Spark or Java is missing."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("pyspark is not installed: it is in the extra spark")
    from hastore.pipeline.spark.java_home import find_java_home
    from hastore.pipeline.spark.session import spark_session

    try:
        find_java_home()
    except ConfigError as error:
        pytest.skip(f"{error}: {error.hint}")
    with spark_session("local[2]", TEST_CONF) as session:
        yield session


@pytest.fixture
def store(tmp_path):
    """Write an undamaged store of 30 messages."""
    return LogBuilder().fill(30).write(tmp_path / "whole")
