"""Runs a stream of logs and writes each batch to a folder, which a restart overwrites alike."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException

from hastore.pipeline.spark.table import read_stream
from tests.patience import PROCESS_WITHIN_S

COLUMNS = ("physic_offset", "queue_id", "queue_offset", "uniq_key", "record_ok")


# Spark waits 10 s for the start of the Python process that reads a stream, and has no setting for
# it.  On a machine that is too busy the query ends, and is started again, like an operator would.
_STARTED_TOO_SLOWLY = "Python worker failed to connect back"
_STARTS_MAX = 20


def has_started_too_slowly(error):
    """Return whether a query ended because its Python process did not start in time."""
    return error is not None and _STARTED_TOO_SLOWLY in str(error)


class StreamSink:
    """One query with its checkpoint; ``rows`` returns what it has written.

    If a query is stopped within a batch, the next query overwrites that batch.
    """

    def __init__(self, spark, folder: Path, stores, columns=COLUMNS, **options):
        self.spark = spark
        self.folder = folder
        self.stores = [str(store) for store in stores]
        self.columns = columns
        self.options = options
        self.begun = self.written = 0  # numbers of batches, of all queries

    def start(self, *, available_now=True, **options):
        """Start a query; it continues from the checkpoint, if any."""
        frame = read_stream(self.spark, self.stores, self.columns, **(self.options | options))
        writer = frame.writeStream.foreachBatch(self._write)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        return writer.trigger(
            **({"availableNow": True} if available_now else {"processingTime": "0 seconds"})
        ).start()

    def run(self, **options):
        """Read all available messages; return the rows of all batches so far."""
        for left in reversed(range(_STARTS_MAX)):
            query = self.start(**options)
            try:
                assert query.awaitTermination(2 * PROCESS_WITHIN_S)
                break
            except StreamingQueryException as error:
                if not (left and has_started_too_slowly(error)):
                    raise
            finally:
                query.stop()
        return self.rows()

    def _write(self, frame, number):
        self.begun += 1
        frame.write.mode("overwrite").parquet(str(self.folder / f"batch-{number:06d}"))
        self.written += 1

    def tables(self):
        """Yield each batch's rows, in the order of its tasks."""
        for folder in sorted(self.folder.glob("batch-*")):
            if (folder / "_SUCCESS").exists():
                files = sorted(folder.glob("part-*"))
                yield pa.concat_tables(pq.read_table(file) for file in files)

    def rows(self):
        """Return all rows, batch after batch."""
        return [row for table in self.tables() for row in table.to_pylist()]

    def offsets(self):
        """Return the physical offsets of all rows."""
        return [row["physic_offset"] for row in self.rows()]
