"""Chooses the Python that ``make`` creates the environment from, and prints its path.

::

    choose_python.py python3.11 python3.12 python3.13

The candidates are these names and python3, on PATH and in /usr/bin.  Left out, with the reason, are
those that do not start, are of another version, lack venv or ensurepip, or cannot build the C
extension where another can: it gains more than an optimised interpreter.  The others run a fixed
loop in turn, a second in all, and the quickest is chosen.

The first name is the version for which the lock files are made: it is chosen unless another is more
than ``MARGIN`` quicker.  Two runs of the loop differ by some 3 %, an optimised build from others by
a third; what lies between says little about a node.

The path goes to stdout, all else to stderr.  Runs on Python 3.7 or later, without packages.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

MARGIN = 0.1
LOOP_S = 1.0  # over all candidates and turns
TURNS = 3  # in turn: a moment in which the machine was busy must not decide
START_TIMEOUT_S = 10.0
CANDIDATES_MAX = 16
LOOP = Path(__file__).resolve().parent.parent / "cli/hastore_cli/app/interpreter.py"
# For any Python 3.
PROBE = """
import json, os, shlex, shutil, sys, sysconfig
lacks = []
for module in ("venv", "ensurepip"):
    try:
        __import__(module)
    except ImportError:
        lacks.append(module)
header = os.path.join(sysconfig.get_path("include"), "Python.h")
compiler = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc")[0]
print(json.dumps({
    "path": os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable),
    "version": "%d.%d.%d" % sys.version_info[:3],
    "lacks": lacks,
    "builds": os.path.exists(header) and shutil.which(compiler) is not None,
}))
"""


class Candidate(NamedTuple):
    """A Python that starts."""

    path: str  # without symbolic links
    version: str  # such as 3.11.7
    lacks: tuple[str, ...]  # of the modules that create an environment
    builds: bool  # whether it has a C compiler and Python's headers

    @property
    def name(self) -> str:
        """Its versioned name, such as python3.11."""
        return "python" + self.version.rpartition(".")[0]


class NotUsableError(Exception):
    """A Python that cannot be used; says why."""


def commands(names: list[str], search_path: str) -> list[str]:
    """Return the executable files of these names in the folders of ``search_path``."""
    folders = dict.fromkeys(filter(None, search_path.split(os.pathsep)))
    paths = [Path(folder, name) for name in names for folder in folders]
    runnable = [str(path) for path in paths if path.is_file() and os.access(str(path), os.X_OK)]
    return list(dict.fromkeys(runnable))


def run(*command: str) -> bytes:
    """Return what a command printed.  Raises NotUsableError."""
    try:
        done = subprocess.run(  # noqa: S603 - a Python of this machine
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotUsableError(f"no answer within {START_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise NotUsableError(f"does not start: {error.strerror}") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").split("\n")
        raise NotUsableError(f"does not start: {lines[0] or done.returncode}")
    return done.stdout


def probe(command: str, names: list[str]) -> Candidate:
    """Start a Python and return what it says of itself.  Raises NotUsableError."""
    try:
        facts = json.loads(run(command, "-I", "-c", PROBE))
        candidate = Candidate(**{**facts, "lacks": tuple(facts["lacks"])})
    except (KeyError, TypeError, ValueError):
        raise NotUsableError("is no Python") from None
    if candidate.name not in names:
        raise NotUsableError(f"is {candidate.version}, not one of {', '.join(names)}")
    if candidate.lacks:
        raise NotUsableError(f"{candidate.version} lacks {' and '.join(candidate.lacks)}")
    return candidate


def candidates(names: list[str], search_path: str) -> list[Candidate]:
    """Return those that can be used, each once; print why the others cannot."""
    found: dict[str, Candidate] = {}
    for command in commands([*names, "python3"], search_path)[:CANDIDATES_MAX]:
        try:
            candidate = probe(command, names)
        except NotUsableError as error:
            leave_out(command, str(error))
        else:
            found.setdefault(candidate.path, candidate)
    if any(candidate.builds for candidate in found.values()):
        for path, candidate in list(found.items()):
            if not candidate.builds:
                leave_out(path, f"{candidate.version} cannot build the C extension: no Python.h")
                del found[path]
    return list(found.values())


def leave_out(command: str, reason: str) -> None:
    """Say why a Python is not a candidate."""
    tell(f"  left out  {command}: {reason}")


def measure(found: list[Candidate]) -> dict[Candidate, float]:
    """Return the nanoseconds of one round of the loop: of each candidate's best turn."""
    best: dict[Candidate, float] = {}
    seconds = LOOP_S / TURNS / len(found)
    for _ in range(TURNS):
        for candidate in found:
            round_ns = float(run(candidate.path, "-I", str(LOOP), str(seconds)))
            best[candidate] = min(round_ns, best.get(candidate, round_ns))
    return best


def choose(found: dict[Candidate, float], first: str) -> Candidate:
    """Return the quickest; of the version ``first`` unless another is ``MARGIN`` quicker."""
    preferred = [candidate for candidate in found if candidate.name == first]
    quickest = min(found, key=found.__getitem__)
    if preferred:
        own = min(preferred, key=found.__getitem__)
        if found[own] <= found[quickest] / (1 - MARGIN):
            return own
    return quickest


def tell(line: str) -> None:
    """Print a line for people."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - for the person at make


def main(names: list[str]) -> int:
    """Choose, and print what was compared."""
    tell("Python: the time of one round of a fixed loop, in each that is here")
    found = candidates(names, os.pathsep.join((os.environ.get("PATH", ""), "/usr/bin")))
    if not found:
        tell(f"no {' or '.join(names)} with venv and ensurepip: name one, make PYTHON=PATH")
        return 1
    figures = measure(found)
    chosen = choose(figures, names[0])
    for candidate, round_ns in sorted(figures.items(), key=lambda item: item[1]):
        mark = "chosen" if candidate is chosen else ""
        tell(f"  {round_ns:5.0f} ns  {candidate.version:<8}{candidate.path}  {mark}".rstrip())
    print(chosen.path)  # noqa: T201 - make reads it
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
