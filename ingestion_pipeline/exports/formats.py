"""Formats of exports: values the same in each, atomic file writes, CSV, JSON lines, Parquet and pandas frames.

pandas and pyarrow are imported on first use only.
"""

from __future__ import annotations

import csv
import json
import os
import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from decimal import Context, Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never
from uuid import uuid4

import orjson

from ingestion_pipeline.engine.system_spec import ColumnType, ExportColumn
from ingestion_pipeline.pages.content.store import sync_each

if TYPE_CHECKING:
    import pandas

    from ingestion_pipeline.exports.export_request import ExportRequest
    from ingestion_pipeline.store import Store

# A Parquet column has one number of digits behind the point for all its rows.
DECIMAL_DIGITS, DECIMAL_PLACES = 38, 9
_PLACES = Decimal(1).scaleb(-DECIMAL_PLACES)
_TOO_LARGE = Decimal(10) ** (DECIMAL_DIGITS - DECIMAL_PLACES)

Row = Sequence[Any]
Batches = Iterator[Sequence[Row]]


def exact(value: object) -> Decimal | None:
    """Return the value as a number rounded to nine places; None if it is none.

    A number of thirty digits before the point is None too.
    """
    if value is None or isinstance(value, bool):
        return None
    try:
        number = value if isinstance(value, Decimal) else Decimal(str(value))
    except InvalidOperation:
        return None
    if not number.is_finite() or abs(number) >= _TOO_LARGE:
        return None
    exponent = number.as_tuple().exponent
    is_short = isinstance(exponent, int) and -DECIMAL_PLACES <= exponent <= 0
    return number if is_short else _rounded(number)


def _rounded(number: Decimal) -> Decimal:
    return number.quantize(_PLACES, context=Context(prec=DECIMAL_DIGITS))


def shortest(number: Decimal) -> str:
    """Return its digits without an exponent and without trailing zeros."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def json_text(value: object) -> str:
    """Return the value as JSON, the same text for the same value."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


ABANDONED_SECONDS = 3_600  # active writers have written within this time


@contextmanager
def replacing(target: Path) -> Generator[Path]:
    """Yield a file to write to; it replaces the target at the end, or is removed on failure.

    Files that a killed process left beside the target are removed by the next writer.
    """
    _remove_abandoned(target)
    part = target.with_name(f".{target.name}.{uuid4().hex}.part")
    part.touch(mode=0o600, exist_ok=False)  # like the database: for its owner only
    try:
        yield part
        sync_each([str(part)])
        part.replace(target)
        sync_each([str(target.parent)])
    finally:
        part.unlink(missing_ok=True)


def private_folder(folder: Path) -> Path:
    """Return the folder; create it and its parents with access for the owner only."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    return folder


def _remove_abandoned(target: Path) -> None:
    prefix = f".{target.name}."
    with os.scandir(target.parent) as entries:
        parts = [entry for entry in entries if entry.name.startswith(prefix) and entry.name.endswith(".part")]
    for entry in parts:
        with suppress(OSError):  # removed by another process
            if time.time() - entry.stat().st_mtime > ABANDONED_SECONDS:
                Path(entry.path).unlink()


# A spreadsheet runs a text that begins with one of these as a formula.
_STARTS = frozenset("=+-@\t\r\n＝＋－＠'")  # noqa: RUF001 - the wide forms, too
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")  # noqa: RUF001


class Format(StrEnum):
    """The format of a file, which is also its suffix."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


def write(form: Format, file: Path, columns: Sequence[ExportColumn], batches: Batches) -> int:
    """Write every row and return their number; no batch is kept in memory."""
    match form:
        case Format.CSV:
            return _write_csv(file, columns, batches)
        case Format.JSONL:
            return _write_jsonl(file, columns, batches)
        case Format.PARQUET:
            return write_parquet(file, columns, batches)
        case _:
            assert_never(form)


def _write_csv(file: Path, columns: Sequence[ExportColumn], batches: Batches) -> int:
    rows = 0
    as_cell = [_CELLS[column.holds] for column in columns]
    with file.open("w", encoding="utf-8", newline="") as stream:
        # Line ends of RFC 4180; with others the writer leaves a lone \r unquoted.
        writer = csv.writer(stream, lineterminator="\r\n")
        writer.writerow(column.name for column in columns)
        for batch in batches:
            writer.writerows(
                ["" if value is None else cell(value) for cell, value in zip(as_cell, row, strict=True)]
                for row in batch
            )
            rows += len(batch)
    return rows


def harmless(text: str) -> str:
    """Return the text as a cell that no spreadsheet runs: a formula gets an apostrophe before it.

    So does an apostrophe followed by a formula, so that it can be undone.
    """
    return f"'{text}" if text[:1] in _STARTS and _FORMULA.match(text) else text


def _time(value: datetime) -> str:
    return value.astimezone(UTC).isoformat()


_CELLS: dict[ColumnType, Callable[[Any], object]] = {
    ColumnType.TEXT: harmless,
    ColumnType.WHOLE: int,
    ColumnType.DECIMAL: shortest,
    ColumnType.FLOAT: repr,
    ColumnType.FLAG: lambda value: "true" if value else "false",
    ColumnType.TIME: _time,
    ColumnType.JSON: lambda value: harmless(json_text(value)),
}


def _write_jsonl(file: Path, columns: Sequence[ExportColumn], batches: Batches) -> int:
    rows = 0
    names = [column.name for column in columns]
    with file.open("wb") as stream:
        for batch in batches:
            stream.writelines(_line(names, row) for row in batch)
            rows += len(batch)
    return rows


def _line(names: Sequence[str], row: Row) -> bytes:
    return orjson.dumps(
        dict(zip(names, row, strict=True)), default=_plain, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    )


def _plain(value: object) -> str:
    if isinstance(value, Decimal):
        return shortest(value)
    raise TypeError(f"{type(value).__name__} is not supported in a row")


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
    from ingestion_pipeline.catalogs.extraction.source_selectors import entity_folder
    from ingestion_pipeline.exports.export_request import ExportRequest
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
        honours_rights=settings.rights.honour,
    )
    request.check()  # before a database is opened
    with closing(open_store(settings.store_url)) as store:
        return frame_of(store, request)


def frame_of(store: Store, request: ExportRequest) -> pandas.DataFrame:
    """Return the frame from an open store."""
    from ingestion_pipeline.exports.exporting import open_export_rows

    with open_export_rows(store, request) as (columns, _, batches):
        return as_frame(to_arrow(columns, batches))


# Neither has types for its own Python code.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false


def write_parquet(file: Path, columns: Sequence[ExportColumn], batches: Batches) -> int:
    """Write one row group per batch; return the number of rows."""
    from pyarrow import parquet

    rows = 0
    schema = arrow_schema(columns)
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in batches:
            if batch:
                writer.write_batch(arrow_batch(schema, columns, batch))
                rows += len(batch)
    return rows


def to_arrow(columns: Sequence[ExportColumn], batches: Batches) -> Any:  # noqa: ANN401 - a Table
    """Return all rows as an Arrow table."""
    import pyarrow as pa

    schema = arrow_schema(columns)
    read = [arrow_batch(schema, columns, batch) for batch in batches if batch]
    return pa.Table.from_batches(read, schema)


def as_frame(table: Any) -> Any:  # noqa: ANN401 - a Table, a DataFrame
    """Return the Arrow table as a pandas frame with types that hold missing values."""
    return table.to_pandas(types_mapper=_as_pandas)


def arrow_schema(columns: Sequence[ExportColumn]) -> Any:  # noqa: ANN401
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


def arrow_batch(schema: Any, columns: Sequence[ExportColumn], rows: Sequence[Row]) -> Any:  # noqa: ANN401
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
