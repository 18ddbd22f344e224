"""The checker's rules about where messages are, out of counts that Spark made.

``hastore scenario run --spark`` joins a run's history with all of its logs (the pipeline's job
``rpo``), which gives a row for each kind of put: who answered what, and in which logs it is.  From
those the same rules follow as from the checker's pass over each log, and the same numbers: where
they differ, one of the two is wrong.

Plain data in, counts out; nothing here needs Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hastore.status import PutMessageStatus
from hastore_scenarios.judge.checker import Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hastore_scenarios.judge.account import Account

# What a join can see; the other rules are about times, places and bytes.
RULES: Final = (
    Rule.ACKNOWLEDGED_LOST,
    Rule.NOT_REPLICATED,
    Rule.STORED_NOT_THERE,
    Rule.REJECTED_BUT_THERE,
    Rule.DUPLICATE,
    Rule.NEVER_SENT,
)
_STORED: Final = frozenset(status.value for status in PutMessageStatus if status.stored)


def count_broken(
    tallies: Iterable[Mapping[str, Any]], foreign: int, nodes: Sequence[str], account: Account
) -> dict[Rule, int]:
    """Count how often each of ``RULES`` is broken.

    ``tallies`` are those of the job's summary; ``nodes`` names its survivors in their order;
    ``foreign`` is how many records of all logs have a key that nobody sent.
    """
    counts = dict.fromkeys(RULES, 0)
    counts[Rule.NEVER_SENT] = foreign
    for tally in tallies:
        counts[Rule.DUPLICATE] += tally["extra"]
        counts[Rule.NEVER_SENT] += tally["altered"]
        held = {node for node, sign in zip(nodes, tally["present"], strict=True) if sign == "1"}
        for rule, times in _broken_by(tally, held, account):
            counts[rule] += times * tally["puts"]
    return counts


def _broken_by(
    tally: Mapping[str, Any], held: set[str], account: Account
) -> Iterable[tuple[Rule, int]]:
    """Return the rules that one such put breaks, and how often."""
    node, is_ok = tally["node"], tally["outcome"] == "ok"
    if tally["outcome"] == "fail":
        yield Rule.REJECTED_BUT_THERE, len(held)
        return
    if tally["status"] not in _STORED or tally["expired"]:
        return
    if node not in held and not tally["wiped"]:
        yield (Rule.ACKNOWLEDGED_LOST if is_ok else Rule.STORED_NOT_THERE), 1
    if not is_ok or not tally["promised"]:
        return
    successor = account.successor_of(node)
    if (
        successor is not None
        and successor not in held
        and not (tally["wiped"] and account.last_start_of(successor) <= tally["began"])
    ):
        yield Rule.ACKNOWLEDGED_LOST, 1
    if held.isdisjoint(account.followed.get(node, ())):
        yield Rule.NOT_REPLICATED, 1


def disagreements(counts: Mapping[Rule, int], checker_counts: Mapping[str, int]) -> tuple[str, ...]:
    """Say where the join and the checker do not count the same."""
    return tuple(
        f"{rule.value}: the checker counts {checker_counts[rule.value]}, Spark {counts[rule]}"
        for rule in RULES
        if counts[rule] != checker_counts[rule.value]
    )
