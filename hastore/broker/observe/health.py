"""What a node answers to those who only ask yes or no: load balancers, supervisors, people.

========================  ======================================================================
``/live``                 it runs: the loop answers, and no failed disk has stopped it
``/ready``                a master takes puts; a slave hears its master and stores what comes
``/master``               it is a master, and takes puts
``/slave?lag=16MiB``      it is a slave that follows, and is no further behind than that
========================  ======================================================================

Pure: a status in, yes or no and why out.  A slave only knows what its master has told it
(``slave_status``), so its lag under load is an estimate; the master's ``/metrics`` knows it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore.status import BrokerRole, HAClientState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.broker.observe.node_status import NodeStatus

_SIZE: Final = re.compile(r"(\d{1,15})\s*([KMGT]?)(I?B?)", re.IGNORECASE | re.ASCII)
_UNITS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@attrs.frozen
class Health:
    """Whether what was asked is so, and a sentence why or why not."""

    ok: bool
    why: str
    facts: dict[str, Any] = attrs.field(factory=dict)


def parse_lag(text: str) -> int:
    """Give the bytes of ``16MiB``, ``16MB``, ``4096``; ValueError where it is something else."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3].upper() == "I"):
        msg = f"lag={text[:40]!r} is not a size: write bytes, or 16MiB"
        raise ValueError(msg)
    factor = 1000 if match[2] and match[3].upper() == "B" else 1024
    return int(match[1]) * int(factor ** _UNITS[match[2].upper()])


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
    if status.puts_refused_because is not None:
        return Health(False, f"puts are refused: {status.puts_refused_because}", facts)
    if status.state != "serving":
        return Health(False, f"it is {status.state}", facts)
    if status.acks_needed and status.slave_unavailable_because is not None:
        why = f"it takes puts, and answers SLAVE_NOT_AVAILABLE: {status.slave_unavailable_because}"
        return Health(True, why, facts)
    return Health(True, "it takes puts", facts)


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
    if link.state != HAClientState.STREAMING.value:
        why = f": {link.reason}" if link.reason else ""
        return Health(False, f"the link to {link.address} is {link.state}{why}", facts)
    if link.is_silent and link.last_read_age_s is not None:
        why = f"its master has been silent for {link.last_read_age_s:.0f} s"
        return Health(False, why, facts)
    if lag_max is not None:
        if link.lag_bytes is None:
            return Health(False, "how far it is behind is not known yet", facts)
        about = "about " if link.lag_is_estimate else ""
        if link.lag_bytes > lag_max:
            return Health(
                False, f"{about}{link.lag_bytes} bytes behind, more than {lag_max}", facts
            )
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
            return is_slave(status, None if lag is None else parse_lag(lag))
        case _:
            return None
