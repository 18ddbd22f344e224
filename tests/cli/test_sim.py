"""`hastore sim`: run and count seeds, replay one, and report failures."""

import json
import signal
import subprocess
import sys

import pytest
import trio

from hastore.broker.node.master import Master
from hastore.errors import ConfigError
from hastore.sim.seams import TRIO_MINOR, run_by_seed, trio_note
from hastore_cli.lab import sim_commands, sim_run
from hastore_cli.lab.sim_run import SeedOutcome, SeedTotals, run_seed, run_seeds
from hastore_cli.main import main
from tests.support.commands.in_process import hastore_here
from tests.support.commands.running import (
    WITHIN_S,
    command,
    environment,
    is_one_line_with_a_next_step,
)
from tests.support.worlds.planted import slave_acks_before_fsync


def test_sim_run_counts_seeds():
    """Text and JSON have the same numbers, whatever the number of processes."""
    text = hastore_here("sim", "run", "--seeds", "6..8", "--jobs", "1")
    assert text.returncode == 0, text.stderr
    assert text.stdout.startswith("seeds         3\nvirtual time  ")
    assert "violations    none" in text.stdout
    as_json = hastore_here("sim", "run", "--seeds", "6..8", "--jobs", "2", "-o", "json")
    content = json.loads(as_json.stdout)
    assert content["schema"] == "hastore.sim/1"
    assert (content["seeds"], content["violations"], content["failed"]) == (3, 0, [])
    assert f"puts          {content['puts']}, {content['acknowledged']} ack" in text.stdout


def test_minutes_run_seeds_until_the_time_is_over():
    """With a single seed A, the run goes on after A."""
    done = hastore_here(
        "sim", "run", "--seeds", "7", "--minutes", "0.02", "--jobs", "1", "-o", "json"
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["wall_s"] > 1


def test_too_short_a_time_still_runs_one_seed():
    """Otherwise a run without any seed would report success."""
    tally = run_seeds(iter([7, 8]), jobs=1, seconds=1e-9, on_progress=lambda _: None)
    assert (tally.seeds, tally.failed) == (1, [])


def test_replay_is_deterministic(capsys):
    """It prints the trace hash and the main events; --trace prints all events."""
    assert main(["sim", "replay", "8"]) == 0
    first = capsys.readouterr().out
    assert main(["sim", "replay", "8"]) == 0
    assert capsys.readouterr().out == first
    assert "  trace hash  " in first
    assert "fault 0: " in first
    assert main(["sim", "replay", "8", "--trace", "-o", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["violation"] is None
    assert len(content["timeline"]) > len(first.splitlines())


def test_another_minor_version_of_trio_is_named(monkeypatch, capsys, tmp_path):
    """Its scheduler may make another run of a seed; results stay on stdout alone."""
    assert main(["sim", "replay", "8"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    monkeypatch.setattr(trio, "__version__", f"{TRIO_MINOR}.7")
    assert trio_note() is None
    monkeypatch.setattr(trio, "__version__", f"{TRIO_MINOR}1.0")
    assert main(["sim", "replay", "8"]) == 0
    assert capsys.readouterr() == (out, f"note: {trio_note()}\n")
    assert f"trio is {TRIO_MINOR}1.0: " in trio_note()
    words = ["scenario", "run", "promotion", "--out", str(tmp_path / "out")]
    assert main([*words, "--world", "sim", "--seed", "8"]) == 0
    assert capsys.readouterr().err.startswith(f"note: {trio_note()}\n")


def test_a_trio_without_the_schedulers_hook_is_refused(monkeypatch, capsys):
    """One line, and what to install; nothing else of hastore needs the hook."""
    monkeypatch.delattr("trio._core._run._r")
    for words in (["run", "--seeds", "8"], ["replay", "8"]):
        assert main(["sim", *words]) == 2
        err = capsys.readouterr().err
        assert is_one_line_with_a_next_step(err)
        assert "cannot schedule by a seed" in err
        assert f"pip install 'trio=={TRIO_MINOR}.*'" in err
    with pytest.raises(ConfigError, match="cannot schedule by a seed"):
        run_by_seed(8, trio.sleep_forever)


@pytest.mark.parametrize(
    "change",
    [
        "sys.modules['trio._core._run'] = None; del trio._core._run",
        "del trio._core._run.Runner.reschedule",
    ],
)
def test_a_trio_without_other_private_names_is_refused_likewise(change):
    """They were taken when the module was imported, which ended in an internal error."""
    code = (
        f"import sys, trio\n{change}\nfrom hastore_cli.main import main\n"
        "sys.exit(main(['sim', 'replay', '8']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert is_one_line_with_a_next_step(done.stderr)
    assert "cannot schedule by a seed" in done.stderr


def test_replay_fits_80_columns(monkeypatch, capsys):
    """Long lines of the header and the timeline continue below their text."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["sim", "replay", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(" " * 24) for line in lines)


def test_violation_is_shrunk_and_reported(monkeypatch, capsys):
    """Exit code 4, with the command that replays it."""
    slave_acks_before_fsync(monkeypatch)
    failed = next(each for each in map(run_seed, range(20)) if not each.ok)
    monkeypatch.setattr(
        sim_run, "run_seeds", lambda *_, **__: SeedTotals(seeds=1, failed=[failed], cpu_s=1.0)
    )
    monkeypatch.setattr(sim_commands, "_SHRINK_MAX_S", 2.0)
    assert main(["sim", "run"]) == 4
    out = capsys.readouterr().out
    assert f"seed {failed.seed} FAILED: ack: put " in out
    assert f"  hastore sim replay {failed.seed}\n" in out
    assert "VIOLATION ack: put " in out
    assert "violations    1" in out
    assert main(["sim", "run", "-o", "json"]) == 4
    assert json.loads(capsys.readouterr().out)["failed"][0]["seed"] == failed.seed
    assert main(["sim", "replay", str(failed.seed)]) == 4
    assert "faults (" in capsys.readouterr().out


def test_crash_is_replayed_and_reported_with_its_traceback(monkeypatch, capsys):
    """An exception in the product fails a seed as a violation does: exit code 4."""

    def fail(_master, _message):
        raise KeyError("lost")

    monkeypatch.setattr(Master, "submit", fail)
    monkeypatch.setattr(sim_run, "run_seeds", lambda *_, **__: SeedTotals(failed=[run_seed(1)]))
    for arguments in (["sim", "run"], ["sim", "replay", "1"]):
        assert main(arguments) == 4
        out = capsys.readouterr().out
        assert "crash: KeyError: 'lost' in fail, test_sim.py" in out
        assert "faults (" in out
        assert "boot 1" in out
        assert out.count("Traceback (most recent call last):") == 1
    assert main(["sim", "replay", "1", "-o", "json"]) == 4
    content = json.loads(capsys.readouterr().out)
    assert content["violation"]["rule"] == "crash"
    assert content["error"].endswith("KeyError: 'lost'\n")


def test_seed_range_ends_before_the_time_is_over(capsys):
    """--minutes does not extend a range."""
    assert main(["sim", "run", "--seeds", "6..7", "--minutes", "9", "--jobs", "1"]) == 0
    assert "seeds         2\n" in capsys.readouterr().out


def test_error_of_the_simulator_fails_its_seed(monkeypatch, capsys):
    """The exit code is 4, as for a violation."""
    broken = SeedOutcome(seed=5, error="Traceback …\nKeyError: 'x'\n")
    monkeypatch.setattr(sim_run, "run_seeds", lambda *_, **__: SeedTotals(seeds=1, failed=[broken]))
    assert main(["sim", "run"]) == 4
    assert "seed 5 FAILED: KeyError: 'x'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("run", "--seeds", "5..3"), "'5..3' ends before it begins"),
        (("run", "--seeds", "many"), "'many' is not a seed or a range"),
        (("run", "--seeds", f"{2**63}"), "a seed is at most"),
        (("run", "--jobs", "0"), "0 is not in the range"),
        (("run", "--minutes", "0"), "0.0 is not in the range"),
        (("run", "--minutes", "nan"), "'nan' is not a valid number."),
        (("run", "--minutes", "x"), "'x' is not a valid number."),
        (("run", "--jobs", "x"), "'x' is not a valid integer"),
        (("replay", "x"), "'x' is not a valid integer"),
    ],
)
def test_invalid_arguments_are_refused(arguments, reason):
    """Exit code 2, with one line and a next step."""
    done = hastore_here("sim", *arguments)
    assert done.returncode == 2
    assert reason in done.stderr
    assert is_one_line_with_a_next_step(done.stderr)


def test_ctrl_c_prints_the_totals_so_far():
    """Exit code 130, without a traceback."""
    process = subprocess.Popen(
        command("sim", "run", "--seeds", "0..100000", "--jobs", "2"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stderr is not None
    progress = process.stderr.readline()
    assert " seeds, " in progress
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 130
    totals = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert int(totals["seeds"]) >= int(progress.split()[0])
    assert totals["violations"] == "none (interrupted)"
    assert "Traceback" not in err
