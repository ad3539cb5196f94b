"""Columns as Arrow has them, for Parquet and for pandas; the one module that knows the two.

Both are loaded when they are first needed: they take longer than most exports.
"""

# Neither has types for its own Python code.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ingestion_pipeline.exports.columns import (
    DECIMAL_DIGITS,
    DECIMAL_PLACES,
    Batches,
    ExportColumn,
    Holds,
    Row,
    json_text,
)


def write_parquet(file: Path, columns: Sequence[ExportColumn], batches: Batches) -> int:
    """One row group for each batch; says how many rows there were."""
    from pyarrow import parquet

    rows = 0
    schema = _schema(columns)
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in batches:
            if batch:
                writer.write_batch(_record_batch(schema, columns, batch))
                rows += len(batch)
    return rows


def to_frame(columns: Sequence[ExportColumn], batches: Batches) -> Any:  # noqa: ANN401 - a DataFrame
    """All rows as a pandas frame."""
    import pyarrow as pa

    schema = _schema(columns)
    read = [_record_batch(schema, columns, batch) for batch in batches if batch]
    return pa.Table.from_batches(read, schema).to_pandas(types_mapper=_as_pandas)


def _schema(columns: Sequence[ExportColumn]) -> Any:  # noqa: ANN401
    """Decimals and times keep their meaning; what is JSON is its text."""
    import pyarrow as pa

    types: dict[Holds, Any] = {
        Holds.TEXT: pa.string(),
        Holds.WHOLE: pa.int64(),
        Holds.DECIMAL: pa.decimal128(DECIMAL_DIGITS, DECIMAL_PLACES),
        Holds.FLOAT: pa.float64(),
        Holds.FLAG: pa.bool_(),
        Holds.TIME: pa.timestamp("us", tz="UTC"),
        Holds.JSON: pa.string(),
    }
    return pa.schema([(column.name, types[column.holds]) for column in columns])


def _record_batch(schema: Any, columns: Sequence[ExportColumn], rows: Sequence[Row]) -> Any:  # noqa: ANN401
    """The rows, turned into columns."""
    import pyarrow as pa

    turned = list(zip(*rows, strict=True))
    arrays = [
        pa.array(_texts(values) if column.holds is Holds.JSON else values, type=field.type)
        for column, field, values in zip(columns, schema, turned, strict=True)
    ]
    return pa.record_batch(arrays, schema=schema)


def _texts(values: Sequence[Any]) -> list[str | None]:
    return [None if value is None else json_text(value) for value in values]


def _as_pandas(kind: Any) -> Any:  # noqa: ANN401 - an Arrow type, a pandas type
    """A type that has room for a missing value; None: as Arrow turns it."""
    import pandas as pd
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return pd.ArrowDtype(kind)
    return {pa.bool_(): pd.BooleanDtype(), pa.int64(): pd.Int64Dtype()}.get(kind)
