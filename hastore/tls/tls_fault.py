"""What is wrong with a peer's TLS, from what OpenSSL says of it.

Pure: an ``ssl.SSLError`` in, a TlsError out, whose text says what is wrong and whose hint says what
to do.  Who is wrong depends on who found out: a certificate that fails *our* check is the peer's;
an alert is the peer's verdict on ours.

Sources: verify codes from OpenSSL's ``x509_vfy.h``, alerts from RFC 8446, section 6.2.
"""

from __future__ import annotations

import enum
import ssl
from typing import Final

from hastore.errors import TlsError


class TlsFault(enum.StrEnum):
    """The kinds of faults; ``TlsError.fault`` is one of them."""

    PLAIN_TEXT = "plain-text"  # the peer speaks no TLS
    NO_CERTIFICATE = "no-certificate"
    FOREIGN_CERTIFICATE = "foreign-certificate"  # not of a CA that is trusted
    EXPIRED_CERTIFICATE = "expired-certificate"  # or not valid yet
    REVOKED_CERTIFICATE = "revoked-certificate"  # its CA has withdrawn it
    WRONG_NAME = "wrong-name"
    VERSION = "tls-version"  # none that both sides speak
    TIMEOUT = "handshake-timeout"
    SIZE = "handshake-size"
    CUT = "cut"  # the connection ended before TLS did
    OTHER = "tls"


_F = TlsFault

PEER: Final = "the peer"
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_REVOKED: Final = 23
_LISTS: Final = frozenset({3, 8, 11, 12, 13, 33})  # what can be wrong with a CRL
_WRONG_NAMES: Final = frozenset({62, 63, 64})  # host, e-mail address, IP address

_EXPIRED_HINT: Final = "issue a new one and reload it there; if it is valid, check both clocks"
_FOREIGN_HINT: Final = "is it signed by a CA that the CA file of this side has?"
_REVOKED_HINT: Final = "issue a new one, with a new key, and put it there"
_OUR_REVOKED_HINT: Final = "issue a new one, with a new key, and put it in place of ours"
_LIST_HINT: Final = (
    "[tls] crl of this side needs a list of each CA, and a new one before its time is over"
)
_NAME_HINT: Final = "use a name that the certificate has, or issue one for this name"
_NONE_HINT: Final = "it needs a certificate and its key, signed by a CA that this side trusts"
_PLAIN_HINT: Final = "turn TLS on there, or off here; or is it another port?"
_VERSION_HINT: Final = "TLS 1.2 is the oldest version that is spoken here; update the other side"
_OURS_HINT: Final = "use a certificate that is signed by a CA that the peer trusts"
_OUR_NONE_HINT: Final = "give this side a certificate and its key"

_EOF_REASON: Final = "UNEXPECTED_EOF_WHILE_READING"  # no SSLEOFError in Python 3.11.2

# What OpenSSL finds, by its ``reason``.
_FOUND: Final[dict[str, tuple[TlsFault, str, str | None]]] = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        _F.NO_CERTIFICATE, "the peer has sent no certificate", _NONE_HINT
    ),
    "HTTP_REQUEST": (_F.PLAIN_TEXT, "the peer speaks HTTP, not TLS", _PLAIN_HINT),
    "HTTPS_PROXY_REQUEST": (_F.PLAIN_TEXT, "the peer speaks HTTP, not TLS", _PLAIN_HINT),
    "WRONG_VERSION_NUMBER": (_F.PLAIN_TEXT, "the peer speaks no TLS", _PLAIN_HINT),
    "UNSUPPORTED_PROTOCOL": (_F.VERSION, "the peer's TLS is too old", _VERSION_HINT),
    "VERSION_TOO_LOW": (_F.VERSION, "the peer's TLS is too old", _VERSION_HINT),
    "NO_PROTOCOLS_AVAILABLE": (_F.VERSION, "no TLS version is left to speak", _VERSION_HINT),
    "NO_SHARED_CIPHER": (_F.VERSION, "there is no cipher that both sides know", _VERSION_HINT),
    # The peer's verdict.
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": (
        _F.NO_CERTIFICATE, "the peer wants a certificate, and got none", _OUR_NONE_HINT
    ),
    "SSLV3_ALERT_HANDSHAKE_FAILURE": (
        _F.NO_CERTIFICATE,
        "the peer refuses the handshake: it may want a certificate",
        _OUR_NONE_HINT,
    ),
    "TLSV1_ALERT_UNKNOWN_CA": (
        _F.FOREIGN_CERTIFICATE, "the peer does not trust the CA of our certificate", _OURS_HINT
    ),
    "SSLV3_ALERT_BAD_CERTIFICATE": (
        _F.FOREIGN_CERTIFICATE, "the peer refuses our certificate", _OURS_HINT
    ),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": (
        _F.FOREIGN_CERTIFICATE, "the peer refuses our certificate", _OURS_HINT
    ),
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": (
        _F.FOREIGN_CERTIFICATE, "the peer cannot use our kind of certificate", _OURS_HINT
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": (
        _F.EXPIRED_CERTIFICATE,
        "the peer says that our certificate has expired",
        "issue a new one and reload it; if it is valid, check both clocks",
    ),
    "SSLV3_ALERT_CERTIFICATE_REVOKED": (
        _F.REVOKED_CERTIFICATE,
        "the peer says that our certificate has been withdrawn",
        _OUR_REVOKED_HINT,
    ),
    "TLSV1_ALERT_PROTOCOL_VERSION": (
        _F.VERSION, "the peer speaks none of the TLS versions that this side does", _VERSION_HINT
    ),
    "TLSV1_UNRECOGNIZED_NAME": (
        _F.WRONG_NAME, "the peer does not know the name that it was asked for", _NAME_HINT
    ),
}  # fmt: skip


def plain_text(peer: str = PEER) -> TlsError:
    """Return the error for a peer whose first bytes are no TLS record."""
    _, text, hint = _FOUND["WRONG_VERSION_NUMBER"]
    return TlsError(text.replace(PEER, peer), fault=TlsFault.PLAIN_TEXT, hint=hint)


def cut_short() -> TlsError:
    """Return the error for a stream that ended without TLS's own end (close_notify)."""
    return TlsError("the connection ended before TLS did: it was cut off", fault=TlsFault.CUT)


def withdrawn(peer: str = PEER) -> TlsError:
    """Return the error for a peer whose certificate its CA has withdrawn."""
    text = f"{peer}'s certificate has been withdrawn by its CA"
    return TlsError(text, fault=TlsFault.REVOKED_CERTIFICATE, hint=_REVOKED_HINT)


def as_tls_error(
    error: ssl.SSLError, *, server_name: str | None = None, peer: str = PEER
) -> TlsError:
    """Return what an error of OpenSSL's means.

    ``server_name``: whom this side wanted to reach; ``peer``: what to call the other side.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_verification(error, server_name, peer)
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, ssl.SSLEOFError) or reason == _EOF_REASON:
        return cut_short()
    found = _FOUND.get(reason)
    if found is None:
        text = reason.lower().replace("_", " ") or str(error)
        return TlsError(f"TLS failed: {text}", fault=TlsFault.OTHER)
    fault, text, hint = found
    return TlsError(text.replace(PEER, peer), fault=fault, hint=hint)


def _of_verification(
    error: ssl.SSLCertVerificationError, server_name: str | None, peer: str
) -> TlsError:
    why = error.verify_message.rstrip(".")
    if error.verify_code in _WRONG_NAMES:
        text = f"{peer}'s certificate is not for {server_name}"
        return TlsError(text, fault=TlsFault.WRONG_NAME, hint=_NAME_HINT)
    if error.verify_code == _EXPIRED:
        text = f"{peer}'s certificate has expired"
        return TlsError(text, fault=TlsFault.EXPIRED_CERTIFICATE, hint=_EXPIRED_HINT)
    if error.verify_code == _NOT_YET_VALID:
        text = f"{peer}'s certificate is not valid yet"
        return TlsError(text, fault=TlsFault.EXPIRED_CERTIFICATE, hint=_EXPIRED_HINT)
    if error.verify_code == _REVOKED:
        return withdrawn(peer)
    if error.verify_code in _LISTS:
        text = f"{peer}'s certificate cannot be checked: {why}"
        return TlsError(text, fault=TlsFault.FOREIGN_CERTIFICATE, hint=_LIST_HINT)
    text = f"{peer}'s certificate is not trusted: {why}"
    return TlsError(text, fault=TlsFault.FOREIGN_CERTIFICATE, hint=_FOREIGN_HINT)
