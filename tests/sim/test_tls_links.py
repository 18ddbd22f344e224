"""Seeds with mutual TLS between the nodes: the same promises hold, and a seed is the same run.

The bytes on a link differ from run to run, because TLS draws its own randomness.  Their number does
not, and the network sees only that, and when they leave.  With keys whose signatures vary in size,
as ECDSA's do, it would differ, too.
"""

import functools

import attrs
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hastore.config import MasterConfig, SlaveConfig
from hastore.env.real import real_env
from hastore.ha.ha_tls import HATls
from hastore.sim import cluster
from hastore.sim.cluster import ClusterConfig
from hastore.sim.simulation import simulate
from hastore.tls import tls_contexts
from hastore.tls.tls_contexts import TlsContexts, open_tls
from tests.support.tls import OwnCa

SEEDS = 12
HOSTS = [f"10.0.0.{number}" for number in range(1, 9)]


@pytest.fixture(scope="module")
def certificates():
    """Return a CA, and a certificate of all nodes."""
    authority = OwnCa()
    return authority, authority.cert(*HOSTS, name="node", key=Ed25519PrivateKey.generate())


@pytest.fixture
def links(monkeypatch, certificates):
    """Let all nodes use TLS on their HA links; return how many were proven."""
    ca, cert = certificates
    contexts = trio.run(open_tls, ca.config(cert), real_env())
    plain, accept, proven = ClusterConfig.ha, HATls.accept, []

    async def opened(_config, env, _data_dir):  # OpenSSL reads real files, not the simulator's
        return attrs.evolve(contexts, env=env)

    async def never_look(_contexts):
        await trio.sleep_forever()

    async def counted(self, sock, timeout_s):
        link = await accept(self, sock, timeout_s)
        proven.append(1)
        return link

    def with_tls(config):
        return attrs.evolve(plain(config), tls=True, tls_allowed_names=("node",))

    monkeypatch.setattr(ClusterConfig, "ha", with_tls)
    monkeypatch.setattr(HATls, "accept", counted)
    monkeypatch.setattr(TlsContexts, "run", never_look)
    for kind in (MasterConfig, SlaveConfig):
        made = functools.partial(kind, tls=ca.config(cert))
        monkeypatch.setattr(cluster, kind.__name__, made)
    monkeypatch.setattr(tls_contexts, "open_tls", opened)
    return proven


@pytest.mark.parametrize("first", range(0, SEEDS, 4))
def test_seeds_with_tls_find_no_violation(links, first):
    """Crashes, cuts, splits and flipped bytes on the way included."""
    for seed in range(first, first + 4):
        result = simulate(seed)
        assert result.ok, f"seed {seed}: {result.violation}"
    assert sum(links) > 4


def test_a_seed_with_tls_is_the_same_run_again(links):
    """Only the sizes of what is sent matter, and they are the same."""
    for seed in (1, 4, 11):
        assert simulate(seed).trace_hash == simulate(seed).trace_hash
    assert links
