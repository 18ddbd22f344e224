"""``hastore scenario run --spark``: Spark's word on a real run, and the checker's."""

import json

import attrs
import pytest
from click.testing import CliRunner

from hastore.errors import ConfigError
from hastore.pipeline.spark.install_source import install_command
from hastore_cli.lab import scenario_run
from hastore_cli.lab.scenario_run import check_by_spark
from hastore_cli.main import root
from hastore_scenarios.judge.judgement import recheck
from hastore_scenarios.judge.result import ScenarioResult

pytestmark = pytest.mark.xdist_group("spark")


def test_spark_and_the_checker_agree_until_a_log_is_damaged(spark, tmp_path):
    """A promotion: both say kept. A byte flipped behind the checker's back: they do not agree."""
    command = ["scenario", "run", "promotion", "--spark", "--keep", "--directory", str(tmp_path)]
    command += ["--out", str(tmp_path / "out")]
    told = CliRunner().invoke(root, command, standalone_mode=False)
    assert told.return_value == 0, told.output
    assert "spark  promotion: kept, " in told.stdout
    assert "0 lost; the checker agrees" in told.stdout

    # The first message, in every log: acknowledged, and nowhere.
    folder = tmp_path / "promotion"
    verdict = recheck(folder)
    for node in "abc":
        path = folder / node / "commitlog" / f"{0:020d}"
        data = bytearray(path.read_bytes())
        data[88] ^= 1  # the first byte of its body
        path.write_bytes(data)
    result = made_up(directory=str(folder), verdict=verdict)
    assert result.passed
    (checked,) = check_by_spark([result])
    assert not checked.passed
    assert checked.spark["verdict"] == "lost"
    assert "acknowledged lost: the checker counts 0, Spark 2" in checked.why
    assert checked.to_dict()["spark"]["rules"]["not replicated"] == 1

    (folder / "history.jsonl").write_text("")
    (checked,) = check_by_spark([result])
    assert checked.spark is None  # nothing was put: nothing to join


def test_what_passed_is_removed_and_told_in_json(spark, tmp_path, monkeypatch):
    """--spark adds a part to the JSON, and leaves nothing behind where all is well."""
    monkeypatch.setattr(scenario_run, "check_by_spark", with_little)
    command = ["scenario", "run", "sync-put", "--spark", "--directory", str(tmp_path), "-o", "json"]
    command += ["--out", str(tmp_path / "out")]
    told = CliRunner().invoke(root, command, standalone_mode=False)
    assert told.return_value == 0, told.output
    (result,) = json.loads(told.stdout)["results"]
    assert (result["spark"], result["directory"]) == ({"disagreements": []}, None)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def with_little(results):
    """Spark's part, without Spark."""
    return [attrs.evolve(result, spark={"disagreements": []}) for result in results]


def made_up(**changes):
    """A result that passed."""
    return ScenarioResult(
        name="promotion",
        title="",
        proves="",
        failure=None,
        timeline=(),
        put_counts={},
        duration_s=1.0,
        **changes,
    )


def test_without_spark_it_is_refused_before_anything_runs(monkeypatch, tmp_path):
    """One line that names what to install; no node was started."""
    monkeypatch.setattr(scenario_run.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="the pipeline needs pyspark") as caught:
        CliRunner().invoke(
            root,
            ["scenario", "run", "sync-put", "--spark", "--directory", str(tmp_path / "w")],
            catch_exceptions=False,
        )
    assert caught.value.hint == install_command("spark")
    assert not (tmp_path / "w").exists()
