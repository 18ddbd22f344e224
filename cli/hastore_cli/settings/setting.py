"""One setting of a node: its section and key, its kind, and the field that it becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from hastore_cli.settings.kinds import Kind

MASTER: Final = frozenset({"master"})
SLAVE: Final = frozenset({"slave"})
NODES: Final = MASTER | SLAVE


@attrs.frozen(kw_only=True)
class Setting:
    """One setting.  ``target`` is the field of MasterConfig / SlaveConfig, or ``log.*``."""

    section: str
    key: str
    kind: Kind
    target: str
    help: str
    flag: str | None = None
    nodes: frozenset[str] = NODES

    @property
    def name(self) -> str:
        """``[ha] slave_timeout``."""
        return f"[{self.section}] {self.key}"

    @property
    def environment_name(self) -> str:
        """``HASTORE_HA_SLAVE_TIMEOUT``."""
        return f"HASTORE_{self.section}_{self.key}".upper()

    @property
    def parameter(self) -> str:
        """The name of the flag's value among a command's parameters."""
        return f"{self.section}_{self.key}"


def part_setting(
    section: str,
    key: str,
    kind: Kind,
    field: str,
    help_text: str,
    *,
    flag: str | None = None,
    nodes: frozenset[str] = NODES,
) -> Setting:
    """Make a setting of a field in the part of the configuration that is named ``section``."""
    return Setting(
        section=section,
        key=key,
        kind=kind,
        target=f"{section}.{field}",
        help=help_text,
        flag=flag,
        nodes=nodes,
    )
