"""Certificates in PEM, and until when each is valid.

::

    Certificate  SEQUENCE
      TBSCertificate  SEQUENCE
        [0] version (may be missing)  |  serialNumber  |  signature  |  issuer
        validity  SEQUENCE { notBefore, notAfter }     UTCTime 250131235959Z
        ...                                            GeneralizedTime 20500131235959Z

Only the validity is read, of certificates that OpenSSL has accepted: the ``ssl`` module shows that
of a peer, and of a CA, not of one's own.  Source: RFC 5280, 4.1.
"""

from __future__ import annotations

import calendar
import re
import ssl
from typing import Final

import attrs

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----", re.ASCII)
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_LONG: Final = 0x80
_SIZE_SIZE_MAX: Final = 4
_CENTURY_FROM: Final = 50  # UTCTime: 50 to 99 are 1950 to 1999
_BEFORE_VALIDITY: Final = 3  # serialNumber, signature, issuer


@attrs.frozen(kw_only=True)
class Validity:
    """When a certificate is valid: seconds since 1970, both ends included."""

    not_before: int
    not_after: int


def pem_certificates(data: bytes) -> list[bytes]:
    """Return the certificates (DER) of a PEM file, in order.  Raises ValueError for broken ones."""
    return [ssl.PEM_cert_to_DER_cert(found.decode("ascii")) for found in _PEM.findall(data)]


def validity_of(der: bytes) -> Validity:
    """Return a certificate's validity.  Raises ValueError if it is not a certificate."""
    certificate = _Reader(der).inside(_SEQUENCE)
    tbs = certificate.inside(_SEQUENCE)
    if tbs.tag() == _VERSION:
        tbs.take()
    for _ in range(_BEFORE_VALIDITY):
        tbs.take()
    validity = tbs.inside(_SEQUENCE)
    return Validity(not_before=_seconds(*validity.take()), not_after=_seconds(*validity.take()))


class _Reader:
    """Takes one value after the other: tag, size, content."""

    def __init__(self, data: bytes) -> None:
        self._left = data

    def tag(self) -> int:
        """Return the next value's tag."""
        return self._left[0] if self._left else 0

    def take(self) -> tuple[int, bytes]:
        """Return the next value's tag and content."""
        data = self._left
        head, size = 2, data[1] if len(data) > 1 else 0
        if size & _LONG:
            size_size = size & ~_LONG
            head += size_size
            size = int.from_bytes(data[2:head], "big")
            if not 1 <= size_size <= _SIZE_SIZE_MAX:
                raise ValueError("not DER: a size of another form")
        end = head + size
        if len(data) < max(end, 2):
            raise ValueError("not DER: it ends early")
        self._left = data[end:]
        return data[0], data[head:end]

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
