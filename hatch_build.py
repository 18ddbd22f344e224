"""Builds the optional C extension where there is a C compiler; else the wheel is pure Python.

``HASTORE_PURE=1`` skips it.  A build without the extension removes what an earlier build left.
Source: hatchling's custom build hook interface.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

if TYPE_CHECKING:
    from collections.abc import Sequence

_SOURCES = ("_native.c", "remoting.c")
# -g0, -DNDEBUG: debug information, which some Pythons ask for, and the assertions of Python.h would
# contain the path of the sources, and the same sources would not make the same wheel.
_FLAGS = ("-O2", "-g0", "-DNDEBUG", "-fPIC", "-fno-strict-overflow", "-Wall", "-Wextra")


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg] # of no use here
    """Adds ``hastore/native/_native`` to the wheel, editable or not."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's
        """Build the extension in place; a failure is a warning."""
        if self.target_name != "wheel":
            return
        folder = Path(self.root, "hastore", "native")
        built = folder / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
        if os.environ.get("HASTORE_PURE", "") not in {"", "0"}:
            built.unlink(missing_ok=True)
            return
        reason = compile_extension([folder / name for name in _SOURCES], built)
        if reason is not None:
            built.unlink(missing_ok=True)
            self.app.display_warning(f"the C extension was not built: {reason}")
            return
        build_data["artifacts"].append(str(built.relative_to(self.root)))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compile_extension(sources: Sequence[Path], built: Path, *flags: str) -> str | None:
    """Compile ``sources`` and replace ``built`` at once; return why it failed, None on success."""
    linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")
    include = sysconfig.get_path("include")
    temporary = built.with_name(f"{built.name}.{os.getpid()}")
    command = [*linker, *_FLAGS, *flags, f"-I{include}", *map(str, sources)]
    command += ["-o", str(temporary)]
    try:
        # S603: the command is that of this Python's own build.
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    if done.returncode:
        temporary.unlink(missing_ok=True)
        lines = [line for line in done.stderr.splitlines() if "error" in line]
        return (lines or [f"{command[0]} exited with {done.returncode}"])[0]
    temporary.replace(built)
    return None
