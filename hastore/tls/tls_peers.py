"""Which client ports have completed a TLS handshake: those are never asked in plain bytes again.

::

    DIR/config/tlsPeers.json    {"addresses": ["n2.example.com:10911", …]}, oldest use first

With ``[tls] mode = "permissive"`` a node asks a port that takes no TLS in plain bytes, because its
group changes over node by node.  An attacker between the two can pretend that: a reset instead of a
handshake is enough.  So only an address that has never completed one is asked in plain bytes.

A node remembers them over its restarts.  A client without a directory does so in memory only, so
its first connection to an address after its start is not protected.

Invariant: an address that is known stays known while the object lives, unless ``PEERS_MAX`` others
have completed a handshake since its last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.concurrency.tcp import describe
from hastore.errors import DiskError, TlsError
from hastore.store.json_file import JsonFile
from hastore.store.log.store_directory import TLS_PEERS_FILE
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.env.interface import Env, Offload

PEERS_MAX: Final = 1_024
_ADDRESSES: Final = "addresses"

_log = logger("tls")


@final
@attrs.define(eq=False)
class TlsPeers:
    """Addresses as the node connects to them; without a file they are in memory only."""

    _file: JsonFile | None = None
    _offload: Offload | None = None  # writes the file; given with it
    _known: dict[str, None] = attrs.field(factory=dict, init=False)  # oldest use first
    _stored: tuple[str, ...] = attrs.field(default=(), init=False)  # as the file is
    _logged: dict[str, None] = attrs.field(factory=dict, init=False)  # asked in plain bytes
    _storing: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @classmethod
    async def of_directory(cls, data_dir: str, env: Env) -> TlsPeers:
        """Return a node's, with what its directory remembers.  Nothing is written yet."""
        file = JsonFile(env.disk, f"{data_dir.rstrip('/')}/{TLS_PEERS_FILE}")
        peers = cls(file, env.offload)
        stored = _addresses_in(await env.offload.run(file.load))
        peers._known, peers._stored = dict.fromkeys(stored), stored
        return peers

    def knows(self, address: tuple[str, int]) -> bool:
        """Whether a port has completed a handshake."""
        return describe(address) in self._known

    async def completed(self, address: tuple[str, int]) -> None:
        """Remember a port that has completed a handshake, on the disk if there is a file.

        A failed write is logged, and repeated at the next handshake of any port.
        """
        _add(self._known, describe(address))
        file, offload = self._file, self._offload
        if file is None or offload is None:
            return
        async with self._storing:
            addresses = tuple(self._known)
            if set(addresses) == set(self._stored):  # the order alone is not worth a write
                return
            try:
                await offload.run(lambda: file.store({_ADDRESSES: list(addresses)}))
            except DiskError as error:
                _log.warning("tls_peers_not_written", reason=str(error), next=error.hint)
            else:
                self._stored = addresses

    def check_plain(self, address: tuple[str, int], error: TlsError) -> None:
        """Allow plain bytes to a port whose handshake failed with ``error``, and log it once.

        Raises TlsError for a port that has completed a handshake before.
        """
        where = describe(address)
        if where in self._known:
            way_back = "start again"
            if self._file is not None:
                way_back = f"take the address out of {self._file.path} and start again"
            raise TlsError(
                f"{where} has completed a TLS handshake before, and takes none now: {error}",
                fault=error.fault,
                hint="an attacker may be between the two. If TLS was turned off there on purpose,"
                f" {way_back}",
            ) from error
        if where not in self._logged:
            _add(self._logged, where)
            _log.warning(
                "asked_in_plain_bytes",
                address=where,
                reason=str(error),
                next="set [tls] mode = permissive there, then enforcing on all nodes",
            )


def _add(addresses: dict[str, None], address: str) -> None:
    addresses.pop(address, None)  # at the end: it was used last
    addresses[address] = None
    while len(addresses) > PEERS_MAX:
        del addresses[next(iter(addresses))]


def _addresses_in(value: dict[str, Any]) -> tuple[str, ...]:
    """Return the addresses of the file, without what is not one."""
    found = value.get(_ADDRESSES)
    texts = [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
    return tuple(texts[-PEERS_MAX:])
