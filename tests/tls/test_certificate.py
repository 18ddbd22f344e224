"""The dates of a certificate, read from its bytes."""

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st

from hastore.tls.certificate import pem_certificates, validity_of
from tests.support.certificates import make_authority

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
KEY = ec.generate_private_key(ec.SECP256R1())
FROM, UNTIL = (int(dt.datetime(year, 1, 1, tzinfo=dt.UTC).timestamp()) for year in (1950, 9999))
TIMES = st.integers(FROM, UNTIL).map(lambda seconds: EPOCH + dt.timedelta(seconds=seconds))


def certificate(not_before, not_after, name="x"):
    """Return a certificate in PEM."""
    subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(
        subject, subject, KEY.public_key(), x509.random_serial_number(), not_before, not_after
    )
    return builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.PEM)


(DER,) = pem_certificates(certificate(EPOCH, EPOCH))


@settings(max_examples=200, deadline=None)
@given(st.lists(TIMES, min_size=2, max_size=2).map(sorted), st.text("abc", min_size=1, max_size=60))
def test_the_dates_are_those_with_which_it_was_made(times, name):
    """Before 1970, after 2050, whatever the sizes of what comes before them."""
    (der,) = pem_certificates(certificate(*times, name))
    validity = validity_of(der)
    assert [validity.not_before, validity.not_after] == [int(time.timestamp()) for time in times]


def test_all_certificates_of_a_file_are_found_in_order(tmp_path):
    """Texts around them, as openssl writes them, do not count."""
    first, second = (make_authority(tmp_path, name).ca.read_bytes() for name in ("a", "b"))
    found = pem_certificates(b"subject=CN = a\n" + first + b"\n\nsubject=CN = b\n" + second)
    assert found == [*pem_certificates(first), *pem_certificates(second)]
    assert len(found) == 2


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_bytes_are_an_error_or_a_date(data):
    """Never another exception."""
    broken = bytearray(DER[: data.draw(st.integers(0, len(DER)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if broken:
            broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    try:
        validity_of(bytes(broken))
    except ValueError:
        return


def test_another_tree_of_values_is_no_certificate():
    """With the reason."""
    with pytest.raises(ValueError, match="no certificate: tag 0x2, not 0x30"):
        validity_of(b"\x02\x01\x00")
    with pytest.raises(ValueError, match="ends early"):
        validity_of(b"\x30\x05\x30")
