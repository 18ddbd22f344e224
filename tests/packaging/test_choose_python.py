"""`make` creates its environment from the quickest Python that can be used."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import REPO_ROOT

SCRIPT = REPO_ROOT / "requirements/choose_python.py"
THIS = f"python3.{sys.version_info.minor}"
NAMES = ["python3.11", "python3.12", "python3.13"]


def load():
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("choose_python", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


choose_python = load()


def fake(path, body):
    """Write an executable file; return its path as text."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def facts(version="3.11.7", path="/p", lacks=(), *, builds=True):
    """What a Python prints of itself, as shell code."""
    told = {"path": path, "version": version, "lacks": list(lacks), "builds": builds}
    return f"echo '{json.dumps(told)}'"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (facts("3.10.2"), "is 3.10.2, not one of python3.11, python3.12, python3.13"),
        (facts("3.14.0"), "is 3.14.0, not one of python3.11, python3.12, python3.13"),
        (facts(lacks=["ensurepip"]), "3.11.7 lacks ensurepip"),
        (facts(lacks=["venv", "ensurepip"]), "3.11.7 lacks venv and ensurepip"),
        ("echo 'python3.12: command not found' >&2; exit 127", "python3.12: command not found"),
        ("exit 3", "does not start: 3"),
        ("echo hello", "is no Python"),
        ("echo 12", "is no Python"),
        ("echo '{}'", "is no Python"),
    ],
)
def test_python_that_cannot_be_used_is_left_out_with_the_reason(body, reason, tmp_path, capsys):
    """The others remain."""
    bad = fake(tmp_path / "one/python3.11", body)
    fake(tmp_path / "two/python3.11", facts(path="/good"))
    found = choose_python.candidates(NAMES, f"{tmp_path / 'one'}:{tmp_path / 'two'}")
    assert [candidate.path for candidate in found] == ["/good"]
    said = capsys.readouterr().err
    assert said.startswith(f"  left out  {bad}: ")
    assert reason in said


def test_python_that_does_not_answer_is_left_out(tmp_path, capsys, monkeypatch):
    """A start has a time limit."""
    monkeypatch.setattr(choose_python, "START_TIMEOUT_S", 0.1)
    fake(tmp_path / "python3", "exec sleep 60")
    assert choose_python.candidates(NAMES, str(tmp_path)) == []
    assert "no answer within 0 s" in capsys.readouterr().err


def test_each_python_is_a_candidate_once(tmp_path):
    """Links to it, and a folder that PATH has twice, are not others."""
    for name in (THIS, "python3"):
        (tmp_path / name).symlink_to(Path(sys.executable).resolve())
    (tmp_path / "python3.13t").write_text("")
    (candidate,) = choose_python.candidates([THIS], f"{tmp_path}::{tmp_path}")
    assert Path(candidate.path).samefile(sys.executable)
    assert candidate.name == THIS


def test_only_executable_files_are_started(tmp_path):
    """Neither folders nor other files of that name."""
    (tmp_path / "python3").mkdir()
    (tmp_path / "python3.11").write_text("")
    runs = fake(tmp_path / "python3.12", "")
    assert choose_python.commands([*NAMES, "python3"], str(tmp_path)) == [runs]


def test_python_without_headers_is_left_out_if_another_has_them(tmp_path, capsys):
    """The C extension gains more; where nothing can build it, all remain."""
    fake(tmp_path / "python3.11", facts(path="/bare", builds=False))
    assert len(choose_python.candidates(NAMES, str(tmp_path))) == 1
    fake(tmp_path / "python3.12", facts("3.12.1", "/whole"))
    (candidate,) = choose_python.candidates(NAMES, str(tmp_path))
    assert candidate.path == "/whole"
    assert "/bare: 3.11.7 cannot build the C extension" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("figures", "chosen"),
    [
        ({"3.11.2": 330, "3.11.7": 470}, "3.11.2"),
        ({"3.11.2": 330, "3.11.7": 329}, "3.11.7"),
        ({"3.11.2": 330, "3.13.0": 300}, "3.11.2"),
        ({"3.11.2": 330, "3.13.0": 290}, "3.13.0"),
        ({"3.12.1": 330, "3.13.0": 329}, "3.13.0"),
    ],
)
def test_quickest_is_chosen_but_within_the_margin_the_first_version(figures, chosen):
    """The lock files are made for that one."""
    found = {
        choose_python.Candidate(path=f"/{version}", version=version, lacks=(), builds=True): ns
        for version, ns in figures.items()
    }
    assert choose_python.choose(found, "python3.11").version == chosen


def test_best_turn_of_each_counts(tmp_path, monkeypatch):
    """All have the same share of the time, in turn."""
    asked = []
    answers = iter([b"5", b"4", b"3", b"6", b"9", b"2"])

    def run(*command):
        asked.append((command[0], float(command[-1])))
        return next(answers)

    monkeypatch.setattr(choose_python, "run", run)
    one, two = (
        choose_python.Candidate(path=path, version="3.11.7", lacks=(), builds=True)
        for path in ("/one", "/two")
    )
    assert choose_python.measure([one, two]) == {one: 3, two: 2}
    assert [path for path, _ in asked] == ["/one", "/two"] * 3
    assert sum(seconds for _, seconds in asked) == pytest.approx(choose_python.LOOP_S)


def test_choice_its_figure_and_path_are_printed(tmp_path):
    """The path alone on stdout."""
    (tmp_path / THIS).symlink_to(Path(sys.executable).resolve())
    done = subprocess.run(
        (sys.executable, str(SCRIPT), THIS),
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": str(tmp_path)},
    )
    chosen = done.stdout.removesuffix("\n")
    assert Path(chosen).is_file()
    (line,) = [line for line in done.stderr.splitlines() if line.endswith("chosen")]
    assert " ns  3." in line
    assert chosen in line


def test_script_runs_on_old_pythons():
    """Its syntax is that of 3.7, to which a machine's python3 may point."""
    ast.parse(SCRIPT.read_text(), feature_version=(3, 7))


def make(venv, *arguments, path=""):
    """Run make up to the creation of ``venv``; the fakes here end it there."""
    return subprocess.run(
        ("make", "-C", REPO_ROOT, f"VENV={venv}", *arguments, f"{venv}/.run"),
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": f"{path}:/usr/bin:/bin"},
    )


def test_given_python_decides_alone(tmp_path):
    """`make PYTHON=…` compares nothing."""
    venv = tmp_path / "venv"
    python = fake(tmp_path / "mine", f'echo "$@" > {tmp_path}/asked; exit 1')
    done = make(venv, f"PYTHON={python}")
    assert done.returncode != 0
    assert (tmp_path / "asked").read_text() == f"-m venv {venv}\n"
    assert "a round of" not in done.stderr


def test_without_one_the_chosen_python_creates_the_environment(tmp_path):
    """`make` runs the script with the Pythons that are tested."""
    venv = tmp_path / "venv"
    chosen = fake(tmp_path / "chosen", f'echo "$@" > {tmp_path}/asked; exit 1')
    fake(tmp_path / "python3.11", f'echo "$@" > {tmp_path}/script; echo {chosen}')
    assert make(venv, path=tmp_path).returncode != 0
    assert (tmp_path / "asked").read_text() == f"-m venv {venv}\n"
    expected = "requirements/choose_python.py python3.11 python3.12 python3.13\n"
    assert (tmp_path / "script").read_text() == expected


def test_existing_environment_is_kept(tmp_path):
    """Nothing is compared, whatever Python it has."""
    venv = tmp_path / "venv"
    venv.mkdir()
    fake(venv / "bin/python", f'echo "$@" >> {tmp_path}/asked; exit 1')
    fake(tmp_path / "python3.11", f"touch {tmp_path}/compared; exit 1")
    assert make(venv, path=tmp_path).returncode != 0
    assert (tmp_path / "asked").read_text().startswith("-m pip ")
    assert not (tmp_path / "compared").exists()


def test_without_a_usable_python_make_says_what_to_name(tmp_path):
    """The script fails, and nothing is created."""
    done = subprocess.run(
        (sys.executable, str(SCRIPT), "python3.0"),
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (1, "")
    expected = "no python3.0 with venv and ensurepip: name one, make PYTHON=PATH\n"
    assert done.stderr.endswith(expected)
