"""Consumer groups and their members, and the notifications of changes."""

import attrs
import trio

from hastore.broker.groups.consumer_manager import ConsumerManager
from hastore.wire.heartbeat_data import ConsumerData, HeartbeatData, Subscription
from hastore.wire.liberal_json import all_rows


@attrs.define(eq=False)
class FakeClient:
    name: str
    is_closed: bool = False
    notified: list[str] = attrs.field(factory=list)
    peer: tuple[str, int] = ("10.0.0.1", 5)

    def notify(self, command):
        assert (command.code, command.flag) == (40, 2)
        self.notified.append(command.ext_fields["consumerGroup"])


def beat(manager, client, *groups, version=1, topic="T", expression="*"):
    subscription = Subscription(topic=topic, expression=expression, version=version)
    consumers = tuple(ConsumerData(group=group, subscriptions=(subscription,)) for group in groups)
    manager.heartbeat(client, HeartbeatData(client_id=client.name, consumers=consumers), "CPP", 407)


async def test_members_are_notified_when_another_joins_or_leaves():
    """A first heartbeat, an unregistration and a closed connection count; a repetition does not."""
    manager = ConsumerManager(1000)
    one, two = FakeClient("one"), FakeClient("two")
    beat(manager, one, "g")
    beat(manager, one, "g")
    assert (one.notified, two.notified) == (["g"], [])
    beat(manager, two, "g", "h")
    assert (one.notified, two.notified) == (["g"] * 2, ["g", "h"])
    assert manager.client_ids("g") == ["one", "two"]
    manager.unregister(two, "g")
    manager.unregister(two, "g")
    assert one.notified == ["g"] * 3
    manager.client_gone(one)
    manager.client_gone(one)
    assert manager.client_ids("g") == []
    assert list(manager.groups) == ["h"]


async def test_a_heartbeat_replaces_the_clients_memberships():
    """A client leaves the groups that its new heartbeat does not name."""
    manager = ConsumerManager(1000)
    one, two = FakeClient("one"), FakeClient("two")
    beat(manager, one, "g", "h")
    beat(manager, two, "g")
    notified = len(two.notified)
    beat(manager, one, "h")
    assert manager.client_ids("g") == ["two"]
    assert two.notified[notified:] == ["g"]
    beat(manager, two)
    assert list(manager.groups) == ["h"]


async def test_the_newest_subscription_wins_without_notifications():
    """Members with different versions do not keep changing it; only a new topic is a change."""
    manager = ConsumerManager(1000)
    one, two = FakeClient("one"), FakeClient("two")
    beat(manager, one, "g", version=5, expression="new")
    beat(manager, two, "g", version=4, expression="old")
    assert manager.groups["g"].subscription("T").expression == "new"
    notified = len(one.notified)
    beat(manager, one, "g", version=5, expression="new")
    assert len(one.notified) == notified
    beat(manager, one, "g", topic="U")
    assert len(one.notified) == notified + 1
    assert manager.groups["g"].subscription("T") is None


async def test_what_a_member_said_goes_with_it():
    """Also with its next heartbeat; what another one has said stays, the newest of them."""
    manager = ConsumerManager(1000)
    one, two, three = FakeClient("one"), FakeClient("two"), FakeClient("three")
    beat(manager, one, "g", version=5, expression="new")
    beat(manager, two, "g", version=4, expression="old")
    beat(manager, three, "g", version=9, topic="U", expression="x" * 4_096)
    group = manager.groups["g"]
    assert (group.topics, manager.has_topic("T"), manager.has_topic("U")) == ({"U"}, False, True)
    manager.client_gone(three)
    assert (group.topics, group.subscription("T").expression) == ({"T"}, "new")
    assert (manager.has_topic("T"), manager.has_topic("U")) == (True, False)
    beat(manager, one, "g", version=3, expression="older")
    assert group.subscription("T").expression == "old", "the newest that a member says now"
    beat(manager, one)
    assert group.subscription("T").expression == "old"
    manager.client_gone(two)
    assert not manager.groups
    assert not manager.has_topic("T")


async def test_a_silent_client_is_dropped(autojump_clock, nursery):
    """A client that sends no heartbeat within the time-out loses its memberships; others stay."""
    manager = ConsumerManager(1000)
    nursery.start_soon(manager.run)
    one, two = FakeClient("one"), FakeClient("two")
    beat(manager, one, "g")
    beat(manager, two, "g")
    for _ in range(3):
        await trio.sleep(0.6)
        beat(manager, two, "g")
    assert manager.client_ids("g") == ["two"]
    await trio.sleep(2)
    assert not manager.groups
    beat(manager, one, "g")
    assert manager.client_ids("g") == ["one"]


async def test_a_group_can_disable_notifications():
    """The group's configuration decides."""
    manager = ConsumerManager(1000, notifies=lambda group: group != "quiet")
    one = FakeClient("one")
    beat(manager, one, "quiet", "loud")
    assert one.notified == ["loud"]


async def test_the_heartbeat_of_a_closed_connection_is_ignored():
    """The node may read it after the connection's end."""
    manager = ConsumerManager(1000)
    beat(manager, FakeClient("one", is_closed=True), "g")
    assert not manager.groups


async def test_connections_are_listed_in_rocketmqs_form():
    """The body that answers code 203: each member, and the subscriptions by topic."""
    manager = ConsumerManager(1000)
    beat(manager, FakeClient("one"), "g")
    body = all_rows(manager.connections("g"))
    assert body["connectionSet"] == [
        {"clientAddr": "10.0.0.1:5", "clientId": "one", "language": "CPP", "version": 407}
    ]
    assert body["subscriptionTable"]["T"]["subString"] == "*"
    assert body["consumeType"] == "CONSUME_PASSIVELY"
    assert manager.connections("nobody") is None


async def test_commits_count_again_if_no_member_pulls_after_a_reset(autojump_clock):
    """After ``timeout_ms``: a group that reads from a slave never does; nor does it move then."""
    manager, one = ConsumerManager(1000), FakeClient("one")
    beat(manager, one, "g")
    manager.reset("g", "T", {0: 5, 1: 6})
    manager.reset("unknown", "T", {0: 5})
    autojump_clock.jump(0.5)
    assert manager.is_overtaken("g", "T", 0, one)
    assert manager.take_reset("g", "T", 0, one) == 5
    assert not manager.is_overtaken("g", "T", 0, one)
    assert manager.is_overtaken("g", "T", 1, one)
    autojump_clock.jump(0.5)
    assert not manager.is_overtaken("g", "T", 1, one)
    assert manager.take_reset("g", "T", 1, one) is None
    beat(manager, one, "h")
    manager.reset("h", "T", {0: 5})
    assert list(manager._resets) == ["h"]


async def test_a_later_reset_counts_while_the_group_has_no_members():
    """Members that come back begin at the last one."""
    manager, one = ConsumerManager(1000), FakeClient("one")
    beat(manager, one, "g")
    manager.reset("g", "T", {0: 5})
    manager.client_gone(one)
    assert not manager.is_overtaken("g", "T", 0, one)
    manager.reset("g", "T", {0: 7})
    beat(manager, one, "g")
    assert manager.take_reset("g", "T", 0, one) == 7
