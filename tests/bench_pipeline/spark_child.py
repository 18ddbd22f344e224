"""A Spark session in its own process, which runs requests and prints how long they took.

    python -m tests.bench_pipeline.spark_child local[2]
    {"work": "audit", "log": "/tmp/b100"}            one line in
    {"seconds": 1.9, "found": [], "jvm_s": 1.2, "python_s": 2.1}              one line out

``jvm_s`` and ``python_s`` are CPU seconds of the JVM and of its Python workers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from hastore.pipeline.spark.session import spark_session
from hastore.pipeline.spark.table import read
from tests.bench_pipeline.row_source import RowSource

# Adaptive execution would plan two jobs for a query, not one.
CONF = {"spark.driver.memory": "2g", "spark.sql.adaptive.enabled": "false"}
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run requests until the input ends."""
    with spark_session(sys.argv[1], CONF) as spark:
        spark.dataSource.register(RowSource)
        jvm = SparkContext._gateway.proc.pid
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            print(json.dumps(run(spark, jvm, **json.loads(line))), flush=True)


def run(spark: SparkSession, jvm: int, work: str, log: str, files: int = 0) -> dict[str, Any]:
    """Run one request, and return its answer."""
    before = cpu_s(jvm)
    began = time.perf_counter()
    found: list[int] = []
    match work:
        case "audit":
            frame = read(spark, log, ["physic_offset"], damaged=True)
            found = sorted(row["physic_offset"] for row in frame.collect())
        case "count":
            count(read(spark, log, ["crc_ok"]))
        case "rows":  # all columns, because Spark does not tell a source which ones a query needs
            count(spark.read.format("rows").option("files", files).load(log))
        case "narrow rows":
            frame = spark.read.format("rows").schema("crc_ok BOOLEAN").option("files", files)
            count(frame.load(log))
    seconds = time.perf_counter() - began
    after = cpu_s(jvm)
    return {
        "seconds": seconds,
        "found": found,
        "jvm_s": after[0] - before[0],
        "python_s": after[1] - before[1],
    }


def count(frame: DataFrame) -> None:
    """Count all bodies, and those that match their CRC."""
    row = frame.select(sf.count_if("crc_ok"), sf.count("*")).first()
    assert row is not None
    assert 0 < row[0] < row[1]


def cpu_s(jvm: int) -> tuple[float, float]:
    """Return the CPU seconds of the JVM, and of all its descendants, even if they have ended."""
    own: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    ended: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(folder.name)
        children.setdefault(int(fields[1]), []).append(pid)
        own[pid] = (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND
        ended[pid] = (int(fields[13]) + int(fields[14])) / TICKS_A_SECOND
    below, left = 0.0, [jvm]
    while left:
        pid = left.pop()
        below += ended[pid] + (own[pid] if pid != jvm else 0.0)
        left += children.get(pid, [])
    return own[jvm], below


if __name__ == "__main__":
    main()
