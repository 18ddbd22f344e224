"""What nodes of a test leave behind outside their directories: numbers in the machine's memory."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from hastore.env.machine_memory import forget

if TYPE_CHECKING:
    from pathlib import Path


def forget_acked_offsets(directory: Path) -> None:
    """Forget what the nodes below a directory have acknowledged: none of them will start again."""
    for path in directory.rglob("identity.json"):
        try:
            uuid = json.loads(path.read_bytes())["uuid"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(uuid, str) and "/" not in uuid:
            forget(uuid)


def remove_directory(directory: Path) -> None:
    """Remove a directory with all nodes below it, and what they have left elsewhere."""
    forget_acked_offsets(directory)
    shutil.rmtree(directory, ignore_errors=True)
