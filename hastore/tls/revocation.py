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

    def names_one_of(self, chain: Iterable[bytes]) -> bool:
        """Return whether one of the certificates (DER) is withdrawn."""
        return any(certificate_id(der) in self.ids for der in chain)


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
    _links: weakref.WeakSet[Link] = attrs.field(factory=weakref.WeakSet, init=False)

    def add(self, link: Link) -> None:
        """Take a connection after its handshake, which may have begun by earlier lists.

        Raises TlsError, and closes it, if its certificate was withdrawn meanwhile.
        """
        if self.withdrawn.ids and self.withdrawn.names_one_of(link.peer_chain()):
            link.close()
            raise withdrawn(link.peer)
        self._links.add(link)

    def use(self, lists: Withdrawn) -> list[Link]:
        """End the connections whose peer's certificate is withdrawn; return them."""
        self.withdrawn = lists
        if not lists.ids:
            return []
        there = [link for link in list(self._links) if not link.is_ended]
        ended = [link for link in there if lists.names_one_of(link.peer_chain())]
        for link in ended:
            self._links.discard(link)
            link.end(withdrawn(link.peer))
        return ended


class NodeContext(ssl.SSLContext):
    """A context whose connections are kept in ``links``; None: nobody looks after them."""

    links: TlsLinks | None = None


def keep(context: ssl.SSLContext, link: Link) -> None:
    """Keep a connection that has ended its handshake with ``context``.  Raises as ``add`` does."""
    if isinstance(context, NodeContext) and context.links is not None:
        context.links.add(link)
