"""Runs every job once on a Spark master and prints the results, so two masters can be compared.

python -m tests.pipeline.every_job MASTER INPUT OUT     prints one JSON document
INPUT   clean/ other/ (a copy, damaged)  history.jsonl  survivor/
"""

import hashlib
import json
import sys
import time
from pathlib import Path

import attrs

from hastore.config import StoreConfig
from hastore.pipeline.archive.job import archive
from hastore.pipeline.archive.restore_job import restore
from hastore.pipeline.audit.job import audit
from hastore.pipeline.rebuild.job import rebuild
from hastore.pipeline.report.job import report
from hastore.pipeline.rpo.job import rpo
from hastore.pipeline.spark.session import spark_session
from hastore.pipeline.transfer.export_job import export
from hastore.pipeline.verify.job import verify

CONFIG = StoreConfig(
    data_dir="-", mapped_file_size_consume_queue=1000, max_hash_slot_num=200, max_index_num=400
)
COMMON = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "4",
}
# Executors and driver communicate over the loopback; each of two workers has one slot.
CLUSTER = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "600m",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.cores.max": "2",
}


def results(spark, given: Path, out: Path):
    """Yield each job's name and result; a job that reads another's files comes after it."""
    clean, other = str(given / "clean"), str(given / "other")
    yield "verify", verify(spark, [clean, other], config=CONFIG, out=str(out / "verify"))
    yield "audit", audit(spark, clean, [other], out=str(out / "audit"))
    history, survivor = str(given / "history.jsonl"), str(given / "survivor")
    yield "rpo", rpo(spark, history, [survivor], out=str(out / "rpo"))
    yield "rebuild", rebuild(spark, clean, config=CONFIG, out=str(out / "rebuilt"))
    yield "archive", archive(spark, clean, out=str(out / "archive"))
    yield "restore", restore(spark, str(out / "archive"), out=str(out / "restored"))
    yield "report", report(spark, [clean, other], by="key", out=str(out / "report"))
    yield "jsonl", export(spark, [clean], str(out / "clean.jsonl"))
    yield "csv", export(spark, [clean], str(out / "clean.csv"))
    yield "parquet", export(spark, [clean], str(out / "clean.parquet"))


def bytes_of(out: Path) -> dict[str, str]:
    """Return a digest of each file, except Parquet, where Spark chooses names and order."""
    return {
        _name(path, out): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file() and not {"archive", "report"} & set(path.parts)
        if not any(part.endswith(".parquet") for part in path.parts)
    }


def _name(path: Path, out: Path) -> str:
    """Return a file's name; an index file is named after its creation time, so return its place."""
    if path.parent.name == "index":
        path = path.with_name(str(sorted(path.parent.iterdir()).index(path)))
    return str(path.relative_to(out))


def rows_of(spark, out: Path) -> dict[str, str]:
    """Return each table's number of rows, and a digest that does not depend on their order."""
    found = {}
    for path in sorted(out.rglob("*.parquet")):
        if path.is_dir() and any(path.iterdir()):
            rows = sorted(map(str, spark.read.parquet(str(path)).toArrow().to_pylist()))
            found[str(path.relative_to(out))] = [len(rows), _digest("\n".join(rows), out)]
    return found


def _digest(text: str, out: Path) -> str:
    return hashlib.sha256(text.replace(str(out), "OUT").encode()).hexdigest()


def main(master: str, given: Path, out: Path) -> None:
    found, begun = {}, time.monotonic()
    conf = COMMON | ({} if master.startswith("local") else CLUSTER)
    with spark_session(master, conf) as spark:
        for name, result in results(spark, given, out):
            print(f"{time.monotonic() - begun:.0f} s: {name}", file=sys.stderr, flush=True)
            found[name] = attrs.asdict(result)
        tables = rows_of(spark, out)
        executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    document = {"executors": executors, "jobs": found, "tables": tables, "files": bytes_of(out)}
    print(json.dumps(document, default=str).replace(str(out), "OUT"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
