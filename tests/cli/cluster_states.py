"""Masters and slaves in the states that `hastore check` and `hastore doctor` distinguish."""

import attrs

from tests.support.nodes.statuses import MASTER, SLAVE

MIB = 1 << 20
NEAR, SILENT = MASTER.slaves
ALONE = attrs.evolve(
    MASTER, slaves=(), acks_needed=1, slave_unavailable_because="no slave is connected"
)
FINE = attrs.evolve(MASTER, slaves=(NEAR,), acks_needed=1)
STREAMING = attrs.evolve(
    SLAVE,
    state="streaming",
    master_link=attrs.evolve(
        SLAVE.master_link, state="streaming", reason=None, last_read_age_s=0.1, lag_bytes=MIB
    ),
)
IN_TIME = {"lag_s": 2.9}
IDLE = {"lag_bytes": 0, "lag_s": 0.0}  # reports every 5 s
STEADY = {"last_report_age_s": 0.01}


def behind(lag_bytes, lag_s=None):
    """A master whose slave lags by ``lag_bytes``."""
    return attrs.evolve(FINE, slaves=(attrs.evolve(NEAR, lag_bytes=lag_bytes, lag_s=lag_s),))


def least(lag_s):
    """A master whose slave has lagged since before the master started."""
    row = attrs.evolve(NEAR, lag_bytes=5, lag_s=lag_s, lag_s_is_least=True)
    return attrs.evolve(FINE, slaves=(row,))


def late(*rows, acks_needed=1):
    """A master whose puts wait 3 s; slaves lag by 620 B and 5.2 s unless their row differs."""
    as_is = {"lag_bytes": 620, "lag_s": 5.2, "last_report_age_s": 5.1}
    slaves = tuple(attrs.evolve(NEAR, **{**as_is, **changes}) for changes in rows)
    return attrs.evolve(FINE, slaves=slaves, acks_needed=acks_needed, slave_timeout_s=3.0)
