"""Certificates for tests of TLS: a CA, and what it signs."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import TYPE_CHECKING, Final

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
DAY: Final = dt.timedelta(days=1)
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_PEM: Final = serialization.Encoding.PEM


@attrs.frozen
class Certificates:
    """Paths of PEM files: a CA, and a certificate that it has signed, with its key."""

    ca: Path
    cert: Path
    key: Path


@attrs.frozen
class Authority:
    """A CA, from ``make_authority``."""

    directory: Path
    name: str
    ca: Path
    key: ec.EllipticCurvePrivateKey

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] | None = None,
        valid: tuple[dt.timedelta, dt.timedelta] = (-DAY, DAY),
        password: bytes | None = None,
        key: Key | None = None,
    ) -> Certificates:
        """Write a certificate, good for servers and clients, with its key.

        ``hosts``: by default this machine's loopback, and the name.  ``valid``: from when and until
        when, from now on; ``password`` encrypts the key.
        """
        hosts = (*LOOPBACK, name) if hosts is None else hosts
        key = key or ec.generate_private_key(ec.SECP256R1())
        usage = x509.ExtendedKeyUsage(
            [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        )
        cert = (
            _begin(name, key, self.name, valid)
            .add_extension(x509.SubjectAlternativeName([*map(_name_of, hosts)]), critical=False)
            .add_extension(usage, critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), False
            )
            .sign(self.key, hashes.SHA256())
        )
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password)
        key_pem = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, encryption)
        return Certificates(
            self.ca,
            _write(self.directory / f"{name}-cert.pem", cert.public_bytes(_PEM)),
            _write(self.directory / f"{name}-key.pem", key_pem),
        )

    @property
    def crl(self) -> Path:
        """The list that ``withdraw`` writes."""
        return self.directory / f"{self.name.replace(' ', '-')}-crl.pem"

    def withdraw(
        self,
        *made: Certificates,
        others: Iterable[int] = (),
        valid: tuple[dt.timedelta, dt.timedelta] = (-DAY, DAY),
        has_key_id: bool = True,
    ) -> Path:
        """Write a list of withdrawn certificates; ``others``: further numbers.

        ``has_key_id``: it names the key that has signed it, as RFC 5280 wants it.
        """
        now = dt.datetime.now(dt.UTC)
        builder = x509.CertificateRevocationListBuilder(
            _name(self.name), now + valid[0], now + valid[1]
        )
        if has_key_id:
            key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
            builder = builder.add_extension(key_id, critical=False)
        numbers = [x509.load_pem_x509_certificate(each.cert.read_bytes()) for each in made]
        for number in (*(each.serial_number for each in numbers), *others):
            row = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now)
            builder = builder.add_revoked_certificate(row.build())
        return _write(self.crl, builder.sign(self.key, hashes.SHA256()).public_bytes(_PEM))


def make_authority(
    directory: Path,
    name: str,
    *,
    valid: tuple[dt.timedelta, dt.timedelta] = (-DAY, DAY),
    issuer: Authority | None = None,
) -> Authority:
    """Write a CA's certificate; ``issuer``: who has signed it, by default itself."""
    directory.mkdir(exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    signing_key = key if issuer is None else issuer.key
    ca = (
        _begin(f"{name} CA", key, f"{name} CA" if issuer is None else issuer.name, valid)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.KeyUsage(False, False, False, False, False, True, True, False, False), True
        )
        .sign(signing_key, hashes.SHA256())
    )
    path = _write(directory / f"{name}-ca.pem", ca.public_bytes(_PEM))
    return Authority(directory, f"{name} CA", path, key)


def make_certificates(directory: Path, name: str) -> Certificates:
    """Write a CA and a certificate for this machine's loopback, good for servers and clients."""
    return make_authority(directory, name).issue(name)


def _begin(
    subject: str,
    key: Key,
    issuer: str,
    valid: tuple[dt.timedelta, dt.timedelta],
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + valid[0])
        .not_valid_after(now + valid[1])
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _name_of(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, data: bytes) -> Path:
    """Replace a file, as somebody does whose node watches it."""
    new = path.with_name(f".{path.name}.new")
    new.touch(0o600)
    new.write_bytes(data)
    return new.rename(path)
