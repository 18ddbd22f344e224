"""Errors of hastore that come out of Spark: there they are the last lines of another text.

A task, and the planning of a data source, run in Python processes of their own.  What they raise
arrives in the message of a PySparkException or a Py4JJavaError, behind what Spark says of it or
behind a traceback:

    [PYTHON_DATA_SOURCE_ERROR] Failed to …: hastore.errors.NotAStoreError: /data/n1 is no store
    next: check the path                                     the hint: a note of the error

Only a session that runs can tell what its exceptions say; ``keep_text`` is for those that leave it.
"""

from __future__ import annotations

import importlib
import re
from typing import Final

from hastore.errors import HastoreError

_RAISED: Final = re.compile(
    r"(?:^|: )\s*(hastore(?:\.\w+)+)\.(\w+): (.*)(?:\n\s*next: (.*))?", re.MULTILINE
)
_NOISE: Final = re.compile(r"^(?:An error occurred while calling .*|: *)$")
_NO_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_LINE_MAX: Final = 300


def own_error(error: BaseException) -> HastoreError | None:
    """Return the error of hastore that an exception of Spark tells of; None where there is none."""
    raised = list(_RAISED.finditer(str(error)))
    for module_name, name, message, hint in (match.groups() for match in raised):
        try:
            module = importlib.import_module(module_name)
        except ImportError:  # a body may have such a line, or the workers another version
            continue
        found = getattr(module, name, None)
        if isinstance(found, type) and issubclass(found, HastoreError):
            # Its own attributes (a path, an offset) stayed behind; class and text say enough.
            own = found.__new__(found)
            HastoreError.__init__(own, message.strip(), hint=hint)
            return own
    return None


def is_of_spark(error: BaseException) -> bool:
    """Whether an exception asks a JVM for its text."""
    return type(error).__module__.partition(".")[0] in {"py4j", "pyspark"}


def keep_text(error: BaseException) -> None:
    """Let an exception of Spark, and those it came from, say later what they say now."""
    chain: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in chain:
        chain.append(found)
        found = found.__cause__ or found.__context__
    for one in filter(is_of_spark, chain):
        text, kind = str(one), type(one)
        said = {"__module__": kind.__module__, "__str__": lambda _, text=text: text}
        one.__class__ = type(kind.__name__, (kind,), said)


def spark_error(error: BaseException) -> HastoreError:
    """Return any other exception of Spark as one line: its text without the traces of the JVM."""
    told = str(error)
    missing = _NO_MODULE.search(told)
    if missing is not None:
        return HastoreError(
            f"the Python of Spark's workers has no {missing[1].partition('.')[0]}",
            hint="install numpy, pyarrow and isal there, and give --py-files the file that"
            " hastore pipeline package builds",
        )
    lines = [line.strip() for line in told.splitlines()]
    text = next((line for line in lines if line and not _NOISE.match(line)), type(error).__name__)
    return HastoreError(
        f"Spark: {text[:_LINE_MAX].removeprefix(': ')}",
        hint="HASTORE_DEBUG=1 shows all of it",
    )
