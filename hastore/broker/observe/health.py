"""Health pages, which answer yes or no: for load balancers, supervisors, people.

========================  ======================================================================
``/live``                 it runs: it answers, and no failed disk has stopped it
``/ready``                a master takes puts; a slave hears its master and stores its bytes
``/master``               it is a master, and takes puts
``/slave?lag=16MiB``      it is a slave that follows, and is at most so far behind
========================  ======================================================================

Pure: a status in, yes or no and why out; the rules are those of ``findings``.  A slave does not
know where its master's log ends (``slave_status``), so its lag under load is an estimate; the
master's ``/metrics`` have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from hastore.broker.observe.findings import Limits, faults
from hastore.quantities import parse_size, without_underscores
from hastore.status import BrokerRole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.broker.observe.node_status import NodeStatus


@attrs.frozen
class Health:
    """The answer of a page, and a sentence why."""

    ok: bool
    why: str
    facts: dict[str, Any] = attrs.field(factory=dict)


def _live(status: NodeStatus) -> Health:
    """Say whether a supervisor should leave the node running."""
    if status.state == "failed" and status.master_link is None:
        return Health(False, status.puts_refused_because or "this node has failed")
    return Health(True, f"up {status.uptime_s:.0f} s")


def _ready(status: NodeStatus) -> Health:
    """Say whether the node serves as its role demands."""
    if status.role == BrokerRole.SLAVE.value:
        return _slave(status, None)
    return _master(status)


def _master(status: NodeStatus) -> Health:
    """Say whether producers can send to the node."""
    facts = {"slaves": len(status.current_followers), "acks_needed": status.acks_needed}
    if status.role == BrokerRole.SLAVE.value:
        return Health(False, "this node is a slave", facts)
    if refused := faults(status, "puts"):
        return Health(False, refused[0], facts)
    why = ["it takes puts", *faults(status, "slaves", "stored")]
    return Health(True, "; ".join(why), facts)


def _slave(status: NodeStatus, lag_max: int | None) -> Health:
    """Say whether the node follows its master, at most ``lag_max`` bytes behind."""
    link = status.master_link
    if link is None:
        return Health(False, "this node is a master")
    facts = {
        "lag_bytes": link.lag_bytes,
        "lag_is_estimate": link.lag_is_estimate,
        "last_read_age_s": link.last_read_age_s,
        "newest_record_age_s": link.newest_record_age_s,
    }
    why = faults(status, "link", "gap", "next file", limits=Limits(crit_lag=lag_max))
    if not why and lag_max is not None and link.lag_bytes is None:
        why = ["its lag is not known yet"]
    if why:
        return Health(False, "; ".join(why), facts)
    return Health(True, "it follows its master", facts)


def health(path: str, query: Mapping[str, str], status: NodeStatus) -> Health | None:
    """Return the answer of a page; None for an unknown path.

    Raises ValueError for a lag that is not a size, and for other parameters of ``/slave``, which
    may be misspelled bounds.
    """
    match path:
        case "/live":
            return _live(status)
        case "/ready":
            return _ready(status)
        case "/master":
            return _master(status)
        case "/slave":
            for name in query.keys() - {"lag"}:
                msg = f"/slave has no parameter {name[:40]!r}: write lag=16MiB"
                raise ValueError(msg)
            lag = query.get("lag")
            return _slave(status, None if lag is None else _lag_max(lag))
        case _:
            return None


def _lag_max(text: str) -> int:
    """Return the bytes of ``lag=TEXT``, of which an error shows the beginning."""
    try:
        return parse_size(without_underscores(text))
    except ValueError:
        msg = f"lag={text[:40]!r} is not a size: write bytes, or 16MiB"
        raise ValueError(msg) from None
