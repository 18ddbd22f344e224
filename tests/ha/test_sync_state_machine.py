"""A SyncStateSet against a model that recomputes everything from the whole history."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hastore.epoch_history import EpochEntry
from hastore.ha.set_proposal import Answer
from hastore.ha.set_rules import SetRules
from hastore.ha.sync_state_set import HOLD_S, VOIDED_PAUSE_S, SyncStateSet
from tests.ha.sync_state_model import MASTER, Model

START = 1_000  # the log's end when the epoch began
OTHERS = (2, 3, 4, 5)
node_ids = st.sampled_from(OTHERS)


class SyncStateMachine(RuleBasedStateMachine):
    """Nodes come, acknowledge and go, in any order; a coordinator answers late, or never."""

    @initialize(
        ids=st.sampled_from([None, frozenset({1, 2, 3}), frozenset({1, 2, 3, 4, 5})]),
        has_coordinator=st.booleans(),
        least=st.integers(1, 3),
        level=st.sampled_from(["all", "all", 1, 2, 3]),
        others=st.frozensets(node_ids, max_size=3),
        confirm_offset=st.integers(0, START),
        linked=st.frozensets(node_ids),
        is_prompt=st.booleans(),
    )
    def begin(
        self, *, ids, has_coordinator, least, level, others, confirm_offset, linked, is_prompt
    ):
        rules = SetRules(
            min_in_sync_replicas=least, configured_ids=ids, has_coordinator=has_coordinator
        )
        members = others | {MASTER}
        self.now = 100.0
        self.is_prompt = is_prompt  # whether proposals are accepted at once
        self.set = SyncStateSet(
            rules=rules,
            own_id=MASTER,
            entry=EpochEntry(7, START),
            began=self.now,
            accepted=members,
            min_offset=0,
            confirm_offset=confirm_offset,
            in_sync_replicas=level,
        )
        self.model = Model(
            rules=rules,
            began=self.now,
            start=START,
            members=members,
            confirm_offset=confirm_offset,
            level=level,
        )
        self.links = {}  # open connections: their nodes
        self.positions = {}  # the last ack on each
        self.log_begins = {}
        self.must_ack = set()
        self.waiting = []  # the ends of puts
        self.acknowledged = []  # of those answered PUT_OK under "all"
        self.connections = 0
        self.not_before = 0.0
        self.is_handing_over = False
        self.held_since = self.held_link = None
        self.settle()
        for node_id in sorted(linked):
            self.connect(node_id)
        if linked:
            self.all_acknowledge(0.0)

    # -- what happens ----------------------------------------------------------------------------

    @rule(size=st.integers(1, 50))
    def put(self, size=10):
        if self.set.refused_because() is not None:
            assert len(self.model.sets[0]) < self.model.rules.min_in_sync_replicas
            return
        end = self.model.end + size
        self.model.add(self.now, "appended", end)
        if not self.set.advance(end):
            self.set.appended(end, self.now)
        self.waiting.append(end)
        self.settle()

    @precondition(lambda self: self.links)
    @rule(
        rounds=st.integers(1, 4),
        seconds=st.sampled_from([0.01, 0.2, 0.6]),
        who=st.frozensets(node_ids),
        is_late=st.booleans(),
    )
    def load(self, rounds, seconds, who, is_late):
        """Puts in a row; some nodes acknowledge each of them, perhaps after the next one."""
        for _ in range(rounds):
            end = self.model.end
            self.put()
            self.pass_time(seconds)
            for connection in self.counting():
                if self.links[connection] in who:
                    self.report(
                        connection,
                        max(end if is_late else self.model.end, self.positions[connection]),
                    )

    @rule(node_id=node_ids, rounds=st.integers(2, 4), seconds=st.sampled_from([0.01, 0.3]))
    def trail(self, node_id, rounds, seconds):
        """A node connects, and is always one put behind."""
        self.connect(node_id)
        own = self.connections
        for _ in range(rounds):
            end = self.model.end
            self.put()
            self.pass_time(seconds)
            for connection in self.counting():
                if connection != own and self.positions[connection] >= START:
                    self.report(connection, self.model.end)
            if own in self.counting():
                self.report(own, end)

    def counting(self):
        """The connections that count, oldest first."""
        return [link for link, node in sorted(self.links.items()) if self.model.link(node) == link]

    @rule(
        node_id=node_ids,
        is_observer=st.sampled_from([False, False, False, True]),
        begin=st.sampled_from([None, 0, 0, 0, 10]),
    )
    def connect(self, node_id, is_observer=False, begin=0):
        self.connections += 1
        connection = self.connections
        self.links[connection] = node_id
        self.positions[connection] = 0
        self.model.add(self.now, "connected", node_id, connection, is_observer)
        self.take(self.set.connected(node_id, connection, self.now, is_observer=is_observer))
        if begin is not None:
            self.learn_begin(connection, begin)

    def learn_begin(self, connection, begin):
        self.log_begins[connection] = begin
        self.take(self.set.log_begins(connection, begin, self.now))

    @precondition(lambda self: self.links)
    @rule(data=st.data(), share=st.sampled_from([0.0, 0.5, 0.9, 1.0, 1.0, 1.0]))
    def acknowledge(self, data, share):
        connection = data.draw(st.sampled_from(sorted(self.links)))
        before = self.positions[connection]
        self.report(connection, before + round((self.model.end - before) * share))

    def report(self, connection, offset):
        node_id, before = self.links[connection], self.model.ack(self.links[connection])
        self.positions[connection] = offset
        self.model.add(self.now, "acknowledged", connection, offset)
        is_news = before != offset or offset == self.model.end  # nothing is newer than the end
        is_new = self.model.link(node_id) == connection and is_news
        if is_new and node_id not in self.model.needed:
            self.must_ack.discard(node_id)
        self.take(self.set.acknowledged(connection, offset, self.now))

    @precondition(lambda self: self.links)
    @rule(seconds=st.sampled_from([0.0, 0.1, 0.4, 0.6, 2.0]))
    def all_acknowledge(self, seconds):
        """So that sets become large, and learners near."""
        self.pass_time(seconds)
        for connection in self.counting():
            if connection not in self.log_begins:
                self.learn_begin(connection, 0)
            self.report(connection, self.model.end)

    @precondition(lambda self: self.links)
    @rule(data=st.data())
    def disconnect(self, data):
        self.close(data.draw(st.sampled_from(sorted(self.links))))

    @precondition(lambda self: self.links)
    @rule(
        who=st.frozensets(node_ids, min_size=1),
        seconds=st.sampled_from([0.0, 0.5, 1.0]),
        then_s=st.sampled_from([0.0, 2.0, 6.0]),
    )
    def cut_off(self, who, seconds, then_s):
        """Links close, together or one after the other."""
        for connection in self.counting():
            if self.links[connection] in who:
                self.close(connection)
                self.pass_time(seconds)
        self.pass_time(then_s)

    def close(self, connection):
        del self.links[connection]
        self.model.add(self.now, "disconnected", connection)
        self.take(self.set.disconnected(connection, self.now))

    @rule(min_offset=st.sampled_from([5, 10]))
    def expire(self, min_offset):
        self.model.min_offset = max(self.model.min_offset, min_offset)
        self.take(self.set.expired(self.model.min_offset, self.now))

    @rule(seconds=st.sampled_from([0.1, 0.6, 1.0, 3.0, 5.0, 7.0]))
    def pass_time(self, seconds):
        """Ticks come at the deadlines; one more at the end finds nothing to do."""
        until = self.now + seconds
        while (deadline := self.set.next_deadline()) is not None and deadline <= until:
            assert deadline > self.now or seconds == 0
            self.now = deadline
            self.take(self.set.tick(self.now))
        self.now = until
        held = self.set.held_id
        assert self.set.tick(self.now) is None
        assert self.set.held_id == held

    @precondition(lambda self: self.set.proposal is not None)
    @rule(answer=st.sampled_from([Answer.ACCEPTED, Answer.ACCEPTED, Answer.VOIDED]))
    def answer(self, answer):
        proposal = self.set.proposal
        self.model.add(self.now, "answered", answer)
        if answer is Answer.ACCEPTED:
            self.must_ack |= proposal.left.keys()
            self.must_ack -= proposal.members
        else:
            self.not_before = self.now + VOIDED_PAUSE_S
        self.take(self.set.answer(proposal, answer, self.now))

    @rule(others=st.frozensets(node_ids, max_size=3), is_move=st.sampled_from([False, False, True]))
    def move_or_hand_over(self, others, is_move):
        """Another set, of nodes that have all that was acknowledged; or a stop begins or ends."""
        if is_move or self.is_handing_over:
            best = max(self.acknowledged, default=0)
            self.move({node for node in others if self.model.ever_acknowledged(node) >= best})
        if is_move:
            return
        self.is_handing_over = not self.is_handing_over
        if self.is_handing_over:
            self.set.hand_over()
            self.settle()
        else:
            self.take(self.set.resume(self.now))

    def move(self, others):
        members, accepted = others | {MASTER}, self.model.sets[0]
        self.must_ack |= accepted - members
        self.must_ack -= members
        self.model.add(self.now, "moved", members, self.model.needed)
        self.take(self.set.moved(frozenset(members), frozenset(), self.now))

    # -- what must be true -----------------------------------------------------------------------

    def take(self, proposal):
        """Check a proposal, or that there is none to make."""
        now, model = self.now, self.model
        if model.held is not None and self.hold_ends():
            model.held = None
        model.confirm_offset = model.next_confirm_offset()
        accepted, pending = model.sets
        is_free = pending is None and not self.is_handing_over and now >= self.not_before
        leaving, joining = set(), set()
        if is_free:
            # An ack alone makes nobody look whether it is time for others to leave.
            leaving = model.leaving(now)
            joining = {
                node_id
                for node_id in OTHERS
                if node_id not in accepted
                and model.may_join(node_id, self.log_begins, self.must_ack)
            }
        if proposal is None:
            assert not joining
        else:
            assert is_free
            assert proposal.joined == joining
            assert proposal.left.keys() == leaving
            assert proposal.members == (accepted | joining) - leaving
            model.add(now, "proposed", proposal)
        self.settle()
        if proposal is not None and self.is_prompt:
            self.answer(Answer.ACCEPTED)

    def hold_ends(self):
        """Whether the learner for which the confirm offset waits must be waited for no more."""
        model, held = self.model, self.model.held
        return (
            self.now >= self.held_since + HOLD_S
            or self.is_handing_over
            or model.link(held) != self.held_link
            or held in model.sets[0]
        )

    def settle(self):
        """Bring the model up, and release the puts that may be answered."""
        model, held = self.model, self.set.held_id
        if held is not None and held != model.held:
            assert held not in model.needed
            assert model.sets[1] is None
            assert not self.is_handing_over
            self.held_since, self.held_link = self.now, model.link(held)
        if held is None and model.held is not None:
            assert self.hold_ends() or model.held in model.needed
        model.held = held
        if held is not None:
            assert not self.hold_ends()
        former, model.confirm_offset = model.confirm_offset, model.next_confirm_offset()
        assert self.set.confirm_offset == model.confirm_offset >= former
        assert self.set.ack_limit == model.ack_limit()
        while self.waiting and self.set.is_acknowledged(self.waiting[0]):
            self.released(self.waiting.pop(0))

    def released(self, end):
        """Check the one promise for which all of this exists."""
        model = self.model
        accepted, proposed = model.sets
        assert len(accepted) >= model.rules.min_in_sync_replicas
        having = self.set.acknowledged_by(end)
        assert having == {n for n in model.needed if (model.ack(n) or 0) >= end}
        if model.level == "all":
            assert having == model.needed
            self.acknowledged.append(end)
        else:
            assert len(having & accepted & (proposed or accepted)) >= model.level

    @invariant()
    def every_acknowledged_put_is_on_every_member(self):
        if hasattr(self, "set"):
            best = max(self.acknowledged, default=0)
            for node_id in self.set.needed:
                assert self.model.ever_acknowledged(node_id) >= best or node_id not in (
                    self.set.accepted
                )

    @invariant()
    def sets_are_those_of_the_answers(self):
        if hasattr(self, "set"):
            accepted, proposed = self.model.sets
            assert self.set.accepted == accepted
            assert self.set.needed == accepted | (proposed or frozenset())
            assert (self.set.proposal is None) == (proposed is None)
            assert self.set.missing() == {
                node_id
                for node_id in self.model.needed - {MASTER}
                if self.model.link(node_id) is None
            }

    @invariant()
    def puts_wait_in_vain_only_if_the_set_stays(self):
        if hasattr(self, "set"):
            is_in_vain = self.model.waits_in_vain(is_handing_over=self.is_handing_over)
            assert (self.set.unavailable_because() is not None) == is_in_vain

    @invariant()
    def nothing_is_kept_of_nodes_that_are_gone(self):
        if hasattr(self, "set"):
            known = {node.node_id for node in self.set.acks}
            linked = {node_id for node_id in OTHERS if self.model.link(node_id) is not None}
            assert known == (self.set.needed - {MASTER}) | linked


TestSyncState = SyncStateMachine.TestCase
TestSyncState.settings = settings(stateful_step_count=40)
