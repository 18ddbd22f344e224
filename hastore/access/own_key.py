"""A node's own access key, which may be replaced while the node runs.

Read for each use: there are few, and all of them ask other nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.access.key_file import read_key_file
from hastore.errors import ConfigError
from hastore.trace import THIS_NODE, audit, logger

if TYPE_CHECKING:
    from hastore.access.signature import AccessKey
    from hastore.env.interface import Env

_ACTION: Final = "reload-own-key"  # for the audit log
_log = logger("access")


@final
@attrs.define(eq=False)
class OwnKey:
    """The key in a file; None: the node has none."""

    env: Env
    file: str | None
    _last: AccessKey | None = attrs.field(default=None, init=False)
    _fault: str | None = attrs.field(default=None, init=False)  # recorded; None: it can be read

    async def read(self) -> AccessKey | None:
        """Return the key as its file is now; the last one known if that cannot be used."""
        file = self.file
        if file is None:
            return None
        try:
            key = await self.env.offload.run(lambda: read_key_file(self.env.disk, file))
        except ConfigError as error:
            _log.warning("own_key_not_read", reason=str(error), next=error.hint)
            if self._fault != str(error):
                self._fault = str(error)
                audit(_ACTION, who=THIS_NODE, what=file, outcome="refused", reason=self._fault)
            return self._last
        if self._fault is not None or self._last not in {None, key}:
            audit(_ACTION, who=THIS_NODE, what=file, outcome="done")
        self._last, self._fault = key, None
        return key
