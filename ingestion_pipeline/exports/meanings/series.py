"""Meanings of the columns of series, chapters and their sources."""

from __future__ import annotations

from collections.abc import Mapping

_NO_SOURCE = "null: no source has the chapter"

MEANINGS: Mapping[str, Mapping[str, str]] = {
    "series": {
        "id": "slug of the series, as sources and followers name it",
        "title": "what people call the series",
        "latest_chapter": "highest chapter number that a source has; null: none is numbered",
        "last_chapter_at": "since when that chapter is the latest, UTC: when it was found, or at a"
        " first sync when it was published; null: none is numbered",
        "merged_into": "the series it was merged into, which replaces it; null: it was not merged",
    },
    "chapters": {
        "series_id": "the work it belongs to (`series.id`), whatever source has it",
        "key": "what makes it one chapter within its series: its number as a canonical decimal, or"
        " the source's id and its own for one without number",
        "number": "chapter number, exact, such as 10.5; null: the chapter has none",
        "title": "title as a source last stated it; null: none does",
        "published_at": "date of publication as a source last stated it, UTC; null: none does",
        "first_detected_at": "when we first saw it on any source, UTC",
        "rejected_at": "when an operator said that there is no such chapter, UTC; null: it counts",
        "unannounced": "whether followers are notified once another source lists it: the first"
        " sync that brought it notified nobody",
        "source_id": f"of the sources that have it, the one that had it first; {_NO_SOURCE}",
    },
    "chapter_sources": {
        "chapter_id": "the chapter that the source has (`chapters.id`)",
        "url": "where the source shows the chapter; null: its listing links none",
        "source_chapter_id": "the source's own id of the chapter; null: its listing has none",
        "volume": "volume it is in, as the source words it; null: not stated",
        "language": "language of the first release, as the source words it; null: not stated",
        "scanlation_group": "who made the first release; null: not stated",
        "releases": "every release that the source lists of the number, as JSON, in its order",
        "detected_at": "when this source was first seen to have it, UTC; never moves",
        "last_seen_at": "last complete listing that had it, UTC, once it is missing; null: the"
        " source's last complete listing has it",
        "missed_listings": "complete listings in a row that lacked it; 0 while it is listed",
        "available": "whether the source still has it; false once enough complete listings lack it",
    },
}
