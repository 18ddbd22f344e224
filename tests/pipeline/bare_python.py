"""A Python that has what workers need but no site-packages, as on another machine."""

import os
import subprocess
import sys
from pathlib import Path


def bare_python(folder: Path) -> Path:
    """Make an interpreter that can import Spark and the compiled packages, and nothing else."""
    import isal
    import numpy as np
    import py4j
    import pyarrow as pa
    import pyspark

    folder.mkdir()
    for module in (isal, np, py4j, pa, pyspark):
        path = Path(module.__file__).parent
        (folder / path.name).symlink_to(path)
        libraries = path.with_name(f"{path.name}.libs")
        if libraries.exists():
            (folder / libraries.name).symlink_to(libraries)
    python = folder / "python"
    base = getattr(sys, "_base_executable", sys.executable)
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{folder}"\nexec {base} -S "$@"\n')
    python.chmod(0o755)
    no_hastore = subprocess.run(
        [python, "-c", "import hastore"],
        cwd=folder,
        check=False,
        capture_output=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert b"No module named 'hastore'" in no_hastore.stderr
    return python
