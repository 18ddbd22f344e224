"""The machine that a measurement ran on; without it a number means nothing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import attrs

from hastore_cli.app.interpreter import this_interpreter


@attrs.frozen(kw_only=True)
class Machine:
    """The machine and the versions."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    python_path: str
    python_build: str  # what sysconfig tells of it
    python_round_ns: float  # of this_interpreter's loop
    trio: str
    file_system: str
    load_before: float

    def __str__(self) -> str:
        """Return one line."""
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_gib:.0f} GiB, Linux {self.kernel},"
            f" Python {self.python}, trio {self.trio}, {self.file_system},"
            f" load {self.load_before:.2f} before; {self.python_path}, {self.python_build},"
            f" {self.python_round_ns} ns a round of a fixed loop"
        )


def this_machine(directory: Path) -> Machine:
    """Describe this machine; ``directory`` is where the logs will be."""
    import trio

    python = this_interpreter()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=memory / 2**30,
        kernel=platform.release(),
        python=python.version,
        python_path=python.path,
        python_build=python.build,
        python_round_ns=python.round_ns,
        trio=trio.__version__,
        file_system=_file_system(directory),
        load_before=os.getloadavg()[0],
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _file_system(directory: Path) -> str:
    df = shutil.which("df")
    if df is None:
        return "?"
    output = subprocess.run(
        [df, "--output=fstype", str(directory)], capture_output=True, text=True, check=False
    ).stdout
    return output.split()[-1] if output.split() else "?"
