"""A file is whole or not there: it is written beside its place, synced, and moved into it."""

from __future__ import annotations

import csv
import os
import re
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, assert_never
from uuid import uuid4

import orjson

from ingestion_pipeline.exports.columns import (
    Batches,
    ExportColumn,
    Holds,
    Row,
    json_text,
    shortest,
)
from ingestion_pipeline.exports.frames import write_parquet
from ingestion_pipeline.pages.content.store import sync_each

ABANDONED_SECONDS = 3_600  # whoever still writes has written within this time


@contextmanager
def replacing(target: Path) -> Generator[Path]:
    """A file to write to; it takes the target's place at the end, and none of it stays otherwise.

    What a killed process left beside the target is taken away by the next that writes it.
    """
    _remove_abandoned(target)
    part = target.with_name(f".{target.name}.{uuid4().hex}.part")
    part.touch(mode=0o600, exist_ok=False)  # as the database: for its owner alone
    try:
        yield part
        sync_each([str(part)])
        part.replace(target)
        sync_each([str(target.parent)])
    finally:
        part.unlink(missing_ok=True)


def private_folder(folder: Path) -> Path:
    """Return the folder, created for its owner alone, with all above it, where it was not there."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    return folder


def _remove_abandoned(target: Path) -> None:
    prefix = f".{target.name}."
    with os.scandir(target.parent) as entries:
        parts = [
            one for one in entries if one.name.startswith(prefix) and one.name.endswith(".part")
        ]
    for one in parts:
        with suppress(OSError):  # another process was first
            if time.time() - one.stat().st_mtime > ABANDONED_SECONDS:
                Path(one.path).unlink()


# A spreadsheet takes a text that begins with one of these for a formula, and runs it.
_STARTS = frozenset("=+-@\t\r\n＝＋－＠'")  # noqa: RUF001 - the wide forms, too
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")  # noqa: RUF001


class Format(StrEnum):
    """What a file is written as; also how its name ends."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


def write(form: Format, file: Path, columns: Sequence[ExportColumn], batches: Batches) -> int:
    """Write every row and say how many there were; no batch is kept."""
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
        # Lines as RFC 4180 has them; with others the writer leaves a lone \r unquoted.
        writer = csv.writer(stream, lineterminator="\r\n")
        writer.writerow(column.name for column in columns)
        for batch in batches:
            writer.writerows(
                [
                    "" if value is None else cell(value)
                    for cell, value in zip(as_cell, row, strict=True)
                ]
                for row in batch
            )
            rows += len(batch)
    return rows


def harmless(text: str) -> str:
    """The text as a cell that no spreadsheet obeys: an apostrophe stands before a formula.

    One stands before an apostrophe that is followed by a formula, too, so that it can be undone.
    """
    return f"'{text}" if text[:1] in _STARTS and _FORMULA.match(text) else text


def _time(value: datetime) -> str:
    return value.astimezone(UTC).isoformat()


_CELLS: dict[Holds, Callable[[Any], object]] = {
    Holds.TEXT: harmless,
    Holds.WHOLE: int,
    Holds.DECIMAL: shortest,
    Holds.FLOAT: repr,
    Holds.FLAG: lambda value: "true" if value else "false",
    Holds.TIME: _time,
    Holds.JSON: lambda value: harmless(json_text(value)),
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
        dict(zip(names, row, strict=True)),
        default=_plain,
        option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS,
    )


def _plain(value: object) -> str:
    if isinstance(value, Decimal):
        return shortest(value)
    raise TypeError(f"{type(value).__name__} has no place in a row")
