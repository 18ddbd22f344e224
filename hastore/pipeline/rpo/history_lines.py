"""Read histories as DataFrames, and check them: every put with its answer.

::

    {"type": "invoke", "op": 3, "time_s": 1.25, "wall_ms": …, "node": "a", "topic": "T",
     "queue_id": 0, "key": "…", "body_crc": …, "wait": true, "at_least_once": true, …}
    {"type": "ok" | "fail" | "unknown", "op": 3, "status": "PUT_OK", "physic_offset": 0,
     "sent_count": 2, …}
    {"type": "event", "kind": "start-master", "node": "a", "details": {"role": "SYNC_MASTER"}, …}
    {"type": "event", "kind": "disk", "node": "a", "details": {"fault": "expire", "min_offset": …}}

``hastore scenario run`` and ``hastore produce --history`` write them.  A put is invoked once,
answered at most once, and has a unique key.  An incomplete last line is ignored, since a crash of
the producer leaves one.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import urllib.parse
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as sf

from hastore.env.real import real_env
from hastore.errors import ConfigError, HastoreError
from hastore.pipeline.rpo.rules import FAIL, OUTCOMES, UNKNOWN
from hastore.status import BrokerRole, PutMessageStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame, Row, SparkSession

HISTORY_FILE: Final = "history.jsonl"  # in the directory of a kept scenario
_SCHEMA: Final = (
    "type STRING, op BIGINT, time_s DOUBLE, wall_ms BIGINT, node STRING, topic STRING,"
    " queue_id INT, key STRING, body_crc BIGINT, wait BOOLEAN, status STRING,"
    " at_least_once BOOLEAN, physic_offset BIGINT, sent_count INT, kind STRING, done_s DOUBLE,"
    " details STRUCT<role: STRING, fault: STRING, min_offset: BIGINT>, broken STRING"
)
_CHUNK_SIZE: Final = 1024 * 1024
_ANY_COUNT: Final = (1 << 31) - 1  # of copies
_SHOWN_MAX: Final = 80
_BAD_LINES_MAX: Final = 100  # files of one glob may each end in half a line
_GLOB_SIGNS: Final = re.compile(r"([\\*?\[\]{}])")
_IGNORED: Final = re.compile(r"[_.].*|.*\._COPYING_")  # names of files that Spark does not read


class NotAHistoryError(HastoreError):
    """A file does not hold a history of puts."""

    exit_code = 2


class _Lines(NamedTuple):
    """A put's line to search for in a file."""

    op: int
    types: tuple[str, ...]
    occurrence: int  # 1 for the first such line, 2 for the second


def find_histories(pattern: str) -> tuple[str, ...]:
    """Return the files of a path: a file, a kept scenario's directory, or a glob of them.

    Raises ConfigError.
    """
    path = pattern.removeprefix("file://")
    is_glob = glob.has_magic(path) and not os.path.exists(path)  # noqa: PTH110
    found = sorted(glob.glob(path)) if is_glob else [path]  # noqa: PTH207
    files = []
    for name in found:
        inner = os.path.join(name, HISTORY_FILE)  # noqa: PTH118
        name = inner if os.path.isdir(name) else name  # noqa: PTH112, PLW2901
        if os.path.isfile(name):  # noqa: PTH113
            files.append(os.path.abspath(name))  # noqa: PTH100
    if not files:
        raise ConfigError(
            f"{pattern} is not a file, nor a directory with a {HISTORY_FILE}",
            hint="hastore produce --history FILE and hastore scenario run --keep write histories",
        )
    for name in files:
        if _IGNORED.fullmatch(os.path.basename(name)):  # noqa: PTH119
            raise ConfigError(
                f"{name}: Spark silently ignores files with such a name",
                hint="rename it, with a letter first",
            )
    return tuple(files)


def read_lines(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """Return the lines of histories with their file; invalid ones have ``is_bad``."""
    paths = ["file://" + _GLOB_SIGNS.sub(r"\\\1", name) for name in files]
    text = spark.read.option("lineSep", "\n").text(paths)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "broken"}
    parsed = text.select(
        sf.col("_metadata.file_path").alias("file"),
        "value",
        sf.from_json("value", _SCHEMA, options).alias("line"),
    )
    lines = parsed.select("file", "value", "line.*")
    return lines.withColumn("is_bad", ~sf.coalesce(_is_valid(), sf.lit(False)))


def _is_valid() -> Column:
    is_answer = sf.col("type").isin(*OUTCOMES) & sf.col("op").isNotNull()
    statuses = [status.value for status in PutMessageStatus]
    is_known = sf.col("status").isNull() | sf.col("status").isin(statuses)
    wanted = ("op", "key", "time_s", "topic", "node")
    is_invoke = sf.col("type") == "invoke"
    for name in wanted:
        is_invoke &= sf.col(name).isNotNull()
    is_event = (sf.col("type") == "event") & sf.col("kind").isNotNull()
    return sf.col("broken").isNull() & ((is_answer & is_known) | is_invoke | is_event)


def collect_puts(lines: DataFrame) -> DataFrame:
    """Return a row per put with its answer; ``calls`` and ``answers`` count its lines.

    ``outcome`` is ok, fail or unknown; ``status`` is that of the answer, NO_ANSWER or NOT_SENT.
    """
    is_invoke, is_answer = sf.col("type") == "invoke", sf.col("type").isin(*OUTCOMES)
    call = sf.struct(
        "node", "topic", "queue_id", "key", "body_crc", "wait", "at_least_once", "wall_ms",
        sf.col("time_s").alias("invoked_s"),
    )  # fmt: skip
    answer = sf.struct("type", "status", "physic_offset", "sent_count")
    grouped = (
        lines.where(~sf.col("is_bad") & (is_invoke | is_answer))
        .groupBy("file", "op")
        .agg(
            sf.count_if(is_invoke).alias("calls"),
            sf.count_if(is_answer).alias("answers"),
            sf.max(sf.when(is_invoke, call)).alias("call"),
            sf.max(sf.when(is_answer, answer)).alias("answer"),
        )
    )
    outcome = sf.coalesce("answer.type", sf.lit(UNKNOWN))
    # A producer that ended before the answer may have sent the message again, and nobody knows.
    is_again = sf.col("answer").isNull() & sf.coalesce("call.at_least_once", sf.lit(False))
    nothing = sf.when(outcome == FAIL, "NOT_SENT").otherwise("NO_ANSWER")
    return grouped.select(
        "file",
        "op",
        "calls",
        "answers",
        "call.*",
        outcome.alias("outcome"),
        sf.coalesce("answer.status", nothing).alias("status"),
        sf.col("answer.physic_offset").alias("physic_offset"),
        sf.greatest(
            sf.coalesce("answer.sent_count", sf.when(is_again, sf.lit(_ANY_COUNT)), sf.lit(1)),
            sf.lit(1),
        ).alias("sent_count"),
    ).drop("at_least_once")


def check(lines: DataFrame, puts: DataFrame) -> None:
    """Raise NotAHistoryError for the first invalid line, or for the first inconsistent put.

    ``lines`` are those of ``read_lines``, ``puts`` those of ``collect_puts``.
    """
    bad_lines = (
        lines.where("is_bad")
        .select("file", "value", sf.col("broken").isNotNull().alias("is_broken"))
        .orderBy(sf.monotonically_increasing_id())
        .limit(_BAD_LINES_MAX)
    )
    twins = sf.count("*").over(Window.partitionBy("key"))
    bad_puts = (
        puts.withColumn("twins", twins)
        .where("calls <> 1 OR answers > 1 OR twins > 1")
        .select("file", "op", "key", "calls", "answers", "twins")
        .orderBy("file", "op")
        .limit(1)
    )
    found = bad_lines.unionByName(bad_puts, allowMissingColumns=True).collect()
    bad = [row for row in found if row["value"] is not None]
    for row in bad:
        _refuse_line(row)
    if len(bad) >= _BAD_LINES_MAX:  # further bad lines were not read
        raise NotAHistoryError(
            f"{_path_of(bad[0]['file'])} and {len(bad) - 1} others end in half a line",
            hint="name fewer histories at once",
        )
    for row in found:
        if row["value"] is None:
            _refuse_put(row)


def _refuse_line(row: Row) -> None:
    """Raise NotAHistoryError, unless the line is the incomplete last one of its file."""
    path = _path_of(row["file"])
    number, is_last = _number_of(path, row["value"])
    if not (row["is_broken"] and is_last):
        raise NotAHistoryError(
            f"{path} line {number} is not a line of a history: {row['value'][:_SHOWN_MAX]!r}",
            hint="hastore produce --history FILE and hastore scenario run --keep write them",
        )


def _refuse_put(row: Row) -> None:
    path, op = _path_of(row["file"]), row["op"]
    if not row["calls"]:
        text, lines = "answers put {op}, which was never sent", _Lines(op, OUTCOMES, 1)
    elif row["calls"] > 1:
        text, lines = "sends put {op} a second time", _Lines(op, ("invoke",), 2)
    elif row["answers"] > 1:
        text, lines = "answers put {op} a second time", _Lines(op, OUTCOMES, 2)
    else:
        text = f"sends put {{op}} with the key {row['key']!r}, which {row['twins']} puts have"
        lines = _Lines(op, ("invoke",), 1)
    raise NotAHistoryError(
        f"{path} line {_number_of_put(path, lines)} {text.format(op=op)}",
        hint="is it the complete history of one run, and named once?",
    )


def with_promise(puts: DataFrame, lines: DataFrame) -> DataFrame:
    """Add ``promised``: whether PUT_OK means that a slave has the message too.

    It does if the put waited, and its master was a SYNC_MASTER or the history does not name the
    master's role (a producer cannot know it).
    """
    starts = lines.where(
        ~sf.col("is_bad") & (sf.col("type") == "event") & (sf.col("kind") == "start-master")
    )
    later = sf.lead("time_s").over(Window.partitionBy("file", "node").orderBy("time_s"))
    terms = starts.select(
        sf.col("file").alias("of_file"),
        sf.col("node").alias("of_node"),
        sf.col("time_s").alias("begin_s"),
        later.alias("end_s"),
        sf.col("details.role").alias("role"),
    )
    is_in = (sf.col("begin_s") <= sf.col("invoked_s")) & (
        sf.col("end_s").isNull() | (sf.col("invoked_s") < sf.col("end_s"))
    )
    on = (sf.col("file") == sf.col("of_file")) & (sf.col("node") == sf.col("of_node")) & is_in
    is_sync = sf.coalesce(sf.col("role") == BrokerRole.SYNC_MASTER.value, sf.lit(True))
    waited = sf.coalesce("wait", sf.lit(True))
    joined = puts.join(sf.broadcast(terms), on, "left")
    return joined.withColumn("promised", waited & is_sync).drop(*terms.columns)


def with_removals(puts: DataFrame, lines: DataFrame) -> DataFrame:
    """Add whether the history explains why a message is gone from its master's log.

    ``expired``: its file has expired since.  ``wiped``: its disk was wiped afterwards; then
    ``began`` is the number of masters started before the put, else it is 0.
    """
    events = lines.where(~sf.col("is_bad") & (sf.col("type") == "event"))
    fault = sf.col("details.fault")
    of_disk = (
        events.where(sf.col("kind") == "disk")
        .groupBy(sf.col("file").alias("of_file"), sf.col("node").alias("of_node"))
        .agg(
            sf.max_by("details.min_offset", sf.when(fault == "expire", sf.col("time_s"))).alias(
                "min"
            ),
            sf.max(sf.when(fault == "wipe", sf.col("done_s"))).alias("wiped_s"),
        )
    )
    starts = (
        events.where(sf.col("kind") == "start-master")
        .groupBy(sf.col("file").alias("from_file"))
        .agg(sf.collect_list("time_s").alias("starts_s"))
    )
    own = (sf.col("file") == sf.col("of_file")) & (sf.col("node") == sf.col("of_node"))
    joined = puts.join(sf.broadcast(of_disk), own, "left").join(
        sf.broadcast(starts), sf.col("file") == sf.col("from_file"), "left"
    )
    before = sf.filter("starts_s", lambda start_s: start_s <= sf.col("invoked_s"))
    is_wiped = sf.coalesce(sf.col("invoked_s") < sf.col("wiped_s"), sf.lit(False))
    return (
        joined.withColumn(
            "expired", sf.coalesce(sf.col("physic_offset") < sf.col("min"), sf.lit(False))
        )
        .withColumn("wiped", is_wiped)
        .withColumn(
            "began", sf.when(is_wiped, sf.size(sf.coalesce(before, sf.array()))).otherwise(0)
        )
        .drop(*of_disk.columns, *starts.columns)
    )


# -- line numbers for errors -----------------------------------------------------------------------


def _path_of(uri: str) -> str:
    return urllib.parse.unquote(urllib.parse.urlparse(uri).path)


def _number_of(path: str, text: str) -> tuple[int, bool]:
    """Return the number of the first line with this text, and whether it is the last one."""
    found = last = 0
    for last, line in enumerate(_lines(path), 1):
        if not found and line.decode(errors="replace") == text:
            found = last
    return found or last, found == last


def _number_of_put(path: str, wanted: _Lines) -> int:
    """Return the number of a put's line."""
    is_op = re.compile(rb'"op"\s*:\s*%d\b' % wanted.op)
    is_type = re.compile(rb'"type"\s*:\s*"(?:%s)"' % "|".join(wanted.types).encode())
    seen = 0
    for number, line in enumerate(_lines(path), 1):
        seen += bool(is_op.search(line) and is_type.search(line))
        if seen == wanted.occurrence:
            return number
    return 0


def _lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a file without line ends; their length has no limit."""
    with contextlib.closing(real_env().disk.open_file(path, writable=False)) as file:
        position, rest = 0, b""
        while chunk := file.pread(_CHUNK_SIZE, position):
            position += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
        if rest:
            yield rest
