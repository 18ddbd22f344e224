"""The report equals a plain count in Python, for a golden store and a damaged one."""

import collections
import datetime as dt
import html.parser
import json
import statistics

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("matplotlib")

import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from hastore.errors import ConfigError, NotAStoreError
from hastore.pipeline.report.job import BY, TABLES, _rows_by, report
from hastore.pipeline.report.numbers import count_text
from hastore.pipeline.report.tables import report_tables
from hastore.pipeline.spark.errors import own_error
from tests.support.store.expected_rows import walked
from tests.support.store.log_builder import FIRST_MS, LogBuilder

pytestmark = pytest.mark.xdist_group("spark")
HOSTILE = "<script>alert(1)</script>"
GAP_MS = 3_600_000


def made_store(path):
    """Write a store with skewed queues, repeated keys, duplicates, a gap, a flip and odd names."""
    log = LogBuilder(file_size=1 << 16)
    topics = ["orders", "orders", "orders", "payments", "a b&c", HOSTILE]
    for number in range(1_200):
        now_ms = FIRST_MS + number * 250 + GAP_MS * (number >= 700)
        unique = f"U{number - 1 if number % 100 == 99 else number}"
        properties = f"KEYS\x01k{number % 7} all \x02UNIQ_KEY\x01{unique}\x02"
        if number % 3:
            properties += f"TAGS\x01t{number % 3}\x02"
        log.add(
            bytes(number * 37 % 1_500),
            topic=topics[number % len(topics)],
            queue_id=number % 5 // 2,
            properties_raw=properties.encode(),
            born_timestamp_ms=now_ms - number * 13 % 4_000 + 5,
            store_timestamp_ms=now_ms,
            reconsume_times=int(number % 200 == 199),
        )
    return log.write(path, data=log.flipped(log.offsets[50] + 100))


def puts(path):
    """Write a history: puts answered after 2, 4 and 3000 ms, one unanswered, one not sent."""
    ends = [("ok", "PUT_OK", 0.002), ("ok", "PUT_OK", 0.004), ("ok", "FLUSH_SLAVE_TIMEOUT", 3.0)]
    lines = []
    for op, (kind, status, after_s) in enumerate(ends):
        lines.append({"type": "invoke", "op": op, "time_s": op * 10.0, "wait": op > 0})
        lines.append({"type": kind, "op": op, "time_s": op * 10.0 + after_s, "status": status})
    lines.append({"type": "invoke", "op": 3, "time_s": 40.0, "wait": True})
    lines.append({"type": "invoke", "op": 4, "time_s": 50.0, "wait": True})
    lines.append({"type": "fail", "op": 4, "time_s": 50.1, "status": None})
    sent = [{"status": "SEND_OK", "latency_ms": 7.5}, {"status": "NO_ANSWER", "latency_ms": None}]
    lines.append({"schema": "hastore.produce/1", "messages": sent})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_text(text + '{"type": "inv')  # the writer was killed
    return path


def status_samples(path):
    """Write ten status samples of a master, with a slave that lags in the last three."""
    lags = [0, 0, 0, 0, 0, 0, 0, 100, 200, 5_000]
    path.write_text(
        "".join(
            json.dumps(
                {
                    "schema": "hastore.status/1",
                    "name": "n1",
                    "process_id": 7,
                    "uptime_s": 100.0 + place,
                    "slaves": [{"address": "127.0.0.1:9", "state": "TRANSFER", "lag_bytes": lag}],
                }
            )
            + "\n"
            for place, lag in enumerate(lags)
        )
    )
    return path


@pytest.fixture(scope="module")
def reported(spark, golden, tmp_path_factory):
    """Run one report with all outputs, over a golden store and the damaged one."""
    folder = tmp_path_factory.mktemp("report")
    stores = [str(golden / "clean"), str(made_store(folder / "made"))]
    result = report(
        spark,
        stores,
        history=[str(puts(folder / "a history.jsonl"))],
        metrics=[str(status_samples(folder / "looks.jsonl"))],
        out=str(folder / "out"),
        html=str(folder / "page.html"),
    )
    rows = [row for store in stores for row in walked(store)]
    return result, rows, folder


def intact_rows(rows):
    return [row for row in rows if row["record_ok"]]


def lag(row):
    return row["store_timestamp"] - row["born_timestamp"]


def near(found, values, share):
    """Return whether a percentile is between the neighbours of its place, to 0.1 %."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high = ordered[int(place)], ordered[min(int(place) + 1, len(ordered) - 1)]
    return low - abs(low) * 0.001 - 0.1 <= found <= high + abs(high) * 0.001 + 0.1


def test_headline_figures_equal_a_plain_count(reported):
    """Damage is counted, but left out of all other figures."""
    result, all_rows, _ = reported
    rows = intact_rows(all_rows)
    summary = result.summary
    assert summary["messages"] == len(rows) > 1_400
    assert summary["damaged"] == len(all_rows) - len(rows) == 1
    assert summary["bytes"] == sum(row["size"] for row in rows)
    assert summary["topics"] == len({row["topic"] for row in rows})
    assert summary["topic_tags"] == len({(row["topic"], row["tags"] or "") for row in rows})
    for name, value in (("size", lambda row: row["size"]), ("lag_ms", lag)):
        values = [value(row) for row in rows]
        found = summary[name]
        assert (found["least"], found["most"]) == (min(values), max(values))
        assert found["mean"] == pytest.approx(statistics.fmean(values), abs=0.06)
        for point, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99_9", 0.999)):
            assert near(found[point], values, share), (name, point)
    copies = collections.Counter(
        (row["store"], row["topic"], row["uniq_key"], row["reconsume_times"])
        for row in rows
        if row["uniq_key"]
    )
    assert summary["duplicates"] == sum(count - 1 for count in copies.values())
    assert summary["same_messages"] == []
    assert not result.found


def test_topic_rows_have_tags_queues_and_percentiles(reported):
    """The topic with the most messages comes first."""
    result, all_rows, _ = reported
    of_topic = collections.defaultdict(list)
    for row in intact_rows(all_rows):
        of_topic[row["topic"]].append(row)
    order = sorted(of_topic, key=lambda topic: (-len(of_topic[topic]), topic))
    assert [row["topic"] for row in result.rows] == order
    for row in result.rows:
        own = of_topic[row["topic"]]
        assert row["messages"] == len(own)
        assert row["bytes"] == sum(one["size"] for one in own)
        assert row["tags"] == len({one["tags"] for one in own if one["tags"]})
        assert row["queues"] == len({(one["store"], one["queue_id"]) for one in own})
        assert row["share"] == pytest.approx(len(own) / result.summary["messages"], abs=1e-6)
        assert near(row["size_p99"], [one["size"] for one in own], 0.99)
        assert near(row["lag_p50_ms"], [lag(one) for one in own], 0.5)


def parquet(folder, name):
    return pq.read_table(folder / "out" / f"{name}.parquet").to_pylist()


def test_parquet_has_all_minutes_keys_queues_duplicates_and_gaps(reported):
    """The files are complete even where the printed table is cut."""
    result, all_rows, folder = reported
    rows = intact_rows(all_rows)
    assert {f"{name}.parquet" for name in (*TABLES, "answers", "slave_lags")} | {"report.html"} == {
        path.name for path in (folder / "out").iterdir()
    }
    minutes, keys, queues = (collections.Counter() for _ in range(3))
    for row in rows:
        minute = row["store_timestamp"] // 60_000 * 60
        minutes[minute, row["topic"], row["tags"] or ""] += 1
        queues[row["store"], row["topic"], row["queue_id"]] += 1
        for key in set((row["keys"] or "").split()):
            keys[row["topic"], key] += 1
    assert minutes == {
        (round(row["minute"].replace(tzinfo=dt.UTC).timestamp()), row["topic"], row["tag"]): row[
            "messages"
        ]
        for row in parquet(folder, "traffic")
    }
    assert keys == {(row["topic"], row["key"]): row["messages"] for row in parquet(folder, "keys")}
    assert len(keys) == result.summary["topic_keys"]
    assert queues == {
        (row["store"], row["topic"], row["queue_id"]): row["messages"]
        for row in parquet(folder, "queues")
    }
    doubled = parquet(folder, "duplicates")
    assert sum(row["copies"] - 1 for row in doubled) == result.summary["duplicates"]
    (gap,) = (row for row in parquet(folder, "gaps") if row["store"].endswith("made"))
    assert (gap["from_ms"], gap["to_ms"]) == (
        FIRST_MS + 699 * 250,
        FIRST_MS + 700 * 250 + GAP_MS,
    )


def test_histories_and_metrics_yield_answer_times_and_slave_lags(reported):
    """An unanswered put has no time, and a truncated last line is ignored."""
    summary = reported[0].summary
    times = {(row["waited_for"], row["status"]): row for row in summary["answers_ms"]}
    assert {name: row["puts"] for name, row in times.items()} == {
        ("master", "PUT_OK"): 1,
        ("slave", "PUT_OK"): 1,
        ("slave", "FLUSH_SLAVE_TIMEOUT"): 1,
        ("slave", "NOT_SENT"): 1,
        ("as asked", "SEND_OK"): 1,
    }
    assert times["slave", "PUT_OK"]["most"] == pytest.approx(4.0)
    (slave,) = summary["slaves_behind_bytes"]
    assert slave["slave"] == "127.0.0.1:9"
    assert (slave["looks"], slave["looks_behind"], slave["most"]) == (10, 3, 5_000)


class Page(html.parser.HTMLParser):
    """A parsed page: its tags, their references, and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags = collections.Counter()
        self.references = []
        self.words = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.references += [value for name, value in attrs if name in {"href", "src", "action"}]

    def handle_data(self, data):
        self.words.append(data)


def test_page_is_self_contained_and_escapes_names(reported):
    """It refers to no script, address or file, and shows a topic's name as text."""
    result, _, folder = reported
    text = (folder / "page.html").read_text()
    assert text == (folder / "out" / "report.html").read_text()
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(page.tags)
    assert all(reference.startswith("#") for reference in page.references)
    assert "http" not in text
    assert "url(" not in text.replace("url(#", "")
    assert page.tags["svg"] == 8
    assert page.tags["svg"] == page.tags["figure"]
    words = " ".join(page.words)
    assert HOSTILE in words
    assert count_text(result.summary["messages"]) in words
    for title in ("Traffic", "Hot keys", "Duplicates", "Gaps", "Replication lag", "Put → answered"):
        assert title in words
    assert "Not all of it could be counted" in words
    ids = [piece.partition('"')[0] for piece in text.split(' id="')[1:]]
    assert len(ids) == len(set(ids))


def test_by_selects_each_of_the_tables(spark, tmp_path):
    """A store without messages has no rows, but still a page."""
    log = LogBuilder()
    log.fill(3).write(tmp_path / "few")
    with report_tables(spark, [str(tmp_path / "few")]) as tables:
        found = {by: _rows_by(tables, by) for by in BY if by != "topic"}
    columns, rows = found["key"]
    assert columns == ("topic", "key", "messages", "bytes")
    assert [row["key"] for row in rows] == ["k0", "k1", "k2"]
    columns, rows = found["minute"]
    assert [(row["minute"], row["messages"]) for row in rows] == [("2023-11-14 22:13", 3)]
    assert [len(rows) for _, rows in found.values()] == [1, 1, 1, 3, 0, 0]
    (tmp_path / "none" / "commitlog").mkdir(parents=True)
    page = tmp_path / "new" / "none.html"
    nothing = report(spark, str(tmp_path / "none"), by="gap", html=str(page))
    assert (nothing.rows, nothing.summary["messages"]) == ([], 0)
    assert "No messages" in page.read_text()


def test_copies_of_a_log_are_reported(spark, tmp_path):
    """A master and its slave together count everything twice."""
    log = LogBuilder().fill(20)
    stores = [str(log.write(tmp_path / name)) for name in ("master", "slave")]
    result = report(spark, stores, html=str(tmp_path / "page.html"))
    assert result.summary["same_messages"] == [stores]
    assert "Copies are counted twice" in (tmp_path / "page.html").read_text()


def test_bad_input_raises_one_clear_error(spark, tmp_path):
    """Missing stores or files, invalid lines and an unknown table: no page is written."""
    store = str(LogBuilder().fill(3).write(tmp_path / "store"))
    page = tmp_path / "page.html"
    with pytest.raises(PySparkException) as caught:
        report(spark, str(tmp_path / "nothing"), html=str(page))
    assert isinstance(own_error(caught.value), NotAStoreError)
    with pytest.raises(ConfigError, match="no table by 'size'") as refused:
        report(spark, store, by="size")
    assert all(name in refused.value.hint for name in BY)
    with pytest.raises(ConfigError, match="there is no file"):
        report(spark, store, history=[str(tmp_path / "none.jsonl")], html=str(page))
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"type": "invoke", "op": 1}\nnot json\n{}\n')
    with pytest.raises(ConfigError, match=r"bad\.jsonl, line 2 is not a JSON object: not json"):
        report(spark, store, history=[str(bad)], html=str(page))
    bad.write_text('{"name": "n1"}\n')
    with pytest.raises(ConfigError, match="has no history in it"):
        report(spark, store, history=[str(bad)], html=str(page))
    with pytest.raises(ConfigError, match="has no status of a node in it"):
        report(spark, store, metrics=[str(bad)], html=str(page))
    assert not page.exists()
