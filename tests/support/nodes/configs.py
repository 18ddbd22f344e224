"""What the configurations of most nodes in tests have in common."""

import attrs

from hastore.config import HAConfig

# The kernel chooses a free port.
ANY_PORT = ("127.0.0.1", 0)

# Short enough for a test, long enough for a loaded machine.
QUICK = HAConfig(ha_reconnect_backoff_min_ms=10, ha_reconnect_backoff_max_ms=50)

# For tests whose puts wait for a slave that does not answer.
IMPATIENT = attrs.evolve(QUICK, slave_timeout_ms=300)
