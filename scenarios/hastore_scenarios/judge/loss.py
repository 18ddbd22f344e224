"""Counts the lost messages of a run (RPO): pure, from history and logs.

An acknowledged message is *gone* if it is not in the log of its heir, the last master on its
lineage: consumers will not see it.  It may still be in another log (that of a former master), from
which an operator can restore it.  The checker decides whether a loss breaks a promise: an
ASYNC_MASTER that dies may lose what no slave had yet.

A message of *unknown* outcome (a weaker answer than asked for, or none) may be there or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore_scenarios.judge.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hastore_scenarios.judge.account import Account
    from hastore_scenarios.judge.history import Operation

GONE_NAMED_MAX: Final = 20


@attrs.frozen(kw_only=True)
class Loss:
    """Numbers of messages by their fate.

    ``gone`` of the ``acknowledged`` are not in their heir's log; of those, ``unwaited`` were sent
    with WAIT=false, ``elsewhere`` are in another node's log, and ``gone_ops`` holds the numbers of
    the first in the history.  ``unknown`` have no certain outcome; ``unknown_there`` of them are in
    their heir's log.  ``expired`` were deleted with their files by expiry; ``wiped`` of the
    acknowledged were lost when a story wiped the disk of the master that had answered and no slave
    was promoted.  Expired and wiped messages count neither as gone nor as unknown.
    """

    acknowledged: int
    gone: int
    unwaited: int
    elsewhere: int
    gone_ops: tuple[int, ...]
    unknown: int
    unknown_there: int
    expired: int
    wiped: int

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return attrs.asdict(self)


def measure_loss(
    operations: Sequence[Operation], account: Account, present: Mapping[str, Sequence[int]]
) -> Loss:
    """Count; ``present`` holds, by node, how often each operation's message is in its log."""
    heirs: dict[str, str] = {}
    acknowledged = gone = unwaited = elsewhere = unknown = unknown_there = expired = wiped = 0
    gone_ops: list[int] = []
    for operation in operations:
        node = operation.node
        if node not in heirs:
            heirs[node] = account.successor_of(node) or node
        heir = present.get(heirs[node])
        is_there = heir is not None and heir[operation.op] > 0
        has_expired = (operation.physic_offset or 0) < account.expired.get(node, 0)
        if operation.outcome is Outcome.OK:
            acknowledged += 1
            if has_expired and not is_there:
                expired += 1
            elif not is_there and account.was_wiped(operation.invoked_s, node, heirs[node]):
                wiped += 1
            elif not is_there:
                gone += 1
                unwaited += not operation.wait
                elsewhere += any(log[operation.op] > 0 for log in present.values())
                if len(gone_ops) < GONE_NAMED_MAX:
                    gone_ops.append(operation.op)
        elif operation.outcome is not Outcome.FAIL and has_expired and not is_there:
            expired += 1
        elif operation.outcome is not Outcome.FAIL:
            unknown += 1
            unknown_there += is_there
    return Loss(
        acknowledged=acknowledged,
        gone=gone,
        unwaited=unwaited,
        elsewhere=elsewhere,
        gone_ops=tuple(gone_ops),
        unknown=unknown,
        unknown_there=unknown_there,
        expired=expired,
        wiped=wiped,
    )
