"""``format("hastore_facts")``: the numbers that ``verify`` compares, as internal tables.

    kind=records    ``columnar.record_facts``   a row per record, and per damaged place
    kind=units      ``columnar.unit_files``     a row per unit of a consume queue
    kind=entries    ``columnar.index_files``    a row per index entry, and per fault of a file

Every Python worker of Spark imports this module, so it imports little.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final, final

import attrs
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from hastore.config import StoreConfig

NAME: Final = "hastore_facts"
RECORDS: Final = "records"
UNITS: Final = "units"
ENTRIES: Final = "entries"
_DDL: Final = {
    RECORDS: (
        "store STRING, physic_offset BIGINT, size INT, topic STRING, queue_id INT,"
        " queue_offset BIGINT, queue_step INT, has_crc BOOLEAN, store_ms BIGINT, prev_ms BIGINT,"
        " is_edge BOOLEAN, tags_code BIGINT, key_hashes ARRAY<INT>, fault STRING, odd ARRAY<STRING>"
    ),
    UNITS: (
        "store STRING, topic STRING, queue_id INT, queue_offset BIGINT, unit_offset BIGINT,"
        " unit_size INT, unit_tags_code BIGINT"
    ),
    ENTRIES: (
        "store STRING, file STRING, number INT, key_hash INT, physic_offset BIGINT,"
        " time_diff_s INT, begin_ms BIGINT, fault STRING"
    ),
}


@final
@attrs.frozen(kw_only=True)
class FactsOptions:
    """What to read, and the configuration that is not written in a store."""

    kind: str
    stores: tuple[str, ...]
    tasks: int
    message_delay_level: str
    queue_file_size: int
    index_slots: int
    index_entries: int
    with_keys: bool

    @classmethod
    def parse(cls, text: str) -> FactsOptions:
        """Parse the JSON of ``read_facts``."""
        fields = json.loads(text)
        return cls(**{**fields, "stores": tuple(fields["stores"])})


def read_facts(
    spark: SparkSession,
    kind: str,
    stores: Sequence[str],
    config: StoreConfig,
    *,
    with_keys: bool = True,
) -> DataFrame:
    """Return one kind of facts of stores; ``config`` is that of their nodes."""
    spark.dataSource.register(FactsDataSource)
    options = FactsOptions(
        kind=kind,
        stores=tuple(stores),
        tasks=2 * spark.sparkContext.defaultParallelism,
        message_delay_level=config.message_delay_level,
        queue_file_size=config.mapped_file_size_consume_queue,
        index_slots=config.max_hash_slot_num,
        index_entries=config.max_index_num,
        with_keys=with_keys,
    )
    text = json.dumps(attrs.asdict(options))
    return spark.read.format(NAME).schema(_DDL[kind]).option("facts", text).load()


@final
class FactsDataSource(DataSource):
    """The source; only ``read_facts`` uses it."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return NAME

    def schema(self) -> str:
        """Return the DDL of the kind's columns."""
        return _DDL[FactsOptions.parse(self.options["facts"]).kind]

    def reader(self, schema: StructType) -> FactsReader:  # noqa: ARG002 - Spark's signature
        """Return the reader."""
        return FactsReader(FactsOptions.parse(self.options["facts"]))


class WorkPartition(InputPartition):
    """The ranges or files that one task reads."""

    def __init__(self, work: Sequence[Any]) -> None:
        super().__init__(None)
        self.work = list(work)


@final
class FactsReader(DataSourceReader):
    """Divides the work among tasks, and reads."""

    def __init__(self, options: FactsOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """List the ranges or files of each task.  Raises NotAStoreError, DiskError."""
        from hastore.columnar.index_files import find_index_files  # noqa: PLC0415 - see above
        from hastore.columnar.log_range import Bounds, find_ranges, group_ranges  # noqa: PLC0415
        from hastore.columnar.unit_files import find_unit_files  # noqa: PLC0415
        from hastore.env.real import real_env  # noqa: PLC0415
        from hastore.store.tools.log_directory import find_log  # noqa: PLC0415

        _quiet()
        disk, options = real_env().disk, self.options
        if options.kind == RECORDS:
            ranges = [r for store in options.stores for r in find_ranges(disk, store, Bounds())]
            groups: list[list[Any]] = [*group_ranges(disk, ranges, options.tasks)]
            return [WorkPartition(group) for group in groups]
        work: list[Any] = []
        for store in options.stores:
            root = find_log(disk, store).root
            if root is None:
                continue
            if options.kind == UNITS:
                work += find_unit_files(disk, store, root, options.queue_file_size).files
            else:
                work += [
                    file
                    for file in find_index_files(disk, store, root)
                    if file.size == self._layout().file_size
                ]
        share = max(-(-len(work) // options.tasks), 1)
        return [WorkPartition(work[at : at + share]) for at in range(0, len(work), share)]

    def _layout(self) -> Any:
        from hastore.store.index.layout import IndexLayout  # noqa: PLC0415 - see above

        return IndexLayout(self.options.index_slots, self.options.index_entries)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges or files.  Raises DiskError."""
        if not isinstance(partition, WorkPartition):
            return
        from hastore.columnar.index_files import read_entries  # noqa: PLC0415 - see above
        from hastore.columnar.record_facts import RecordFacts  # noqa: PLC0415
        from hastore.columnar.unit_files import read_units  # noqa: PLC0415
        from hastore.env.real import real_env  # noqa: PLC0415
        from hastore.store.record.delay_levels import DelayLevels  # noqa: PLC0415

        _quiet()
        disk, options = real_env().disk, self.options
        if options.kind == RECORDS:
            levels = DelayLevels.parse(options.message_delay_level)
            facts = RecordFacts(disk, levels, options.with_keys)
            for log_range in partition.work:
                yield from facts.read(log_range)
        elif options.kind == UNITS:
            for file in partition.work:
                yield from read_units(disk, file)
        else:
            for file in partition.work:
                yield from read_entries(disk, file, self._layout())


def _quiet() -> None:
    """Silence the store's warnings: a worker's stderr is the driver's."""
    logging.getLogger("hastore").setLevel(logging.ERROR)
