"""Certificates for tests of TLS: a CA, and what it has signed."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@attrs.frozen
class Certificates:
    """Paths of PEM files: a CA, and a certificate that it has signed, with its key."""

    ca: Path
    cert: Path
    key: Path


def make_certificates(directory: Path, name: str) -> Certificates:
    """Write a CA and a certificate for 127.0.0.1, good for servers and clients."""
    directory.mkdir(exist_ok=True)
    now = dt.datetime.now(dt.UTC)

    def build(
        subject: str, key: ec.EllipticCurvePrivateKey, issuer: str
    ) -> x509.CertificateBuilder:
        def as_name(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

        return (
            x509.CertificateBuilder()
            .subject_name(as_name(subject))
            .issuer_name(as_name(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
        )

    def write(kind: str, data: bytes) -> Path:
        path = directory / f"{name}-{kind}.pem"
        path.write_bytes(data)
        return path

    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    pem = serialization.Encoding.PEM
    ca = (
        build(f"{name} CA", ca_key, f"{name} CA")
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), False)
        .add_extension(
            x509.KeyUsage(False, False, False, False, False, True, True, False, False), True
        )
        .sign(ca_key, hashes.SHA256())
    )
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    usage = x509.ExtendedKeyUsage(
        [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    )
    cert = (
        build(name, key, f"{name} CA")
        .add_extension(host, critical=False)
        .add_extension(usage, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False
        )
        .sign(ca_key, hashes.SHA256())
    )
    key_pem = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Certificates(
        write("ca", ca.public_bytes(pem)),
        write("cert", cert.public_bytes(pem)),
        write("key", key_pem),
    )
