"""``ssl`` contexts made of files: TLS 1.2 and up, no renegotiation, no compression, no tickets.

::

    cert, key ── read, checked ──┬── server context    client certificates: none, asked, required
    ca ──────────────────────────┴── client context    the server's must be signed by ca

Every fault is a ConfigError that names the file and the next step.  OpenSSL reads the certificate
and the key by their path, so these are files of the machine, also in a test's world.
"""

from __future__ import annotations

import contextlib
import re
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NoReturn

import attrs

from hastore.access.secret_file import check_is_private, read_password, read_secret_file
from hastore.config import DEFAULT_CIPHERS
from hastore.errors import ConfigError, DiskError
from hastore.status import ClientCertificates, TlsVersion
from hastore.tls.certificate import (
    certificate_id,
    name_text,
    pem_certificates,
    pem_lists,
    subject_of,
    validity_of,
)
from hastore.tls.revocation import NodeContext, Withdrawn

if TYPE_CHECKING:
    from hastore.env.interface import Disk, FileStamp
    from hastore.tls.certificate import Validity
    from hastore.tls.revocation import TlsLinks

FILE_SIZE_MAX: Final = 1024 * 1024
LISTS_SIZE_MAX: Final = 4 * 1024 * 1024  # some 80,000 withdrawn certificates
_VERSIONS: Final = {
    TlsVersion.V1_2: ssl.TLSVersion.TLSv1_2,
    TlsVersion.V1_3: ssl.TLSVersion.TLSv1_3,
}
_NEVER: Final = "!aNULL:!eNULL"
_VERIFY: Final = {
    ClientCertificates.NONE: ssl.CERT_NONE,
    ClientCertificates.ASKED: ssl.CERT_OPTIONAL,
    ClientCertificates.REQUIRED: ssl.CERT_REQUIRED,
}
# Also TRUSTED CERTIFICATE and X509 CERTIFICATE, which OpenSSL trusts as it does a CERTIFICATE.
_ANY_CERTIFICATE: Final = re.compile(rb"-----BEGIN [^-\n]*CERTIFICATE-----")
_NO_CHECK_TIME: Final = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, which ``ssl`` does not name
_REVOKED: Final = 23
# X509_V_ERR_*: what is wrong with a list, but for its time.
_BAD_LISTS: Final = frozenset({3, 5, 6, 8, 15, 16, 33, 35, 36, 44, 54})
_PRIVATE_KEY: Final = b"PRIVATE KEY-----"
_CHECK: Final = "check the path, its owner and its mode"
_DECRYPT: Final = "decrypt it: openssl pkey -in KEY -out NEW"


@attrs.frozen(kw_only=True)
class TlsFiles:
    """Paths of PEM files; ``ca`` None: the system's certificates are trusted.

    ``section``: of the configuration that names them; only ``tls`` has a ``key_password``,
    ``client_ca`` and ``crl``.
    """

    cert: str | None = None  # with the chain up to the CA, without it
    key: str | None = None
    key_password: str | None = None  # of a file with the key's password
    ca: str | None = None
    client_ca: str | None = None  # signs clients' certificates, beside ``ca``
    crl: str | None = None  # lists of withdrawn certificates, of each CA
    section: str = "tls"

    @property
    def is_strict(self) -> bool:
        """Whether hastore's own rules hold, of certificates and of ciphers.

        They do not at etcd, which may not look at a certificate: one out of its time, larger files
        of CAs, what OpenSSL calls a TRUSTED CERTIFICATE, and Python's default ciphers are as in
        earlier releases.
        """
        return self.section == "tls"

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that there are."""
        given = (self.cert, self.key, self.key_password, self.ca, self.client_ca, self.crl)
        return tuple(path for path in given if path is not None)

    def stamps(self, disk: Disk) -> tuple[FileStamp, ...]:
        """Return what changes when one of the files does.  Raises DiskError."""
        return tuple(disk.stamp(path) for path in self.paths)


@attrs.frozen
class TlsRules:
    """What both sides of a connection must be able to do at least."""

    min_version: TlsVersion = TlsVersion.V1_2
    ciphers: str = DEFAULT_CIPHERS  # OpenSSL's list, for TLS 1.2


@attrs.frozen
class CertificateDates:
    """When one of a file's certificates is valid."""

    path: str
    validity: Validity


def server_context(
    files: TlsFiles,
    client_certificates: ClientCertificates,
    disk: Disk,
    now_s: float,
    *,
    rules: TlsRules | None = None,
    links: TlsLinks | None = None,
    lists: Withdrawn | None = None,
) -> ssl.SSLContext:
    """Return what accepts TLS; ``links`` keeps its connections.  Blocks.  Raises ConfigError.

    ``lists`` is what ``files.crl`` has, if the caller has read and checked it.
    """
    context = NodeContext(ssl.PROTOCOL_TLS_SERVER)
    context.links = links
    _harden(context, rules)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0  # links live long, and a resumed one would outlive its certificate
    _load_certificate(context, files, disk, now_s)
    if client_certificates is not ClientCertificates.NONE:
        authorities = [path for path in (files.ca, files.client_ca) if path is not None]
        if not authorities:
            raise ConfigError(
                "client certificates are asked for, and nothing says who may sign them",
                hint="name the CA's certificate: [tls] ca, or client_ca",
            )
        for path in authorities:
            _load_ca(context, path, disk, now_s)
        _load_lists(context, files, authorities, disk, now_s, lists=lists)
    context.verify_mode = _VERIFY[client_certificates]
    return context


def client_context(
    files: TlsFiles,
    disk: Disk,
    now_s: float,
    *,
    rules: TlsRules | None = None,
    links: TlsLinks | None = None,
    lists: Withdrawn | None = None,
) -> ssl.SSLContext:
    """Return what connects by TLS, and checks the server's certificate and name.  Blocks.

    ``links`` and ``lists``: see ``server_context``.  Raises ConfigError.
    """
    context = NodeContext(ssl.PROTOCOL_TLS_CLIENT)
    context.links = links
    _harden(context, rules, sets_ciphers=files.is_strict)
    if files.ca is None and files.crl is not None:
        raise ConfigError(
            f"{files.crl} has lists of withdrawn certificates, and no CA is named for them",
            hint="name it (--tls-ca, HASTORE_TLS_CA or [tls] ca): the system's CAs have no lists",
        )
    if files.ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        if files.is_strict:
            _load_ca(context, files.ca, disk, now_s)
        else:
            _load_any_ca(context, files.ca, disk)
        _load_lists(context, files, [files.ca], disk, now_s, lists=lists)
    if files.cert is not None or files.key is not None:
        _load_certificate(context, files, disk, now_s)
    return context


def check_authorities_apart(files: TlsFiles, disk: Disk) -> None:
    """Check that no certificate of ``client_ca`` is good where ``ca`` is trusted.  Blocks.

    OpenSSL follows the certificates between that a client sends, up to a root.  So each certificate
    of ``client_ca`` needs its root there, and that root must not be in ``ca``.  Raises ConfigError.
    """
    if files.ca is None or files.client_ca is None:
        return
    of_nodes = _certificates(files.ca, _read(files.ca, disk))
    of_clients = _certificates(files.client_ca, _read(files.client_ca, disk))
    subjects = {subject_of(der) for der in of_clients}
    for der in of_clients:
        subject, issuer = subject_of(der), certificate_id(der)[0]
        if der in of_nodes or (issuer != subject and issuer in map(subject_of, of_nodes)):
            raise ConfigError(
                f"{files.client_ca} has {name_text(subject)}, which is in {files.ca} or signed by a"
                " certificate there: its clients could follow as nodes",
                hint="use a CA for clients with a root of its own, or leave [tls] client_ca out and"
                " say in [ha] tls_allowed_names who may follow",
            )
        if issuer not in subjects:
            raise ConfigError(
                f"{files.client_ca} has {name_text(subject)} without the certificate of"
                f" {name_text(issuer)}, which has signed it",
                hint="add the certificates up to the root, which must not be one of [tls] ca",
            )


def certificate_dates(path: str, disk: Disk) -> CertificateDates:
    """Return when a file's first certificate is valid.  Blocks.  Raises ConfigError."""
    return CertificateDates(path, _validities(path, _read(path, disk))[0])


def ca_dates(path: str, disk: Disk, now_s: float) -> CertificateDates:
    """Return the dates of that of a CA's certificates whose end ends the file's validity.

    While one CA follows another, the next one's certificate may be in the file before it is valid.
    So this is the last of an unbroken row: the first is valid now, each further one before the one
    before it ends.  Blocks.  Raises ConfigError for a file without a certificate, and if none is
    valid now.
    """
    return _ca_dates(path, _read(path, disk), now_s)


def _ca_dates(path: str, data: bytes, now_s: float) -> CertificateDates:
    validities = _validities(path, data)
    last, until_s = None, now_s
    for one in sorted(validities, key=lambda one: one.not_before):
        if one.not_before <= until_s <= one.not_after:
            last, until_s = one, one.not_after
    if last is None:
        check_dates(CertificateDates(path, max(validities, key=lambda one: one.not_after)), now_s)
    assert last is not None, "check_dates has refused it"
    return CertificateDates(path, last)


def check_dates(dates: CertificateDates, now_s: float) -> None:
    """Raise ConfigError for a certificate that is not valid now."""
    path, validity = dates.path, dates.validity
    if now_s > validity.not_after:
        raise ConfigError(
            f"the certificate in {path} has expired on {utc_text(validity.not_after)}",
            hint="make a new one: docs/security.md",
        )
    if now_s < validity.not_before:
        raise ConfigError(
            f"the certificate in {path} is valid only from {utc_text(validity.not_before)} on",
            hint="check this machine's clock, and the certificate's dates",
        )


def utc_text(seconds: int) -> str:
    """Return an instant for people: ``2027-01-31 23:59:59 UTC``."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _harden(
    context: ssl.SSLContext, rules: TlsRules | None = None, *, sets_ciphers: bool = True
) -> None:
    rules = rules or TlsRules()
    context.minimum_version = _VERSIONS[rules.min_version]
    try:
        # Without a certificate of the server, or without encryption, nothing is proven.
        if sets_ciphers:
            context.set_ciphers(f"{rules.ciphers}:{_NEVER}")
    except ssl.SSLError:
        raise ConfigError(
            f"[tls] ciphers {rules.ciphers!r} names no cipher that may be used",
            hint=f"openssl ciphers -v LIST shows what it names; the default is {DEFAULT_CIPHERS}",
        ) from None
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # Python 3.11.2, Debian 12's, sets it: a stream that was cut would end as a whole one does.
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF


def _read(path: str, disk: Disk, size_max: int = FILE_SIZE_MAX) -> bytes:
    """Return a file's bytes; one with a private key in it must be its owner's alone."""
    try:
        stamp = disk.stamp(path)
        if stamp.size > size_max:
            raise ConfigError(
                f"{path} has {stamp.size} bytes; at most {size_max} are read",
                hint="is it the right file?",
            )
        data = disk.read_file(path)
        if _PRIVATE_KEY in data:
            check_is_private(path, stamp)
        return data
    except DiskError as error:
        raise ConfigError(str(error), hint=_CHECK) from error


def _validities(path: str, data: bytes) -> list[Validity]:
    return [validity_of(der) for der in _certificates(path, data)]


def _certificates(path: str, data: bytes) -> list[bytes]:
    """Return a file's certificates (DER), which can be read; at least one."""
    try:
        found = pem_certificates(data)
        for der in found:
            validity_of(der)
    except ValueError:
        found = []
    if not found:
        raise _no_certificate(path)
    return found


def _no_certificate(path: str) -> ConfigError:
    return ConfigError(
        f"{path} has no certificate in PEM",
        hint="it begins with -----BEGIN CERTIFICATE-----; from DER: openssl x509 -inform DER",
    )


def _load_ca(context: ssl.SSLContext, path: str, disk: Disk, now_s: float) -> None:
    data = _read(path, disk)
    _ca_dates(path, data, now_s)
    try:
        context.load_verify_locations(cadata=data.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError) as error:
        raise _bad_ca(path, error) from None


def _load_any_ca(context: ssl.SSLContext, path: str, disk: Disk) -> None:
    """Trust what a file has, in the forms that OpenSSL reads."""
    data = _read(path, disk, LISTS_SIZE_MAX)
    if not _ANY_CERTIFICATE.search(data):
        raise _no_certificate(path)
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise _bad_ca(path, error) from None


def _bad_ca(path: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{path} has a certificate that cannot be read: {_reason(error)}",
        hint=f"openssl x509 -in {path} -noout -text",
    )


def check_modes(files: TlsFiles, disk: Disk) -> None:
    """Raise ConfigError if others can read a private key in one of the files.  Blocks."""
    if files.key is not None:
        read_secret_file(disk, files.key)
    for path in (files.cert, files.ca):
        if path is not None:
            _read(path, disk, LISTS_SIZE_MAX)


def _load_lists(
    context: ssl.SSLContext,
    files: TlsFiles,
    authorities: list[str],
    disk: Disk,
    now_s: float,
    *,
    lists: Withdrawn | None,
) -> None:
    """Refuse certificates that a list names, and those of a CA without a list that is in time."""
    if files.crl is None:
        return
    lists = lists or read_lists_in_time(files, disk, now_s)
    for path in authorities:
        data = _read(path, disk)
        for der in pem_certificates(data):
            if not lists.has_list_of(der) and validity_of(der).not_after >= now_s:
                name = name_text(subject_of(der))
                raise ConfigError(
                    f"{files.crl} has no list of {name}, whose certificate is in {path}:"
                    " no certificate that it has signed would be accepted",
                    hint="put the lists of all CAs into that file, one after the other; a list by"
                    " another key of a CA of that name does not count",
                )
    trusted = context.cert_store_stats()["x509"]
    try:
        context.load_verify_locations(cafile=files.crl)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            f"{files.crl} has a list that cannot be read: {_reason(error)}",
            hint=f"openssl crl -in {files.crl} -noout -text",
        ) from None
    if context.cert_store_stats()["x509"] != trusted:
        raise _certificate_among_lists(files.crl)
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN


def check_signatures(files: TlsFiles, server: ssl.SSLContext, disk: Disk) -> bool:
    """Check the lists of the CAs that have signed the certificate of ``server``.

    Shakes hands with it in memory: only OpenSSL can check a signature.  Whether a list is overdue
    does not matter.  Returns False if that certificate proves nothing, because ``ca`` has not
    signed it.  The lists of other CAs, such as ``client_ca``, cannot be checked like this.  Blocks.
    Raises ConfigError if a list is missing, or another key has signed it.
    """
    if files.ca is None or files.crl is None:
        return False
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    try:
        client.load_verify_locations(cadata=_read(files.ca, disk).decode("ascii", "ignore"))
        client.load_verify_locations(cafile=files.crl)
    except (OSError, ValueError):  # the contexts are refused with the reason
        return False
    client.verify_flags |= ssl.VerifyFlags(ssl.VERIFY_CRL_CHECK_CHAIN | _NO_CHECK_TIME)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for end in (asking, answering, asking):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _BAD_LISTS:
            raise ConfigError(
                f"{files.crl} has no sound list of a CA of this node's certificate:"
                f" {error.verify_message}",
                hint="get the list again, from the CA whose certificate is in [tls] ca; a CA"
                " between needs one, too",
            ) from None
        return error.verify_code == _REVOKED
    except ssl.SSLError:
        return False
    return True


def read_lists_in_time(files: TlsFiles, disk: Disk, now_s: float) -> Withdrawn:
    """Return what the lists of a file name.  Blocks.  Raises ConfigError if one is overdue, too."""
    lists, path = read_withdrawn(files, disk), files.crl
    if lists.validity is not None and lists.validity.not_after < now_s:
        raise ConfigError(
            f"a list in {path} was to be replaced by {utc_text(lists.validity.not_after)}: no"
            " certificate of its CA would be accepted",
            hint="get the CA's new list: openssl ca -gencrl, or its download",
        )
    return lists


def read_withdrawn(files: TlsFiles, disk: Disk) -> Withdrawn:
    """Return what the lists of ``files.crl`` name.  Blocks.  Raises ConfigError."""
    path = files.crl
    assert path is not None, "the caller has looked"
    authorities = [
        der
        for ca in (files.ca, files.client_ca)
        if ca is not None
        for der in _certificates(ca, _read(ca, disk))
    ]
    data = _read(path, disk, LISTS_SIZE_MAX)
    if _ANY_CERTIFICATE.search(data):  # OpenSSL would trust it
        raise _certificate_among_lists(path)
    try:
        lists = pem_lists(data)
        if lists:
            return Withdrawn.of(lists, authorities)
    except ValueError:
        pass
    raise ConfigError(
        f"{path} has no list of withdrawn certificates (CRL) in PEM, or a broken one",
        hint="it begins with -----BEGIN X509 CRL-----; from DER: openssl crl -inform DER",
    )


def _certificate_among_lists(path: str) -> ConfigError:
    return ConfigError(
        f"{path} has a certificate, and only lists of withdrawn ones may be in it",
        hint="leave the certificate out: [tls] ca names who is trusted",
    )


def _load_certificate(context: ssl.SSLContext, files: TlsFiles, disk: Disk, now_s: float) -> None:
    cert, key = files.cert, files.key
    if cert is None or key is None:
        raise ConfigError(
            "a certificate needs its key, and a key its certificate",
            hint=f"name both: [{files.section}] cert and key",
        )
    dates = certificate_dates(cert, disk)
    if files.is_strict:
        check_dates(dates, now_s)
    key_data, _ = read_secret_file(disk, key)
    if b"-----BEGIN " not in key_data or _PRIVATE_KEY not in key_data:
        raise ConfigError(
            f"{key} has no private key in PEM",
            hint="it begins with -----BEGIN PRIVATE KEY-----; is it the right file?",
        )
    password = None if files.key_password is None else read_password(disk, files.key_password)

    def tell_password() -> bytes:
        # OpenSSL would ask at the terminal.
        return _no_password(files) if password is None else password

    try:
        context.load_cert_chain(cert, key, tell_password)
    except (ssl.SSLError, ValueError) as error:
        raise _not_loaded(error, cert, key, has_password=password is not None) from None
    except OSError as error:
        raise ConfigError(f"cannot read {cert} or {key}: {error.strerror}", hint=_CHECK) from None


def _no_password(files: TlsFiles) -> NoReturn:
    hint = _DECRYPT
    if files.section == "tls":
        hint = f"name a file with its password ([tls] key_password_file), or {hint}"
    raise ConfigError(f"the key in {files.key} is encrypted", hint=hint)


def _not_loaded(error: Exception, cert: str, key: str, *, has_password: bool) -> ConfigError:
    if isinstance(error, ssl.SSLError) and error.reason in {
        "KEY_VALUES_MISMATCH",
        "KEY_TYPE_MISMATCH",
    }:
        return ConfigError(
            f"the key in {key} is not that of the certificate in {cert}",
            hint="the certificate comes first in its file, the chain after it; is it another one's"
            " key?",
        )
    if has_password:
        return ConfigError(
            f"the key in {key} cannot be decrypted or read", hint="check [tls] key_password_file"
        )
    return ConfigError(
        f"{cert} and {key} cannot be used: {_reason(error)}",
        hint=f"openssl x509 -in {cert} -noout -text; openssl pkey -in {key} -noout",
    )


def _reason(error: Exception) -> str:
    """Return OpenSSL's reason in words: ``ca md too weak``."""
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return str(reason or "not a certificate").replace("_", " ").lower()
