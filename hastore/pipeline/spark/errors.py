"""Extract hastore's errors from the text of Spark's exceptions.

Tasks, and the planning of a data source, run in Python processes of their own.  Their errors
arrive in the message of a PySparkException or a Py4JJavaError, after Spark's own words or a
traceback:

    [PYTHON_DATA_SOURCE_ERROR] Failed to …: hastore.errors.NotAStoreError: /data/n1 is no store
    next: check the path                                     the hint: a note of the error

Spark's exceptions ask the JVM for their text, so ``keep_text`` saves it before the session ends.
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
    """Return the hastore error inside an exception of Spark, or None."""
    raised = list(_RAISED.finditer(str(error)))
    for module_name, name, message, hint in (match.groups() for match in raised):
        try:
            module = importlib.import_module(module_name)
        except ImportError:  # a message body may contain such a line; workers may have a new class
            continue
        found = getattr(module, name, None)
        if isinstance(found, type) and issubclass(found, HastoreError):
            # Its own attributes (a path, an offset) are lost; class and text say enough.
            own = found.__new__(found)
            HastoreError.__init__(own, message.strip(), hint=hint)
            return own
    return None


def is_of_spark(error: BaseException) -> bool:
    """Whether an exception asks the JVM for its text."""
    return type(error).__module__.partition(".")[0] in {"py4j", "pyspark"}


def keep_text(error: BaseException) -> None:
    """Save the text of an exception of Spark and of its causes, for when the JVM has ended."""
    chain: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in chain:
        chain.append(found)
        found = found.__cause__ or found.__context__
    for one in filter(is_of_spark, chain):
        text, kind = str(one), type(one)
        members = {"__module__": kind.__module__, "__str__": lambda _, text=text: text}
        one.__class__ = type(kind.__name__, (kind,), members)


def spark_error(error: BaseException) -> HastoreError:
    """Return any other exception of Spark as one line: its text without the JVM's stack traces."""
    whole = str(error)
    missing = _NO_MODULE.search(whole)
    if missing is not None:
        return HastoreError(
            f"the Python of Spark's workers has no {missing[1].partition('.')[0]}",
            hint="install numpy, pyarrow and isal there, and pass the file that hastore pipeline"
            " package builds with --py-files",
        )
    lines = [line.strip() for line in whole.splitlines()]
    text = next((line for line in lines if line and not _NOISE.match(line)), type(error).__name__)
    return HastoreError(
        f"Spark: {text[:_LINE_MAX].removeprefix(': ')}",
        hint="HASTORE_DEBUG=1 shows all of it",
    )
