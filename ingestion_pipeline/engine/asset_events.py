"""What a system reports of an asset's partition: plain values, which the orchestration hands to Dagster.

Numbers become plots. Text of other sites is escaped before it becomes part of Markdown.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

MAX_TITLE_CHARS = 80
MAX_PICTURE_BYTES = 300_000  # Dagster stores every event
CELL_CHARS = 80
COLUMNS_SHOWN = 8
_PICTURES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG": "image/png"}
# Control characters and bidirectional marks.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+")
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
# The UI links bare URLs even when their punctuation is escaped.
_ADDRESS = re.compile(r"(https?:|www(?=\.)|@)", re.IGNORECASE)
_BREAK = "\u2060"  # invisible word joiner, which stops the UI from linking the URL


class Url(str):
    """An address that is shown as a link."""

    __slots__ = ()


class Markdown(str):
    """A text that is shown as Markdown."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTable:
    """Rows of plain values; `columns` has the type of each column, as the UI names it."""

    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, str | int | float | None]]


# A number, a text, one of the types above, or what JSON has.
EventValue = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetEvent:
    """A partition of an asset was written: what people see of it. Unknown numbers are left out."""

    asset: str
    partition: str
    metadata: Mapping[str, EventValue]


def plain(text: str | None, *, limit: int = MAX_TITLE_CHARS) -> str:
    """Return the text as one line of Markdown that shows it literally."""
    seen = " ".join(_UNSEEN.sub(" ", text or "").split())
    cut = seen if len(seen) <= limit else seen[: limit - 1] + "…"
    return _PUNCTUATION.sub(r"\\\1", _ADDRESS.sub(rf"\1{_BREAK}", cut))


def moment(at: datetime | None) -> str:
    """Format the time for tables; empty for None."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M}"


def picture(body: bytes, *, name: str = "screenshot") -> Markdown | None:
    """Return an image embedded in Markdown, without any text of the page; None if it is too large, or no image."""
    types = [name for start, name in _PICTURES.items() if body.startswith(start)]
    if not types or len(body) > MAX_PICTURE_BYTES:
        return None
    return Markdown(f"![{name}](data:{types[0]};base64,{base64.b64encode(body).decode()})")


def preview_table(rows: Sequence[Mapping[str, Any]], *, cell_chars: int = CELL_CHARS) -> DataTable:
    """Return the first rows as a table, whose cells show any text without interpreting it."""
    used = [name for name in rows[0] if any(row.get(name) is not None for row in rows)]
    columns = used[:COLUMNS_SHOWN]
    records = [{name: _cell(row.get(name), cell_chars) for name in columns} for row in rows]
    return DataTable(columns=dict.fromkeys(columns, "string"), rows=records)


def _cell(value: object, most: int) -> str:
    text = "" if value is None else " ".join(str(value).split())
    return text if len(text) <= most else text[: most - 1] + "…"
