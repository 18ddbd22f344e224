"""The import path of a child process, which must import hastore from where this process does.

A clone without an install, an editable install and a wheel differ here: in a clone ``hastore``,
``hastore_cli`` and ``hastore_scenarios`` are in three folders, in a wheel in one.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Final

_PACKAGES: Final = ("hastore", "hastore_cli", "hastore_scenarios")


def import_path(existing: str | None) -> str:
    """Return a value for PYTHONPATH: the folders of hastore's packages, then ``existing``."""
    places: dict[str, None] = {}
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            places[str(Path(spec.origin).resolve().parent.parent)] = None
    return os.pathsep.join([*places, *([existing] if existing else [])])
