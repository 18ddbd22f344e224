"""``format("hastore")``: stores as tables and as streams, by Spark's Python data source API.

This module is imported by every Python worker of Spark, so it imports little; what reads is
imported when a reader is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from pyspark.sql.datasource import DataSource

from hastore.pipeline.source.plain_errors import plain_errors

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from hastore.pipeline.source.batch_reader import LogReader
    from hastore.pipeline.source.stream_reader import LogStreamReader


@final
class HaStoreDataSource(DataSource):
    """The source; its options are those of ``hastore.pipeline.source.options``."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` is told."""
        return "hastore"

    @plain_errors()
    def schema(self) -> str:
        """Return all columns: ``hastore.columnar.log_schema``.

        Refuses wrong options, and what is no store: Spark asks for the schema where ``load`` is
        called, and only plans the read when the frame is used.
        """
        from hastore.env.real import real_env  # noqa: PLC0415
        from hastore.pipeline.source.options import ReadOptions  # noqa: PLC0415
        from hastore.pipeline.source.table_schema import table_ddl  # noqa: PLC0415
        from hastore.store.tools.log_directory import find_log  # noqa: PLC0415

        disk = real_env().disk
        for store in ReadOptions.parse(self.options).stores:
            find_log(disk, store)
        return table_ddl()

    @plain_errors()
    def reader(self, schema: StructType) -> LogReader:
        """Make a reader of the columns that ``schema`` names."""
        from hastore.pipeline.source.batch_reader import make_reader  # noqa: PLC0415
        from hastore.pipeline.source.options import ReadOptions  # noqa: PLC0415

        return make_reader(ReadOptions.parse(self.options, is_batch=True), schema)

    @plain_errors()
    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802 - Spark's name
        """Make a reader that follows logs."""
        from hastore.pipeline.source.options import ReadOptions  # noqa: PLC0415
        from hastore.pipeline.source.stream_reader import LogStreamReader  # noqa: PLC0415
        from hastore.pipeline.source.table_schema import columns_of  # noqa: PLC0415

        return LogStreamReader(ReadOptions.parse(self.options), columns_of(schema))
