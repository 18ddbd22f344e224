"""Whether the C extension is in use: ``extension`` is its module, or None.

Each function of ``_native.c`` has a twin in Python, which is complete and says what the function
returns; the module of the twin chooses.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType

PURE_VARIABLE: Final = "HASTORE_PURE"  # set to 1, nothing is done in C
_INTERFACE: Final = 8  # of _native.c: raise both if a function takes or returns something else


def _load() -> tuple[ModuleType | None, str]:
    """Return the extension, and a line that says which code is in use."""
    if os.environ.get(PURE_VARIABLE, "") not in {"", "0"}:
        return None, f"not in use: {PURE_VARIABLE} is set"
    try:
        from hastore.native import _native  # noqa: PLC0415 - it may not be there
    except ImportError as error:
        return None, f"not in use: {error}"
    if _native.INTERFACE != _INTERFACE:
        return None, f"not in use: {_native.__file__} is of another version; install hastore again"
    return _native, f"in use: {_native.__file__}"


extension, state = _load()
