"""How long certificates are valid: told by doctor, check, status and metrics before it is over."""

import attrs
from prometheus_client.parser import text_string_to_metric_families

from hastore.broker.observe.findings import Level, Limits, findings
from hastore.broker.observe.metrics_text import metrics_text
from hastore.env.real import real_env
from hastore.tls.tls_contexts import TlsStatus, open_tls
from hastore_cli.doctor.facts import Facts
from hastore_cli.doctor.rules import Result, diagnose
from hastore_cli.status.check import check_status
from tests.support.certificates import DAY
from tests.support.nodes.in_memory_target import InMemoryTarget
from tests.support.nodes.tls_files import make_tls_files

NOW_S = 1_800_000_000


def test_certificates_that_expire_are_named_thirty_days_before():
    """In doctor, check, status and metrics; the CA's, too; and that it has expired."""
    now_s, day = NOW_S, 86_400
    good = TlsStatus(
        mode="enforcing",
        certificate="n.pem",
        not_after=now_s + 31 * day,
        ca_not_after=now_s + 400 * day,
        fault=None,
        hint=None,
    )
    status = attrs.evolve(InMemoryTarget().status(), wall_time_ms=now_s * 1_000)

    def found(**changes):
        known = attrs.evolve(status, tls=attrs.evolve(good, **changes))
        verdict = check_status(known, Limits())
        told = [each for each in findings(known, Limits()) if each.subject == "tls"]
        results = {each.result for each in diagnose([Facts(name="n", status=known)])}
        assert (Result.BAD in results) is (max(each.level for each in told) >= Level.FAULT)
        return verdict.state.name, [each.sentence for each in told]

    until = "the certificate of n.pem is in force, until 2027-02-15 08:00:00 UTC"
    assert found() == ("OK", [until])
    state, (sentence,) = found(not_after=now_s + 29 * day)
    assert (state, sentence) == (
        "WARNING",
        "the certificate of n.pem expires in 29 days, on 2027-02-13 08:00:00 UTC",
    )
    state, (sentence,) = found(ca_not_after=now_s + day)
    assert state == "WARNING"
    assert sentence.startswith("its CA's certificate expires in 24.0 h, on ")
    state, (sentence,) = found(not_after=now_s - 1)
    assert (state, "has expired on 2027-01-15 07:59:59 UTC" in sentence) == ("CRITICAL", True)
    state, sentences = found(not_after=now_s + day, fault="the new one is for tomorrow")
    assert (state, len(sentences)) == ("WARNING", 2)


def test_a_list_of_withdrawn_certificates_is_named_before_it_is_due():
    """When a tenth of its time is left; and that nobody comes in once it is over."""
    tls = TlsStatus(
        mode="enforcing",
        certificate="n.pem",
        not_after=NOW_S + 99 * 86_400,
        crl_issued_at=NOW_S - 80,
        crl_next_update=NOW_S + 20,
        fault=None,
        hint=None,
    )
    status = attrs.evolve(InMemoryTarget().status(), tls=tls)

    def found(age_s):
        known = attrs.evolve(status, wall_time_ms=(NOW_S + age_s) * 1_000)
        (told,) = [each for each in findings(known, Limits()) if each.subject == "tls"]
        return told.level, told.sentence

    assert found(0)[0] is Level.OK
    assert found(11) == (
        Level.WARNING,
        "the list of withdrawn certificates must be replaced by 2027-01-15 08:00:20 UTC",
    )
    assert found(21)[0] is Level.CRITICAL


def test_the_metrics_have_the_dates():
    """In seconds since 1970; a node without a certificate has no such sample."""
    tls = TlsStatus(
        mode="disabled",
        certificate="n",
        not_after=NOW_S,
        ca_not_after=1,
        crl_next_update=2,
        fault="x",
        hint=None,
    )

    def samples(status):
        families = text_string_to_metric_families(metrics_text(status).decode())
        found = [sample for family in families for sample in family.samples]
        return {each.name: each.value for each in found if each.name.startswith("hastore_tls")}

    status = InMemoryTarget().status()
    assert samples(status) == {}
    assert samples(attrs.evolve(status, tls=tls)) == {
        "hastore_tls_certificate_not_after_seconds": NOW_S,
        "hastore_tls_ca_not_after_seconds": 1,
        "hastore_tls_crl_next_update_seconds": 2,
        "hastore_tls_files_refused": 1,
    }


async def test_the_dates_are_those_of_the_files(tmp_path):
    """Of the node's certificate, and of its CA's."""
    files = make_tls_files(tmp_path)
    tls = await open_tls(files.config(), real_env())
    status = tls.status()
    assert status.not_after < status.ca_not_after
    short = files.authority.issue("short", valid=(-DAY, DAY / 8))
    tls = await open_tls(files.config(node=short), real_env())
    assert tls.status().not_after < status.not_after
    assert tls.status().ca_not_after == status.ca_not_after
    alone = attrs.evolve(files.config(), ca_file=None)
    assert (await open_tls(alone, real_env())).status().ca_not_after is None
