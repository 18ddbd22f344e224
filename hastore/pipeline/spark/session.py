"""Spark sessions for hastore's jobs: quiet, on the loopback, in UTC, and gone afterwards.

The command line, ``spark-defaults.conf`` and ``conf`` override the settings in this file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from hastore.errors import ConfigError, HastoreError
from hastore.pipeline.source.data_source import HaStoreDataSource
from hastore.pipeline.spark.errors import keep_text, spark_error
from hastore.pipeline.spark.held_signals import HeldSignals, held_signals
from hastore.pipeline.spark.java_home import find_java_home
from hastore.pipeline.spark.java_process import JavaProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark import SparkContext

__all__ = ["SparkSession", "register", "spark_session"]

# Through these spark-submit passes its JVM to a Python program.
_GATEWAY_PORT: Final = "PYSPARK_GATEWAY_PORT"
_GATEWAY_SECRET: Final = "PYSPARK_GATEWAY_SECRET"  # noqa: S105 - the name
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
# They log an error that the driver also receives, and reports in one line.
_REPEATING_LOGGERS: Final = (
    "executor.Executor",
    "scheduler.TaskSetManager",
    "sql.execution.datasources",
    "util.Utils",
)
_QUIET: Final = "".join(
    f"logger.{number}.name = org.apache.spark.{name}\nlogger.{number}.level = fatal\n"
    for number, name in enumerate(_REPEATING_LOGGERS)
)
_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
# Jobs on one machine want throughput: G1's threads compete with the Python workers.  Java does not
# start with two collectors, so hastore names none where the user sets any Java options.
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_JAVA_VARIABLES: Final = (
    "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS",
    "PYSPARK_SUBMIT_ARGS",
)  # fmt: skip
_PARALLEL_GC: Final = {"spark.driver.defaultJavaOptions": "-XX:+UseParallelGC"}
_ALWAYS: Final = {
    "spark.driver.memory": "2g",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# A line of spark-defaults.conf, a Java properties file: a blank, "=" or ":" ends the name.
_DEFAULT: Final = re.compile(r"\s*([^\s#!=:][^\s=:]*)(?:\s*[=:]\s*|\s+)(.*)")
_MASTER: Final = re.compile(r"local(?:-cluster)?(?:\[[^]]+\])?|spark://.+|k8s://.+|yarn")


@contextlib.contextmanager
def spark_session(
    master: str | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Start Spark with ``format("hastore")`` registered; session and JVM end with the block.

    ``master`` is as for spark-submit; the default is that of ``spark-defaults.conf``, else
    ``local[*]``.  An active session is used instead, and not stopped.  Raises ConfigError if there
    is no Java or the master is malformed, HastoreError if Spark does not start.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        register(running)
        yield running
        return
    conf = dict(conf or {})
    master = _master(master, conf)
    is_local = master.startswith("local")
    java = JavaProcess(interrupt_signal=signal.SIGKILL if is_local else signal.SIGTERM)
    stack = contextlib.ExitStack()
    try:
        with held_signals(java.interrupt) as held:
            stack.enter_context(_quiet_interruption(java))
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="hastore-spark-"))
            python = conf.get("spark.pyspark.python")
            stack.enter_context(_environment(scratch, is_local=is_local, python=python))
            stack.callback(_end, java)
            builder = _builder(master, conf, scratch)
            session = _start(builder, master, java, scratch, held)
            register(session)
        yield session
    except KeyboardInterrupt:
        if not java.is_interrupted:
            java.interrupt()  # do not wait for a busy job
        raise
    except Exception as error:
        keep_text(error)
        raise
    finally:
        with held_signals(java.interrupt):
            stack.close()


def register(session: SparkSession) -> None:
    """Register ``format("hastore")`` with any session.

    Spark finds the installed module ``pyspark_hastore`` by itself, but only in its workers' Python:
    without ``PYSPARK_PYTHON`` that is the ``python3`` on PATH.  On a local master, the format
    registered here runs in the interpreter of this program.
    """
    context = session.sparkContext
    before = context.pythonExec
    if (context.master or "").startswith("local") and not os.environ.get("PYSPARK_PYTHON"):
        context.pythonExec = sys.executable
    try:
        session.dataSource.register(HaStoreDataSource)
    finally:
        context.pythonExec = before


def _master(master: str | None, conf: Mapping[str, str]) -> str:
    chosen = master or conf.get("spark.master") or _defaults().get("spark.master") or "local[*]"
    if not _MASTER.fullmatch(chosen):
        raise ConfigError(
            f"{chosen!r} is not a Spark master",
            hint="local[N], spark://HOST:PORT, yarn or k8s://https://HOST:PORT",
        )
    return chosen


def _builder(master: str, conf: Mapping[str, str], scratch: str) -> SparkSession.Builder:
    settings = dict(_ALWAYS)
    if master.startswith("local"):
        settings |= _LOCAL
        is_own = os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable
        if is_own and "spark.pyspark.python" not in conf:  # another Python may lack hastore
            settings["spark.python.daemon.module"] = "hastore.pipeline.spark.worker_daemon"
    settings["spark.sql.warehouse.dir"] = f"{scratch}/warehouse"
    settings["spark.local.dir"] = scratch
    defaults = _defaults()
    if master.startswith("local") and not _has_java_options({**defaults, **conf}):
        settings |= _PARALLEL_GC
    builder = SparkSession.builder.appName("hastore")
    for name, value in settings.items():
        if name not in defaults and name not in conf:
            builder = builder.config(name, value)
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.master(master)


def _has_java_options(conf: Mapping[str, str]) -> bool:
    return _JAVA_OPTIONS in conf or any(os.environ.get(name) for name in _JAVA_VARIABLES)


def _start(
    builder: SparkSession.Builder,
    master: str,
    java: JavaProcess,
    scratch: str,
    held: HeldSignals,
) -> SparkSession:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - it has class variables

    settings: dict[str, str] = builder._options  # noqa: SLF001 - as getOrCreate does
    try:
        _launch_gateway(java, settings, scratch)
        conf = SparkConf()
        for name, value in settings.items():
            conf.set(name, value)
        with _no_warning_of_a_lost_jvm():
            context = SparkContext.getOrCreate(conf)
        held.hold()  # the context's own handler would call Java during another call to it
        _hush_accumulators(context, java)
        return builder.getOrCreate()
    except HastoreError as error:
        raise HastoreError(f"Spark does not start on {master}: {error}", hint=error.hint) from error
    except Exception as error:
        text = str(spark_error(error)).removeprefix("Spark: ")
        raise HastoreError(
            f"Spark does not start on {master}: {text}",
            hint="see its output above; check --master and --conf",
        ) from error


def _launch_gateway(java: JavaProcess, settings: Mapping[str, str], scratch: str) -> None:
    """Start a JVM, and pass it to pyspark as ``spark-submit`` does.

    A program that was started by ``spark-submit`` has a JVM already.
    """
    from pyspark import SparkContext  # noqa: PLC0415

    if _GATEWAY_PORT in os.environ:
        return
    port, secret = java.start(settings, scratch)
    os.environ[_GATEWAY_PORT], os.environ[_GATEWAY_SECRET] = str(port), secret
    try:
        SparkContext._ensure_initialized(gateway=launch_gateway())  # type: ignore[no-untyped-call]  # noqa: SLF001
    finally:
        del os.environ[_GATEWAY_PORT], os.environ[_GATEWAY_SECRET]


def _hush_accumulators(context: SparkContext, java: JavaProcess) -> None:
    """Stop the server of Python's accumulators from printing a traceback on an interrupt."""
    server: Any = context._accumulatorServer  # noqa: SLF001 - there is no public way
    handle_error = server.handle_error
    server.handle_error = lambda *of: None if java.is_interrupted else handle_error(*of)


def _defaults() -> dict[str, str]:
    """Return the settings of the user's ``spark-defaults.conf``, which must not be overridden."""
    folder = os.environ.get("SPARK_CONF_DIR")
    path = Path(folder, "spark-defaults.conf") if folder else None
    if path is None or not path.is_file():
        return {}
    pairs = (_DEFAULT.match(line) for line in path.read_text().splitlines())
    return {pair[1]: pair[2].strip() for pair in pairs if pair is not None}


@contextlib.contextmanager
def _environment(scratch: str, *, is_local: bool, python: str | None) -> Iterator[None]:
    """Set the variables for Python, Java and Spark's logging, and restore them afterwards."""
    changed = {"PYSPARK_PYTHON": sys.executable}
    if is_local:
        changed["SPARK_LOCAL_IP"] = "127.0.0.1"
    changed = {name: value for name, value in changed.items() if not os.environ.get(name)}
    changed["JAVA_HOME"] = find_java_home()
    if python is not None:
        changed["PYSPARK_PYTHON"] = python
    if "SPARK_CONF_DIR" not in os.environ:
        folder = Path(scratch, "conf")
        folder.mkdir()
        (folder / "log4j2.properties").write_text(_LOG4J + _QUIET)
        changed["SPARK_CONF_DIR"] = str(folder)
    kept = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _quiet_interruption(java: JavaProcess) -> Iterator[None]:
    """Drop the tracebacks that py4j logs for interrupted calls to Java."""

    def is_wanted(record: logging.LogRecord) -> bool:
        if Path(record.pathname).parent.name != "py4j":
            return True
        return not (java.is_interrupted or record.getMessage().startswith("KeyboardInterrupt"))

    # py4j logs most of them to the root logger.
    loggers = [logging.getLogger(name) for name in (None, "py4j.clientserver", "py4j.java_gateway")]
    for logger in loggers:
        logger.addFilter(is_wanted)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_wanted)


@contextlib.contextmanager
def _no_warning_of_a_lost_jvm() -> Iterator[None]:
    """Silence pyspark's warning that it could not stop a JVM: it also raises an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM process")
        yield


def _end(java: JavaProcess) -> None:
    """Stop the session, if there is one, and its JVM, which ``stop`` alone leaves running."""
    from pyspark import SparkContext  # noqa: PLC0415 - its class variables are set by now

    gateway = SparkContext._gateway  # noqa: SLF001 - there is no public way
    try:
        with _no_warning_of_a_lost_jvm():
            session = SparkSession.getActiveSession()
            if session is not None:
                session.stop()
        if gateway is not None:
            gateway.shutdown()
    except Exception:
        if not java.is_gone:
            raise
    finally:
        _forget()
        java.end()


def _forget() -> None:
    """Clear pyspark's class variables, so that the next session starts afresh."""
    from pyspark import SparkContext  # noqa: PLC0415

    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
