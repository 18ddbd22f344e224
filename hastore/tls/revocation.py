"""Withdrawn certificates: lists of a CA (CRLs) in PEM, and the connections that they end.

::

    CertificateList  SEQUENCE
      TBSCertList  SEQUENCE
        version (may be missing)  |  signature  |  issuer  |  thisUpdate  |  nextUpdate
        revokedCertificates  SEQUENCE OF { serialNumber, revocationDate, ... }  (may be missing)
        ...

OpenSSL checks a peer's whole chain by the lists at its handshake, their signatures included; an
issuer without a list, or with one whose time is over, makes it refuse.  What is read here ends the
connections that began before a list named their certificate.  Source: RFC 5280, 5.1.

Invariant: once ``TlsLinks.use`` has returned, no connection goes on whose chain has a certificate
that those lists name.
"""

from __future__ import annotations

import ssl
import weakref
from typing import TYPE_CHECKING, Any, Protocol, final

import attrs

from hastore.tls.certificate import certificate_id, key_id_of, read_list, subject_of
from hastore.tls.tls_fault import withdrawn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore.errors import TlsError
    from hastore.tls.certificate import CertificateId, Name, Validity


@final
@attrs.frozen
class Withdrawn:
    """The certificates that some lists name."""

    ids: frozenset[CertificateId] = frozenset()
    # Whose lists are there, and by which key (``WithdrawnList.key_id``).
    issuers: frozenset[tuple[Name, bytes | None]] = frozenset()
    # Of the list whose time is over first: when it was issued, and when the next one is due.
    validity: Validity | None = None

    @classmethod
    def of(cls, lists: Iterable[bytes], authorities: Iterable[bytes] = ()) -> Withdrawn:
        """Read lists (DER).  Raises ValueError for what is not a list.

        A list in the name of one of ``authorities`` (certificates, DER) does not count if it says
        that another key has signed it.
        """
        key_ids: dict[Name, set[bytes | None]] = {}
        for der in authorities:
            key_ids.setdefault(subject_of(der), {None}).add(key_id_of(der))
        read = [read_list(der) for der in lists]
        found = [one for one in read if one.key_id in key_ids.get(one.issuer, {one.key_id})]
        ends = [each.validity for each in found if each.validity is not None]
        return cls(
            ids=frozenset((each.issuer, serial) for each in found for serial in each.serials),
            issuers=frozenset((each.issuer, each.key_id) for each in found),
            validity=min(ends, key=lambda one: one.not_after, default=None),
        )

    def has_list_of(self, authority: bytes) -> bool:
        """Return whether there is a list of a CA (its certificate, DER)."""
        name, key_id = subject_of(authority), key_id_of(authority)
        return any(
            issuer == name and (key_id is None or list_key_id in {None, key_id})
            for issuer, list_key_id in self.issuers
        )

    def with_names_of(self, other: Withdrawn) -> Withdrawn:
        """Return these lists with the certificates, too, that others name."""
        return attrs.evolve(self, ids=self.ids | other.ids)


class Link(Protocol):
    """A connection after its handshake: a ``TlsSocket``."""

    peer: str  # what errors call the other side

    @property
    def is_ended(self) -> bool:
        """Whether nothing leaves any more."""

    def peer_chain(self) -> list[bytes]:
        """Return the peer's certificate, and those that sign it (DER)."""

    def getpeername(self) -> Any:
        """Return the peer's address."""

    def end(self, error: TlsError) -> None:
        """End it from outside."""

    def close(self) -> None:
        """Close it."""


@final
@attrs.define(eq=False)
class TlsLinks:
    """The connections of a node, over all versions of its files."""

    withdrawn: Withdrawn = Withdrawn()
    # The connections, and the certificates of their peers: each chain is parsed once.  None for a
    # connection that was made while there were no lists.
    _links: weakref.WeakKeyDictionary[Link, frozenset[CertificateId] | None] = attrs.field(
        factory=weakref.WeakKeyDictionary, init=False
    )

    def add(self, link: Link) -> None:
        """Take a connection after its handshake, which may have begun by earlier lists.

        Raises TlsError, and closes it, if its certificate was withdrawn meanwhile.
        """
        ids = _ids_of(link) if self.withdrawn.issuers else None
        if ids is not None and not ids.isdisjoint(self.withdrawn.ids):
            link.close()
            raise withdrawn(link.peer)
        self._links[link] = ids

    def use(self, lists: Withdrawn) -> list[Link]:
        """End the connections whose peer's certificate is withdrawn; return them."""
        new = lists.ids - self.withdrawn.ids  # no connection has a certificate of the others
        self.withdrawn = lists
        if not new:
            return []
        links = [(link, ids) for link, ids in self._links.items() if not link.is_ended]
        ended = []
        for link, known_ids in links:
            ids = self._links[link] = _ids_of(link) if known_ids is None else known_ids
            if not ids.isdisjoint(new):
                ended.append(link)
        for link in ended:
            del self._links[link]
            link.end(withdrawn(link.peer))
        return ended


def _ids_of(link: Link) -> frozenset[CertificateId]:
    return frozenset(map(certificate_id, link.peer_chain()))


class NodeContext(ssl.SSLContext):
    """A context whose connections are kept in ``links``, or nowhere if that is None."""

    links: TlsLinks | None = None


def keep(context: ssl.SSLContext, link: Link) -> None:
    """Keep a connection that has ended its handshake with ``context``.  Raises as ``add`` does."""
    if isinstance(context, NodeContext) and context.links is not None:
        context.links.add(link)
