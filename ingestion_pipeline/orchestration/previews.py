"""Tables and pictures for the UI: what strangers wrote is shown as it is, and does nothing."""

import base64
import re
from collections.abc import Sequence
from datetime import datetime

from ingestion_pipeline.series.numbers import number_text
from ingestion_pipeline.series.reporting import ListedChapter

MAX_TITLE_CHARS = 80
MAX_PICTURE_BYTES = 300_000  # Dagster keeps every event; a larger one would not be looked at whole
_PICTURES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG": "image/png"}
# Controls, and the marks that turn the direction of the text around them.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+")
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
# The UI makes links of bare addresses even when their punctuation is escaped.
_ADDRESS = re.compile(r"(https?:|www(?=\.)|@)", re.IGNORECASE)
_BREAK = "\u2060"  # joins words and is not seen: an address with it inside is none


def chapter_table(chapters: Sequence[ListedChapter]) -> str:
    """The chapters as a Markdown table, in the order given."""
    if not chapters:
        return "no chapters"
    lines = ["| chapter | title | published (UTC) | detected (UTC) | |", "|--:|---|---|---|---|"]
    for one in chapters:
        number = "" if one.number is None else number_text(one.number)
        cells = (number, plain(one.title), moment(one.published_at), moment(one.detected_at))
        lines.append(f"| {' | '.join(cells)} | {'**new**' if one.is_new else ''} |")
    return "\n".join(lines)


def picture(body: bytes, *, name: str = "screenshot") -> str | None:
    """An image as Markdown with the image inside; None if it is too large, or no image.

    Nothing of the page's own text is in it.
    """
    types = [name for start, name in _PICTURES.items() if body.startswith(start)]
    if not types or len(body) > MAX_PICTURE_BYTES:
        return None
    return f"![{name}](data:{types[0]};base64,{base64.b64encode(body).decode()})"


def plain(text: str | None, *, limit: int = MAX_TITLE_CHARS) -> str:
    """The text as Markdown that shows it letter for letter, on one line."""
    seen = " ".join(_UNSEEN.sub(" ", text or "").split())
    cut = seen if len(seen) <= limit else seen[: limit - 1] + "…"
    return _PUNCTUATION.sub(r"\\\1", _ADDRESS.sub(rf"\1{_BREAK}", cut))


def moment(at: datetime | None) -> str:
    """The time as tables show it; nothing, if there is none."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M}"
