"""``python -m hastore_cli`` is ``hastore``."""

from __future__ import annotations

import sys

from hastore_cli.main import main

if __name__ == "__main__":
    sys.exit(main())
