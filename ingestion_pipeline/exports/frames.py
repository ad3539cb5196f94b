"""Rows as a pandas frame, for a notebook: the same columns as a file, with pandas' own types.

Nothing is loaded before a frame is asked for: the import costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingestion_pipeline.exports.columns import (
    DECIMAL_DIGITS,
    DECIMAL_PLACES,
    Batches,
    ExportColumn,
    Holds,
    Row,
    json_text,
)

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
    """What `ingest export NAME` writes, from the database that the environment names.

    Numbers are exact decimals, flags and whole numbers know missing values, times are UTC, what is
    JSON is its text.

    Raises:
        LookupError: there is no such name, source or version, or none of its items are published;
            the message says what there is.
    """
    from ingestion_pipeline.catalogs.extraction.source_config import entity_folder
    from ingestion_pipeline.exports.request import ExportRequest
    from ingestion_pipeline.settings import load_settings
    from ingestion_pipeline.store import open_store

    settings = load_settings()
    wanted = ExportRequest(
        entities=entity_folder(settings),
        name=name,
        source_id=source,
        version=version,
        dataset_id=dataset,
        evidence=evidence,
        with_flagged=with_flagged,
    )
    wanted.check()  # before a database is opened
    with closing(open_store(settings.store_url)) as store:
        return frame_of(store, wanted)


def frame_of(store: Store, wanted: ExportRequest) -> pandas.DataFrame:
    """The same from an open store."""
    from ingestion_pipeline.exports.exporting import reading

    with reading(store, wanted) as (columns, _, batches):
        return to_frame(columns, batches)


# Neither has types for its own Python code.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false


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
