"""The file for --py-files holds all that workers need, except the packages it names."""

import json
import subprocess
import sys
import zipfile

import pytest

from hastore.pipeline.spark.worker_package import NEEDED, build_worker_package
from hastore_cli.main import main
from tests.pipeline.bare_python import bare_python
from tests.support.commands.running import is_one_line_with_a_next_step


@pytest.fixture
def package(tmp_path):
    """Build the file, and return its path."""
    path = tmp_path / "workers.zip"
    assert main(["pipeline", "package", "--out", str(path)]) == 0
    return path


def test_builds_of_one_installation_are_identical():
    """So a build can be compared, and cached."""
    assert build_worker_package() == build_worker_package()


def test_package_has_sources_but_no_tests_caches_or_commands(package):
    """It has only what a worker may import."""
    names = zipfile.ZipFile(package).namelist()
    folders = {name.partition("/")[0] for name in names}
    assert {"hastore", "pyspark_hastore", "attr", "attrs", "trio", "structlog"} <= folders
    assert not {"hastore_cli", "hastore_scenarios", "tests", "numpy", "pyarrow"} & folders
    assert "hastore/pipeline/source/data_source.py" in names
    assert not [name for name in names if "__pycache__" in name or "/_tests/" in name]
    assert len(names) == len(set(names))


def test_workers_import_all_their_modules_from_the_file(package, tmp_path):
    """They have the compiled packages, but no site-packages."""
    pytest.importorskip("pyspark")
    python = bare_python(tmp_path / "bare")
    program = (
        "import sys, hastore.pipeline.source.data_source, hastore.pipeline.source.facts_source,"
        " hastore.pipeline.source.batch_reader, hastore.pipeline.source.stream_reader,"
        " hastore.columnar.record_facts, hastore.columnar.index_files,"
        " hastore.columnar.unit_files, hastore.pipeline.rebuild.source,"
        " hastore.pipeline.rebuild.records, hastore.pipeline.rebuild.sink,"
        " hastore.pipeline.rebuild.index, hastore.pipeline.archive.segment_sink,"
        " hastore.pipeline.archive.folder, hastore.pipeline.archive.restore, pyspark_hastore;"
        "print(hastore.__file__)"
    )
    done = subprocess.run(
        [python, "-c", program],
        env={"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.startswith(str(package))


def test_command_names_what_else_workers_need(tmp_path, capsys, monkeypatch):
    """It prints a path, a size, and the packages that cannot be in a zip file."""
    monkeypatch.chdir(tmp_path)
    assert main(["pipeline", "package", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["path"] == "hastore-workers.zip"
    assert document["size"] == (tmp_path / "hastore-workers.zip").stat().st_size
    assert document["needs"] == list(NEEDED) == ["numpy", "pyarrow", "isal"]
    assert main(["pipeline", "package"]) == 0
    assert "--py-files hastore-workers.zip" in capsys.readouterr().out


def test_unwritable_path_is_one_line_with_a_next_step(tmp_path, capsys):
    """No file is left."""
    (tmp_path / "file").write_text("")
    assert main(["pipeline", "package", "--out", str(tmp_path / "file" / "x.zip")]) != 0
    assert is_one_line_with_a_next_step(capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_package_is_built_without_spark():
    """The build imports neither pyspark nor numpy nor pyarrow."""
    program = (
        "import sys; sys.modules.update(pyspark=None, numpy=None, pyarrow=None);"
        "from hastore.pipeline.spark.worker_package import build_worker_package as build;"
        "raise SystemExit(not build())"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
