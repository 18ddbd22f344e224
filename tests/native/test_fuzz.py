"""Fuzzing finds no difference between the extension and its twins; in the soak under sanitizers.

The soak builds the extension with AddressSanitizer and UndefinedBehaviorSanitizer, where compiler
and runtime are there, and runs the other tests of this folder and the fuzzer with it.
"""

import os
import random
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from hastore.dispatch import record_scan
from hastore.native.in_use import extension, state
from hastore.store.recovery import record_walk
from hastore.wire import usual_frames
from hatch_build import compile_extension
from tests.native import fuzz
from tests.support.repository import REPO_ROOT

NATIVE = REPO_ROOT / "hastore/native"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
FLAGS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-g",
    # After -fno-strict-overflow of a build, under which no overflow is undefined.
    "-fstrict-overflow",
    "-fno-wrapv",
)
FUZZ_S = 300

in_use = pytest.mark.skipif(extension is None, reason=f"the C extension is {state}")


@in_use
def test_fuzzed_inputs():
    """A few hundred of a new seed, which a failure names; the soak tries many more."""
    seed = random.SystemRandom().getrandbits(32)
    assert fuzz.run(seed, 60.0, count_max=500) > 0


@in_use
def test_each_function_has_a_fuzzer(monkeypatch):
    """It is called within a few hundred inputs."""
    functions = {name for name in dir(extension) if callable(getattr(extension, name))}
    functions = {name for name in functions if not name.startswith("_")} - {"serve_syncs"}
    called = set()

    class Recorder:
        def __getattr__(self, name):
            called.add(name)
            return getattr(extension, name)

    for module in (fuzz, record_scan, record_walk, usual_frames):
        for name in {"extension", "_extension"} & set(vars(module)):
            monkeypatch.setattr(module, name, Recorder())
    fuzz.run(7, 60.0, count_max=300)
    assert functions == called


@in_use
def test_fuzzer_repeats_a_seed(monkeypatch):
    """The same inputs, in the same order."""
    runs = []
    for _ in range(2):
        inputs = []
        fuzzers = [lambda random, inputs=inputs: inputs.append(fuzz.bytes_of(random, 0))]
        monkeypatch.setattr(fuzz, "FUZZERS", fuzzers)
        fuzz.run(7, 60.0, count_max=50)
        runs.append(inputs)
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 40


@in_use
def test_fuzzer_finds_a_difference(monkeypatch):
    """It names the seed and the input."""
    found = record_walk.WalkedRecords(1, 0, 1)
    monkeypatch.setattr(record_walk, "walk_records_in_python", lambda *_, **__: found)
    with pytest.raises(AssertionError) as caught:
        fuzz.run(7, 60.0, count_max=500)
    assert " of seed 7, fuzz_walk" in caught.value.__notes__[0]


# -- under sanitizers ----------------------------------------------------------------------------


def runtime():
    """Return the path of AddressSanitizer's runtime; skips if the compiler has none."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    asked = (compiler, "-print-file-name=libasan.so")
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    path = Path(done.stdout.strip())
    if not path.is_absolute() or not path.exists():
        pytest.skip(f"{compiler} has no libasan.so")
    return str(path.resolve())


def build(sources, name, folder):
    """Compile sources with the sanitizers; skips if only these are missing."""
    built = folder / f"{name}{SUFFIX}"
    without = compile_extension(sources, built)
    assert without is None, without
    reason = compile_extension(sources, built, *FLAGS)
    if reason is not None:
        pytest.skip(f"no build with {FLAGS[0]}: {reason}")


def environment(folder):
    """Return variables for a Python process that runs the build in ``folder``."""
    return {
        **os.environ,
        "LD_PRELOAD": runtime(),
        # CPython keeps memory until it ends; leaks of the extension are not what this looks for.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        # Each allocation is malloc's, which the sanitizer watches.
        "PYTHONMALLOC": "malloc",
        "HASTORE_PURE": "",
        "HASTORE_SANITIZED_DIR": str(folder),
    }


def run(folder, *arguments, **more):
    """Run Python with the build in ``folder``; return the finished process, its output printed."""
    done = subprocess.run(
        (sys.executable, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        cwd=REPO_ROOT,
        env=environment(folder) | more,
    )
    print(done.stdout[-10_000:])
    return done


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """Build the extension with the sanitizers; returns the folder."""
    folder = tmp_path_factory.mktemp("sanitized")
    runtime()
    build(sorted(NATIVE.glob("*.c")), "_native", folder)
    return folder


PLANTED = """
#include <Python.h>
static volatile unsigned char *volatile bytes;
static PyObject *look(PyObject *module, PyObject *number) {
    (void)module;
    long at = PyLong_AsLong(number);
    bytes = malloc(8);
    long found = bytes[at & 15] * 0 + (1 << (at >> 4 & 63));
    volatile int most = 0x7FFFFFFF;
    most += (int)(at >> 10);
    free((void *)bytes);
    return PyLong_FromLong(found);
}
static PyMethodDef METHODS[] = {{"look", look, METH_O, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef MODULE = {.m_name = "planted", .m_methods = METHODS};
PyMODINIT_FUNC PyInit_planted(void) { return PyModule_Create(&MODULE); }
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("number", "found"),
    [
        (7, None),
        (8, "heap-buffer-overflow"),
        (16 * 40, "shift exponent 40"),
        (1 << 10, "signed integer overflow"),
    ],
)
def test_sanitizers_find_planted_bugs(number, found, tmp_path):
    """A byte read outside an allocation, or undefined arithmetic, ends the process."""
    source = tmp_path / "planted.c"
    source.write_text(PLANTED)
    runtime()
    build([source], "planted", tmp_path)
    done = run(tmp_path, "-c", f"import planted; planted.look({number})", PYTHONPATH=str(tmp_path))
    assert (done.returncode == 0) == (found is None)
    assert (found or "") in done.stdout


@pytest.mark.soak
def test_twins_under_sanitizers(sanitized):
    """The tests of this folder and of usual frames, with 5,000 examples each: eleven minutes."""
    pytest_ = ("-m", "pytest", "-q", "-n", "0", "-p", "tests.native.sanitized")
    tests = ("tests/native", "tests/wire/test_usual_frames.py")
    others = ("--deselect", "tests/native/test_fuzz.py", "-p", "no:cacheprovider")
    done = run(sanitized, *pytest_, *tests, *others, HYPOTHESIS_PROFILE="soak")
    assert done.returncode == 0
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout


@pytest.mark.soak
def test_fuzzed_inputs_under_sanitizers(sanitized):
    """Five minutes of random and mutated bytes; the first line of its output names the seed."""
    done = run(sanitized, "-m", "tests.native.fuzz", "--seconds", str(FUZZ_S))
    assert done.returncode == 0
    assert done.stdout.startswith("seed ")
    assert done.stdout.endswith(" inputs, no difference\n")
