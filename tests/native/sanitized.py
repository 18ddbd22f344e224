"""Puts another build of the C extension in the place of the installed one: a pytest plugin.

``HASTORE_SANITIZED_DIR`` is the folder with the build.  Import this before anything of hastore.
"""

from __future__ import annotations

import os
from pathlib import Path

import hastore.native

FOLDER = os.environ["HASTORE_SANITIZED_DIR"]
hastore.native.__path__.insert(0, FOLDER)

from hastore.native import in_use  # noqa: E402 - after the path

assert in_use.extension is not None, in_use.state
assert Path(str(in_use.extension.__file__)).parent.samefile(FOLDER), in_use.state
