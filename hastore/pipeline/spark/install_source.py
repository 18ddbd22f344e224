"""What to type to install an extra of hastore: no package index has it, so from where it came.

pip writes that down beside what it has installed (``direct_url.json``, PEP 610): a clone, a wheel's
file, or an address.
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
    """``pip install '/src/hastore[spark]'``, as far as it is known where hastore came from."""
    wanted = f"[{','.join(extras)}]"
    try:
        written = importlib.metadata.distribution("hastore").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        written = None
    return command_of(None if written is None else json.loads(written), wanted)


def command_of(direct_url: dict[str, Any] | None, wanted: str) -> str:
    """The command for what ``direct_url.json`` holds; None: it is not there."""
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
