"""If a path is no store or a log is damaged, Spark shows our message without a traceback."""

import os

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, PySparkException

from hastore.errors import HastoreError, NotAStoreError
from hastore.pipeline.source.plain_errors import plain_errors
from hastore.pipeline.spark.errors import own_error
from tests.support.store.log_builder import LogBuilder

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("read", ["read", "readStream"])
def test_missing_path_is_reported_when_it_is_loaded(spark, tmp_path, read):
    """It is on the first line, and the next step on the second."""
    path = f"{tmp_path}/nowhere"
    with pytest.raises(AnalysisException) as caught:
        getattr(spark, read).format("hastore").load(path)
    first, second, *rest = str(caught.value).splitlines()
    assert first.startswith("[PYTHON_DATA_SOURCE_ERROR]")
    assert first.endswith(f"hastore.errors.NotAStoreError: {path}: no such directory")
    assert second == "next: name a store's directory, or its commitlog"
    assert [line.strip() for line in rest] == ["SQLSTATE: 38000"]
    error = own_error(caught.value)
    assert type(error) is NotAStoreError
    assert (str(error), error.hint) == (f"{path}: no such directory", second[len("next: ") :])


def test_unknown_option_is_reported_without_a_traceback(spark, tmp_path):
    """With an explicit schema Spark reports it when the frame is used."""
    reader = spark.read.schema("topic STRING").format("hastore").option("tpoic", "orders")
    with pytest.raises(AnalysisException, match="format hastore has no option 'tpoic'") as caught:
        reader.load(str(tmp_path)).collect()
    assert "Traceback" not in str(caught.value)


def test_damage_is_reported_without_a_traceback(spark, tmp_path):
    """Spark adds which task failed."""
    log = LogBuilder().fill(30)
    path = log.write(tmp_path / "n1", data=log.flipped(log.offsets[20] + 100))
    frame = spark.read.format("hastore").option("mode", "FAILFAST").load(str(path))
    with pytest.raises(PySparkException) as caught:
        frame.count()
    assert "hastore.errors.LogDamagedError: " in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_only_our_errors_lose_their_traceback(monkeypatch):
    """Bugs keep it, and HASTORE_DEBUG keeps it for all errors."""
    monkeypatch.delenv("HASTORE_DEBUG", raising=False)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(KeyError), plain_errors():
        raise KeyError
    assert is_hidden() == ""
    monkeypatch.setenv("HASTORE_DEBUG", "1")
    with pytest.raises(HastoreError), plain_errors():
        raise HastoreError("ours")
    assert is_hidden() == ""
    monkeypatch.delenv("HASTORE_DEBUG")
    with pytest.raises(HastoreError), plain_errors():
        raise HastoreError("ours")
    assert is_hidden() == "1"


def is_hidden():
    """Return the setting that pyspark reads."""
    return os.environ["SPARK_HIDE_TRACEBACK"]
