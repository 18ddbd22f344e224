"""A node of a replica group: slave, then master, then slave again, in one process.

::

    become_master ──▶ close the store ──▶ open it as the log of a new epoch ──▶ serve puts
    follow        ──▶ close the store ──▶ open it as a slave's ──▶ compare epochs with the master

Each role has its own parts on the same directory and the same ports: a ``Master`` or a ``Slave``
(``role_node``).  A change stops the one cleanly and starts the other, so neither knows that roles
change.  While the node is no master, its HA port closes each connection at once.

Changes run one after the other, in the order in which they were asked for.  A master that is to
give up its role refuses and decides its puts before it waits for anything.

Invariant: at most one of the two has the store open, and a node follows, or becomes, only the
master of an epoch that is not below one that it has seen.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.access.node_access import open_access
from hastore.broker.node.master import Master, open_ports, serve_master
from hastore.broker.node.master_store import Promotion, check_epoch, check_jump
from hastore.broker.node.name_watch import watched_names
from hastore.broker.node.own_addresses import advertised_ip, check_bound
from hastore.broker.node.reload import reload_files
from hastore.broker.node.slave import Slave, SlaveRun
from hastore.broker.observe.metrics_server import MetricsServer, open_metrics
from hastore.concurrency.peers import PeerLog
from hastore.concurrency.service import as_itself
from hastore.concurrency.store_health import StoreHealth
from hastore.concurrency.tcp import accept, describe
from hastore.config import NO_MASTER, GroupNodeConfig
from hastore.env.recording_disk import recording
from hastore.errors import (
    ConfigError,
    DiskError,
    DiskFullError,
    EpochFileError,
    HastoreError,
    RequestFailedError,
    RoleChangedError,
    StaleEpochError,
    SyncStateFileError,
    UnreachableError,
    WrongPortError,
)
from hastore.flush.checkpoint_flusher import will_pass
from hastore.ha.autoswitch_framing import AutoswitchFraming
from hastore.ha.client_port import with_contexts
from hastore.ha.set_rules import nodes_text
from hastore.store.recovery.log_cut import Cuts
from hastore.tls.tls_contexts import watching_tls
from hastore.trace import logger
from hastore.wire.remoting_codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.broker.access.node_access import NodeAccess
    from hastore.broker.group_directory import GroupDirectory
    from hastore.broker.node.master import Ports
    from hastore.broker.node.master_store import Term
    from hastore.broker.node.reload import Reloaded
    from hastore.broker.observe.node_status import NodeStatus
    from hastore.broker.request_target import PromiseWish, RoleControl, RoleWish
    from hastore.env.interface import Env
    from hastore.ha.client_port import AskClientPort
    from hastore.ha.set_proposal import Coordinator
    from hastore.status import BrokerRole
    from hastore.store.node_identity import NodeIdentity
    from hastore.tls.tls_contexts import TlsContexts

# A change that failed by one of these has changed nothing: the node goes on without a role.
_NOTHING_CHANGED: Final = (StaleEpochError, EpochFileError, SyncStateFileError)

_START: Final = "start"
_LOOKUP_PAUSE_MIN_S: Final = 1.0  # until the advertised name is looked up again
_LOOKUP_PAUSE_MAX_S: Final = 30.0
_ROOM_PAUSE_S: Final = 1.0  # until a directory is opened again that had no room, or no descriptor

_log = logger("broker")


@attrs.frozen
class MasterRole:
    """To be the master of an epoch."""

    promotion: Promotion


@attrs.frozen
class SlaveRole:
    """To follow the master at an HA port, or nobody (``NO_MASTER``); ``epoch`` None: unknown."""

    master: tuple[str, int]
    epoch: int | None = None


@attrs.define(eq=False)
class Change:
    """A change to ``role``; ``outcome`` is the node that serves in it, or why there is none."""

    role: MasterRole | SlaveRole
    reason: str
    done: trio.Event = attrs.field(factory=trio.Event, init=False)
    outcome: Master | Slave | BaseException | None = attrs.field(default=None, init=False)

    def end(self, outcome: Master | Slave | BaseException) -> None:
        """Set the outcome, unless there is one."""
        if self.outcome is None:
            self.outcome = outcome
            self.done.set()


@attrs.frozen(eq=False)
class Wish:
    """A role that was asked for, and has its ``turn`` once the wishes before it have ended."""

    role: MasterRole | SlaveRole
    turn: trio.Event = attrs.field(factory=trio.Event, init=False)


@final
@attrs.define(eq=False)
class GroupNode:
    """A running node of a replica group, made by ``hastore.open_node`` or ``run_group_node``."""

    config: GroupNodeConfig
    env: Env
    ports: Ports
    metrics: MetricsServer
    ask_client_port: AskClientPort | None
    on_master: Callable[[Master], None]
    coordinator: Callable[[Term], Coordinator] | None
    on_role: Callable[[Master | Slave], None] = lambda _node: None  # called once one serves
    # Who takes requests that change its role; None: it does itself.
    role_control: RoleControl | None = None
    directory: GroupDirectory | None = None  # what it knows of its group, for routes
    access: NodeAccess | None = None  # the same in each role
    tls: TlsContexts | None = None  # likewise
    identity: NodeIdentity | None = attrs.field(default=None, init=False)
    cuts: Cuts = attrs.field(factory=Cuts, init=False)  # as a slave
    store_health: StoreHealth = attrs.field(init=False)
    _serving: Master | Slave | None = attrs.field(default=None, init=False)
    _change: Change = attrs.field(init=False)  # the one under way, or made last
    _next: Change | None = attrs.field(default=None, init=False)
    _wishes: list[Wish] = attrs.field(factory=list, init=False)  # in the order of their turns
    _is_stopping: bool = attrs.field(default=False, init=False)
    _refusal_log: PeerLog = attrs.field(init=False)
    _failure: DiskError | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _built: Slave | None = attrs.field(default=None, init=False)  # the newest, before it serves
    # Of the advertised host, which may be a name; None: there is none, or it is not known here yet.
    _advertised_ip: str | None = attrs.field(default=None, init=False)
    # The client port of the master at an HA port, if it was named.
    _client_ports: dict[tuple[str, int], tuple[str, int]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin as a slave."""
        self._change = Change(SlaveRole(self.config.master or NO_MASTER), _START)
        self._refusal_log = PeerLog(_log, "ha_peer_refused", "peer")
        self.store_health = StoreHealth(self.env.wall_clock.boot_s)

    # -- what it is ------------------------------------------------------------------------------

    @property
    def role_node(self) -> Master | Slave:
        """The master or slave that serves, or that served last."""
        assert self._serving is not None, "run_group_node announces it once one serves"
        return self._serving

    @property
    def role(self) -> BrokerRole:
        """The role."""
        return self.role_node.role

    @property
    def name(self) -> str:
        """The broker's name."""
        return self.config.name

    @property
    def address(self) -> tuple[str, int] | None:
        """The client port; None if it has none."""
        return self.ports.client_address

    @property
    def ha_address(self) -> tuple[str, int]:
        """The HA port, which serves slaves while this node is master."""
        return self.ports.ha_address

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """The port of metrics and health; None if it has none."""
        return self.metrics.address

    @property
    def max_offset(self) -> int:
        """The end of the log (exclusive)."""
        return self.role_node.max_offset

    def status(self) -> NodeStatus:
        """Return a snapshot."""
        return self.role_node.status()

    # -- what it is to be ------------------------------------------------------------------------

    async def become_master(self, promotion: Promotion | None = None) -> Master:
        """Become the master of an epoch; return once it serves.

        Raises StaleEpochError, EpochFileError or SyncStateFileError if it cannot begin: the node
        has no role then; and RoleChangedError if the node stops.
        """
        promotion = promotion or Promotion()
        role = MasterRole(promotion)
        self._check(role)
        master = await self._make(role, _reason_for(role))
        assert isinstance(master, Master)
        return master

    async def follow(
        self,
        master: tuple[str, int],
        epoch: int | None = None,
        reason: str | None = None,
        *,
        client_port: tuple[str, int] | None = None,
    ) -> Slave:
        """Become a slave of the master at an HA port; return once it serves.

        ``client_port`` is that master's, if known: topics, groups and offsets are copied from it.
        ``epoch`` is that master's, if known: once it is durable here, no older one is followed.
        ``reason`` is told to producers whose puts wait.  Raises StaleEpochError if this node has
        seen a later epoch, EpochFileError if its own epochs cannot be read (it has no role then),
        and RoleChangedError if the node stops.
        """
        role = SlaveRole(master, epoch)
        self._check(role)
        if client_port is not None:
            self._client_ports = {master: client_port}  # of the last master only
        slave = await self._make(role, reason or _reason_for(role))
        assert isinstance(slave, Slave)
        return slave

    async def step_down(self, reason: str) -> Slave:
        """Give up the role: refuse puts, follow nobody; return once consumers are served."""
        return await self.follow(NO_MASTER, reason=reason)

    def want_next_file(self) -> None:
        """Have the log's next file allocated now, as a slave with room: it may be asked soon."""
        slave = self.role_node
        queue = slave.commit_log.mapped_file_queue
        if isinstance(slave, Slave) and queue.files and self.store_health.is_steady:
            queue.wants_next_file = True
            queue.want_file()

    async def prepare_to_take_over(self) -> None:
        """Allocate the log's next file, which the next role keeps, and the reserve.

        An empty log gets its first one.  Raises DiskError if there is no room.  Waits for as long
        as that takes.  If this call fails or is cancelled, the file is still made as soon as it can
        be.
        """
        slave = self.role_node
        queue = slave.commit_log.mapped_file_queue
        if isinstance(slave, Master):
            await trio.lowlevel.checkpoint()  # who calls this decides again at once
            return
        if queue.files:
            queue.wants_next_file = True
        await slave.allocate_service.wait_for_file()
        if not await self.env.offload.run(slave.keep_reserve):
            raise DiskFullError(
                f"no space for the reserve in {self.config.store.data_dir}",
                path=self.config.store.data_dir,
                hint="free space on that file system",
            )

    # -- what a request wishes it to be ----------------------------------------------------------

    @property
    def takes_remote_roles(self) -> bool:
        """Whether other machines may change its role."""
        return self.config.remote_roles

    async def recognised(self) -> None:
        """Return at once: nothing could refuse it."""
        await trio.lowlevel.checkpoint()

    def coordinator_status(self) -> None:
        """Return nothing: a person decides its role."""

    @property
    def coordinator_files(self) -> None:
        """None: it has no coordinator."""

    def coordinator_clocks(self) -> tuple[()]:
        """Return nothing: it has no coordinator."""
        return ()

    def promise(self, wish: PromiseWish) -> None:
        """Refuse: this node stands for nothing, so a promise of its means nothing."""
        raise RequestFailedError(
            f"{self.name} has no coordinator: a person decides its role, and it promises nothing"
            f" to node {wish.master_id}",
            code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        )

    async def change_role(self, wish: RoleWish) -> None:
        """Begin a change of its role; return before it is done, but with the old role given up.

        It acknowledges nothing in an older epoch after that, also as a slave.
        Raises StaleEpochError, RoleChangedError, and UnreachableError if nothing at the master's
        client port names an HA port.
        """
        identity = self.identity
        assert identity is not None, "a node that serves has an identity"
        if wish.master_id == identity.current.node_id:
            if self._is_or_becomes_master_of(wish.epoch):
                return  # told again
            promised = MasterRole(Promotion(epoch=wish.epoch, members=wish.members))
            self._check(promised)
            self._begin(promised, _reason_for(promised))
            return
        role = SlaveRole(NO_MASTER, wish.epoch)
        self._check(role)
        reason = f"the group has no master in epoch {wish.epoch}"
        if wish.master_address is not None:
            where = describe(wish.master_address)
            reason = f"the master of epoch {wish.epoch} is node {wish.master_id} at {where}"
        # Nothing is acknowledged any more, to producers or to an older master, while this node
        # looks for the new one.
        self._give_up(reason)
        try:
            await self._see(wish.epoch)
            if wish.master_address is not None:
                role = SlaveRole(await self._ha_port_of(wish.master_address), wish.epoch)
                reason = _reason_for(role)
        except BaseException as error:
            self._leave_given_up(str(error) or "the change of its role was cancelled")
            raise
        latest = self._wishes[-1].role if self._wishes else self._change.role
        if isinstance(latest, SlaveRole) and latest.master == role.master and not self._next:
            return  # it follows that master already, or will
        self._begin(role, reason)

    def _is_or_becomes_master_of(self, epoch: int) -> bool:
        if self._wishes:
            latest = self._wishes[-1].role
            return isinstance(latest, MasterRole) and latest.promotion.epoch == epoch
        master = self._serving
        return isinstance(master, Master) and master.epoch == epoch and not master.has_stepped_down

    async def _ha_port_of(self, address: tuple[str, int]) -> tuple[str, int]:
        """Return the HA port of the node at a client port."""
        found = None if self.ask_client_port is None else await self.ask_client_port(address)
        if found is None or found.ha_port is None:
            raise UnreachableError(
                f"no client port of a node with an HA port answers at {describe(address)}",
                hint="masterAddress is the client port of the group's master",
            )
        ha_address = address[0], found.ha_port
        self._client_ports = {ha_address: address}  # of the last master only
        return ha_address

    def _begin(self, role: MasterRole | SlaveRole, reason: str) -> None:
        """Make a change without waiting for it; its puts are decided now."""

        async def run() -> None:
            # Each one is logged: by _serve, or as refused by _make.
            with contextlib.suppress(
                RoleChangedError, ConfigError, WrongPortError, *_NOTHING_CHANGED
            ):
                await self._fulfil(wish, reason)

        assert self._nursery is not None, "a node that serves has one"
        self._give_up(reason)
        wish = self._queue(role)
        self._nursery.start_soon(run)

    async def reload(self) -> Reloaded:
        """Read permissions, certificates and etcd's password again; links and the role stay."""
        control = self.role_control or self
        return await reload_files(self.access, self.tls, control.coordinator_files)

    # -- its end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Request a clean stop."""
        self._is_stopping = True
        self._end_changes("this node is stopping")
        if self._serving is not None:
            self._serving.stop()

    def _give_up(self, reason: str) -> None:
        """Decide the puts of a master that is to be none, and take no more."""
        if isinstance(self._serving, Master):
            self._serving.step_down(reason)

    async def _make(self, role: MasterRole | SlaveRole, reason: str) -> Master | Slave:
        """Change to a role, after the changes asked for earlier; return who serves in it."""
        self._give_up(reason)
        return await self._fulfil(self._queue(role), reason)

    def _queue(self, role: MasterRole | SlaveRole) -> Wish:
        wish = Wish(role)
        self._wishes.append(wish)
        self._wishes[0].turn.set()
        return wish

    async def _fulfil(self, wish: Wish, reason: str) -> Master | Slave:
        """Make the change to a role, at its turn.

        A master that has given up its role for a change that then does not come about, because it
        is cancelled or its epoch is not new any more, becomes a slave of nobody.
        """
        try:
            await wish.turn.wait()
            change = await self._ask(wish.role, reason)
            await change.done.wait()
        except BaseException as error:
            self._leave_given_up(str(error) or "the change of its role was cancelled")
            raise
        finally:
            self._wishes.remove(wish)
            if self._wishes:
                self._wishes[0].turn.set()
        if isinstance(change.outcome, BaseException):
            raise change.outcome
        assert change.outcome is not None
        return change.outcome

    async def _ask(self, role: MasterRole | SlaveRole, reason: str) -> Change:
        """Wait for the change under way, then ask ``_serve`` for this one."""
        await self._settled()
        try:
            self._check(role)  # an earlier change may have seen a later epoch
        except (ConfigError, StaleEpochError) as error:
            _log.error("role_refused", reason=str(error), next=error.hint)
            raise
        self._give_up(reason)
        if isinstance(role, SlaveRole):
            await self._see(role.epoch)
            await self._settled()  # a change that nobody waits for may have begun meanwhile
        self._next = Change(role, reason)
        assert self._serving is not None
        self._serving.stop()
        return self._next

    async def _settled(self) -> None:
        """Wait for the change under way, and for the one to no master after a failed one.

        Raises RoleChangedError if the node stops.
        """
        while not self._is_stopping and self._change.outcome is None:
            await self._change.done.wait()
        if self._is_stopping:
            raise RoleChangedError("this node is stopping")

    def _leave_given_up(self, reason: str) -> None:
        """Make a master that has given up its role a slave of nobody, unless a change follows."""
        master = self._serving
        if not isinstance(master, Master) or not master.has_stepped_down:
            return
        if not self._is_stopping and self._next is None and self._change.outcome is master:
            self._next = Change(SlaveRole(NO_MASTER), reason)
            master.stop()

    def _check(self, role: MasterRole | SlaveRole) -> None:
        """Raise StaleEpochError if this node has seen a later epoch than the role's.

        Raises ConfigError for a SyncStateSet without this node, or with one of no group, and for an
        epoch that is far above all that it has seen.
        """
        if isinstance(role, MasterRole):
            self._check_members(role.promotion.members)
        identity = self.identity
        if identity is None:
            return  # the opening checks it
        if isinstance(role, MasterRole):
            if role.promotion.epoch is not None:
                check_epoch(identity, role.promotion.epoch)
            return
        if role.epoch is None:
            return
        check_jump(identity, role.epoch)
        seen = identity.current.seen_epoch
        if role.epoch < seen:
            raise StaleEpochError(
                f"{identity.current} has seen epoch {seen}: it does not follow the master of epoch"
                f" {role.epoch}",
                path=identity.path,
                epoch=role.epoch,
                seen_epoch=seen,
                hint=f"name the master of epoch {seen} or of a later one",
            )

    def _check_members(self, members: frozenset[int] | None) -> None:
        own_id, ids = self.config.node_id, self.config.group_ids
        if members is None:
            return
        if own_id not in members:
            msg = f"the SyncStateSet is {nodes_text(members)}, without its master, node {own_id}"
            raise ConfigError(msg, hint="a master is in the set of its epoch")
        if ids is not None and not members <= set(ids):
            strange = nodes_text(members - set(ids))
            msg = f"the SyncStateSet has {strange}, not of the group: {nodes_text(frozenset(ids))}"
            raise ConfigError(msg, hint="[node] group_ids names all nodes of the group")

    async def _see(self, epoch: int | None) -> None:
        """Make an epoch durable, and report nothing more to an older master.

        A disk that fails ends the node; want of room or descriptors does not.
        """
        identity = self.identity
        if epoch is None or identity is None:
            return
        try:
            await self.env.offload.run(lambda: identity.see(epoch))
        except DiskError as error:
            if will_pass(error):
                raise
            self._failure = error
            self.stop()
            raise
        if isinstance(self._serving, Slave):
            client = self._serving.ha_client
            framing = client.framing
            if isinstance(framing, AutoswitchFraming) and (framing.masters_epoch or 0) < epoch:
                client.link.silence()

    # -- the run ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve in one role after the other until a stop is requested, or cancelled."""
        is_known = await self._find_advertised_ip()
        with as_itself():
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                if not is_known:
                    nursery.start_soon(self._keep_looking)
                try:
                    await self._serve()
                finally:
                    self._is_stopping = True
                    self._end_changes("this node has ended")
                nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _find_advertised_ip(self, *, is_first: bool = True) -> bool:
        """Look the advertised name up; others may know it where this machine does not."""
        try:
            self._advertised_ip = await advertised_ip(self.config)
        except UnreachableError as error:
            if is_first:
                _log.warning(
                    "advertised_name_unknown",
                    reason=str(error),
                    next="ids of messages have the address of the client port until it is known",
                )
            return False
        return True

    async def _keep_looking(self) -> None:
        """Look the advertised name up until this machine knows it: its DNS may start later."""
        pause_s = _LOOKUP_PAUSE_MIN_S
        while not await self._find_advertised_ip(is_first=False):
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOOKUP_PAUSE_MAX_S)
        _log.info("advertised_name_known", ip=self._advertised_ip)
        if isinstance(self._serving, Master):
            self._name_host(self._serving)

    def _name_host(self, master: Master) -> None:
        """Let the records of a master have the advertised address from now on."""
        if self._advertised_ip is not None:
            _, port = self.address or self.ha_address
            master.commit_log.name_store_host((self._advertised_ip, port))

    async def _serve(self) -> None:
        while True:
            change = self._change
            try:
                if isinstance(change.role, MasterRole):
                    await self._serve_as_master(change, change.role.promotion)
                else:
                    await self._serve_as_slave(change, change.role.master)
            except (*_NOTHING_CHANGED, WrongPortError, DiskError) as error:
                if not _goes_on_after(change, error):
                    self._end_changes(f"this node has failed: {error}")
                    raise
                self._log_failed(change, error)
                change.end(error)
                self._next = self._next or Change(SlaveRole(NO_MASTER), str(error))
                if isinstance(error, DiskError):
                    await trio.sleep(_ROOM_PAUSE_S)
            except BaseException as error:
                self._end_changes(f"this node has failed: {error}")
                raise
            if self._is_stopping or self._next is None:
                return
            self.metrics.serve(None)
            self.store_health.role_ended()
            self._change, self._next = self._next, None
            _log.info("role_changes", reason=self._change.reason)

    def _log_failed(self, change: Change, error: HastoreError) -> None:
        """Log why the node has no role now."""
        if isinstance(change.role, MasterRole):
            _log.error("promotion_failed", reason=str(error), next=error.hint)
        elif isinstance(error, DiskError):
            _log.error("role_not_changed", reason=str(error), next=error.hint)
        else:
            _log.error("ha_gave_up", state="unassigned", reason=str(error), next=error.hint)

    def _end_changes(self, reason: str) -> None:
        for change in (self._change, self._next):
            if change is not None:
                change.end(RoleChangedError(reason))

    def _announce(self, change: Change, node: Master | Slave) -> None:
        self._serving = node
        if self._is_stopping:
            node.stop()
        self.on_role(node)
        change.end(node)

    async def _serve_as_master(self, change: Change, promotion: Promotion) -> None:
        await serve_master(
            self.config,
            self.env,
            self.metrics,
            self.ports,
            access=self.access,
            tls=self.tls,
            identity=self.identity,
            promotion=promotion,
            coordinator=self.coordinator,
            advertised_ip=self._advertised_ip,
            store_health=self.store_health,
            on_built=self._built_master,
            announce=lambda master: self._announce(change, master),
        )

    async def _serve_as_slave(self, change: Change, master: tuple[str, int]) -> None:
        self.cuts.refused = None  # of the former master's log
        run = SlaveRun(
            self.config.as_slave(master, self._client_ports.get(master)),
            self.env,
            self.metrics,
            self.ask_client_port,
            self.ports.client,
            lambda slave: self._announce(change, slave),
            on_identity=self._identified,
            identity=self.identity,
            on_built=self._built_slave,
            cuts=self.cuts,
            access=self.access,
            tls=self.tls,
            store_health=self.store_health,
        )
        with as_itself():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._refuse_peers, self.ports.ha)
                if self.ports.observer is not None:
                    nursery.start_soon(self._refuse_peers, self.ports.observer)
                await run.run()
                nursery.cancel_scope.cancel()

    def _built_master(self, master: Master) -> None:
        self._control(master)
        self._name_host(master)  # it may have become known while the store was opened
        self.on_master(master)

    def _built_slave(self, slave: Slave) -> None:
        self._control(slave)
        self._built = slave
        slave.ha_address = self.ha_address

    def _control(self, node: Master | Slave) -> None:
        node.role_control = self.role_control or self
        node.directory = self.directory

    def _identified(self, identity: NodeIdentity | None) -> None:
        self.identity = identity

    async def _refuse_peers(self, listener: trio.socket.SocketType) -> None:
        """Close each connection to a port of slaves: this node is no master."""
        while True:
            sock, peer = await accept(listener)
            sock.close()
            if self._built is not None:
                self._built.ha_client.refused_here(peer)
            self._refusal_log.log_line(peer, kind="role", reason="this node is no master")


def _goes_on_after(change: Change, error: HastoreError) -> bool:
    """Return whether the node stays, without a role, after a change to a role has failed so."""
    is_start = change.reason == _START
    if isinstance(error, DiskError):  # also where it has served, and opens its store again
        return will_pass(error) and (not is_start or change.outcome is not None)
    if isinstance(error, WrongPortError):
        return not is_start or _has_been_answered(change.outcome)
    is_to_serve = isinstance(change.role, MasterRole) or change.role.master != NO_MASTER
    return change.outcome is None and not is_start and is_to_serve


def _has_been_answered(outcome: Master | Slave | BaseException | None) -> bool:
    """Return whether a master of the group has answered this slave: its address was right once."""
    if not isinstance(outcome, Slave):
        return False
    framing = outcome.ha_client.framing
    return isinstance(framing, AutoswitchFraming) and framing.masters_epoch is not None


def _reason_for(role: MasterRole | SlaveRole) -> str:
    """Return what the producers whose puts wait are told."""
    if isinstance(role, MasterRole):
        epoch = role.promotion.epoch
        which = "the next epoch" if epoch is None else f"epoch {epoch}"
        return f"this node becomes master of {which}"
    whose = "the master" if role.epoch is None else f"the master of epoch {role.epoch}"
    return f"{whose} is at {describe(role.master)}"


async def run_group_node(
    config: GroupNodeConfig,
    env: Env,
    *,
    ask_client_port: AskClientPort | None = None,
    on_master: Callable[[Master], None] = lambda _master: None,
    on_role: Callable[[Master | Slave], None] = lambda _node: None,
    coordinator: Callable[[Term], Coordinator] | None = None,
    role_control: RoleControl | None = None,
    directory: GroupDirectory | None = None,
    task_status: trio.TaskStatus[GroupNode] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a node of a replica group until cancelled; ``nursery.start`` returns it once it serves.

    ``coordinator`` returns where a master's set is decided; None: the master decides alone.
    ``role_control`` takes the requests that change the role; None: the node itself.
    ``on_master`` gets each master before its services run, ``on_role`` each master and slave once
    it serves.  ``directory``: what it knows of its group, for routes; None: itself.  Raises
    HastoreError if the node cannot start or must not continue.
    """
    env = recording(env)
    access = await open_access(config.access, env)
    async with (
        watching_tls(
            config.tls, env, is_used=config.has_tls, data_dir=config.store.data_dir
        ) as tls,
        open_metrics(config.metrics_listen, tls if config.metrics_tls else None) as metrics,
        open_ports(config) as ports,
    ):
        await check_bound(config, ports)
        is_announced = False

        def announce(serving: Master | Slave) -> None:
            nonlocal is_announced
            if not is_announced:
                is_announced = True
                task_status.started(node)
            on_role(serving)

        with watched_names(env, config.store.data_dir) as watched:
            node = GroupNode(
                config,
                watched,
                ports,
                metrics,
                with_contexts(ask_client_port, tls),
                on_master,
                coordinator,
                announce,
                role_control,
                directory,
                access,
                tls,
            )
            await node.run()
