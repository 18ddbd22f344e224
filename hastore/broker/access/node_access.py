"""The permissions in force on a node: those of its file, taken again whenever that changes.

At a start a file that is not valid is an error; later the former permissions stay
(``WatchedFiles``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

import attrs

from hastore.access.permissions_file import parse_permissions
from hastore.access.secret_file import read_secret_file
from hastore.broker.access.failed_attempts import FailedAttempts
from hastore.broker.observe.node_status import AccessStatus
from hastore.concurrency.watched_files import WatchedFiles
from hastore.status import OwnSignatures
from hastore.trace import THIS_NODE, audit, logger

if TYPE_CHECKING:
    from hastore.access.permissions import PermissionTable
    from hastore.config import AccessConfig
    from hastore.env.interface import Env, FileStamp

_log = logger("access")


@final
@attrs.define(eq=False)
class NodeAccess(WatchedFiles["PermissionTable"]):
    """A node's permissions, from ``open_access``."""

    GONE_HINT: ClassVar[str] = "put it back, or stop the node and take [access] file away"

    file: str
    own_signatures: OwnSignatures = OwnSignatures.PREFERRED
    stock_signatures: bool = True  # whether other requests for admins may have RocketMQ's
    attempts: FailedAttempts = attrs.field(factory=FailedAttempts, init=False)

    @property
    def table(self) -> PermissionTable:
        """The permissions in force."""
        return self.current

    def status(self) -> AccessStatus:
        """Return a snapshot."""
        return AccessStatus(
            file=self.file,
            accounts=len(self.table.accounts),
            failed_attempts=self.attempts.total,
            fault=self._fault,
            hint=self._hint,
        )

    def _stamps_now(self) -> tuple[FileStamp, ...]:
        return (self.env.disk.stamp(self.file),)

    def _read(self) -> tuple[PermissionTable, tuple[FileStamp, ...]]:
        return _read(self.env, self.file)

    def _log_taken(self) -> None:
        _log.info("permissions_taken", file=self.file, accounts=len(self.table.accounts))
        audit("reload-permissions", who=THIS_NODE, what=self.file, outcome="done")

    def _log_refused(self, reason: str, hint: str | None) -> None:
        audit("reload-permissions", who=THIS_NODE, what=self.file, outcome="refused", reason=reason)
        _log.warning("permissions_not_taken", reason=reason, next=hint)


async def open_access(config: AccessConfig, env: Env) -> NodeAccess | None:
    """Return a node's permissions; None without a file: everybody may do everything.

    Raises ConfigError if the file is not valid.
    """
    file = config.file
    if file is None:
        return None
    table, stamps = await env.offload.run(lambda: _read(env, file))
    return NodeAccess(env, table, stamps, file, config.own_signatures, config.stock_signatures)


def _read(env: Env, file: str) -> tuple[PermissionTable, tuple[FileStamp, ...]]:
    data, stamp = read_secret_file(env.disk, file)
    return parse_permissions(data, file), (stamp,)
