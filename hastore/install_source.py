"""The command that installs an extra of hastore from the place it was installed from.

hastore is in no package index.  pip records the source (a clone, a wheel file or an address) in
``direct_url.json`` (PEP 610).
"""

from __future__ import annotations

import importlib.metadata
import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_UNKNOWN = "PATH_OF_THE_CLONE"


def install_command(*extras: str) -> str:
    """Return ``pip install '/src/hastore[spark]'``; a placeholder if the source is unknown."""
    wanted = f"[{','.join(extras)}]"
    try:
        recorded = importlib.metadata.distribution("hastore").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        recorded = None
    return command_of(None if recorded is None else json.loads(recorded), wanted)


def command_of(direct_url: dict[str, Any] | None, wanted: str) -> str:
    """Return the command for the content of ``direct_url.json``, None if there is no such file."""
    if direct_url is None:
        return f"pip install '{_UNKNOWN}{wanted}'"
    url = str(direct_url.get("url", ""))
    vcs = direct_url.get("vcs_info")
    if vcs is not None:
        commit = vcs.get("commit_id")
        at = f"{vcs.get('vcs', 'git')}+{url}" + (f"@{commit}" if commit else "")
        return f"pip install {shlex.quote(f'hastore{wanted} @ {at}')}"
    parts = urlsplit(url)
    if parts.scheme != "file":
        return f"pip install {shlex.quote(f'hastore{wanted} @ {url}')}"
    path = unquote(parts.path)
    if not Path(path).exists():
        return f"pip install '{_UNKNOWN}{wanted}'"
    editable = "-e " if direct_url.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}{shlex.quote(path + wanted)}"
