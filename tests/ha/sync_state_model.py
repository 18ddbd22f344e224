"""What a SyncStateSet must say, recomputed from the whole history each time: slow and obvious."""

from hastore.ha.set_proposal import Answer
from hastore.ha.sync_state_set import CLOSE_TOGETHER_S

MASTER = 1


class Model:
    """The events of an epoch, and questions about them; proposals and answers are events, too."""

    def __init__(self, *, rules, began, start, members, confirm_offset, level):
        self.rules = rules
        self.began = began
        self.start = start
        self.first_members = members
        self.level = level
        self.events = []  # (time, kind, *values)
        self.needed_after = []  # each event
        self.confirm_offset = confirm_offset
        self.held = None  # as the set says; what it may hold is checked by the machine
        self.min_offset = 0
        self.closings = []  # when a link closed that counted for a needed node
        self.closed = set()  # such nodes, while they are needed and absent

    def add(self, time, *event):
        links = {node_id: self.link(node_id) for node_id in self.needed - {MASTER}}
        self.events.append((time, *event))
        self.needed_after.append(self.needed)
        for node_id, link in links.items():
            if link is not None and self.link(node_id) is None:
                self.closings.append(time)
                self.closed.add(node_id)
        self.closed = {
            node_id for node_id in self.closed & self.needed if self.link(node_id) is None
        }

    def of_kind(self, *kinds):
        return [event for event in self.events if event[1] in kinds]

    @property
    def end(self):
        return max([self.start, *(event[2] for event in self.of_kind("appended"))])

    @property
    def sets(self):
        """The accepted set, and the one that is proposed or None."""
        accepted, proposed = self.first_members, None
        for _, kind, *values in self.of_kind("proposed", "answered", "moved"):
            if kind == "proposed":
                proposed = values[0].members
            elif kind == "moved":
                accepted, proposed = values[0], None
            elif values[0] is Answer.ACCEPTED:
                accepted, proposed = proposed, None
            else:
                proposed = None
        return accepted, proposed

    @property
    def needed(self):
        accepted, proposed = self.sets
        return accepted | (proposed or frozenset())

    def newest(self, node_id):
        """The newest connection of a node as (connection, is_observer, is_open); None if none."""
        opened = [event for event in self.of_kind("connected") if event[2] == node_id]
        if not opened:
            return None
        _, _, _, connection, is_observer = opened[-1]
        closed = any(event[2] == connection for event in self.of_kind("disconnected"))
        return connection, is_observer, not closed

    def link(self, node_id):
        """The connection that counts for a node; None if none does."""
        newest = self.newest(node_id)
        if newest is None:
            return None
        connection, is_observer, is_open = newest
        return connection if is_open and not is_observer else None

    def ack(self, node_id):
        """What counts as acknowledged by a node; None if nothing does."""
        if node_id == MASTER:
            return self.end
        link = self.link(node_id)
        acks = [event[3] for event in self.of_kind("acknowledged") if event[2] == link]
        return acks[-1] if link is not None and acks else None

    def ever_acknowledged(self, node_id):
        """The highest ack that ever counted for a node."""
        if node_id == MASTER:
            return self.end
        own = {event[3] for event in self.of_kind("connected") if event[2] == node_id}
        acks = [event[3] for event in self.of_kind("acknowledged") if event[2] in own]
        return max(acks, default=0)

    def stalled_since(self, node_id):
        """Since when a node has acknowledged nothing new although it should; None if it need not.

        Walks through time: which of its connections counts, and what was new at each ack.  A node
        that is neither needed nor connected is forgotten.
        """
        is_known = node_id in self.first_members
        since = self.began if is_known else None
        link, best, end, has_all = None, 0, self.start, False
        for (time, kind, *values), needed in zip(self.events, self.needed_after, strict=True):
            if kind == "appended":
                if has_all and values[0] > end:
                    since, has_all = time, False
                end = values[0]
            elif kind == "connected" and values[0] == node_id:
                if link is not None or not values[2]:
                    since = time if since is None else since
                link, has_all = None if values[2] else values[1], False
                is_known = is_known or link is not None
            elif kind == "disconnected" and link is not None and values[0] == link:
                since, link, has_all = time if since is None else since, None, False
            elif kind == "acknowledged" and link is not None and values[0] == link:
                if values[1] == end:
                    since, has_all = None, True
                elif values[1] > best:
                    since = time
                best = max(best, values[1])
            elif kind == "moved" and node_id in values[0] - values[1]:
                since = time if since is not None or not is_known else None
                is_known = True
            if link is None and node_id not in needed:
                is_known, since, best, has_all = False, None, 0, False
        return since

    # -- what follows ----------------------------------------------------------------------------

    def least(self):
        """Up to where all awaited nodes have the log; None if one has acknowledged nothing."""
        awaited = self.needed | ({self.held} if self.held is not None else set())
        acks = [self.ack(node_id) for node_id in awaited]
        return None if None in acks else min(acks)

    def ack_limit(self):
        accepted, proposed = self.sets
        if len(accepted) < self.rules.min_in_sync_replicas:
            return 0
        if self.level == "all":
            return self.least() or 0
        sure = accepted if proposed is None else accepted & proposed
        acks = [self.ack(node_id) for node_id in sure]
        for limit in sorted({ack for ack in acks if ack is not None}, reverse=True):
            if sum(ack is not None and ack >= limit for ack in acks) >= self.level:
                return limit
        return 0

    def next_confirm_offset(self):
        accepted, _ = self.sets
        least = self.least()
        if least is None or len(accepted) < self.rules.min_in_sync_replicas:
            return self.confirm_offset
        return max(self.confirm_offset, least)

    def absent(self):
        accepted, _ = self.sets
        return {node_id for node_id in accepted - {MASTER} if self.link(node_id) is None}

    def settled_at(self):
        times = self.closings[-2:]
        if not times:
            return 0.0
        is_together = len(times) > 1 and times[1] - times[0] < CLOSE_TOGETHER_S
        return times[-1] + CLOSE_TOGETHER_S if is_together else times[-1]

    def is_majority(self, members):
        ids = self.rules.configured_ids
        return ids is not None and len(members & ids) > len(ids) / 2

    def allowed(self, members):
        """Whether a set may shrink to these members."""
        enough = len(members) >= self.rules.min_in_sync_replicas
        return enough and (self.rules.has_coordinator or self.is_majority(members))

    def waits_in_vain(self, *, is_handing_over):
        """Whether a put misses an absent node that will not leave the set."""
        accepted, proposed = self.sets
        absent = self.absent()
        if self.level == "all" and is_handing_over:
            return bool(absent & (proposed or accepted))
        if self.level == "all":
            return bool(absent) and not self.allowed(accepted - absent)
        return len((accepted & (proposed or accepted)) - absent) < self.level

    def leaving(self, now):
        """The members that must be proposed to leave."""
        accepted, _ = self.sets
        rules = self.rules
        late = set()
        for node_id in accepted - {MASTER}:
            since = self.stalled_since(node_id)
            if since is not None and since + rules.sync_state_timeout_s <= now:
                late.add(node_id)
        absent, closed = self.absent(), self.closed & accepted
        is_settled = self.settled_at() <= now
        if (
            is_settled
            and self.is_majority(accepted - absent - late)
            and self.allowed(accepted - closed - late)
        ):
            return closed | late
        return late if self.allowed(accepted - late) else set()

    def may_join(self, node_id, log_begins, must_ack):
        """Whether a learner is to be proposed."""
        ids = self.rules.configured_ids
        ack, begin = self.ack(node_id), log_begins.get(self.link(node_id))
        return (
            (ids is None or node_id in ids)
            and ack is not None
            and ack >= max(self.start, self.confirm_offset)
            and node_id not in must_ack
            and begin is not None
            and begin <= self.min_offset
        )
