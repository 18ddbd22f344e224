"""Spark sessions as hastore's jobs need them: quiet, on the loopback, in UTC, and gone afterwards.

What is set on the command line, in ``spark-defaults.conf`` or by ``conf`` wins over what is here.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

from hastore.pipeline.data_source import HaStoreDataSource
from hastore.pipeline.java_home import find_java_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LOG4J: Final = """
status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{0}
logger.procfs.name = org.apache.spark
logger.procfs.level = error
"""
_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_ALWAYS: Final = {
    "spark.driver.memory": "2g",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@contextlib.contextmanager
def spark_session(
    master: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Start Spark, with ``format("hastore")`` known; the session and its JVM end with the block.

    ``master``: as spark-submit's; without it what ``spark-defaults.conf`` says, else ``local[*]``.
    Where a session is there already that one is used, and left.  Raises ConfigError where there is
    no Java.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        register(running)
        yield running
        return
    with tempfile.TemporaryDirectory(prefix="hastore-spark-") as scratch, _environment(scratch):
        session = _builder(master, conf or {}, scratch).getOrCreate()
        register(session)
        try:
            yield session
        finally:
            _end(session)


def register(session: SparkSession) -> None:
    """Make ``format("hastore")`` known to a session, where discovery does not reach.

    Spark finds the installed module ``pyspark_hastore`` by itself, but not what ``--py-files``
    brings.
    """
    session.dataSource.register(HaStoreDataSource)


def _builder(master: str | None, conf: Mapping[str, str], scratch: str) -> SparkSession.Builder:
    builder = SparkSession.builder.appName("hastore")
    settings = dict(_ALWAYS)
    defaults = _defaults()
    master = master or conf.get("spark.master") or defaults.get("spark.master") or "local[*]"
    if master.startswith("local"):
        settings |= _LOCAL
    settings["spark.sql.warehouse.dir"] = f"{scratch}/warehouse"
    settings["spark.local.dir"] = scratch
    settings = {name: value for name, value in settings.items() if name not in defaults} | dict(
        conf
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.master(master)


def _defaults() -> dict[str, str]:
    """Read the user's ``spark-defaults.conf``: what stands there must not be set again."""
    folder = os.environ.get("SPARK_CONF_DIR")
    path = Path(folder, "spark-defaults.conf") if folder else None
    if path is None or not path.is_file():
        return {}
    pairs = (line.split(None, 1) for line in path.read_text().splitlines())
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2 and pair[0][0] != "#"}  # noqa: PLR2004


@contextlib.contextmanager
def _environment(scratch: str) -> Iterator[None]:
    """Say which Python and Java, and where Spark's logging is set up; as it was afterwards."""
    wanted = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    java_home = find_java_home()
    if java_home is not None:
        wanted["JAVA_HOME"] = java_home
    if "SPARK_CONF_DIR" not in os.environ:
        folder = Path(scratch, "conf")
        folder.mkdir()
        (folder / "log4j2.properties").write_text(_LOG4J)
        wanted["SPARK_CONF_DIR"] = str(folder)
    kept = {name: os.environ.get(name) for name in wanted}
    os.environ.update({name: value for name, value in wanted.items() if not kept[name]})
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)


def _end(session: SparkSession) -> None:
    """Stop the session and its JVM, which ``stop`` alone leaves running."""
    from pyspark import SparkContext  # noqa: PLC0415 - its class variables are set by now

    gateway = SparkContext._gateway  # noqa: SLF001 - there is no other way to the process
    session.stop()
    if gateway is None:
        return
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    if process is not None:
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        if process.poll() is None:
            process.kill()
            process.wait()
