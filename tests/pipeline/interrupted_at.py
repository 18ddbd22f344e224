"""Runs `hastore ARGUMENTS`, and sends a signal to its own process group at a named instant.

python -m tests.pipeline.interrupted_at INSTANT SIGNAL ARGUMENTS…

A terminal sends Ctrl-C to the process group, too.  An instant is an event, never a time: a call of
a function, its return, or a moment in it at which the main thread waits for Java's answer.
"""

import contextlib
import importlib
import os
import signal
import sys
import threading
import time
from importlib.abc import MetaPathFinder
from pathlib import Path

from hastore_cli.main import main

# instant: (module, name in it, when); in the order in which a job reaches them.
INSTANTS = {
    "command line": ("hastore_cli.pipeline.run", "refuse_no_store", "entry"),
    "pyspark is imported": ("pyspark.sql", None, "import"),
    "a Java is looked for": ("hastore.pipeline.spark.session", "find_java_home", "entry"),
    "a Java was found": ("hastore.pipeline.spark.session", "find_java_home", "return"),
    "before the fork": ("hastore.pipeline.spark.java_process", "JavaProcess.start", "entry"),
    "the script has begun": ("subprocess", "Popen", "return"),
    "the port is awaited": (
        "hastore.pipeline.spark.java_process",
        "JavaProcess._wait_for",
        "entry",
    ),
    "Java has begun": ("hastore.pipeline.spark.java_process", "JavaProcess._wait_for", "java"),
    "the port is known": ("hastore.pipeline.spark.java_process", "JavaProcess._wait_for", "return"),
    "the gateway is met": ("pyspark.java_gateway", "java_import", "entry"),
    "the context begins": ("pyspark", "SparkContext._do_init", "entry"),
    "the context is built": ("pyspark", "SparkContext._initialize_context", "waiting"),
    "the context is there": ("pyspark", "SparkContext._initialize_context", "return"),
    "the session is built": ("pyspark.sql", "SparkSession.__init__", "waiting"),
    "the source is registered": ("hastore.pipeline.spark.session", "register", "entry"),
    "the first plan": ("pyspark.sql.readwriter", "DataFrameReader.load", "waiting"),
    "the job is busy": ("pyspark.sql.classic.dataframe", "DataFrame.collect", "waiting"),
    "the stop begins": ("pyspark", "SparkContext.stop", "entry"),
    "the context is stopped": ("pyspark", "SparkContext.stop", "waiting"),
    "the JVM ends": ("hastore.pipeline.spark.java_process", "JavaProcess.end", "entry"),
}


def in_java() -> bool:
    """Return whether the main thread waits for Java's answer."""
    frame = sys._current_frames().get(threading.main_thread().ident)
    return frame is not None and frame.f_code.co_name == "readinto"


def running(mark: str) -> dict[int, Path]:
    """Return the folders in /proc of all processes with a mark in their environment, by pid."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():  # empty once it has ended
                found[int(folder.name)] = folder
    return found


def java_has_begun() -> bool:
    """Return whether one of our processes has become the JVM that serves Python."""
    for folder in running(os.environ["HASTORE_TEST_MARK"]).values():
        with contextlib.suppress(OSError):
            is_java = (folder / "comm").read_text().strip() == "java"
            if is_java and b"deploy.SparkSubmit" in (folder / "cmdline").read_bytes():
                return True
    return False


class Interruption:
    """A signal that is sent at most once."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._lock = threading.Lock()
        self._is_sent = False

    def send(self) -> None:
        """Send the signal to the whole group, which includes this process."""
        with self._lock:
            if self._is_sent:
                return
            self._is_sent = True
        os.killpg(0, self._number)

    def send_once(self, is_time) -> None:
        """Send the signal from a thread, as soon as ``is_time()`` is true."""

        def wait() -> None:
            while not is_time():
                time.sleep(0.002)
            self.send()

        threading.Thread(target=wait, daemon=True).start()


class AtImport(MetaPathFinder):
    """Sends the signal when a module is imported."""

    def __init__(self, name: str, interruption: Interruption) -> None:
        self._name = name
        self._interruption = interruption

    def find_spec(self, fullname, path, target=None) -> None:
        """Find no module, so that the usual finders go on."""
        if fullname == self._name:
            self._interruption.send()


def install(instant: str, interruption: Interruption) -> None:
    """Arrange that the signal is sent at an instant."""
    module_name, name, when = INSTANTS[instant]
    if when == "import":
        sys.meta_path.insert(0, AtImport(module_name, interruption))
        return
    owner = importlib.import_module(module_name)
    *path, name = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    original = getattr(owner, name)

    def wrapper(*args, **kwargs):
        if when == "entry":
            interruption.send()
        elif when != "return":
            interruption.send_once(in_java if when == "waiting" else java_has_begun)
        given = original(*args, **kwargs)
        if when == "return" and (instant != "the script has begun" or "spark-submit" in str(args)):
            interruption.send()
        return given

    setattr(owner, name, wrapper)


if __name__ == "__main__":
    sent = signal.Signals[sys.argv[2]]
    if signal.getsignal(sent) is signal.SIG_IGN:  # nohup, say, leaves SIGHUP ignored
        signal.signal(sent, signal.SIG_DFL)
    install(sys.argv[1], Interruption(sent))
    sys.exit(main(sys.argv[3:]))
