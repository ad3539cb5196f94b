"""Rows as pandas frames and Parquet: the same columns as a file, with pandas' own types.

pandas and pyarrow are imported on first use only.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingestion_pipeline.engine.published import ColumnType, ExportColumn
from ingestion_pipeline.exports.files import DECIMAL_DIGITS, DECIMAL_PLACES, Batches, Row, json_text

if TYPE_CHECKING:
    import pandas  # pyright: ignore[reportMissingTypeStubs] - it has its types inside

    from ingestion_pipeline.exports.request import ExportRequest
    from ingestion_pipeline.store import Store


def frame(
    name: str,
    *,
    source: str | None = None,
    version: int | None = None,
    dataset: int | None = None,
    evidence: bool = False,
    with_flagged: bool = False,
) -> pandas.DataFrame:
    """Return what `ingest export NAME` writes, from the database that the environment names.

    Numbers are exact decimals, flags and whole numbers support missing values, times are UTC, JSON
    is text.

    Raises LookupError if there is no such name, source or version, or none of its items are
    published; the message lists what exists.
    """
    from ingestion_pipeline.catalogs.extraction.source_config import entity_folder
    from ingestion_pipeline.exports.request import ExportRequest
    from ingestion_pipeline.settings import load_settings
    from ingestion_pipeline.store import open_store

    settings = load_settings()
    request = ExportRequest(
        entities=entity_folder(settings),
        name=name,
        source_id=source,
        version=version,
        dataset_id=dataset,
        evidence=evidence,
        with_flagged=with_flagged,
    )
    request.check()  # before a database is opened
    with closing(open_store(settings.store_url)) as store:
        return frame_of(store, request)


def frame_of(store: Store, request: ExportRequest) -> pandas.DataFrame:
    """Return the frame from an open store."""
    from ingestion_pipeline.exports.exporting import open_export_rows

    with open_export_rows(store, request) as (columns, _, batches):
        return to_frame(columns, batches)


# Neither has types for its own Python code.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false


def write_parquet(file: Path, columns: Sequence[ExportColumn], batches: Batches) -> int:
    """Write one row group per batch; return the number of rows."""
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
    """Return all rows as a pandas frame."""
    import pyarrow as pa

    schema = _schema(columns)
    read = [_record_batch(schema, columns, batch) for batch in batches if batch]
    return pa.Table.from_batches(read, schema).to_pandas(types_mapper=_as_pandas)


def _schema(columns: Sequence[ExportColumn]) -> Any:  # noqa: ANN401
    """Return the Arrow schema; decimals and times keep their meaning, JSON is text."""
    import pyarrow as pa

    types: dict[ColumnType, Any] = {
        ColumnType.TEXT: pa.string(),
        ColumnType.WHOLE: pa.int64(),
        ColumnType.DECIMAL: pa.decimal128(DECIMAL_DIGITS, DECIMAL_PLACES),
        ColumnType.FLOAT: pa.float64(),
        ColumnType.FLAG: pa.bool_(),
        ColumnType.TIME: pa.timestamp("us", tz="UTC"),
        ColumnType.JSON: pa.string(),
    }
    return pa.schema([(column.name, types[column.holds]) for column in columns])


def _record_batch(schema: Any, columns: Sequence[ExportColumn], rows: Sequence[Row]) -> Any:  # noqa: ANN401
    """Return the rows as columns."""
    import pyarrow as pa

    turned = list(zip(*rows, strict=True))
    arrays = [
        pa.array(_texts(values) if column.holds is ColumnType.JSON else values, type=field.type)
        for column, field, values in zip(columns, schema, turned, strict=True)
    ]
    return pa.record_batch(arrays, schema=schema)


def _texts(values: Sequence[Any]) -> list[str | None]:
    return [None if value is None else json_text(value) for value in values]


def _as_pandas(kind: Any) -> Any:  # noqa: ANN401 - an Arrow type, a pandas type
    """Return a nullable pandas type; None for Arrow's default."""
    import pandas as pd
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return pd.ArrowDtype(kind)
    return {pa.bool_(): pd.BooleanDtype(), pa.int64(): pd.Int64Dtype()}.get(kind)
