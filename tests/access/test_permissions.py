"""What an account may do."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from hastore.access.permissions import ADMIN, DENY, PUB, SUB, Account, Need, Subject
from hastore.access.secret import Secret
from hastore.access.signature import AccessKey

KEY = AccessKey("some-key", Secret("12345678"))
ACCOUNT = Account(
    key=KEY,
    default_topic=PUB | SUB,
    default_group=DENY,
    topics={"orders": SUB, "audit": DENY, "RMQ_SYS_X": SUB},
    groups={"billing": SUB},
)


def topic(name, permission):
    return Need(Subject.TOPIC, name, permission)


@pytest.mark.parametrize(
    ("need", "granted", "why"),
    [
        (topic("other", PUB), True, "defaultTopicPerm: PUB|SUB"),
        (topic("orders", SUB), True, "topicPerms orders=SUB"),
        (topic("orders", PUB), False, "topicPerms orders=SUB"),
        (topic("orders", PUB | SUB), True, "topicPerms orders=SUB"),
        (topic("audit", SUB), False, "topicPerms audit=DENY"),
        (topic("%RETRY%billing", PUB), True, "the topic of group billing: groupPerms billing=SUB"),
        (topic("%DLQ%billing", SUB), True, "the topic of group billing: groupPerms billing=SUB"),
        (topic("%RETRY%x", SUB), False, "the topic of group x: defaultGroupPerm: DENY"),
        (topic("%DLQ%x", SUB), False, "the topic of group x: defaultGroupPerm: DENY"),
        (topic("SCHEDULE_TOPIC_XXXX", SUB), False, "SCHEDULE_TOPIC_XXXX is the broker's own"),
        (topic("RMQ_SYS_TRACE_TOPIC", PUB), True, "RMQ_SYS_TRACE_TOPIC is the broker's own"),
        (topic("RMQ_SYS_TRACE_TOPIC", SUB), False, "RMQ_SYS_TRACE_TOPIC is the broker's own"),
        (topic("RMQ_SYS_X", SUB), True, "topicPerms RMQ_SYS_X=SUB"),
        (Need(Subject.GROUP, "billing", SUB), True, "groupPerms billing=SUB"),
        (Need(Subject.GROUP, "x", SUB), False, "defaultGroupPerm: DENY"),
        (ADMIN, False, "admin: false"),
    ],
)
def test_the_most_specific_line_decides(need, granted, why):
    """A line for the name counts, then the group, then what is the broker's, then the default."""
    assert ACCOUNT.may(need) is granted
    assert ACCOUNT.why(need) == why


def test_an_admin_may_do_everything():
    """Whatever its other lines say."""
    admin = Account(key=KEY, is_admin=True, topics={"orders": DENY})
    assert admin.may(ADMIN)
    assert admin.may(topic("orders", PUB))
    assert admin.why(ADMIN) == "admin: true"


@pytest.mark.parametrize(
    ("host", "taken"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.1.2.3", False),
        ("2001:db8::7", True),
        ("fe80::1%eth0", False),
    ],
)
def test_a_key_counts_from_its_networks_only(host, taken):
    """IPv4 through an IPv6 socket is the same address."""
    networks = (ip_network("10.0.0.0/8"), ip_network("2001:db8::/32"))
    assert Account(key=KEY, networks=networks).takes(host) is taken
    assert Account(key=KEY).takes(host)


def test_needs_and_permissions_are_shown_as_in_the_file():
    """PUB|SUB is what the file says; a need names any of them."""
    assert (PUB | SUB).text == "PUB|SUB"
    assert DENY.text == "DENY"
    assert str(topic("t", PUB | SUB)) == "PUB or SUB on topic t"
    assert str(ADMIN) == "admin"


def test_some_accounts_can_read_no_topic_at_all():
    """A group is enough, because of its retry topic; PUB is not."""
    nothing = Account(key=KEY, default_topic=PUB, topics={"orders": PUB}, groups={"x": DENY})
    assert not nothing.reads_any_topic
    for more in (
        Account(key=KEY, is_admin=True),
        Account(key=KEY, default_topic=SUB),
        Account(key=KEY, default_group=SUB),
        Account(key=KEY, topics={"orders": PUB | SUB}),
        Account(key=KEY, groups={"x": SUB}),
    ):
        assert more.reads_any_topic
