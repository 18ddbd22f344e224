"""``hastore pipeline run import``: the one job without Spark."""

from __future__ import annotations

import signal
import sys

import rich_click as click
from click.exceptions import Exit

from hastore_cli.app.command import ExampleCommand
from hastore_cli.app.progress_bar import ReadingBar
from hastore_cli.node.node_address import resolve_address
from hastore_cli.pipeline.run import EXIT_FOUND, needs_extra, print_result
from hastore_cli.settings.param_types import WholeNumber, complete_directory


@click.command(
    name="import",
    cls=ExampleCommand,
    examples=(
        "hastore pipeline run import orders.jsonl --to 127.0.0.1:10911",
        "hastore pipeline run import parts --to D1 --skip 20000",
    ),
    epilog="PATH is a file, or a directory of parts, that export wrote. Exit code: 3 nobody"
    " answers there; 4 a message was not stored, or nobody knows. Where it ended, skip says with"
    " which --skip to go on; what is there twice then, report --by duplicate finds.",
)
@click.argument("path", type=click.Path(), metavar="PATH")
@click.option(
    "--to",
    required=True,
    metavar="H:P|DIR",
    shell_complete=complete_directory,
    help="The master: its client port, or its data directory.",
)
@click.option(
    "--skip",
    type=WholeNumber(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Leave out the first N rows: those that were sent before.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"], case_sensitive=False),
    default="table",
    show_default=True,
)
def import_command(*, path: str, to: str, skip: int, output: str) -> None:
    """Send the messages of an export to a master, in their order."""
    with needs_extra(), ReadingBar("sending", 0, counts=True) as bar:
        from hastore.pipeline.transfer.import_job import INTERRUPTED, import_messages

        address = resolve_address(to)
        result = import_messages(path, address, skip=skip, on_progress=bar.on_progress)
    print_result(result, output)
    if result.found:
        sys.stdout.flush()
        is_interrupted = result.summary.get("stopped_because") == INTERRUPTED
        raise Exit(128 + signal.SIGINT if is_interrupted else EXIT_FOUND)
