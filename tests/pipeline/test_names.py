"""What ``hastore.pipeline`` itself has: a few names, each imported when it is asked for."""

import subprocess
import sys

import pytest

from hastore.pipeline.spark.install_source import install_command
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


def test_the_package_imports_nothing_until_a_name_is_used():
    """Spark's workers, and who only asks for an error's class, need no Spark."""
    done = python("import sys, hastore.pipeline as p; print('pyspark' in sys.modules, p.__all__)")
    assert done.stdout.startswith("False ['read', 'read_stream', 'register', 'spark_session']")


def test_every_name_is_what_it_says():
    """And is listed; another one is an AttributeError as of any module."""
    pytest.importorskip("pyspark")
    import hastore.pipeline as package

    assert {getattr(package, name).__name__ for name in package.__all__} == set(package.__all__)
    assert dir(package) == package.__all__
    with pytest.raises(AttributeError, match=r"'hastore\.pipeline' has no attribute 'reed'"):
        _ = package.reed


def test_without_spark_the_error_says_what_to_install():
    """Not only which module is missing."""
    done = python(WITHOUT + "p.read")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: hastore.pipeline.read needs pyspark: " + install_command("spark")
    )
