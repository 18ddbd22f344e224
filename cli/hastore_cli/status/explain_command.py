"""``hastore explain``: why a master's last puts were answered as they were."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from hastore_cli.app.example_command import ExampleCommand
from hastore_cli.node.node_options import ask_node
from hastore_cli.settings.param_types import WholeNumber, complete_directory

if TYPE_CHECKING:
    from hastore.errors import RequestFailedError
    from hastore_cli.node.node_client import NodeClient

_EXIT_UNREACHABLE: Final = 3


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore explain",
        "hastore explain 127.0.0.1:10911 --last 50",
        "hastore explain D1 D2 D3       # a master, and slaves to call by their names",
        "hastore explain D1 -o json | jq -r '.weak[] | [.status, .count, .reason] | @tsv'",
    ),
    epilog="Exit code: 0 when it could be shown, 1 from a slave (its master decides), 3 when one"
    " of those that were named does not answer.",
)
@click.argument("addrs", nargs=-1, metavar="[ADDR]...", shell_complete=complete_directory)
@click.option(
    "-n",
    "--last",
    type=WholeNumber(1, 1000),
    default=20,
    show_default=True,
    help="So many decisions; those of one cause that follow each other are one.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"], case_sensitive=False),
    default="table",
    show_default=True,
)
def explain(addrs: tuple[str, ...], last: int, output: str) -> int:
    """Say why puts were not PUT_OK: which slave was missing, behind or silent, and since when.

    ADDR is the HOST:PORT of a master's client port, or its data directory. [default:
    127.0.0.1:10911] [env: HASTORE_ADDR] Slaves that are named behind it are called by their names,
    and it is told what their acknowledgements mean: received, or flushed.
    """
    from hastore.errors import RequestFailedError
    from hastore_cli.app.terminal import folded, tell
    from hastore_cli.status.explain_text import explanation_lines, split_head

    async def question(node: NodeClient) -> dict[str, Any]:
        try:
            return await node.admin.explain(last)
        except RequestFailedError as error:
            raise await _refusal_of(node, error) from error

    asked, *slaves = addrs or (os.environ.get("HASTORE_ADDR") or "127.0.0.1:10911",)
    explanation = ask_node(asked, question)
    explanation["known_slaves"], is_whole = _known_slaves(slaves)
    if output == "json":
        click.echo(json.dumps(explanation, indent=2))
    else:
        for line in explanation_lines(explanation):
            head, text = split_head(line)
            tell(line if head.strip() == "next" else folded(head, text, sys.stdout, hang=2))
    return 0 if is_whole else _EXIT_UNREACHABLE


async def _refusal_of(node: NodeClient, error: RequestFailedError) -> RequestFailedError:
    """Say of a slave that it is one, and whom it follows; other errors as they are."""
    from hastore.broker.observe.node_status import NodeStatus
    from hastore.errors import HastoreError, RequestFailedError
    from hastore_cli.app.terminal import one_line

    try:
        told = (await node.admin.ha_status()).get("hastore")
    except HastoreError:
        return error
    status = NodeStatus.from_dict(told) if isinstance(told, dict) else None
    if status is None or status.master_link is None:
        return error
    msg = f"{node.address} ({one_line(status.name)}) is a slave: only its master can explain"
    hint = f"hastore explain MASTER: the node whose HA port is {status.master_link.address}"
    return RequestFailedError(msg, code=error.code, hint=hint)


def _known_slaves(addrs: list[str]) -> tuple[dict[str, dict[str, str | None]], bool]:
    """What slaves say of themselves, by the address that their master knows; errors are told.

    And whether all have answered.
    """
    if not addrs:
        return {}, True
    import trio

    from hastore_cli.app.terminal import say_error
    from hastore_cli.status.status_watch import look

    statuses, errors = trio.run(look, addrs)
    for error in errors:
        say_error(str(error), error.hint)
    known = {
        status.master_link.local_address: {"name": status.name, "ack_level": status.ack_level}
        for status in statuses
        if status.master_link is not None and status.master_link.local_address is not None
    }
    return known, not errors
