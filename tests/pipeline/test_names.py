"""The few public names of ``hastore.pipeline`` are imported when they are first used."""

import subprocess
import sys

import pytest

from hastore.install_source import install_command
from tests.patience import PROCESS_WITHIN_S

WITHOUT = "import sys, hastore.pipeline as p; sys.modules['pyspark'] = None; "


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PROCESS_WITHIN_S,
        check=False,
    )


def test_package_imports_nothing_until_a_name_is_used():
    """Spark's workers, and programs that only catch its errors, need not import pyspark."""
    done = python("import sys, hastore.pipeline as p; print('pyspark' in sys.modules, p.__all__)")
    assert done.stdout.startswith("False ['read', 'read_stream', 'register', 'spark_session']")


def test_public_names_resolve_to_objects_of_that_name():
    """dir() lists them; any other name is an AttributeError, as in every module."""
    pytest.importorskip("pyspark")
    import hastore.pipeline as package

    assert {getattr(package, name).__name__ for name in package.__all__} == set(package.__all__)
    assert dir(package) == package.__all__
    with pytest.raises(AttributeError, match=r"'hastore\.pipeline' has no attribute 'reed'"):
        _ = package.reed


def test_error_without_spark_has_the_install_command():
    """It also names the missing module."""
    done = python(WITHOUT + "p.read")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: hastore.pipeline.read needs pyspark: " + install_command("spark")
    )
