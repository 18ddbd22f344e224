"""Every job says of a path that is not there what it is to be, before Spark starts."""

import pytest

pytest.importorskip("pyspark")

from hastore_cli.main import main
from hastore_cli.pipeline.commands import _JOBS
from tests.support.commands.running import is_one_line_with_a_next_step
from tests.support.store.log_builder import LogBuilder

# job: what is given, and the exit code; {no} is a path that is not there, {tmp} a directory.
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


def test_all_jobs_are_tried():
    """A new one has its line above."""
    assert set(GIVEN) == set(_JOBS)


@pytest.mark.parametrize("job", GIVEN)
def test_a_missing_path_is_one_line(job, tmp_path, monkeypatch, capsysbinary):
    """It names the path, and what to do next; nothing is written."""
    monkeypatch.setattr("hastore_cli.pipeline.run.running_spark", None)
    whole = LogBuilder().fill(3).write(tmp_path / "whole")
    before = sorted(tmp_path.rglob("*"))
    words, expected = GIVEN[job]
    nowhere = f"{tmp_path}/nowhere"
    given = [word.format(no=nowhere, whole=whole, tmp=tmp_path) for word in words.split()]
    code = main(["pipeline", "run", job, *given])
    captured = capsysbinary.readouterr()
    told = captured.err.decode()
    assert (code, captured.out) == (expected, b"")
    assert is_one_line_with_a_next_step(told), told
    assert nowhere in told
    assert sorted(tmp_path.rglob("*")) == before
