"""Every job reports a missing path before Spark starts."""

import pytest

pytest.importorskip("pyspark")

from hastore_cli.main import main
from hastore_cli.pipeline.commands import _JOBS
from tests.support.commands.running import is_one_line_with_a_next_step
from tests.support.store.log_builder import LogBuilder

# job: arguments and exit code; {no} is a missing path, {whole} a store, {tmp} a directory.
GIVEN = {
    "verify": ("{whole} {no}", 6),
    "audit": ("{whole} {no}", 6),
    "rpo": ("{no} {whole}", 2),
    "rebuild": ("{no}", 6),
    "archive": ("{no} --out {tmp}/archive", 6),
    "report": ("{no}", 6),
    "restore": ("{no} --out {tmp}/restored", 6),
    "export": ("{no} --to {tmp}/all.jsonl", 6),
    "import": ("{no} --to 127.0.0.1:1", 2),
}


def test_all_jobs_are_covered():
    """A new job needs a line above."""
    assert set(GIVEN) == set(_JOBS)


@pytest.mark.parametrize("job", GIVEN)
def test_missing_path_is_one_line_with_a_next_step(job, tmp_path, monkeypatch, capsysbinary):
    """The line names the path; nothing is written."""
    monkeypatch.setattr("hastore_cli.pipeline.run.running_spark", None)
    whole = LogBuilder().fill(3).write(tmp_path / "whole")
    before = sorted(tmp_path.rglob("*"))
    words, expected = GIVEN[job]
    nowhere = f"{tmp_path}/nowhere"
    given = [word.format(no=nowhere, whole=whole, tmp=tmp_path) for word in words.split()]
    code = main(["pipeline", "run", job, *given])
    captured = capsysbinary.readouterr()
    stderr = captured.err.decode()
    assert (code, captured.out) == (expected, b"")
    assert is_one_line_with_a_next_step(stderr), stderr
    assert nowhere in stderr
    assert sorted(tmp_path.rglob("*")) == before
