"""The TLS contexts in force on a node: those of its files, made again whenever these change.

Connections that exist keep the certificate with which they began; new ones have the new.  At a
start a fault in the files is an error; later the former contexts stay (``WatchedFiles``).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, ClassVar, final

import attrs
import trio

from hastore.concurrency.service import as_itself
from hastore.concurrency.watched_files import WatchedFiles
from hastore.errors import ConfigError, DiskError
from hastore.status import ClientCertificates, TlsMode
from hastore.tls.client_tls import ClientTls
from hastore.tls.contexts import (
    TlsFiles,
    ca_dates,
    certificate_dates,
    client_context,
    server_context,
    utc_text,
)
from hastore.tls.tls_peers import TlsPeers
from hastore.trace import logger

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterable

    from hastore.config import HAConfig, TlsConfig
    from hastore.env.interface import Env, FileStamp

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


@final
@attrs.define(eq=False)
class TlsContexts(WatchedFiles[ContextSet]):
    """A node's contexts, from ``open_tls``."""

    GONE_HINT: ClassVar[str] = "put it back: [tls] cert, key and ca"

    config: TlsConfig
    peers: TlsPeers  # that have completed a handshake, whatever the version of the files

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
        return TlsStatus(
            mode=self.config.mode.value,
            client_certificates=self.config.client_certificates.value,
            is_on_ha_port=ha is not None and ha.tls,
            ha_names_without_ids=() if ha is None else ha.names_without_ids,
            certificate=self.config.cert_file,
            not_after=self.current.not_after,
            ca_not_after=self.current.ca_not_after,
            fault=self._fault,
            hint=self._hint,
        )

    def _stamps_now(self) -> tuple[FileStamp, ...]:
        return files_of(self.config).stamps(self.env.disk)

    def _read(self) -> tuple[ContextSet, tuple[FileStamp, ...]]:
        return _make(self.config, self.env, self.peers)

    def _log_taken(self) -> None:
        _log.info(
            "certificate_taken",
            certificate=self.config.cert_file,
            not_after=utc_text(self.current.not_after),
        )

    def _log_refused(self, reason: str, hint: str | None) -> None:
        _log.warning("certificate_not_taken", reason=reason, next=hint)


async def open_tls(config: TlsConfig, env: Env, data_dir: str | None = None) -> TlsContexts | None:
    """Return the contexts of a node's files; None without a certificate.

    ``data_dir`` remembers which other nodes have TLS; None: that is remembered in memory only.
    Raises ConfigError if one of the files cannot be used.
    """
    if config.cert_file is None:
        return None
    peers = TlsPeers() if data_dir is None else await TlsPeers.of_directory(data_dir, env)
    made, stamps = await env.offload.run(lambda: _make(config, env, peers))
    return TlsContexts(env, made, stamps, config, peers)


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


def _client_tls(config: TlsConfig, env: Env, peers: TlsPeers) -> ClientTls:
    """Return how a node connects to other nodes' client ports, unless its own takes no TLS.

    Where its own port takes both, so do those of the others, perhaps not all of them yet: a port
    that takes no TLS, and never did, is asked in plain bytes.  Raises ConfigError.
    """
    context = client_context(files_of(config), env.disk, env.wall_clock.now_s())
    return ClientTls(
        context=context,
        server_name=config.server_name,
        or_plain=config.mode is TlsMode.PERMISSIVE,
        peers=peers,
    )


def files_of(config: TlsConfig) -> TlsFiles:
    """Return the files that a configuration names."""
    return TlsFiles(
        cert=config.cert_file,
        key=config.key_file,
        key_password=config.key_password_file,
        ca=config.ca_file,
    )


def _make(config: TlsConfig, env: Env, peers: TlsPeers) -> tuple[ContextSet, tuple[FileStamp, ...]]:
    files, disk, now_s = files_of(config), env.disk, env.wall_clock.now_s()
    assert files.cert is not None, "open_tls needs one"
    stamps = _stamps(files, env)
    required = ClientCertificates.REQUIRED
    made = ContextSet(
        server=server_context(files, config.client_certificates, disk, now_s),
        mutual=None if files.ca is None else server_context(files, required, disk, now_s),
        client=_client_tls(config, env, peers),
        not_after=certificate_dates(files.cert, disk).validity.not_after,
        ca_not_after=(
            None if files.ca is None else ca_dates(files.ca, disk, now_s).validity.not_after
        ),
    )
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
