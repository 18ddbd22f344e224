"""The public names of ``hastore.pipeline``, each imported on first use.

Spark's workers, and programs that need only an error class, import the package without Spark.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from hastore.install_source import install_command

_HOMES: Final = {
    "read": "hastore.pipeline.spark.table",
    "read_stream": "hastore.pipeline.spark.table",
    "register": "hastore.pipeline.spark.session",
    "spark_session": "hastore.pipeline.spark.session",
}


def find_name(name: str) -> Any:
    """Return a public name from the module that defines it.

    Raises ImportError if the extra ``spark`` is not installed, AttributeError for other names.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'hastore.pipeline' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise ImportError(
            f"hastore.pipeline.{name} needs {package}: {install_command('spark')}", name=package
        ) from error


def list_names() -> list[str]:
    """Return the names that completion offers."""
    return sorted(_HOMES)
