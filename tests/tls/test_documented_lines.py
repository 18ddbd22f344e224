"""The lines of docs/security.md that make a CA and certificates."""

import re
import shutil
import subprocess

import attrs
import pytest

import hastore
from hastore.client.producer import Producer
from hastore.config import TlsConfig
from hastore.message import Message
from hastore.status import ClientCertificates, TlsMode
from hastore.tls.client_tls import ClientTls
from tests.support.nodes.tls_files import master_with_tls
from tests.support.repository import REPO_ROOT

PAGE = REPO_ROOT / "docs/security.md"
LINES_MAX = 10


async def test_the_ten_lines_make_what_a_node_and_a_client_need(tmp_path):
    """Run as they are written; then a message goes in with both ends proven."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    (lines,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(lines.replace("\\\n", "").splitlines()) <= LINES_MAX
    subprocess.run(["sh", "-ec", lines], cwd=tmp_path, check=True, capture_output=True)

    def files(name):
        return {"cert": str(tmp_path / f"{name}.pem"), "key": str(tmp_path / f"{name}-key.pem")}

    ca, node = str(tmp_path / "ca.pem"), files("n1")
    config = TlsConfig(
        mode=TlsMode.ENFORCING,
        cert_file=node["cert"],
        key_file=node["key"],
        ca_file=ca,
        client_certificates=ClientCertificates.REQUIRED,
    )
    async with hastore.open_master(master_with_tls(tmp_path / "data", config)) as master:
        tls = ClientTls.of_files(ca=ca, **files("billing"), server_name="n1.example.com")
        async with Producer.connect(master.address, tls=tls) as producer:
            assert (await producer.send(Message("orders", b"x"))).ok
        by_address = attrs.evolve(tls, server_name="10.0.0.1")
        async with Producer.connect(master.address, tls=by_address) as producer:
            assert (await producer.send(Message("orders", b"x"))).ok
