"""The checker's rules about the presence of messages, applied to counts from Spark.

``hastore scenario run --spark`` joins a run's history with all of its logs (the pipeline's job
``rpo``).  The join returns a row per kind of put: the node that answered, its answer, and the logs
that hold it.  The rules must count the same there as in the checker's pass over each log: if they
differ, one of the two is wrong.

In a replica group a stored message may be cut with a later epoch, and a join knows no epochs: there
only the rules of ``GROUP_RULES`` are compared.

Plain data in, counts out; nothing here needs Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hastore.status import PutMessageStatus
from hastore_scenarios.judge.checker import Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hastore_scenarios.judge.account import Account

# The rules that a join can check; the others are about times, offsets and bytes.
RULES: Final = (
    Rule.ACKNOWLEDGED_LOST,
    Rule.NOT_REPLICATED,
    Rule.STORED_NOT_THERE,
    Rule.REJECTED_BUT_THERE,
    Rule.DUPLICATE,
    Rule.NEVER_SENT,
)
GROUP_RULES: Final = (Rule.REJECTED_BUT_THERE, Rule.DUPLICATE, Rule.NEVER_SENT)
_STORED: Final = frozenset(status.value for status in PutMessageStatus if status.stored)


def count_broken(
    tallies: Iterable[Mapping[str, Any]], foreign: int, nodes: Sequence[str], account: Account
) -> dict[Rule, int]:
    """Return how often each of ``RULES`` is broken; in a replica group, of ``GROUP_RULES``.

    ``tallies`` are those of the job's summary; ``nodes`` names its survivors in their order;
    ``foreign`` is the number of records in all logs whose key was never sent.
    """
    counts = dict.fromkeys(RULES, 0)
    counts[Rule.NEVER_SENT] = foreign
    for tally in tallies:
        counts[Rule.DUPLICATE] += tally["extra"]
        counts[Rule.NEVER_SENT] += tally["altered"]
        held = {node for node, sign in zip(nodes, tally["present"], strict=True) if sign == "1"}
        for rule, times in _broken_by(tally, held, account):
            counts[rule] += times * tally["puts"]
    compared = GROUP_RULES if account.groups else RULES
    return {rule: counts[rule] for rule in compared}


def _broken_by(
    tally: Mapping[str, Any], held: set[str], account: Account
) -> Iterable[tuple[Rule, int]]:
    """Yield the rules that one such put breaks, and how often."""
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
    """Return a sentence for each rule of ``counts`` that the checker counts differently."""
    return tuple(
        f"{rule.value}: the checker counts {checker_counts[rule.value]}, Spark {counts[rule]}"
        for rule in counts
        if counts[rule] != checker_counts[rule.value]
    )
