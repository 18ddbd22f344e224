"""A node's own access key, which may be replaced while the node runs.

Read for each use: there are few, and all of them ask other nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.access.key_file import read_key_file
from hastore.errors import ConfigError
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.access.signature import AccessKey
    from hastore.env.interface import Env

_log = logger("access")


@final
@attrs.define(eq=False)
class OwnKey:
    """The key in a file; None: the node has none."""

    env: Env
    file: str | None
    _last: AccessKey | None = attrs.field(default=None, init=False)

    async def read(self) -> AccessKey | None:
        """Return the key as its file is now; the last one known if that cannot be used."""
        file = self.file
        if file is None:
            return None
        try:
            self._last = await self.env.offload.run(lambda: read_key_file(self.env.disk, file))
        except ConfigError as error:
            _log.warning("own_key_not_read", reason=str(error), next=error.hint)
        return self._last
