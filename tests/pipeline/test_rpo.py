"""``rpo`` compares every put of a history with the surviving logs, and agrees with the checker."""

import json
import os
import random
import re

import attrs
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from hastore.errors import ConfigError, NotAStoreError
from hastore.pipeline.rpo import history_lines
from hastore.pipeline.rpo.history_lines import NotAHistoryError
from hastore.pipeline.rpo.job import rpo
from hastore.pipeline.rpo.rules import Fate, count_fates, verdict_of
from hastore_cli.main import root
from hastore_scenarios.judge.account import Account
from hastore_scenarios.judge.history import load_history
from hastore_scenarios.judge.presence import RULES, count_broken, disagreements
from tests.pipeline.rpo_worlds import Held, RpoWorld

pytestmark = pytest.mark.xdist_group("spark")
WORLDS = 6


class Quiet(random.Random):
    """A generator that causes no trouble: one sync master, one slave, all PUT_OK."""

    def random(self):
        return 0.5

    def choice(self, options):
        return options[0]

    def randint(self, _low, _high):
        return 1

    def randrange(self, stop):
        return stop


def write_world(folder, world_random, **options):
    """Draw a world, and write its history and its stores to ``folder``."""
    folder.mkdir()
    path = folder / "history.jsonl"
    with path.open("w") as sink:
        world = RpoWorld(world_random, sink=sink, **options)
    with path.open() as lines:
        world.history = load_history(lines)  # the job knows only what is written
    return world, world.write_logs(folder)


@pytest.fixture
def quiet(tmp_path):
    """Return a world with 12 puts, PUT_OK and in both logs, its folder and its stores."""
    world, stores = write_world(tmp_path / "quiet", Quiet(), trouble=0)
    return world, tmp_path / "quiet", stores


def test_mixed_histories_agree_with_the_checker(spark, tmp_path):
    """Six worlds have lost, duplicated, altered, damaged and unknown messages."""
    generator = random.Random(11)
    worlds, stores = [], {}
    for number in range(WORLDS):
        trouble = [0.0, 0.1, 0.3][number % 3]
        folder = tmp_path / f"w{number}"
        world, own = write_world(folder, generator, prefix=f"{number}", puts=40, trouble=trouble)
        worlds.append(world)
        stores |= own
    result = rpo(spark, str(tmp_path / "w*"), [str(path) for path in stores.values()])
    nodes = tuple(stores)
    expected = [tally for world in worlds for tally in world.tallies(nodes)]
    seen = result.summary["tallies"]
    order = str
    assert sorted(seen, key=order) == sorted(map(attrs.asdict, expected), key=order)
    fates = count_fates(expected)
    assert {fate: result.summary[fate.name.lower()] for fate in Fate} == fates
    assert result.summary["verdict"] == verdict_of(expected).value == "lost"
    foreign = sum(one["foreign"] for one in result.summary["by_survivor"])
    assert foreign == sum(world.foreign() for world in worlds)
    for column in ("by_status", "by_topic"):
        assert sum(row["puts"] for row in result.summary[column]) == 40 * WORLDS
    assert [row["fate"] for row in result.rows][: fates[Fate.ACKNOWLEDGED_LOST]] == [
        "acknowledged, lost"
    ] * fates[Fate.ACKNOWLEDGED_LOST]

    # Each world alone, by the checker and by the counts.
    broken = []
    for world in worlds:
        own = [tally for tally in seen if tally["node"] in world.logs]
        account = Account.of(world.history.events)
        rules = count_broken(own, world.foreign(), nodes, account)
        assert disagreements(rules, world.checker_counts()) == ()
        broken.append(sum(rules.values()))
    assert all(broken[at] for at in (1, 2, 4, 5))
    assert set(RULES) == {
        rule for world in worlds for rule in RULES if world.checker_counts()[rule.value]
    }


def test_lost_messages_are_named_with_status_and_second(spark, quiet, tmp_path):
    """The survivor lacks the last three, and has another body for one message."""
    world, folder, _ = quiet
    world.logs["b"] = world.logs["b"][:9]
    # One message has another body, and one is there twice.
    world.logs["b"][2] = Held("K2", b"another")
    world.logs["b"].append(world.logs["b"][4])
    stores = world.write_logs(tmp_path / "later")
    out = tmp_path / "found"
    result = rpo(spark, str(folder / "history.jsonl"), [str(stores["b"])], out=str(out))
    assert result.found
    assert result.summary["verdict"] == "lost"
    reported = [(row["fate"], row["key"]) for row in result.rows]
    lost = [("acknowledged, lost", key) for key in ("K2", "K9", "K10", "K11")]
    assert reported == [*lost, ("acknowledged, duplicated", "K4")]
    assert result.rows[0]["other_bodies"] == 1
    assert result.rows[0]["sent_at"].startswith("1970-01-01T00:00:00.5")
    assert result.summary["altered"] == 1
    seconds = {row["second"]: row["acknowledged_lost"] for row in result.summary["by_second"]}
    assert sum(seconds.values()) == 4
    assert all(re.fullmatch(r"1970-01-01T00:00:0\dZ", second) for second in seconds)
    assert result.files == (str(out / "rpo.parquet"),)
    rows = pq.read_table(result.files[0]).to_pylist()
    assert len(rows) == 12
    assert {row["key"] for row in rows if row["fate"] == "acknowledged, lost"} == {
        key for _, key in lost
    }


def test_truncated_survivor_has_lost_the_later_messages(spark, quiet):
    """A file is cut in the middle of a record, then removed."""
    _, folder, stores = quiet
    path = stores["b"] / "commitlog" / f"{0:020d}"
    os.truncate(path, 700)
    result = rpo(spark, str(folder), [str(stores["b"])])
    kept = result.summary["acknowledged_kept"]
    assert 0 < kept < 12
    assert result.summary["acknowledged_lost"] == 12 - kept
    assert result.summary["by_survivor"][0]["damaged"] == 1
    path.unlink()
    result = rpo(spark, str(folder), [str(stores["b"])])
    assert result.summary["acknowledged_lost"] == 12


def test_copies_of_a_message_that_was_sent_again_are_no_fault(spark, quiet):
    """Where the answer says how often it was sent, or there is none and it may have been again."""
    world, folder, _ = quiet
    answered, unanswered = world.history.operations[3:5]
    for log in world.logs.values():
        log += [held for held in log if held.key in {answered.key, unanswered.key}]
    (folder / "twice").mkdir()
    stores = world.write_logs(folder / "twice")
    path = folder / "history.jsonl"

    def fates(**changes):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            for name, value in changes.get(f"{line['type']}_{line.get('op')}", {}).items():
                line[name] = value
        kept = [line for line in lines if not line.get("drop")]
        (folder / "again.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
        result = rpo(spark, str(folder / "again.jsonl"), [str(stores["a"])])
        return result.summary["verdict"], result.summary

    unknown = {f"ok_{unanswered.op}": {"drop": True}}
    verdict, found = fates(**unknown)
    assert (verdict, found["acknowledged_duplicated"]) == ("broken", 1)
    assert found["unknown_duplicated"] == 1
    again = {
        f"ok_{answered.op}": {"sent_count": 2},
        f"invoke_{unanswered.op}": {"at_least_once": True},
    }
    verdict, found = fates(**unknown, **again)
    assert (verdict, found["acknowledged_kept"], found["unknown_present"]) == ("kept", 11, 1)


def test_torn_last_line_of_a_history_is_ignored(spark, quiet, monkeypatch):
    """A killed producer leaves such a line; its put counts as unanswered."""
    _, folder, stores = quiet
    path = folder / "history.jsonl"
    lines = path.read_text().splitlines()
    answers = [at for at, line in enumerate(lines) if '"type":"ok"' in line]
    path.write_text("\n".join(lines[: answers[-1]]) + "\n" + lines[answers[-1]][:30])
    result = rpo(spark, str(path), [str(stores["a"])])
    assert result.summary["acknowledged_kept"] == 11
    assert result.summary["unknown_present"] == 1
    # Beyond the limit of bad lines, one that is not torn could go unnoticed.
    monkeypatch.setattr(history_lines, "_BAD_LINES_MAX", 1)
    with pytest.raises(NotAHistoryError, match="end in half a line"):
        rpo(spark, str(path), [str(stores["a"])])


def test_invalid_history_is_an_error_with_its_line(spark, quiet, tmp_path):
    """No JSON, no event, answers without a put, two answers, and repeated puts or keys."""
    _, folder, stores = quiet
    store = str(stores["a"])
    good = (folder / "history.jsonl").read_text().splitlines()
    first = next(at for at, line in enumerate(good) if '"type":"invoke"' in line)
    call, answer = good[first], good[first + 1]
    assert '"type":"ok"' in answer
    cases = {
        "line 3 is not a line": [*good[:2], "no json", *good[2:]],
        "line 1 is not a line": ['{"schema":"hastore.produce/1","messages":[]}'],
        "line 2 is not a line": [good[0], call.replace('"key"', '"kee"')],
        "line 4 is not a line": [*good[:3], answer.replace("PUT_OK", "FINE")],
        f"line {first + 1} answers put 0, which was never sent": [
            *good[:first], *good[first + 1 :],
        ],
        f"line {first + 3} answers put 0 a second time": [
            *good[: first + 2], answer, *good[first + 2 :],
        ],
        f"line {first + 2} sends put 0 a second time": [
            *good[: first + 1], call, *good[first + 1 :],
        ],
        f"line {first + 1} sends put 0 with the key 'K0', which 2 puts have": [
            line.replace('"K1"', '"K0"') for line in good
        ],
    }  # fmt: skip
    out = tmp_path / "out"
    path = tmp_path / "a [b]*{c} d.jsonl"  # these characters are special to Spark
    for reported, lines in cases.items():
        path.write_text("\n".join(lines) + "\n")
        with pytest.raises(NotAHistoryError, match=re.escape(reported)):
            rpo(spark, str(path), [store], out=str(out))
    path.write_text("")
    with pytest.raises(NotAHistoryError, match="holds no put"):
        rpo(spark, str(path), [store], out=str(out))
    with pytest.raises(ConfigError, match="is not a file"):
        rpo(spark, str(tmp_path / "none"), [store], out=str(out))
    with pytest.raises(ConfigError, match="no survivor"):
        rpo(spark, str(folder), [], out=str(out))
    with pytest.raises(NotAStoreError):
        rpo(spark, str(folder), [str(tmp_path / "none")], out=str(out))
    assert not out.exists()


@pytest.mark.parametrize("name", ["_h.jsonl", ".h.jsonl", "h.jsonl._COPYING_"])
def test_history_that_spark_would_ignore_is_refused(tmp_path, name):
    """Otherwise its lost puts would go unnoticed; the same holds for a glob."""
    for path in (tmp_path / "h.jsonl", tmp_path / name):
        path.write_text("{}\n")
    with pytest.raises(ConfigError, match="silently ignores"):
        rpo(None, str(tmp_path / name), ["none"])
    if not name.startswith("."):  # a glob leaves those out
        with pytest.raises(ConfigError, match="silently ignores"):
            rpo(None, str(tmp_path / "*"), ["none"])


def test_command_exits_with_4_if_a_message_is_lost(spark, quiet, tmp_path):
    """It prints a row for the lost message; if all are kept, it exits with 0."""
    world, folder, stores = quiet
    command = ["pipeline", "run", "rpo", str(folder), *(str(path) for path in stores.values())]
    reported = CliRunner().invoke(root, [*command, "-o", "json"])
    assert reported.exit_code == 0, reported.output
    document = json.loads(reported.stdout)
    summary = document["summary"]
    assert (document["found"], document["rows"], summary["verdict"]) == (False, [], "kept")
    assert summary["acknowledged_kept"] == summary["puts"] == 12
    assert [one["acknowledged"] for one in summary["by_survivor"]] == [12, 12]
    assert summary["by_second"] == []
    world.logs["b"].pop()
    less = world.write_logs(tmp_path / "less")["b"]
    reported = CliRunner().invoke(root, ["pipeline", "run", "rpo", str(folder), str(less)])
    assert reported.exit_code == 4, reported.output
    assert "acknowledged, lost  PUT_OK  K11" in reported.stdout
    assert reported.stdout.index("verdict") < reported.stdout.index("by status")
