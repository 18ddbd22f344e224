"""Run a node in the foreground until a signal or a fatal error.

::

    start ── ready: node.json, ready line ──┬── SIGTERM ── clean stop ── 0
                        ▲                   ├── Ctrl-C ── clean stop ── 130
                        │                   ├── SIGHUP ──┬── on a terminal: clean stop ── 129
                        └── files read again ────────────┴── else: a reload
                                            ├── (ended by itself, a bug) ── 1
                                            └── fatal error: one line, its exit code

SIGTERM ends with 0, because service managers stop by it and systemd calls 143 a failure.

SIGHUP says two things.  A process of a terminal gets it when the terminal is gone, and stops.  One
without (systemd, a container, ``setsid``, ``ssh`` without ``-t``) gets it only from somebody who
wants a reload; and one that was started with SIGHUP ignored, as by nohup, is to outlive its
terminal.  What counts is how the process was started: at the signal the terminal is gone already.

A second SIGINT or SIGTERM, or a stop that takes longer than ``STOP_TIME_MAX_S``, ends the process
at once: the ``abort`` file stays and the next start checks the tail.  A second SIGHUP does not: of
a terminal that is gone both the kernel and the shell tell.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Final, cast, final

import attrs
import trio

from hastore.broker.node.group_node import GroupNode, run_group_node
from hastore.broker.node.master import Master, run_master
from hastore.broker.node.slave import Slave, run_slave
from hastore.concurrency.port_limits import RESERVED_MAX
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.config import GroupNodeConfig, MasterConfig
from hastore.env.descriptors import keep_spare
from hastore.env.real import real_env
from hastore.errors import HastoreError, ListenError, StoreLockedError
from hastore.ha.client_port import asker_of
from hastore.quantities import format_address, format_count
from hastore.trace import logger
from hastore_cli.app.error_report import collapsed
from hastore_cli.app.log_output import set_up_logging
from hastore_cli.app.terminal import say, say_error, say_next, use_colour
from hastore_cli.node.exposure import BIND_NAMES, NEXT_STEP, Listening, names_without_ids
from hastore_cli.node.file import (
    NodeFile,
    holder_of,
    read_node_file,
    remove_node_file,
    write_node_file,
)
from hastore_cli.node.notify import notify

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import NoReturn

    from hastore.config import SlaveConfig
    from hastore.env.interface import Env
    from hastore_cli.app.log_output import LogConfig


STOP_TIME_MAX_S: Final = 4.8  # a stop takes at most 5 s, however slow the disk is
NODE_FILE_RETRY_S: Final = 1.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Flags, by the purpose that a ListenError names.
_PURPOSES: Final = {
    "--listen": "clients",
    "--ha-listen": "HA port",
    "--observer-listen": "observers",
    "--metrics": "metrics",
}

AnyNode = Master | Slave | GroupNode

_log = logger("cli")


def run_node(config: MasterConfig | SlaveConfig, log: LogConfig) -> int:
    """Run until a signal and return the exit code.  Raises the HastoreError that ended the node."""
    set_up_logging(log, colour=use_colour(sys.stderr))
    raise_file_limit(config)
    return_large_buffers()
    env = real_env()
    try:
        with collapsed():
            return trio.run(_run_until_signal, config, log, env)
    except HastoreError as error:
        error.hint = start_hint(error, config.store.data_dir) or error.hint
        raise
    finally:
        remove_node_file(env, config.store.data_dir)


def start_hint(error: HastoreError, data_dir: str) -> str | None:
    """Return a hint that names the flag or the process behind a failed start, if known."""
    if isinstance(error, ListenError) and error.is_in_use:
        flag = next((flag for flag, what in _PURPOSES.items() if what in error.purpose), None)
        if flag is not None:
            return f"{flag} 127.0.0.1:0 takes any free port; or stop what listens there"
    if isinstance(error, StoreLockedError):
        node, holder = read_node_file(data_dir), holder_of(data_dir)
        if node is not None and holder is not None:
            return (
                f"{holder}, a {node.role}, runs there: hastore status {data_dir};"
                " use another --data for this node"
            )
    return None


def is_hang_up_a_reload() -> bool:
    """Whether SIGHUP asks for a reload: without a terminal, or under nohup."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return True
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # ENXIO: there is none
        return True
    os.close(terminal)
    return False


@final
@attrs.define(eq=False)
class _Running:
    """What a signal stops: the start, or the started node; and what a reload reloads."""

    is_hang_up_a_reload: bool
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    node: AnyNode | None = None
    is_stopping: bool = False
    reload_wanted: WaitNotifyObject = attrs.field(factory=WaitNotifyObject)

    def stop(self) -> None:
        """Ask the node to stop: it first answers all waiting producers."""
        self.is_stopping = True
        if self.node is None:
            self.scope.cancel()
        else:
            self.node.stop()

    async def keep_reloaded(self, status_text: Callable[[], str]) -> None:
        """Reload the started node whenever that is wanted, until cancelled."""
        while True:
            await self.reload_wanted.wait_for_running()
            assert self.node is not None, "it has started"
            if self.is_stopping:
                return
            now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            notify(RELOADING="1", MONOTONIC_USEC=str(now_us))
            await self.node.reload()
            if not self.is_stopping:
                notify(READY="1", STATUS=status_text())


async def _run_until_signal(config: MasterConfig | SlaveConfig, log: LogConfig, env: Env) -> int:
    stopped_by: list[int] = []
    running = _Running(is_hang_up_a_reload=is_hang_up_a_reload())
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        async with trio.open_nursery() as watchers:
            watchers.start_soon(_heed_signals, signals, running, stopped_by)
            async with trio.open_nursery() as keepers:
                with running.scope:
                    async with trio.open_nursery() as nursery:
                        keeper = NodeFileKeeper(
                            env,
                            config.store.data_dir,
                            lambda: _node_file_of(cast("AnyNode", running.node), env),
                        )
                        running.node = await _start(nursery, config, env, keeper.role_changed)
                        _warn_of_exposure(config)
                        await keeper.write()
                        keepers.start_soon(keeper.run)
                        keepers.start_soon(_announce_ready, running.node, config, log, keeper)
                        keepers.start_soon(
                            running.keep_reloaded, lambda: _status_text(keeper.current())
                        )
                keepers.cancel_scope.cancel()
            watchers.cancel_scope.cancel()
    if not stopped_by:
        say_error("the node has ended, and nobody asked it to", "please report it; start it again")
        return 1
    return _exit_code_of(stopped_by[0])


async def _announce_ready(
    node: AnyNode, config: MasterConfig | SlaveConfig, log: LogConfig, keeper: NodeFileKeeper
) -> None:
    """Say that the node is ready; one that its coordinator refuses ends before it is."""
    if isinstance(node, GroupNode) and node.role_control is not None:
        await node.role_control.recognised()
    _announce(node, config, log)
    notify(READY="1", STATUS=_status_text(keeper.current()))


def _exit_code_of(signum: int) -> int:
    """Return the exit code of a clean stop by a signal."""
    return 0 if signum == signal.SIGTERM else 128 + signum


async def _start(
    nursery: trio.Nursery,
    config: MasterConfig | SlaveConfig,
    env: Env,
    on_role: Callable[[Master | Slave], None],
) -> AnyNode:
    ask = asker_of(config.access, env)
    if isinstance(config, GroupNodeConfig):
        run_group = partial(run_group_node, ask_client_port=ask, on_role=on_role)
        if config.coordinator.endpoints:
            from hastore.cluster.connecting import run_node_by_etcd
            from hastore_cli.app.about import hastore_version

            run_group = partial(
                run_node_by_etcd,
                ask_client_port=ask,
                on_role=on_role,
                version=hastore_version(),
            )
        node: GroupNode = await nursery.start(run_group, config, env)
        return node
    if isinstance(config, MasterConfig):
        master: Master = await nursery.start(run_master, config, env)
        return master
    run = partial(run_slave, ask_client_port=ask)
    slave: Slave = await nursery.start(run, config, env)
    return slave


async def _heed_signals(
    signals: AsyncIterator[int], running: _Running, stopped_by: list[int]
) -> None:
    """Reload ``running``, or stop it; end at a second signal, or after ``STOP_TIME_MAX_S``."""
    while (signum := await anext(signals)) == signal.SIGHUP and running.is_hang_up_a_reload:
        running.reload_wanted.wakeup()
    stopped_by.append(signum)
    _log.info("stopping", signal=signal.Signals(stopped_by[0]).name)
    notify(STOPPING="1", STATUS="it answers what waits, and flushes its log")
    running.stop()
    with trio.move_on_after(STOP_TIME_MAX_S):
        while (again := await anext(signals)) == signal.SIGHUP:
            pass
        _end_at_once(128 + again, "a second signal: stopped at once")
    _end_at_once(1, f"the stop took longer than {STOP_TIME_MAX_S} s")


def _end_at_once(exit_code: int, message: str) -> NoReturn:
    say_error(message, "start it again: that checks the tail of the log")
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(exit_code)


def _node_file_of(node: AnyNode, env: Env) -> NodeFile:
    return NodeFile(
        pid=env.process_id,
        start_id=env.start_id,
        role=node.role.value,
        address=node.address,
        ha_address=None if isinstance(node, Slave) else node.ha_address,
        metrics_address=node.metrics_address,
    )


def _status_text(node_file: NodeFile) -> str:
    """Return what ``systemctl status`` shows."""
    address = node_file.address
    return node_file.role + ("" if address is None else f", clients {format_address(address)}")


@final
@attrs.define(eq=False)
class NodeFileKeeper:
    """Keeps ``node.json`` up to date: for programs, the node's role and its addresses.

    A change goes to systemd, too.

    The file is a convenience: a node on a full disk still serves its slaves.
    """

    env: Env
    data_dir: str
    current: Callable[[], NodeFile]
    _has_failed: bool = attrs.field(default=False, init=False)
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    def role_changed(self, _node: Master | Slave) -> None:
        """Have ``run`` write the file again."""
        self._wake.wakeup()

    async def write(self) -> None:
        """Write the file; if the disk refuses it, ``run`` tries again."""
        node_file = self.current()
        try:
            await self.env.offload.run(lambda: write_node_file(self.env, self.data_dir, node_file))
        except HastoreError as error:
            if not self._has_failed:
                _log.warning("node_file_not_written", reason=str(error), next=error.hint)
            self._has_failed = True
        else:
            if self._has_failed:
                _log.info("node_file_written", data=self.data_dir)
            self._has_failed = False

    async def run(self) -> None:
        """Write it at each change, and every NODE_FILE_RETRY_S until the disk has taken it.

        A node may free room on its disk itself.
        """
        while True:
            with trio.move_on_after(NODE_FILE_RETRY_S if self._has_failed else math.inf):
                await self._wake.wait_for_running()
                notify(STATUS=_status_text(self.current()))
            await self.write()


def _announce(node: AnyNode, config: MasterConfig | SlaveConfig, log: LogConfig) -> None:
    """Publish the node's addresses for people, on stderr."""
    ha_address = None if isinstance(node, Slave) else node.ha_address
    data_dir = config.store.data_dir
    address = None if node.address is None else format_address(node.address)
    if isinstance(node, Master):
        ha_text = format_address(node.ha_address)
        where = f"clients {address}, slaves {ha_text}"
        follow_up = f"hastore slave --master {ha_text} --data DIR"
        if config.replica_group is not None:
            next_node = f"--node-id N --node-group {config.replica_group}"
            follow_up = f"hastore node --master {ha_text} {next_node} --data DIR"
    elif isinstance(node, GroupNode):
        master = node.config.master
        endpoints = node.config.coordinator.endpoints
        does = f"asks {', '.join(endpoints)}" if endpoints else "waits for a role"
        if master is not None:
            does = f"copies {format_address(master)}"
        where = f"node {node.config.node_id} of {node.config.replica_group}, {does},"
        where += f" clients {address}, slaves {format_address(node.ha_address)}"
        follow_up = f"hastore status {address or data_dir}"
    else:
        where = f"copies {format_address(node.config.master)}, clients {address}"
        follow_up = f"hastore status {address or data_dir}"
    if log.is_json(stderr_is_terminal=sys.stderr.isatty()):
        _log.info(
            "ready",
            role=node.role.value,
            name=node.name,
            address=address,
            ha_address=None if ha_address is None else format_address(ha_address),
            data=data_dir,
            max_offset=node.max_offset,
            next=follow_up,
        )
        return
    at = format_count(node.max_offset)
    say(f"ready: {node.role.value} {node.name}, log {data_dir} ends at {at}")
    say(f"       {where}")
    if node.metrics_address is not None:
        scheme = "https" if node.config.metrics_tls else "http"
        say(f"       metrics {scheme}://{format_address(node.metrics_address)}/metrics")
    say_next(follow_up)


def _warn_of_exposure(config: MasterConfig | SlaveConfig) -> None:
    """Log one warning for a port that other machines may reach, and that proves nobody.

    Also a note for certificates that prove a name, and not which node it is.
    """
    found = Listening.by_config(config).exposure()
    if found is not None:
        _log.warning("ports_exposed", ports=found.ports, reason=found.reason, next=NEXT_STEP)
    unbound = names_without_ids(config.ha.names_without_ids)
    if unbound is not None and isinstance(config, MasterConfig):
        _log.info("ha_names_without_ids", reason=unbound, next=BIND_NAMES)


# -- open files and memory -----------------------------------------------------------------------

# A node keeps every file of its log open, and a connection to each producer and slave.  Without
# room for all of them, unidentified peers could make it refuse puts.
#
# glibc takes blocks of 128 KiB and more from the system one by one, and returns them; but each
# freed block raises that threshold, up to 32 MiB, and smaller blocks come from a heap that has
# holes and does not shrink.  A node that has held many large requests or answers at once would keep
# up to twice their size for ever.

_M_MMAP_THRESHOLD: Final = -3  # mallopt(3)
LARGE_SIZE: Final = 512 * 1024
FILES_OF_A_STORE: Final = 256  # log, consume queues, index, and files open for a moment


def raise_file_limit(config: MasterConfig | SlaveConfig) -> None:
    """Raise the soft limit of open files to the hard one, and keep some for the store.

    Logs a warning if even that is less than the node's connections and a small store need.
    """
    keep_spare()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.remoting.connections_max + RESERVED_MAX + FILES_OF_A_STORE
    if isinstance(config, MasterConfig):
        wanted += config.ha.ha_connections_max
    if soft != resource.RLIM_INFINITY and soft < wanted:
        _log.warning(
            "few_open_files",
            limit=soft,
            wanted=wanted,
            next="raise it (ulimit -n), or lower [remoting] connections_max",
        )


def return_large_buffers() -> None:
    """Fix glibc's threshold at ``LARGE_SIZE``; other C libraries have none."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_SIZE)
