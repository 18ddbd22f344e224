"""``format("hastore")``: stores as tables and as streams, through Spark's Python data source API.

Every Python worker of Spark imports this module, so it imports the readers only on use.
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
        """Return the name for ``format``."""
        return "hastore"

    @plain_errors()
    def schema(self) -> str:
        """Return the DDL of all columns: ``hastore.columnar.log_schema``.

        Spark calls this in ``load``, and plans the read only when the frame is used.  So options
        and stores are checked here.  Raises ConfigError, NotAStoreError.
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
        """Return a reader of the columns in ``schema``.  Raises ConfigError."""
        from hastore.pipeline.source.batch_reader import make_reader  # noqa: PLC0415
        from hastore.pipeline.source.options import ReadOptions  # noqa: PLC0415

        return make_reader(ReadOptions.parse(self.options, is_batch=True), schema)

    @plain_errors()
    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802 - Spark's name
        """Return a reader that follows logs.  Raises ConfigError."""
        from hastore.pipeline.source.options import ReadOptions  # noqa: PLC0415
        from hastore.pipeline.source.stream_reader import LogStreamReader  # noqa: PLC0415
        from hastore.pipeline.source.table_schema import columns_of  # noqa: PLC0415

        return LogStreamReader(ReadOptions.parse(self.options), columns_of(schema))
