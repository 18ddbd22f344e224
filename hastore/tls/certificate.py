"""Certificates and lists of withdrawn ones in PEM: whose they are, and until when each is valid.

::

    Certificate  SEQUENCE
      TBSCertificate  SEQUENCE
        [0] version (may be missing)  |  serialNumber  |  signature  |  issuer
        validity  SEQUENCE { notBefore, notAfter }     UTCTime 250131235959Z
        subject  |  public key  |  [1], [2] unique ids (may be missing)
        [3] extensions (may be missing)                GeneralizedTime 20500131235959Z

Only issuer, serial number, subject, validity and key id are read, of certificates that OpenSSL has
checked: the ``ssl`` module shows them of a peer, and of a CA, not of one's own.
``hastore.tls.revocation`` draws a list.  Source: RFC 5280, 4.1 and 5.1.
"""

from __future__ import annotations

import base64
import calendar
import re
import ssl
from typing import Final

import attrs

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----", re.ASCII)
_PEM_LIST: Final = re.compile(rb"-----BEGIN X509 CRL-----([^-]*)-----END X509 CRL-----", re.ASCII)
_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_INTEGER: Final = 0x02
_VERSION: Final = 0xA0
_EXTENSIONS: Final = 0xA3
_LIST_EXTENSIONS: Final = 0xA0
_BOOLEAN: Final = 0x01
_KEY_ID: Final = 0x80
_SUBJECT_KEY: Final = bytes((0x55, 0x1D, 0x0E))  # 2.5.29.14
_AUTHORITY_KEY: Final = bytes((0x55, 0x1D, 0x23))  # 2.5.29.35
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_TIMES: Final = frozenset({_UTC_TIME, _GENERALIZED_TIME})
# Of a name's texts; T61String is read as Latin-1, as OpenSSL does.
_ENCODINGS: Final = {
    0x0C: "utf-8",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1E: "utf-16-be",
    0x1C: "utf-32-be",
}
_LONG: Final = 0x80
_SIZE_SIZE_MAX: Final = 4
_CENTURY_FROM: Final = 50  # UTCTime: 50 to 99 are 1950 to 1999

# Of a subject or an issuer: object identifier and text, which is compared as OpenSSL compares it
# (RFC 5280, 7.1): case and repeated spaces do not matter.
Name = tuple[tuple[bytes, str], ...]
CertificateId = tuple[Name, int]  # issuer and serial number: no other certificate has them


@attrs.frozen(kw_only=True)
class Validity:
    """When a certificate is valid: seconds since 1970, both ends included."""

    not_before: int
    not_after: int


@attrs.frozen(kw_only=True)
class WithdrawnList:
    """What a CA has withdrawn; ``validity``: when this list was issued, and the next one is due."""

    issuer: Name
    serials: frozenset[int]
    validity: Validity | None  # None: it does not say when the next one is due
    key_id: bytes | None  # of the CA's key, see ``key_id_of``; None if the list does not say


def pem_certificates(data: bytes) -> list[bytes]:
    """Return the certificates (DER) of a PEM file, in order.  Raises ValueError for broken ones."""
    return [ssl.PEM_cert_to_DER_cert(found.decode("ascii")) for found in _PEM.findall(data)]


def pem_lists(data: bytes) -> list[bytes]:
    """Return the lists (DER) of a PEM file, in order.  Raises ValueError for broken ones."""
    return [base64.b64decode(found) for found in _PEM_LIST.findall(data)]


def validity_of(der: bytes) -> Validity:
    """Return a certificate's validity.  Raises ValueError if it is not a certificate."""
    return _read_certificate(der)[2]


def certificate_id(der: bytes) -> CertificateId:
    """Return whose certificate it is, and its number.  Raises ValueError as ``validity_of``."""
    serial, issuer, _, _ = _read_certificate(der)
    return issuer, serial


def subject_of(der: bytes) -> Name:
    """Return whom a certificate is for.  Raises ValueError as ``validity_of``."""
    return _read_certificate(der)[3]


def key_id_of(der: bytes) -> bytes | None:
    """Return the id of a certificate's own key (subjectKeyIdentifier), None if it has none.

    It tells the keys of CAs of one name apart, and proves nothing.  Raises ValueError as
    ``validity_of``.
    """
    tbs = _Reader(der).inside(_SEQUENCE).inside(_SEQUENCE)
    while tbs.tag():
        if tbs.tag() == _EXTENSIONS:
            value = tbs.inside(_EXTENSIONS).extension(_SUBJECT_KEY)
            return None if value is None else _Reader(value).take()[1]
        tbs.take()
    return None


def name_text(name: Name) -> str:
    """Return a name for messages: its texts."""
    return ", ".join(text for _, text in name) or "a CA without a name"


def _read_certificate(der: bytes) -> tuple[int, Name, Validity, Name]:
    """Return serial number, issuer, validity and subject."""
    tbs = _Reader(der).inside(_SEQUENCE).inside(_SEQUENCE)
    if tbs.tag() == _VERSION:
        tbs.take()
    serial = _integer(*tbs.take())
    tbs.take()  # the signature's algorithm
    issuer = _name(tbs.inside(_SEQUENCE))
    validity = tbs.inside(_SEQUENCE)
    times = Validity(not_before=_seconds(*validity.take()), not_after=_seconds(*validity.take()))
    return serial, issuer, times, _name(tbs.inside(_SEQUENCE))


def read_list(der: bytes) -> WithdrawnList:
    """Read a list.  Raises ValueError if it is not one."""
    tbs = _Reader(der).inside(_SEQUENCE).inside(_SEQUENCE)
    if tbs.tag() == _INTEGER:
        tbs.take()  # the version
    tbs.take()  # the signature's algorithm
    issuer = _name(tbs.inside(_SEQUENCE))
    issued_at, next_at = _seconds(*tbs.take()), None
    if tbs.tag() in _TIMES:
        next_at = _seconds(*tbs.take())
    serials: list[int] = []
    if tbs.tag() == _SEQUENCE:
        serials = tbs.inside(_SEQUENCE).first_numbers()
    key_id = None
    if tbs.tag() == _LIST_EXTENSIONS:
        value = tbs.inside(_LIST_EXTENSIONS).extension(_AUTHORITY_KEY)
        parts = _Reader(b"") if value is None else _Reader(value).inside(_SEQUENCE)
        key_id = parts.take()[1] if parts.tag() == _KEY_ID else None
    validity = None if next_at is None else Validity(not_before=issued_at, not_after=next_at)
    return WithdrawnList(
        issuer=issuer, serials=frozenset(serials), validity=validity, key_id=key_id
    )


def _integer(tag: int, content: bytes) -> int:
    if tag != _INTEGER:
        raise ValueError(f"no certificate: tag {tag:#x}, not a number")
    return int.from_bytes(content, "big", signed=True)


def _name(reader: _Reader) -> Name:
    found = []
    while reader.tag():
        pairs = reader.inside(_SET)
        while pairs.tag():
            pair = pairs.inside(_SEQUENCE)
            _, kind = pair.take()
            tag, content = pair.take()
            text = content.decode(_ENCODINGS.get(tag, "latin-1"), "backslashreplace")
            found.append((kind, " ".join(text.split()).casefold()))
    return tuple(found)


class _Reader:
    """Takes one value after the other: tag, size, content."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def tag(self) -> int:
        """Return the next value's tag; 0 at the end."""
        return self._data[self._at] if self._at < len(self._data) else 0

    def take(self) -> tuple[int, bytes]:
        """Return the next value's tag and content."""
        data, start = self._data, self._at + 2
        size = data[start - 1] if len(data) >= start else 0
        if size & _LONG:
            size_size = size & ~_LONG
            start += size_size
            size = int.from_bytes(data[start - size_size : start], "big")
            if not 1 <= size_size <= _SIZE_SIZE_MAX:
                raise ValueError("not DER: a size of another form")
        end = start + size
        if len(data) < end:
            raise ValueError("not DER: it ends early")
        tag, self._at = data[self._at], end
        return tag, data[start:end]

    def first_numbers(self) -> list[int]:
        """Return the number at the front of each sequence that is left; short ones without a call.

        A list may have 80,000 of them.
        """
        data, found = self._data, list[int]()
        while self._at < len(data):
            at = self._at
            head = data[at : at + 4]
            is_short = len(head) == 4 and head[0] == _SEQUENCE and head[2] == _INTEGER  # noqa: PLR2004
            if is_short and head[3] + 2 <= head[1] < _LONG and at + 2 + head[1] <= len(data):
                found.append(int.from_bytes(data[at + 4 : at + 4 + head[3]], "big", signed=True))
                self._at = at + 2 + head[1]
            else:
                found.append(_integer(*self.inside(_SEQUENCE).take()))
        return found

    def extension(self, kind: bytes) -> bytes | None:
        """Return the value of the extension with an object identifier, None if it is missing."""
        rows = self.inside(_SEQUENCE)
        while rows.tag():
            row = rows.inside(_SEQUENCE)
            _, found = row.take()
            if row.tag() == _BOOLEAN:  # whether it is critical
                row.take()
            _, value = row.take()
            if found == kind:
                return value
        return None

    def inside(self, tag: int) -> _Reader:
        """Return the reader of the next value, which has ``tag``."""
        found, content = self.take()
        if found != tag:
            raise ValueError(f"no certificate: tag {found:#x}, not {tag:#x}")
        return _Reader(content)


def _seconds(tag: int, content: bytes) -> int:
    """Return a time in seconds since 1970: RFC 5280 allows UTC with seconds only."""
    text = content.decode("ascii", "replace")
    digits = text[:-1]
    if not text.endswith("Z") or not digits.isascii() or not digits.isdigit():
        raise ValueError("no certificate: its validity is not UTC")
    if tag == _UTC_TIME and len(digits) == len("YYMMDDhhmmss"):
        digits = ("19" if int(digits[:2]) >= _CENTURY_FROM else "20") + digits
    elif tag != _GENERALIZED_TIME or len(digits) != len("YYYYMMDDhhmmss"):
        raise ValueError("no certificate: its validity is no time")
    year, rest = int(digits[:4]), digits[4:]
    month, day, hour, minute, second = (int(rest[at : at + 2]) for at in range(0, 10, 2))
    return calendar.timegm((year, month, day, hour, minute, second))
