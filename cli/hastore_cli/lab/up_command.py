"""``hastore up``: a replica group on this machine, to try things with."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from hastore_cli.app.command import ExampleCommand, output_option
from hastore_cli.settings.param_types import WholeNumber


@click.command(
    name="up",
    cls=ExampleCommand,
    examples=(
        "hastore up",
        "hastore up --nodes 5 --keep DEMO",
        "hastore up -o json > group.json &",
    ),
    epilog="Exit code: 0 stopped by SIGTERM; 130 by Ctrl-C; 1 the group did not start; 2 DIR holds"
    " something else.",
)
@click.option(
    "--nodes",
    "count",
    type=WholeNumber(min=1, max=9),
    default=3,
    show_default=True,
    metavar="N",
    help="How many nodes, 1 to 9.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep the group's files there; the next `up` with it goes on. [default: removed]",
)
@click.option("--no-etcd", is_flag=True, help="Without a coordinator, even if an etcd is there.")
@output_option()
def up(count: int, keep: Path | None, output: str, *, no_etcd: bool) -> int:
    """Run a replica group on this machine, until Ctrl-C.

    Its nodes listen on free ports of 127.0.0.1. They elect their master by an etcd of their own
    where its binary is there (on PATH, or from the extra `cluster`). Without one they
    get a master once, and a failover is up to you.
    """
    import trio

    from hastore.testing.etcd_binary import etcd_binary
    from hastore_cli.app.error_report import collapsed
    from hastore_cli.lab.up import run_up

    with collapsed():
        return trio.run(run_up, count, keep, None if no_etcd else etcd_binary(), output)
