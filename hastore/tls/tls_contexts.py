"""The TLS contexts in force on a node: those of its files, made again whenever these change.

Connections that exist keep the certificate with which they began; new ones have the new.  At a
start a fault in the files is an error; later the former contexts stay (``WatchedFiles``).

A list of withdrawn certificates is urgent, so in a running node no other fault holds it back: an
overdue list does not, and what the lists name is refused, and its connections end, also when the
rest of the version has a fault.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, ClassVar, Final, final

import attrs
import trio

from hastore.concurrency.service import as_itself
from hastore.concurrency.tcp import describe
from hastore.concurrency.watched_files import WatchedFiles
from hastore.errors import ConfigError, DiskError
from hastore.status import ClientCertificates, TlsMode
from hastore.tls.client_tls import ClientTls
from hastore.tls.contexts import (
    TlsFiles,
    TlsRules,
    ca_dates,
    certificate_dates,
    check_authorities_apart,
    check_signatures,
    client_context,
    read_lists_in_time,
    read_withdrawn,
    server_context,
    utc_text,
)
from hastore.tls.revocation import TlsLinks, Withdrawn
from hastore.tls.tls_peers import TlsPeers
from hastore.trace import THIS_NODE, audit, logger

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Iterable

    from hastore.config import HAConfig, TlsConfig
    from hastore.env.interface import Env, FileStamp
    from hastore.tls.revocation import Link

_PEERS_SHOWN_MAX: Final = 4

_log = logger("tls")


def _texts(values: Iterable[str]) -> tuple[str, ...]:
    """Return a tuple: JSON has lists."""
    return tuple(values)


@attrs.frozen(kw_only=True)
class TlsStatus:
    """The certificate in force; ``fault``: why the files' present versions are not."""

    mode: str  # of the client port
    client_certificates: str = ClientCertificates.NONE.value  # there
    is_on_ha_port: bool = False  # links of masters and slaves have it, too
    # Names in [ha] tls_allowed_names whose certificates may claim any node's id.
    ha_names_without_ids: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    certificate: str  # its file
    not_after: int  # seconds since 1970
    ca_not_after: int | None = None  # see ``ca_dates``; None: the system's are trusted
    client_ca_not_after: int | None = None  # likewise; None: ``ca`` signs clients' certificates
    # When the list in ``crl`` that must be replaced first was issued, and when the next is due.
    crl_issued_at: int | None = None
    crl_next_update: int | None = None  # None: there is no list, or none says when
    fault: str | None
    hint: str | None


@final
@attrs.frozen(kw_only=True)
class ContextSet:
    """The contexts of one version of the files."""

    server: ssl.SSLContext  # accepts clients, with certificates as the configuration says
    mutual: ssl.SSLContext | None  # accepts those with a certificate only; None: there is no CA
    client: ClientTls  # connects to other nodes
    not_after: int  # of the own certificate: seconds since 1970
    ca_not_after: int | None  # of ``ca``, see ``ca_dates``; None: the system's are trusted
    client_ca_not_after: int | None
    withdrawn: Withdrawn


@final
@attrs.define(eq=False)
class TlsContexts(WatchedFiles[ContextSet]):
    """A node's contexts, from ``open_tls``."""

    GONE_HINT: ClassVar[str] = "put it back: [tls] cert, key and ca"

    config: TlsConfig
    links: TlsLinks  # all that its contexts have made
    peers: TlsPeers  # that have completed a handshake, whatever the version of the files
    # What the lists name that the last read has found; nothing if they cannot be read, or if it is
    # not proven that they are the CA's.
    _found: Withdrawn = attrs.field(factory=Withdrawn, init=False)

    @property
    def server(self) -> ssl.SSLContext:
        """What accepts the next connection of the client port."""
        return self.current.server

    @property
    def client(self) -> ClientTls | None:
        """What the next connection to a client port is made with; None: it is plain."""
        return None if self.config.mode is TlsMode.DISABLED else self.current.client

    def status(self, ha: HAConfig | None = None) -> TlsStatus:
        """Return a snapshot; ``ha``: of the node's HA port."""
        assert self.config.cert_file is not None, "open_tls needs one"
        lists = self.current.withdrawn.validity
        return TlsStatus(
            mode=self.config.mode.value,
            client_certificates=self.config.client_certificates.value,
            is_on_ha_port=ha is not None and ha.tls,
            ha_names_without_ids=() if ha is None else ha.names_without_ids,
            certificate=self.config.cert_file,
            not_after=self.current.not_after,
            ca_not_after=self.current.ca_not_after,
            client_ca_not_after=self.current.client_ca_not_after,
            crl_issued_at=None if lists is None else lists.not_before,
            crl_next_update=None if lists is None else lists.not_after,
            fault=self._fault,
            hint=self._hint,
        )

    def _stamps_now(self) -> tuple[FileStamp, ...]:
        return files_of(self.config).stamps(self.env.disk)

    def _read(self) -> tuple[ContextSet, tuple[FileStamp, ...]]:
        def read_lists(files: TlsFiles) -> Withdrawn:
            lists = read_withdrawn(files, self.env.disk)
            with contextlib.suppress(ConfigError):  # ``_make`` raises it, by the new certificate
                if check_signatures(files, self.current.server, self.env.disk):
                    self._found = lists
            return lists

        return _make(self.config, self.env, self.links, self.peers, read_lists)

    async def _look(self) -> None:
        await super()._look()
        if self._fault is None and self.links.withdrawn is not self.current.withdrawn:
            # A version that was refused has been replaced by the former one.
            self._end_withdrawn(self.current.withdrawn)

    async def _take(self) -> bool:
        self._found = Withdrawn()
        is_taken = await super()._take()
        if is_taken:
            self._end_withdrawn(self.current.withdrawn)
        elif self._found.ids:
            # The former contexts stay, so what the former lists name is still refused.
            self._end_withdrawn(self.links.withdrawn.with_names_of(self._found))
        return is_taken

    def _end_withdrawn(self, lists: Withdrawn) -> None:
        """Refuse the certificates that the lists name, and end their connections."""
        ended = self.links.use(lists)
        if ended:
            peers = [_peer_text(link) for link in ended]
            shown = ", ".join(peers[:_PEERS_SHOWN_MAX])
            _log.warning(
                "certificate_withdrawn", crl=self.config.crl_file, links=len(ended), peers=shown
            )

    def _log_taken(self) -> None:
        _log.info(
            "certificate_taken",
            certificate=self.config.cert_file,
            not_after=utc_text(self.current.not_after),
        )
        audit("reload-certificate", who=THIS_NODE, what=self.config.cert_file, outcome="done")

    def _log_refused(self, reason: str, hint: str | None) -> None:
        audit(
            "reload-certificate",
            who=THIS_NODE,
            what=self.config.cert_file,
            outcome="refused",
            reason=reason,
        )
        _log.warning("certificate_not_taken", reason=reason, next=hint)


async def open_tls(config: TlsConfig, env: Env, data_dir: str | None = None) -> TlsContexts | None:
    """Return the contexts of a node's files; None without a certificate.

    ``data_dir`` remembers which other nodes have TLS; None: that is remembered in memory only.
    Raises ConfigError if one of the files cannot be used.
    """
    if config.cert_file is None:
        return None
    links = TlsLinks()
    peers = TlsPeers() if data_dir is None else await TlsPeers.of_directory(data_dir, env)

    def read_lists(files: TlsFiles) -> Withdrawn:
        return read_lists_in_time(files, env.disk, env.wall_clock.now_s())

    made, stamps = await env.offload.run(lambda: _make(config, env, links, peers, read_lists))
    links.use(made.withdrawn)
    return TlsContexts(env, made, stamps, config, links, peers)


@contextlib.asynccontextmanager
async def watching_tls(
    config: TlsConfig, env: Env, *, is_used: bool, data_dir: str
) -> AsyncIterator[TlsContexts | None]:
    """Yield the contexts of a node's files, and look at these while the block runs.

    Yields None unless a port of the node has TLS (``is_used``): what no connection uses is neither
    in force, nor taken when it changes.  The block is the node's whole life: metrics are served by
    TLS in every role, and in none.  An error of the block is raised as itself.  Raises ConfigError
    if one of the files cannot be used.
    """
    tls = await open_tls(config, env, data_dir)
    if tls is None or not is_used:
        yield None
        return
    with as_itself():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tls.run)
            yield tls
            nursery.cancel_scope.cancel()


def _peer_text(link: Link) -> str:
    try:
        return describe(link.getpeername()[:2])
    except (OSError, ValueError):  # it has left meanwhile, or has no address
        return "a peer without an address"


def files_of(config: TlsConfig) -> TlsFiles:
    """Return the files that a configuration names."""
    return TlsFiles(
        cert=config.cert_file,
        key=config.key_file,
        key_password=config.key_password_file,
        ca=config.ca_file,
        client_ca=config.client_ca_file,
        crl=config.crl_file,
    )


def _make(
    config: TlsConfig,
    env: Env,
    links: TlsLinks,
    peers: TlsPeers,
    read_lists: Callable[[TlsFiles], Withdrawn],
) -> tuple[ContextSet, tuple[FileStamp, ...]]:
    files, disk, now_s = files_of(config), env.disk, env.wall_clock.now_s()
    assert files.cert is not None, "open_tls needs one"
    stamps = _stamps(files, env)
    rules = TlsRules(config.min_version, config.ciphers)
    lists = None if files.crl is None else read_lists(files)

    def server(files: TlsFiles, certificates: ClientCertificates) -> ssl.SSLContext:
        return server_context(
            files, certificates, disk, now_s, rules=rules, links=links, lists=lists
        )

    def until(path: str | None) -> int | None:
        return None if path is None else ca_dates(path, disk, now_s).validity.not_after

    check_authorities_apart(files, disk)
    of_nodes = attrs.evolve(files, client_ca=None)
    made = ContextSet(
        server=server(files, config.client_certificates),
        mutual=None if files.ca is None else server(of_nodes, ClientCertificates.REQUIRED),
        # Where its own port takes both, so do those of the others, perhaps not all of them yet: a
        # port that takes no TLS, and never did, is asked in plain bytes.
        client=ClientTls(
            context=client_context(of_nodes, disk, now_s, rules=rules, links=links, lists=lists),
            server_name=config.server_name,
            or_plain=config.mode is TlsMode.PERMISSIVE,
            peers=peers,
        ),
        not_after=certificate_dates(files.cert, disk).validity.not_after,
        ca_not_after=until(files.ca),
        client_ca_not_after=until(files.client_ca),
        withdrawn=lists or Withdrawn(),
    )
    check_signatures(files, made.server, disk)
    if _stamps(files, env) != stamps:
        raise ConfigError(
            f"{', '.join(files.paths)}: one of them changes while they are read",
            hint="write new ones under other names and rename them, the certificate last",
        )
    return made, stamps


def _stamps(files: TlsFiles, env: Env) -> tuple[FileStamp, ...]:
    try:
        return files.stamps(env.disk)
    except DiskError as error:
        raise ConfigError(str(error), hint="check the path, its owner and its mode") from error
