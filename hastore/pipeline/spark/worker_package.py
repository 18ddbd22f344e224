"""Build the zip file that brings hastore to Spark's executors (``--py-files``).

    hastore/ pyspark_hastore/           this package
    attr/ attrs/ structlog/ trio/ …     its pure Python dependencies
    hastore.version                     its version

Compiled packages cannot be imported from a zip file: numpy, pyarrow and isal must be installed on
the executors.  The same installation yields the same bytes.
"""

from __future__ import annotations

import importlib.metadata
import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import hastore
from hastore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

NEEDED: Final = ("numpy", "pyarrow", "isal")
_OWN: Final = ("hastore", "pyspark_hastore")
_DEPENDENCIES: Final = (
    "attrs",
    "idna",
    "outcome",
    "sniffio",
    "sortedcontainers",
    "structlog",
    "trio",
)
_FIRST_TIME: Final = (1980, 1, 1, 0, 0, 0)  # the earliest that the zip format allows


def build_worker_package() -> bytes:
    """Return the zip file's bytes.  Raises ConfigError if pip did not install a dependency."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(_files()):
            entry = zipfile.ZipInfo(name, _FIRST_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def _files() -> Iterator[tuple[str, bytes]]:
    yield "hastore.version", f"{importlib.metadata.version('hastore')}\n".encode()
    root = Path(hastore.__file__).parent.parent
    for package in _OWN:
        for path in (root / package).rglob("*"):
            name = path.relative_to(root).as_posix()
            if _is_wanted(name):
                yield name, path.read_bytes()
    for distribution in _DEPENDENCIES:
        yield from _files_of(distribution)


def _files_of(distribution: str) -> Iterator[tuple[str, bytes]]:
    try:
        found = importlib.metadata.files(distribution)
    except importlib.metadata.PackageNotFoundError:
        found = None
    if not found:
        raise ConfigError(
            f"the files of {distribution} are not known: it was not installed by pip",
            hint="build the package where pip installed hastore",
        )
    for file in found:
        name = file.as_posix()
        if _is_wanted(name):
            yield name, file.read_binary()


def _is_wanted(name: str) -> bool:
    """Whether a file belongs in the package: no tests, caches or texts for people."""
    path = Path(name)
    return path.suffix in {".py", ".typed"} and not {"_tests", "tests", ".."} & set(path.parts)
