"""``hastore scenario run --spark`` compares Spark's verdict with the checker's on a real run."""

import json

import attrs
import pytest
from click.testing import CliRunner

from hastore.errors import ConfigError
from hastore.install_source import install_command
from hastore_cli.lab import scenario_run
from hastore_cli.lab.scenario_run import check_by_spark
from hastore_cli.main import root
from hastore_scenarios.judge.judgement import recheck
from hastore_scenarios.judge.result import ScenarioResult

pytestmark = pytest.mark.xdist_group("spark")


def test_spark_and_the_checker_agree_until_a_log_is_damaged(spark, tmp_path):
    """Both call a promotion kept; only Spark sees bytes that are flipped after the check."""
    command = ["scenario", "run", "promotion", "--spark", "--keep", "--directory", str(tmp_path)]
    command += ["--out", str(tmp_path / "out")]
    done = CliRunner().invoke(root, command, standalone_mode=False)
    assert done.return_value == 0, done.output
    assert "spark  promotion: kept, " in done.stdout
    assert "0 lost; the checker agrees" in done.stdout

    # Damage the first message in every log: it was acknowledged, and is now lost.
    folder = tmp_path / "promotion"
    verdict = recheck(folder)
    for node in "abc":
        path = folder / node / "commitlog" / f"{0:020d}"
        data = bytearray(path.read_bytes())
        data[88] ^= 1  # the first byte of its body
        path.write_bytes(data)
    result = passed_result(directory=str(folder), verdict=verdict)
    assert result.passed
    (checked,) = check_by_spark([result])
    assert not checked.passed
    assert checked.spark["verdict"] == "lost"
    assert "acknowledged lost: the checker counts 0, Spark 2" in checked.why
    assert checked.to_dict()["spark"]["rules"]["not replicated"] == 1

    (folder / "history.jsonl").write_text("")
    (checked,) = check_by_spark([result])
    assert checked.spark is None  # no puts: nothing to compare


def test_passed_run_is_removed_and_printed_as_json(spark, tmp_path, monkeypatch):
    """--spark adds a part to the JSON."""
    monkeypatch.setattr(scenario_run, "check_by_spark", with_empty_spark_part)
    command = ["scenario", "run", "sync-put", "--spark", "--directory", str(tmp_path), "-o", "json"]
    command += ["--out", str(tmp_path / "out")]
    done = CliRunner().invoke(root, command, standalone_mode=False)
    assert done.return_value == 0, done.output
    (result,) = json.loads(done.stdout)["results"]
    assert (result["spark"], result["directory"]) == ({"disagreements": []}, None)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def with_empty_spark_part(results):
    """Add Spark's part to results, without Spark."""
    return [attrs.evolve(result, spark={"disagreements": []}) for result in results]


def passed_result(**changes):
    """Return a result that passed."""
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


def test_missing_spark_is_refused_before_any_node_starts(monkeypatch, tmp_path):
    """One line names what to install."""
    monkeypatch.setattr(scenario_run.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="the pipeline needs pyspark") as caught:
        CliRunner().invoke(
            root,
            ["scenario", "run", "sync-put", "--spark", "--directory", str(tmp_path / "w")],
            catch_exceptions=False,
        )
    assert caught.value.hint == install_command("spark")
    assert not (tmp_path / "w").exists()
