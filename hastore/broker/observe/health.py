"""What a node answers to those who only ask yes or no: load balancers, supervisors, people.

========================  ======================================================================
``/live``                 it runs: the loop answers, and no failed disk has stopped it
``/ready``                a master takes puts; a slave hears its master and stores what comes
``/master``               it is a master, and takes puts
``/slave?lag=16MiB``      it is a slave that follows, and is no further behind than that
========================  ======================================================================

Pure: a status in, yes or no and why out; the rules are those of ``findings``.  A slave only knows
what its master has told it (``slave_status``), so its lag under load is an estimate; the master's
``/metrics`` knows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from hastore.broker.observe.findings import Limits, faults
from hastore.quantities import parse_size
from hastore.status import BrokerRole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.broker.observe.node_status import NodeStatus


@attrs.frozen
class Health:
    """Whether what was asked is so, and a sentence why or why not."""

    ok: bool
    why: str
    facts: dict[str, Any] = attrs.field(factory=dict)


def is_live(status: NodeStatus) -> Health:
    """Whether there is no use in starting it again."""
    if status.state == "failed" and status.master_link is None:
        return Health(False, status.puts_refused_because or "this node has failed")
    return Health(True, f"up {status.uptime_s:.0f} s")


def is_ready(status: NodeStatus) -> Health:
    """Whether it does what nodes of its role are there for."""
    if status.role == BrokerRole.SLAVE.value:
        return is_slave(status, None)
    return is_master(status)


def is_master(status: NodeStatus) -> Health:
    """Whether producers can send to it."""
    facts = {"slaves": len(status.current_followers), "acks_needed": status.acks_needed}
    if status.role == BrokerRole.SLAVE.value:
        return Health(False, "this node is a slave", facts)
    if refused := faults(status, "puts"):
        return Health(False, refused[0], facts)
    return Health(True, "; ".join(["it takes puts", *faults(status, "slaves")]), facts)


def is_slave(status: NodeStatus, lag_max: int | None) -> Health:
    """Whether it follows its master, and from near enough."""
    link = status.master_link
    if link is None:
        return Health(False, "this node is a master")
    facts = {
        "lag_bytes": link.lag_bytes,
        "lag_is_estimate": link.lag_is_estimate,
        "last_read_age_s": link.last_read_age_s,
        "newest_record_age_s": link.newest_record_age_s,
    }
    why = faults(status, "link", "gap", limits=Limits(crit_lag=lag_max))
    if not why and lag_max is not None and link.lag_bytes is None:
        why = ["how far it is behind is not known yet"]
    if why:
        return Health(False, "; ".join(why), facts)
    return Health(True, "it follows its master", facts)


def health(path: str, query: Mapping[str, str], status: NodeStatus) -> Health | None:
    """Answer one path; None for one that there is not.

    ValueError for a lag that is no size, and for another parameter of ``/slave``: what was meant as
    a bound must not be answered as if there were none.
    """
    match path:
        case "/live":
            return is_live(status)
        case "/ready":
            return is_ready(status)
        case "/master":
            return is_master(status)
        case "/slave":
            for name in query.keys() - {"lag"}:
                msg = f"/slave has no parameter {name[:40]!r}: write lag=16MiB"
                raise ValueError(msg)
            lag = query.get("lag")
            return is_slave(status, None if lag is None else parse_size(lag))
        case _:
            return None
