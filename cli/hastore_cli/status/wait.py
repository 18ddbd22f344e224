"""``hastore wait``: wait until a node meets conditions, or the time is over.

An unknown value meets no condition: a lag that was not reported is not below any bound.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import attrs
import rich_click as click

from hastore.broker.observe.findings import Limits, faults
from hastore.errors import AccessDeniedError, ProtocolError, TlsError
from hastore.quantities import format_count, format_duration, format_size
from hastore_cli.acl.asking_command import AskingCommand
from hastore_cli.app.command import output_option
from hastore_cli.app.output import echo_json
from hastore_cli.node.options import ask_default_node
from hastore_cli.settings.param_types import DURATION_MS, SIZE, WholeNumber, complete_directory

if TYPE_CHECKING:
    from hastore.broker.observe.node_status import NodeStatus
    from hastore.errors import HastoreError

SCHEMA: Final = "hastore.wait/1"
EXIT_TIMED_OUT: Final = 5
EXIT_UNREACHABLE: Final = 3
LOOK_AGAIN_S: Final = 0.2
_ROLES: Final = ("master", "SYNC_MASTER", "ASYNC_MASTER", "slave")
# A gap counts only if it makes puts FLUSH_SLAVE_TIMEOUT: these limits set no other bound.
_SERVICE: Final = ("puts", "slaves", "gap", "link", "next file", "stored", "consumers")
_IN_TIME_NOW: Final = Limits(catching_up_counts=False)


@attrs.frozen(kw_only=True)
class Wanted:
    """The conditions; None: no condition."""

    role: str | None = None
    lag_below: int | None = None
    offset: int | None = None
    replicas: int | None = None
    healthy: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is no condition."""
        given = (self.role, self.lag_below, self.offset, self.replicas)
        return not self.healthy and all(each is None for each in given)

    def missing(self, status: NodeStatus) -> list[str]:
        """Return a sentence for each condition that is not met."""
        found = []
        if self.role is not None and not _is_role(status, self.role):
            found.append(f"its role is {status.role}, not {self.role}")
        if self.lag_below is not None:
            found += _too_far_behind(status, self.lag_below)
        if self.offset is not None and status.max_offset < self.offset:
            left = format_size(self.offset - status.max_offset)
            found.append(f"its log ends at {format_count(status.max_offset)}, {left} before that")
        if self.replicas is not None:
            replicas = sum(slave.state == "streaming" for slave in status.current_slaves)
            if replicas < self.replicas:
                found.append(f"{replicas} of {self.replicas} slaves have caught up")
        if self.healthy:
            found += faults(status, *_SERVICE, limits=_IN_TIME_NOW)
        return found


def _is_role(status: NodeStatus, role: str) -> bool:
    if role == "master":
        return status.role.endswith("MASTER")
    return status.role.lower() == role.lower()


def _too_far_behind(status: NodeStatus, lag_below: int) -> list[str]:
    if status.master_link is not None:
        if status.master_link.state != "streaming":
            return [f"its link is {status.master_link.state}"]
        lags = [status.master_link.lag_bytes]
    else:
        lags = [slave.lag_bytes for slave in status.current_slaves]
        if not lags:
            return ["no slave is connected"]
    if any(lag is None for lag in lags):
        return ["a lag is not known yet"]
    worst = max(lag for lag in lags if lag is not None)
    if worst >= lag_below:
        return [f"the lag is {format_size(worst)}, not below {format_size(lag_below)}"]
    return []


# -- the command ---------------------------------------------------------------------------------


@click.command(
    cls=AskingCommand,
    examples=(
        "hastore wait D1 --healthy",
        "hastore wait 127.0.0.1:10911 --replicas 2 --lag-below 1MiB --timeout 2min",
        "hastore wait D2 --role SYNC_MASTER && hastore produce orders --addr D2",
    ),
    epilog="Exit code: 0 when all conditions are met, 5 when the time is over (names what is"
    " missing), 3 when the node never answered, 2 when ADDR is not an address.",
)
@click.argument(
    "addr",
    required=False,
    metavar="[ADDR]",
    shell_complete=complete_directory,
    callback=ask_default_node,
)
@click.option(
    "--role", type=click.Choice(_ROLES, case_sensitive=False), help="The node has this role."
)
@click.option(
    "--lag-below",
    type=SIZE,
    help="A master has slaves, each less behind than this. A slave is less behind.",
)
@click.option("--offset", type=WholeNumber(min=0), metavar="N", help="The log ends there or later.")
@click.option("--replicas", type=WholeNumber(min=0), metavar="N", help="N slaves have caught up.")
@click.option(
    "--healthy",
    is_flag=True,
    help="A master takes puts and has a slave in time, if it needs one. A slave follows. Both store"
    " what they keep beside the log.",
)
@click.option(
    "--timeout",
    type=DURATION_MS,
    default="30s",
    show_default=True,
    help="At most; 0s checks once.",
)
@output_option()
def wait(
    addr: str,
    *,
    role: str | None,
    lag_below: int | None,
    offset: int | None,
    replicas: int | None,
    healthy: bool,
    timeout: int,
    output: str,
) -> int:
    """Wait until a node meets all conditions at the same time.

    ADDR is the HOST:PORT of a node's client port, or its data directory, where no node need
    run yet. [default: the
    node of this directory or configuration, else 127.0.0.1:10911] [env: HASTORE_ADDR]
    """
    wanted = Wanted(
        role=role, lag_below=lag_below, offset=offset, replicas=replicas, healthy=healthy
    )
    if wanted.is_empty:
        raise click.UsageError(
            "say what to wait for: --role, --lag-below, --offset, --replicas or --healthy"
        )
    if lag_below == 0:
        raise click.UsageError(
            "no lag is below 0 B: a slave that has everything is 0 B behind; use --lag-below 1B"
        )
    return _wait(addr, wanted, timeout / 1000, as_json=output == "json")


def _wait(addr: str, wanted: Wanted, timeout_s: float, *, as_json: bool) -> int:
    import trio

    from hastore_cli.app.terminal import one_line, say_error, tell
    from hastore_cli.node.address import check_is_possible

    check_is_possible(addr)
    missing, waited_s, has_answered = trio.run(_until, addr, wanted, timeout_s)
    if as_json:
        document = {
            "schema": SCHEMA,
            "met": not missing,
            "missing": missing,
            "waited_s": waited_s,
            "has_answered": has_answered,
        }
        echo_json(document, indent=2)
    elif not missing:
        tell(f"{addr} meets the conditions after {format_duration(waited_s)}")
    if not missing:
        return 0
    if not as_json:
        what = one_line("; ".join(missing))
        hint = (
            f"hastore doctor {addr}"
            if has_answered
            else "check whether the node runs, and read its log"
        )
        outcome = f"not within {format_duration(timeout_s)}" if timeout_s else "not met"
        say_error(f"{outcome}: {what}", hint)
    return EXIT_TIMED_OUT if has_answered else EXIT_UNREACHABLE


async def _until(addr: str, wanted: Wanted, timeout_s: float) -> tuple[list[str], float, bool]:
    """Check repeatedly; return what is missing at last, the time, and whether the node answered.

    With ``timeout_s`` 0 it checks once, and waits as long as a node may take to answer.  Raises
    what no other look would change: a key or a certificate that does not count; and at the end the
    ProtocolError of a node that has only given answers that cannot be understood.
    """
    import trio

    from hastore_cli.status.watch import look

    began = trio.current_time()
    missing = [f"{addr} has not answered"]
    has_answered = False
    malformed: HastoreError | None = None
    with trio.move_on_after(timeout_s or math.inf):
        while True:
            statuses, errors = await look([addr])
            if statuses:
                has_answered = True
                missing = wanted.missing(statuses[0])
                if not missing:
                    break
            elif _is_final(errors[0]):
                raise errors[0]
            else:
                missing = [str(errors[0])]
                is_answer = not isinstance(errors[0], TlsError)
                is_malformed = isinstance(errors[0], ProtocolError) and is_answer
                malformed = errors[0] if is_malformed else None
            if not timeout_s:
                break
            await trio.sleep(LOOK_AGAIN_S)
    if not has_answered and malformed is not None:
        raise malformed
    return missing, trio.current_time() - began, has_answered


def _is_final(error: HastoreError) -> bool:
    """Whether a node has refused this command's key or certificate, or this command the node's."""
    if isinstance(error, TlsError):
        return error.is_final
    return isinstance(error, AccessDeniedError)
