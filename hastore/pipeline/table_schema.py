"""The columns of the table in Spark's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from hastore.columnar.log_schema import COLUMNS
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
    """Give the DDL of some columns, or of all.  Raises ConfigError for a name that is none."""
    names = list(COLUMNS) if columns is None else list(columns)
    for name in names:
        if name not in COLUMNS:
            raise ConfigError(f"no column is named {name!r}", hint=f"columns: {', '.join(COLUMNS)}")
    return ", ".join(f"{name} {_SQL_TYPES[COLUMNS[name]]}" for name in names)


def columns_of(schema: StructType) -> list[str]:
    """Give the columns that a user's schema asks for.

    Raises ConfigError for a name that is none, and for another type than the column has.
    """
    names = [field.name for field in schema.fields]
    table_ddl(names)
    for field in schema.fields:
        found = field.dataType.simpleString()
        own = _SQL_TYPES[COLUMNS[field.name]].lower().replace(" ", "")
        if found != own:
            raise ConfigError(
                f"column {field.name} is {own}, not {found}",
                hint=f"give it as {own}, and cast it afterwards",
            )
    return names
