"""A replica's bytes from a master's HA port, for a repair.

The bytes of a commit log are the same on all replicas, so what a master sends can stand in the
damaged range.
"""

from __future__ import annotations

from typing import Final, final

import trio

from hastore.ha.log_fetch import fetch_range
from hastore.quantities import format_address
from hastore_cli.app.error_report import collapsed

_KEPT_SIZE_MAX: Final = 64 * 1024 * 1024


@final
class MasterSource:
    """A RepairSource that asks a master; what was asked a moment ago is kept."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.name = format_address(address)
        self._address = address
        self._kept: dict[tuple[int, int], bytes] = {}

    def read(self, physic_offset: int, size: int) -> bytes:
        """Give exactly these bytes.

        Raises LogDamagedError where the master has them not, UnreachableError, ProtocolError.
        """
        asked = (physic_offset, size)
        data = self._kept.get(asked)
        if data is None:
            with collapsed():
                data = trio.run(fetch_range, self._address, physic_offset, size)
            if size + sum(map(len, self._kept.values())) > _KEPT_SIZE_MAX:
                self._kept.clear()
            self._kept[asked] = data
        return data
