"""Which nodes a put waits for, when members join and leave, and what a lost answer changes."""

import pytest

from hastore.epoch_history import EpochEntry
from hastore.ha.node_standing import NodeRole, standings
from hastore.ha.set_proposal import Answer, NoCoordinator
from hastore.ha.set_rules import MEMBERS_MAX, SetRules, default_min_in_sync_replicas
from hastore.ha.sync_state_set import HOLD_S, VOIDED_PAUSE_S, SyncStateSet

START = 1_000  # the log's end when the epoch began, at 0 s
THREE = frozenset({1, 2, 3})
FIVE = frozenset({1, 2, 3, 4, 5})
ALONE = SetRules(configured_ids=THREE)  # no coordinator
GUIDED = SetRules(configured_ids=THREE, has_coordinator=True)


class Group:
    """A set, the time, and the proposals that came of it; node n's connection is 10 · n + …."""

    def __init__(self, *members, rules=GUIDED, level="all", confirm_offset=START, acks=(), ids=()):
        self.now = 0.0
        self.proposals = []
        self.links = {}
        self.set = SyncStateSet(
            rules=rules,
            own_id=1,
            entry=EpochEntry(7, START),
            began=self.now,
            accepted=frozenset({1, *members}),
            min_offset=0,
            confirm_offset=confirm_offset,
            in_sync_replicas=level,
            group_ids=frozenset(ids),
        )
        for node_id, offset in zip(members, acks, strict=False):
            self.connect(node_id)
            self.ack(node_id, offset)

    def take(self, proposal):
        if proposal is not None:
            self.proposals.append(proposal)
        return proposal

    def connect(self, node_id, *, begin=0, is_observer=False):
        connection_id = self.links[node_id] = self.links.get(node_id, 10 * node_id - 1) + 1
        self.take(self.set.connected(node_id, connection_id, self.now, is_observer=is_observer))
        if begin is not None:
            self.take(self.set.log_begins(connection_id, begin, self.now))

    def ack(self, node_id, offset):
        return self.take(self.set.acknowledged(self.links[node_id], offset, self.now))

    def close(self, node_id):
        return self.take(self.set.disconnected(self.links[node_id], self.now))

    def append(self, end):  # as GroupHAService does
        return not self.set.advance(end) and self.set.appended(end, self.now)

    def answer(self, answer=Answer.ACCEPTED):
        return self.take(self.set.answer(self.set.proposal, answer, self.now))

    def wait(self, seconds):
        until = self.now + seconds
        while (deadline := self.set.next_deadline()) is not None and deadline <= until:
            self.now = deadline
            self.take(self.set.tick(self.now))
        self.now = until
        assert self.set.tick(self.now) is None, "a tick that no deadline announced"

    @property
    def offsets(self):
        return self.set.ack_limit, self.set.confirm_offset

    def why_not(self, node_id):
        return self.set.why_not(node_id)


# -- acks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "level", "acks", "decides"),
    [
        ((2,), "all", (900,), False),
        ((2,), 1, (900,), True),  # the append itself suffices
        ((2,), "all", (START,), True),  # node 2 has stalled by it
        ((), "all", (), True),
        ((2, 3), "all", (START,), False),  # node 3 has stalled before
    ],
)
def test_only_appends_that_decide_nothing_are_advanced(members, level, acks, decides):
    """The quick way leaves the set as the full one does, or leaves the append to it."""
    group, other = (Group(*members, level=level, acks=acks) for _ in range(2))
    for one in (group, other):
        one.set.appended(START, 0.0)
        if len(members) > len(acks):
            one.append(START + 5)
    assert group.set.advance(START + 10) is not decides
    if not decides:
        other.set.appended(START + 10, 1.0)
        assert standings(group.set) == standings(other.set)
        assert group.offsets == other.offsets
        assert group.set.next_deadline() == other.set.next_deadline()
        assert group.set.acks.end_offset == other.set.acks.end_offset


def test_put_is_acknowledged_when_all_members_have_it():
    """The slowest member decides; a learner and an observer do not count."""
    group = Group(2, 3, acks=(START, START), rules=SetRules(has_coordinator=True))
    group.append(1_500)
    group.connect(4, begin=None)
    group.connect(9, is_observer=True)
    for node_id in (2, 4, 9):
        group.ack(node_id, 1_500)
        assert group.offsets == (1_000, 1_000)
    group.ack(3, 1_200)
    assert group.offsets == (1_200, 1_200)
    assert group.set.is_acknowledged(1_200)
    assert not group.set.is_acknowledged(1_201)
    assert group.set.acknowledged_by(1_500) == {1, 2}
    group.ack(3, 1_500)
    assert group.offsets == (1_500, 1_500)


@pytest.mark.parametrize(
    ("level", "limit"), [(1, 2_000), (2, 1_900), (3, 1_500), (4, 0), ("all", 1_500)]
)
def test_number_counts_nodes_and_the_master_is_one(level, limit):
    """The confirm offset stays what all members have."""
    group = Group(2, 3, acks=(START, START), level=level)
    group.append(2_000)
    group.ack(2, 1_500)
    group.ack(3, 1_900)
    assert group.offsets == (limit, 1_500)


def test_master_alone_in_its_set_confirms_its_end():
    """With min_in_sync_replicas = 1, PUT_OK needs nobody else."""
    group = Group()
    group.append(1_500)
    assert group.offsets == (1_500, 1_500)
    assert group.set.unavailable_because() is None


def test_two_connections_of_one_id_count_once():
    """With a number as well: node 2 twice is one node."""
    group = Group(2, 3, acks=(START, START), level=3)
    group.append(1_500)
    group.ack(2, 1_500)
    group.connect(2)
    group.set.acknowledged(20, 1_500, group.now)
    group.ack(2, 1_500)
    assert group.set.ack_limit == 1_000
    assert group.set.acknowledged_by(1_500) == {1, 2}


def test_acks_of_an_earlier_connection_are_not_kept():
    """A node that comes back may have less; the confirm offset does not fall for it."""
    group = Group(2, acks=(START,), rules=ALONE)
    group.append(1_500)
    group.ack(2, 1_400)
    group.connect(2)
    assert group.offsets == (0, 1_400)
    group.ack(2, 1_100)
    assert group.offsets == (1_100, 1_400)
    group.ack(2, 1_500)
    assert group.offsets == (1_500, 1_500)


def test_confirm_offset_stands_still_while_a_member_is_absent():
    """Others may acknowledge what they like."""
    group = Group(2, 3, acks=(START, START))
    group.append(1_500)
    group.now = 1.0
    group.set.hand_over()
    group.close(3)
    group.ack(2, 1_500)
    assert group.offsets == (0, 1_000)
    group.connect(3)
    assert group.offsets == (0, 1_000)
    group.ack(3, 1_300)
    assert group.offsets == (1_300, 1_300)


def test_members_are_awaited_that_have_not_connected_yet():
    """After a promotion puts wait for them, and the confirm offset stands where it was stored."""
    group = Group(2, 3, confirm_offset=600)
    group.append(1_500)
    assert group.offsets == (0, 600)
    assert group.set.missing() == {2, 3}
    group.connect(2)
    group.ack(2, 1_500)
    assert group.offsets == (0, 600)
    group.connect(3)
    group.ack(3, 900)
    assert group.offsets == (900, 900)


def test_needed_set_is_that_of_the_decision_not_of_the_put():
    """A put from before a node joined waits for that node, too."""
    group = Group(2, acks=(START,))
    group.append(1_500)
    group.connect(3)
    group.ack(3, START)
    assert group.set.needed == {1, 2, 3}
    group.ack(2, 1_500)
    assert not group.set.is_acknowledged(1_500)
    group.ack(3, 1_500)
    assert group.set.is_acknowledged(1_500)


# -- min_in_sync_replicas -------------------------------------------------------------------------


def test_puts_are_refused_while_too_few_members_are_accepted():
    """A pending one does not count."""
    rules = SetRules(min_in_sync_replicas=2, has_coordinator=True)
    group = Group(rules=rules)
    assert group.set.refused_because() == (
        "the SyncStateSet is node 1 only, fewer than min_in_sync_replicas = 2"
    )
    group.connect(2)
    group.ack(2, START)
    assert group.set.needed == {1, 2}
    assert group.set.refused_because() is not None
    group.answer()
    assert group.set.refused_because() is None


BY_DEFAULT = SetRules(follows_ids=True, has_coordinator=True)
DEFAULT_TEXT = "min_in_sync_replicas = 2 (the default in a group of three or more)"


@pytest.mark.parametrize(
    ("ids", "level", "least"),
    [
        ({1}, "all", 1),
        ({1, 2}, "all", 1),
        ({1, 2, 3}, "all", 2),
        ({1, 2, 3, 4, 5}, "all", 2),
        ({1, 2, 3}, 3, 2),
        ({1, 2, 3}, 1, 1),  # in_sync_replicas 1 asks for one copy
    ],
)
def test_a_group_that_can_spare_a_node_keeps_two_copies(ids, level, least):
    """Unless the configuration names another number."""
    assert default_min_in_sync_replicas(frozenset(ids), level) == least
    assert BY_DEFAULT.for_ids(frozenset(ids), level).min_in_sync_replicas == least
    assert GUIDED.for_ids(frozenset(ids), level) is GUIDED


def test_a_group_of_three_acknowledges_nothing_with_one_copy():
    """The set keeps two members, whatever becomes of their links, and a put says why it fails."""
    group = Group(2, 3, rules=BY_DEFAULT, acks=(START, START))
    for node_id in (2, 3):
        group.close(node_id)
    group.wait(3_600)
    assert (group.set.accepted, group.proposals) == ({1, 2, 3}, [])
    group.append(1_500)
    assert not group.set.is_acknowledged(1_500)
    assert group.set.unavailable_because() == (
        f"nodes 2, 3 not connected, and the set may not shrink: fewer than {DEFAULT_TEXT} would"
        " remain"
    )
    group.connect(2)
    group.ack(2, 1_500)  # two copies: node 3, which is late, leaves
    group.answer()
    assert group.set.accepted == {1, 2}
    assert group.set.is_acknowledged(1_500)


def test_a_master_that_is_alone_in_a_group_of_three_refuses_puts():
    """As after an election that nobody else took part in."""
    group = Group(rules=BY_DEFAULT, ids=THREE)
    assert group.set.refused_because() == (
        f"the SyncStateSet is node 1 only, fewer than {DEFAULT_TEXT}"
    )
    group.connect(3)
    group.ack(3, START)
    group.answer()
    assert group.set.refused_because() is None


def test_nodes_that_are_removed_or_join_change_the_default():
    """Never so that a node which joins stops the puts: it is in the set by then."""
    group = Group(rules=BY_DEFAULT, ids={1, 2, 3})
    assert group.take(group.set.registered(frozenset({1, 2}), group.now)) is None
    assert group.set.refused_because() is None
    group.append(1_500)
    assert group.set.is_acknowledged(1_500)
    group.connect(3)
    group.ack(3, 1_500)
    assert group.set.rules.min_in_sync_replicas == 1
    group.answer()
    assert (group.set.group_ids, group.set.rules.min_in_sync_replicas) == ({1, 2, 3}, 2)
    assert group.set.refused_because() is None


def test_a_number_of_acks_changes_the_default_too():
    """One copy where one was asked for."""
    group = Group(rules=BY_DEFAULT, ids=THREE)
    group.set.change_in_sync_replicas(1)
    assert group.set.refused_because() is None
    group.set.change_in_sync_replicas("all")
    assert group.set.refused_because() is not None


@pytest.mark.parametrize("level", ["all", 1, 2])
def test_waiting_puts_are_not_released_below_min_in_sync_replicas(level):
    """Neither is anything confirmed, until enough members are accepted again."""
    rules = SetRules(min_in_sync_replicas=2, has_coordinator=True)
    group = Group(2, acks=(START,), rules=rules, level=level)
    group.append(1_500)
    group.set.moved(frozenset({1}), frozenset({2}), group.now)
    assert group.offsets == (0, 1_000)
    assert group.set.eligible == {2}
    group.ack(2, 1_500)
    assert group.offsets == (0, 1_000)
    group.answer()
    assert group.offsets == (1_500, 1_500)
    assert group.set.eligible == frozenset()


# -- joining --------------------------------------------------------------------------------------


def test_learner_joins_when_it_has_reached_the_confirm_offset():
    """It is awaited from the proposal on, and a member once that is accepted."""
    group = Group(2, acks=(START,))
    group.append(2_000)
    group.ack(2, 1_600)
    group.connect(3)
    assert group.ack(3, 1_599) is None
    assert group.why_not(3) == "it lacks 1 bytes below the confirm offset"
    proposal = group.ack(3, 1_600)
    assert (proposal.number, proposal.members, proposal.joined) == (1, {1, 2, 3}, {3})
    assert str(proposal) == "the set {1, 2, 3}: node 3 reached the confirm offset"
    group.ack(2, 2_000)
    assert group.offsets == (1_600, 1_600)
    assert group.set.accepted == {1, 2}
    group.answer()
    assert group.set.accepted == {1, 2, 3}


@pytest.mark.parametrize(
    ("ack", "begin", "node_id", "why_not"),
    [
        (None, 0, 3, "it has acknowledged nothing on this connection"),
        (999, 0, 3, "it lacks 1 bytes below the start of epoch 7"),
        (1_000, None, 3, "where its log begins is not known"),
        (1_000, 101, 3, "its log begins at 101, this master's at 100"),
        (1_000, 100, 4, "the ids of the group are 1, 2, 3"),
        (1_000, 100, 3, "it is proposed, and not accepted yet"),
    ],
)
def test_conditions_of_joining(ack, begin, node_id, why_not):
    """Each of them alone keeps a learner out; the last row has them all."""
    group = Group(2, acks=(START,), confirm_offset=500)
    group.set.expired(100, group.now)
    group.connect(node_id, begin=begin)
    if ack is not None:
        group.ack(node_id, ack)
    assert group.why_not(node_id) == why_not
    assert (node_id in group.set.needed) == why_not.startswith("it is proposed")


def test_learner_joins_when_the_masters_oldest_files_have_expired():
    """Its log is then not shorter any more."""
    group = Group()
    group.connect(2, begin=100)
    group.ack(2, START)
    assert group.set.needed == {1}
    assert group.set.expired(100, group.now).joined == {2}


def test_set_has_a_limit():
    """Peers with ever new ids do not grow it for ever."""
    members = range(2, MEMBERS_MAX + 1)
    group = Group(*members, acks=[START] * len(members), rules=SetRules())
    group.connect(100)
    assert group.ack(100, START) is None
    assert group.why_not(100) == "the set has 64 members, which is the limit"


def load(group, node_id, rounds, seconds=0.1):
    """The node is always one put behind."""
    for _ in range(rounds):
        end = group.set.acks.end_offset
        group.append(end + 100)
        group.now += seconds
        group.ack(node_id, end)


def test_learner_joins_a_set_of_one_under_load():
    """KAFKA-4485: its acks are always of a former end, so the confirm offset must wait for it."""
    group = Group()
    group.connect(2)
    group.append(1_100)
    group.ack(2, 1_000)
    load(group, 2, 1)
    assert group.set.held_id == 2
    assert group.why_not(2) == "it lacks 100 bytes below the confirm offset; that waits for it"
    assert group.offsets == (1_100, 1_200)
    load(group, 2, 1)
    assert group.set.proposal.joined == {2}
    assert group.set.held_id is None


def test_slow_learner_is_not_held():
    """A put would wait for it as long as it takes."""
    group = Group()
    group.connect(2)
    load(group, 2, 20, seconds=0.6)
    assert group.set.held_id is None
    assert group.offsets == (3_000, 3_000)


def test_confirm_offset_waits_a_second_at_most():
    """Then for nobody until sync_state_timeout has passed."""
    group = Group()
    group.connect(2)
    load(group, 2, 2)
    assert group.set.held_id == 2
    assert group.set.next_deadline() == group.now + HOLD_S
    group.append(1_500)
    group.wait(HOLD_S)
    assert group.set.held_id is None
    assert group.offsets == (1_500, 1_500)
    load(group, 2, 40)
    assert group.set.held_id is None
    load(group, 2, 20)
    assert 2 in group.set.needed


@pytest.mark.parametrize("event", ["close", "connect", "hand_over", "observe"])
def test_learner_that_goes_is_waited_for_no_longer(event):
    """Its next connection begins again."""
    group = Group()
    group.connect(2)
    load(group, 2, 2)
    assert group.set.held_id == 2
    match event:
        case "close":
            group.close(2)
        case "connect":
            group.connect(2)
        case "observe":
            group.connect(2, is_observer=True)
        case "hand_over":
            group.set.hand_over()
    assert group.set.held_id is None
    assert group.offsets == (1_200, 1_200)


def test_learner_that_others_make_a_member_is_not_held():
    """A person, or an election, may put it into the set."""
    group = Group()
    group.connect(2)
    load(group, 2, 2)
    group.set.moved(frozenset({1, 2}), frozenset(), group.now)
    assert group.set.held_id is None
    assert group.offsets == (1_100, 1_200)
    group.ack(2, 1_200)
    assert group.offsets == (1_200, 1_200)


# -- leaving --------------------------------------------------------------------------------------


def test_member_leaves_at_once_when_its_link_closes_and_the_rest_is_a_majority():
    """Puts wait for it until that is accepted."""
    group = Group(2, 3, acks=(START, START), rules=ALONE)
    group.append(1_500)
    group.ack(2, 1_500)
    proposal = group.close(3)
    assert (proposal.members, proposal.left) == ({1, 2}, {3: "closed its link"})
    assert str(proposal) == "the set {1, 2}: node 3 closed its link"
    assert group.offsets == (0, 1_000)
    assert group.set.unavailable_because() is None
    group.answer()
    assert group.offsets == (1_500, 1_500)
    assert group.why_not(3) == "it closed its link"


def test_shrink_is_not_used_before_it_is_accepted():
    """Whatever comes before the answer: acks, appends, ticks."""
    group = Group(2, 3, acks=(START, START))
    group.close(3)
    group.append(1_500)
    group.ack(2, 1_500)
    group.wait(60)
    assert group.set.accepted == {1, 2, 3}
    assert group.offsets == (0, 1_000)


@pytest.mark.parametrize("level", ["all", 2])
def test_unanswered_proposal_is_not_forgotten(level):
    """Nothing but an answer ends it; until then no other proposal follows."""
    group = Group(2, acks=(START,), rules=SetRules(has_coordinator=True), level=level)
    group.connect(3)
    pending = group.ack(3, START)
    group.append(1_500)
    group.ack(2, 1_400)
    group.close(3)
    group.connect(4)
    group.ack(4, 1_500)
    group.wait(60)
    group.close(2)
    group.wait(60)
    assert group.set.proposal is pending
    assert group.proposals == [pending]
    assert group.set.needed == {1, 2, 3}
    assert group.offsets == (0, 1_000)
    group.answer()
    assert [proposal.left.keys() for proposal in group.proposals[1:]] == [{2, 3}]
    assert group.set.accepted == {1, 2, 3}


def test_answer_to_another_proposal_is_a_programmer_error():
    """A void one must not come into force."""
    group = Group(2, 3, acks=(START, START))
    proposal = group.close(3)
    group.answer(Answer.VOIDED)
    with pytest.raises(AssertionError):
        group.set.answer(proposal, Answer.ACCEPTED, group.now)


def test_voided_proposal_is_made_again_after_a_pause():
    """The set stays as it was accepted."""
    group = Group(2, 3, acks=(START, START))
    group.close(3)
    assert group.answer(Answer.VOIDED) is None
    assert group.set.needed == {1, 2, 3}
    assert group.set.next_deadline() == VOIDED_PAUSE_S
    group.wait(VOIDED_PAUSE_S)
    assert [proposal.members for proposal in group.proposals] == [{1, 2}, {1, 2}]


def test_voided_learner_is_awaited_no_longer():
    """It remains a learner, and the next proposal names it again."""
    group = Group(2, acks=(START,))
    group.connect(3)
    group.ack(3, START)
    group.append(1_500)
    group.ack(2, 1_500)
    group.answer(Answer.VOIDED)
    assert group.offsets == (1_500, 1_500)
    assert group.why_not(3) == "it lacks 500 bytes below the confirm offset"
    group.ack(3, 1_500)
    assert group.why_not(3) == "its proposal was voided; the next one follows"
    group.wait(VOIDED_PAUSE_S)
    assert group.set.needed == {1, 2, 3}


def test_links_that_close_together_wait_a_second():
    """So two closings do not each pass the majority test."""
    group = Group(2, 3, 4, 5, acks=[START] * 4, rules=SetRules(configured_ids=FIVE))
    assert group.close(2).members == {1, 3, 4, 5}
    group.answer()
    group.now = 0.5
    assert group.close(3) is None
    group.now = 0.6
    assert group.close(4) is None
    assert group.set.next_deadline() == 1.6
    group.wait(4.8)
    assert group.set.proposal is None
    group.connect(3)
    assert [proposal.members for proposal in group.proposals[1:]] == [{1, 3, 5}]


def test_second_closing_counts_after_a_second_if_the_rest_is_a_majority():
    """Of five nodes, two may go within a second."""
    group = Group(2, 3, 4, 5, acks=[START] * 4, rules=SetRules(configured_ids=FIVE))
    group.close(2)
    group.answer()
    group.now = 0.9
    assert group.close(3) is None
    group.wait(0.99)
    assert group.set.proposal is None
    group.wait(0.01)
    assert group.set.proposal.members == {1, 4, 5}


@pytest.mark.parametrize(
    ("rules", "remaining"),
    [
        (SetRules(has_coordinator=True), {1}),
        (SetRules(configured_ids=THREE, has_coordinator=True), {1}),
        (SetRules(configured_ids=THREE, has_coordinator=True, min_in_sync_replicas=2), None),
        (SetRules(configured_ids=THREE), None),
        (SetRules(), None),
    ],
)
def test_last_other_member_leaves_only_after_the_timeout_and_if_the_rules_allow(rules, remaining):
    """At once never: the master alone is no majority."""
    group = Group(2, acks=(START,), rules=rules)
    assert group.close(2) is None
    group.wait(4.99)
    assert group.proposals == []
    group.wait(0.01)
    assert [proposal.members for proposal in group.proposals] == [remaining] * bool(remaining)
    group.wait(60)
    assert len(group.proposals) == bool(remaining)
    assert group.set.next_deadline() is None


def test_member_that_is_silent_with_bytes_unacknowledged_leaves_after_the_timeout():
    """Reports of one offset are silence; an idle log asks for nothing."""
    group = Group(2, 3, acks=(START, START), rules=ALONE)
    group.wait(60)
    assert group.set.next_deadline() is None
    assert group.append(1_500)
    group.now += 2
    group.ack(2, 1_500)
    group.ack(3, 1_100)
    group.now += 4
    group.ack(3, 1_100)
    assert group.set.next_deadline() == 60 + 2 + 5
    group.wait(1)
    (proposal,) = group.proposals
    assert proposal.left == {3: "acknowledged nothing new for 5 s"}
    assert group.why_not(3).endswith("; its removal is not accepted yet")


def test_member_that_acknowledges_step_by_step_stays():
    """However far behind it is."""
    group = Group(2, acks=(START,))
    group.append(10_000)
    for offset in range(1_001, 1_011):
        group.wait(4.9)
        group.ack(2, offset)
    assert group.proposals == []


def test_members_that_have_not_connected_have_the_timeout_from_the_promotion_on():
    """A closing of others does not make them leave at once."""
    group = Group(2, 3)
    group.now = 0.5
    group.connect(2)
    group.ack(2, START)
    group.wait(4.4)
    assert group.proposals == []
    group.wait(0.1)
    assert [proposal.left for proposal in group.proposals] == [{3: "was not connected for 5 s"}]


def test_members_leave_together_or_not_at_all():
    """Part of them would make nobody's put succeed, and leave fewer nodes to elect."""
    rules = SetRules(configured_ids=THREE, has_coordinator=True, min_in_sync_replicas=2)
    group = Group(2, 3, acks=(START, START), rules=rules)
    group.append(1_500)
    group.wait(60)
    assert group.proposals == []
    assert group.ack(2, 1_100).left == {3: "acknowledged nothing new for 5 s"}


def test_node_that_left_joins_again_only_after_a_new_ack():
    """Its last one may be above a confirm offset that stands still."""
    rules = SetRules(configured_ids=FIVE, has_coordinator=True, min_in_sync_replicas=3)
    group = Group(2, 3, 4, acks=[START] * 3, rules=rules)
    group.append(1_500)
    group.ack(2, 1_500)
    group.ack(3, 1_200)
    group.wait(4)
    group.ack(4, 1_001)
    group.wait(1)
    assert group.set.proposal.left.keys() == {3}
    assert group.answer() is None
    assert group.why_not(3) == (
        "it acknowledged nothing new for 5 s, and has acknowledged nothing new since"
    )
    assert group.ack(3, 1_200) is None
    assert group.ack(3, 1_300).joined == {3}


def test_node_that_left_and_has_all_of_the_log_joins_again_by_repeating_its_ack():
    """While nothing is put it has nothing newer to acknowledge."""
    group = Group(2, 3, acks=(START, START), rules=ALONE)
    group.close(3)
    assert group.set.proposal.left == {3: "closed its link"}
    group.connect(3)
    group.ack(3, START)
    assert group.answer() is None
    assert group.why_not(3) == "it closed its link, and has acknowledged nothing new since"
    assert group.ack(3, START).joined == {3}


def test_master_that_hands_over_never_shrinks():
    """It proposes nothing at all until it goes on."""
    group = Group(2, acks=(START,))
    group.set.hand_over()
    group.connect(3)
    group.ack(3, START)
    assert group.why_not(3) == "this master hands over"
    group.close(2)
    group.wait(60)
    assert group.proposals == []
    assert group.set.accepted == {1, 2}
    proposal = group.take(group.set.resume(group.now))
    assert proposal.members == {1, 3}


def test_member_that_comes_back_as_an_observer_is_absent():
    """Its acks do not count."""
    group = Group(2, 3, acks=(START, START), rules=ALONE)
    group.append(1_500)
    group.ack(3, 1_500)
    group.connect(2, is_observer=True)
    assert group.set.missing() == {2}
    assert group.proposals[0].left == {2: "closed its link"}
    group.ack(2, 1_500)
    assert group.offsets == (0, 1_000)


# -- puts that would wait in vain -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (SetRules(has_coordinator=True), None),
        (GUIDED, None),
        (
            SetRules(has_coordinator=True, min_in_sync_replicas=2),
            "fewer than min_in_sync_replicas = 2 would remain",
        ),
        (ALONE, "there is no coordinator, and no majority of nodes 1, 2, 3 would remain"),
        (SetRules(), "there is no coordinator, and the ids of the group are not configured"),
    ],
)
def test_put_is_not_available_where_the_set_may_not_shrink(rules, reason):
    """Where it may, the put waits for that."""
    group = Group(2, acks=(START,), rules=rules)
    assert group.set.unavailable_because() is None
    group.close(2)
    expected = reason and f"node 2 not connected, and the set may not shrink: {reason}"
    assert group.set.unavailable_because() == expected


def test_put_is_not_available_where_the_set_stays_as_it_is():
    """A master that hands over never shrinks; what was proposed before may still be accepted."""
    group = Group(2, acks=(START,))
    group.set.hand_over()
    assert group.set.unavailable_because() is None
    group.close(2)
    assert group.set.unavailable_because() == (
        "node 2 not connected, and the set may not shrink: this master hands over"
    )
    group = Group(2, 3, acks=(START, START))
    group.close(3)
    group.set.hand_over()
    assert group.set.unavailable_because() is None
    group.close(2)
    assert "this master hands over" in group.set.unavailable_because()


def test_put_waits_for_a_pending_learner_that_is_gone():
    """The answer decides whether it is needed."""
    group = Group(rules=SetRules())
    group.connect(2)
    group.ack(2, START)
    group.close(2)
    assert group.set.missing() == {2}
    assert group.set.unavailable_because() is None


def test_number_is_not_available_with_fewer_links():
    """A smaller set would not help."""
    group = Group(2, 3, acks=(START, START), level=2)
    group.close(2)
    group.answer()
    assert group.set.unavailable_because() is None
    group.close(3)
    assert group.set.unavailable_because() == (
        "in_sync_replicas = 2, and 1 of the SyncStateSet connected"
    )


# -- the coordinator ------------------------------------------------------------------------------


def test_state_that_has_moved_ends_the_pending_proposal():
    """The proposal compared with the former state, so it cannot be applied any more."""
    group = Group(2, 3, acks=(START, START))
    group.close(3)
    group.append(1_500)
    group.ack(2, 1_500)
    group.set.moved(frozenset({1, 2}), frozenset(), group.now)
    assert group.set.proposal is None
    assert group.offsets == (1_500, 1_500)
    assert group.why_not(3) == "it was taken out of the set"


def test_member_of_a_moved_state_has_the_timeout_from_then_on():
    """As after a promotion."""
    group = Group(2, acks=(START,))
    group.wait(60)
    group.set.moved(THREE, frozenset(), group.now)
    assert group.offsets == (0, 1_000)
    group.wait(4.9)
    assert group.proposals == []
    group.wait(0.1)
    assert group.proposals[0].left == {3: "was not connected for 5 s"}


def test_number_is_not_satisfied_by_a_node_in_one_of_two_sets():
    """The set in force may be the one without it, whose members may be elected."""
    group = Group(2, acks=(START,), level=2)
    group.append(1_500)
    group.connect(3)
    group.ack(3, 1_500)
    assert group.set.needed == {1, 2, 3}
    assert group.set.ack_limit == 1_000
    group.answer()
    assert group.set.ack_limit == 1_500


@pytest.mark.parametrize(("level", "kept"), [("all", 1_700), (2, None)])
def test_what_all_members_keep_is_known_by_their_acks_in_this_epoch_only(level, kept):
    """An earlier master's confirm offset may have meant less; with a number less is promised."""
    group = Group(2, acks=(START,), level=level)
    assert group.set.confirm_offset == START
    assert group.set.kept_offset is None
    group.append(2_000)
    group.ack(2, 1_700)
    assert group.set.confirm_offset == 1_700
    assert group.set.kept_offset == kept


def test_all_is_in_force_once_the_set_has_what_was_acknowledged_by_number():
    """The puts themselves wait for all at once."""
    group = Group(2, acks=(START,), level=1)
    group.append(1_500)
    assert not group.set.is_all_in_force
    group.set.change_in_sync_replicas("all")
    assert group.offsets == (1_000, 1_000)
    group.append(2_000)
    group.ack(2, 1_499)
    assert not group.set.is_all_in_force
    group.ack(2, 1_500)
    assert group.set.is_all_in_force
    group.set.change_in_sync_replicas("all")
    assert group.set.is_all_in_force
    group.set.change_in_sync_replicas(1)
    assert group.offsets == (2_000, 1_500)


def test_all_is_in_force_once_the_set_has_what_an_earlier_master_left():
    """Before its restart this master may have waited for a number of nodes only."""
    group = Group(2, confirm_offset=0)
    assert not group.set.is_all_in_force
    group.connect(2)
    group.ack(2, START - 1)
    assert not group.set.is_all_in_force
    group.ack(2, START)
    assert group.set.is_all_in_force


def test_a_lone_master_has_all():
    """Its set needs nobody else."""
    assert Group(confirm_offset=0).set.is_all_in_force


def test_no_coordinator_accepts_at_once():
    """RocketMQ's way: the master keeps its set itself."""
    group = Group()
    group.connect(2)
    proposal = group.ack(2, START)
    assert NoCoordinator().propose(proposal) is Answer.ACCEPTED


def test_master_is_in_every_set():
    """A set without it is a programmer error."""
    group = Group(2)
    with pytest.raises(AssertionError):
        group.set.moved(frozenset({2}), frozenset(), group.now)
    with pytest.raises(AssertionError):
        group.set.connected(1, 1, group.now)


# -- status ---------------------------------------------------------------------------------------


def test_standings_name_each_node_once():
    """The master, the others by id, and the observers."""
    group = Group(2, 3, acks=(START, START), rules=SetRules(configured_ids=frozenset(range(1, 8))))
    group.now = 1.0
    group.append(1_500)
    group.ack(2, 1_400)
    group.close(3)
    group.connect(4)
    group.ack(4, 900)
    group.now = 2.0
    group.connect(6)
    group.connect(9, is_observer=True)
    group.ack(9, 1_200)
    rows = [
        (row.node_id, row.role, row.is_connected, row.ack_offset, row.lag_bytes, row.since)
        for row in standings(group.set)
    ]
    assert rows == [
        (1, NodeRole.MASTER, True, 1_500, 0, 0.0),
        (2, NodeRole.MEMBER, True, 1_400, 100, 0.0),
        (3, NodeRole.MEMBER, False, None, None, 1.0),
        (4, NodeRole.LEARNER, True, 900, 600, 1.0),
        (5, NodeRole.LEARNER, False, None, None, None),
        (6, NodeRole.LEARNER, True, None, None, 2.0),
        (7, NodeRole.LEARNER, False, None, None, None),
        (9, NodeRole.OBSERVER, True, 1_200, 300, 2.0),
    ]
    assert [row.why_not for row in standings(group.set)][4:] == [
        "it has not connected in this epoch",
        "it has acknowledged nothing on this connection",
        "it has not connected in this epoch",
        "it asked not to count",
    ]


def test_standing_of_a_learner_that_waits_for_another_answer():
    """One proposal at a time."""
    group = Group(2, acks=(START,), rules=SetRules(has_coordinator=True))
    group.connect(3)
    group.ack(3, START)
    group.connect(4)
    group.ack(4, START)
    by_id = {row.node_id: row for row in standings(group.set)}
    assert by_id[3].role is NodeRole.PENDING
    assert by_id[4].why_not == "proposal 1 is not answered yet"
