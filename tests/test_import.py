"""Which modules ``import hastore`` loads."""

import subprocess
import sys

from tests.patience import PROCESS_WITHIN_S


def test_importing_hastore_loads_neither_trio_nor_a_node() -> None:
    """A program that only needs values and types does not wait for a node's modules."""
    code = (
        "import sys, hastore;"
        "from hastore import open_master, open_slave;"
        "print(*(m for m in sys.modules if m.startswith(('trio', 'hastore.broker'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PROCESS_WITHIN_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr
