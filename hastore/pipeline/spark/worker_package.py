"""One zip file that brings hastore to Spark's executors: for ``--py-files``.

    hastore/ pyspark_hastore/           this package
    attr/ attrs/ structlog/ trio/ …     what it imports there, pure Python
    hastore.version                     which one it is

Compiled packages cannot be imported from a zip file: numpy, pyarrow and isal must be installed
where the executors run.  The same installation gives the same bytes.
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
_BROUGHT: Final = (
    "attrs",
    "idna",
    "outcome",
    "sniffio",
    "sortedcontainers",
    "structlog",
    "trio",
)
_FIRST_TIME: Final = (1980, 1, 1, 0, 0, 0)  # of the zip format


def build_worker_package() -> bytes:
    """Give the zip file's bytes.  Raises ConfigError where a package is not installed as usual."""
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
    for distribution in _BROUGHT:
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
    """Leave tests, compiled caches and what a person reads out."""
    path = Path(name)
    return path.suffix in {".py", ".typed"} and not {"_tests", "tests", ".."} & set(path.parts)
