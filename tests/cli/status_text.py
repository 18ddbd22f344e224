"""The status table as text."""

import io

from rich.console import Console

from hastore.broker.observe.node_status import NodeStatus
from hastore_cli.status.table import StatusTable


def text_of(status: NodeStatus, *, grouped: bool = False, width: int = 1_000, **more: float) -> str:
    """The table as a pipe gets it."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False)
    console.print(StatusTable(grouped=grouped, width=width).render(status, **more))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
