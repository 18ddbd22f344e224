"""Checks a group's coordinator: each of its etcd servers by itself, then all of them.

``ask_coordinator`` asks; ``check_coordinator`` is pure.  Clocks matter for reading logs only: a
lease counts on the clocks that its two ends have since their machines started.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import attrs

from hastore.broker.observe.coordinator_status import NO_SPACE, NO_SPACE_HINT
from hastore.cluster.connecting import open_coordinator
from hastore.errors import CoordinatorError, HastoreError
from hastore.quantities import format_duration, format_size
from hastore_cli.app.output import wall_clock_ms
from hastore_cli.doctor.rules import Diagnosis, Result

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hastore.cluster.etcd_client import EtcdHealth
    from hastore.config import CoordinatorConfig
    from hastore_cli.doctor.facts import Facts

COORDINATOR: Final = "coordinator"  # as the name of a node, for what concerns all servers
OLDEST: Final = (3, 4, 0)
_CLUSTER_COMMAND: Final = re.compile(r"\bhastore cluster [a-z-]+(?! --node)\b")
# Servers that were killed under load came back with other data than the rest (etcd's advisory of
# March 2022; mended in 3.5.3).
_CORRUPTING: Final = ((3, 5, 0), (3, 5, 2))
# A leader that was stuck revokes leases that were renewed at its successor (etcd #15247).
_REVOKING_BEFORE: Final = {(3, 4): 31, (3, 5): 13}
_VERSION: Final = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", re.ASCII)
_LATENCY_WARN_PART: Final = 20  # of ttl; a renewal is sent each third of it
_CLOCK_WARN_S: Final = 2.0  # the servers' answers have whole seconds
_SIZE_WARN_PART: Final = 0.75  # of the quota
_QUOTA_DEFAULT: Final = 2 << 30  # etcd's, where a server does not say which it has


@attrs.frozen(kw_only=True)
class Asked:
    """What the servers answered, by endpoint, or why one did not; and this machine's clock."""

    ttl_s: float
    answers: dict[str, EtcdHealth | HastoreError]
    now_s: float


async def ask_coordinator(config: CoordinatorConfig) -> Asked:
    """Ask all servers.  Raises ConfigError for files or packages that are missing."""
    ttl_s = config.ttl_ms / 1_000
    answers: dict[str, EtcdHealth | HastoreError] = {}
    try:
        async with open_coordinator(config) as store:
            from hastore.cluster.etcd_client import EtcdClient

            assert isinstance(store, EtcdClient), store
            found = await store.health(f"{config.prefix}/")
            answers = dict(zip(config.endpoints, found, strict=True))
    except CoordinatorError as error:  # the login, for one
        answers = dict.fromkeys(config.endpoints, error)
    return Asked(ttl_s=ttl_s, answers=answers, now_s=wall_clock_ms() / 1_000)


def not_asked(nodes: Sequence[Facts]) -> Iterator[Diagnosis]:
    """Say that a coordinator that nodes have was not asked."""
    having = [n.name for n in nodes if n.status is not None and n.status.coordinator is not None]
    if having:
        what = f"not asked: {', '.join(having)} have one, and its addresses are not known here"
        hint = "--etcd URL,URL; or -c with a node's configuration"
        yield Diagnosis(COORDINATOR, "coordinator", Result.UNKNOWN, what, hint)


def with_coordinator(step: str, flags: str) -> str:
    """Return a next step whose ``hastore cluster`` commands name the coordinator.

    ``flags`` are what the next command needs, such as ``--etcd URL``; empty if it finds the
    coordinator by itself.
    """
    return _CLUSTER_COMMAND.sub(rf"\g<0> {flags}", step) if flags else step


def check_coordinator(asked: Asked) -> Iterator[Diagnosis]:
    """Yield the findings: each server's, then what they have in common."""
    errors = {name: a for name, a in asked.answers.items() if isinstance(a, HastoreError)}
    healthy = [a for a in asked.answers.values() if not isinstance(a, HastoreError)]
    for endpoint, answer in asked.answers.items():
        if isinstance(answer, HastoreError):
            level = Result.WARN if healthy else Result.BAD
            hint = answer.hint or "is etcd up, and is that its client URL?"
            yield Diagnosis(endpoint, "coordinator", level, str(answer), hint)
        else:
            yield from _check_server(answer, asked)
    if len({each.cluster_id for each in healthy}) > 1:
        texts = ", ".join(f"{each.endpoint} of {each.cluster_id:x}" for each in healthy)
        hint = "name the servers of one cluster in [cluster] etcd"
        what = f"the servers are of different etcd clusters: {texts}"
        yield Diagnosis(COORDINATOR, "coordinator", Result.BAD, what, hint)
    if errors and healthy:
        what = f"{len(healthy)} of {len(asked.answers)} servers answer"
        hint = "repair the others before another one fails"
        yield Diagnosis(COORDINATOR, "coordinator", Result.WARN, what, hint)


def _check_server(health: EtcdHealth, asked: Asked) -> Iterator[Diagnosis]:
    name = health.endpoint
    if health.leader_id is None:
        what, hint = "it has no leader", "start the other etcd servers: a majority is needed"
        yield Diagnosis(name, "coordinator", Result.BAD, what, hint)
    else:
        is_slow = health.latency_s > asked.ttl_s / _LATENCY_WARN_PART
        what = f"a read takes {format_duration(health.latency_s)}, with ttl {asked.ttl_s:g} s"
        hint = "give etcd a disk of its own; or raise [cluster] ttl on all nodes"
        level = Result.WARN if is_slow else Result.OK
        yield Diagnosis(name, "coordinator", level, what, hint if is_slow else None)
    yield from _check_space(health)
    yield _check_version(name, health.version)
    if health.server_time_s is not None:
        # The server cuts its time off to a whole second.
        lead_s = health.server_time_s + 0.5 - asked.now_s
        side = "ahead of" if lead_s > 0 else "behind"
        what = f"{format_duration(abs(lead_s))} {side} this machine's (± 0.5 s); no lease needs it"
        is_off = abs(lead_s) > _CLOCK_WARN_S
        level = Result.WARN if is_off else Result.OK
        next_step = "run NTP: times in logs are compared" if is_off else None
        yield Diagnosis(name, "clock", level, what, next_step)


def _check_space(health: EtcdHealth) -> Iterator[Diagnosis]:
    """Yield what a server says of its database: its alarms, and its size against its quota."""
    name, check = health.endpoint, "etcd space"
    for alarm in sorted(health.alarms - {NO_SPACE}):
        hint = "etcdctl alarm list; and etcd's log"
        yield Diagnosis(name, check, Result.BAD, f"it has the alarm {alarm}", hint)
    size = "" if health.size is None else f" of {format_size(health.size)}"
    if NO_SPACE in health.alarms:
        what = f"it takes no writes: its database{size} is full (NOSPACE)"
        yield Diagnosis(name, check, Result.BAD, f"{what}; no master can be elected", NO_SPACE_HINT)
        return
    if health.size is None:
        what = "it does not say how large its database is"
        hint = "etcdctl endpoint status -w table"
        yield Diagnosis(name, check, Result.UNKNOWN, what, hint)
        return
    quota_size = health.quota_size or _QUOTA_DEFAULT
    of = f"of {format_size(quota_size)}" + (" by default" if health.quota_size is None else "")
    is_near = health.size > _SIZE_WARN_PART * quota_size
    level = Result.WARN if is_near else Result.OK
    what = f"its database has {format_size(health.size)} {of}"
    yield Diagnosis(name, check, level, what, NO_SPACE_HINT if is_near else None)


def _check_version(name: str, version: str) -> Diagnosis:
    check = "etcd version"
    found = _VERSION.match(version)
    if found is None:
        what = f"it calls its version {version[:40]!r}"
        return Diagnosis(name, check, Result.UNKNOWN, what, "is it etcd 3.4 or later?")
    number = (int(found[1]), int(found[2]), int(found[3]))
    if number < OLDEST:
        what = f"{version} is older than 3.4"
        return Diagnosis(name, check, Result.BAD, what, "upgrade etcd: nodes need 3.4 or later")
    if _CORRUPTING[0] <= number <= _CORRUPTING[1]:
        what = f"{version} may corrupt its data when it is killed (3.5.0 to 3.5.2)"
        return Diagnosis(name, check, Result.WARN, what, "upgrade etcd to the last 3.5, or later")
    mended = _REVOKING_BEFORE.get(number[:2])
    if mended is not None and number[2] < mended:
        newer = f"{number[0]}.{number[1]}.{mended}"
        what = f"{version}: a leader that was stuck may end leases that were renewed (#15247)"
        hint = f"upgrade etcd to {newer} or later; no message is lost, but masters change"
        return Diagnosis(name, check, Result.WARN, what, hint)
    return Diagnosis(name, check, Result.OK, version)
