"""The table's columns as Spark types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from hastore.columnar.log_schema import arrow_schema
from hastore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

_SQL_TYPES: Final[dict[pa.DataType, str]] = {
    pa.string(): "STRING",
    pa.int64(): "BIGINT",
    pa.int32(): "INT",
    pa.bool_(): "BOOLEAN",
    pa.binary(): "BINARY",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
    pa.map_(pa.string(), pa.string()): "MAP<STRING, STRING>",
}


def table_ddl(columns: Sequence[str] | None = None) -> str:
    """Return the DDL of some columns, or of all.  Raises ConfigError for an unknown name."""
    return ", ".join(f"{field.name} {_SQL_TYPES[field.type]}" for field in arrow_schema(columns))


def columns_of(schema: StructType) -> list[str]:
    """Return the columns of a user's schema.  Raises ConfigError for an unknown name or type."""
    names = [field.name for field in schema.fields]
    for field, wanted in zip(schema.fields, arrow_schema(names), strict=True):
        found = field.dataType.simpleString()
        own = _SQL_TYPES[wanted.type].lower().replace(" ", "")
        if found != own:
            raise ConfigError(
                f"column {field.name} is {own}, not {found}",
                hint=f"declare it as {own}, and cast it afterwards",
            )
    return names
