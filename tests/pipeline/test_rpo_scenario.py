"""``hastore scenario run --spark``: Spark's word on a real run, and the checker's."""

import json
import shutil
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from cli import scenario_spark
from cli.main import root
from cli.scenario_spark import judge_by_spark
from hastore.errors import ConfigError
from scenarios.runner import run

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(180)]


def test_spark_and_the_checker_agree_until_a_log_is_damaged(spark, tmp_path):
    """A promotion: both say kept. A byte flipped behind the checker's back: they do not agree."""
    result = run("promotion", directory=str(tmp_path), keep=True)
    assert result.passed, result.why
    (judged,) = judge_by_spark([result])
    assert judged.passed
    assert (judged.spark["verdict"], judged.spark["acknowledged_lost"]) == ("kept", 0)
    assert judged.spark["puts"] == sum(judged.put_counts.values())
    assert judged.to_dict()["spark"]["disagreements"] == []

    # The first message, in every log: acknowledged, and nowhere.
    for node in "abc":
        path = Path(result.directory) / node / "commitlog" / f"{0:020d}"
        data = bytearray(path.read_bytes())
        data[88] ^= 1  # the first byte of its body
        path.write_bytes(data)
    (judged,) = judge_by_spark([result])
    assert not judged.passed
    assert judged.spark["verdict"] == "lost"
    assert "acknowledged lost: the checker counts 0, Spark 2" in judged.why


def test_the_command_says_what_spark_says(spark, tmp_path):
    """--spark adds a part to the JSON, and leaves nothing behind where all is well."""
    command = ["scenario", "run", "sync-put", "--spark", "--directory", str(tmp_path)]
    told = CliRunner().invoke(root, [*command, "-o", "json"], standalone_mode=False)
    assert told.return_value == 0, told.output
    (result,) = json.loads(told.stdout)["results"]
    assert result["spark"]["acknowledged_kept"] == result["put_counts"]["PUT_OK"]
    assert result["directory"] is None
    assert list(tmp_path.iterdir()) == []
    told = CliRunner().invoke(root, [*command, "--keep"], standalone_mode=False)
    assert told.return_value == 0, told.output
    assert "spark  sync-put: kept, 1001 puts, 1001 acknowledged and kept, 0 lost" in told.stdout
    assert (tmp_path / "sync-put" / "history.jsonl").is_file()


def test_a_story_without_puts_has_nothing_to_join(spark, tmp_path):
    """No put, no node: Spark is not asked, and nothing fails."""
    result = run("sync-put", directory=str(tmp_path), keep=True)
    (Path(result.directory) / "history.jsonl").write_text("")
    (judged,) = judge_by_spark([attrs.evolve(result)])
    assert judged.spark is None
    shutil.rmtree(result.directory)


def test_without_spark_it_is_refused_before_anything_runs(monkeypatch, tmp_path):
    """One line that names what to install; no node was started."""
    monkeypatch.setattr(scenario_spark.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="the pipeline needs pyspark") as caught:
        CliRunner().invoke(
            root,
            ["scenario", "run", "sync-put", "--spark", "--directory", str(tmp_path / "w")],
            catch_exceptions=False,
        )
    assert caught.value.hint == "pip install 'hastore[spark]'"
    assert not (tmp_path / "w").exists()
