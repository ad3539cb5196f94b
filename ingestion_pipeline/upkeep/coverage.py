"""What is known of sources beyond their rows: how much was got, how often they change, costs.

One statement for each question and all sources it is asked of; what nobody can know is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, distinct, func, select

from ingestion_pipeline.sources.expectation import expectation
from ingestion_pipeline.sources.polling import ADAPTIVE
from ingestion_pipeline.sources.price import PollingBudget
from ingestion_pipeline.sources.source import Source
from ingestion_pipeline.store.tables import (
    OPEN,
    chapter_sources,
    chapters,
    dead_letters,
    extractions,
    listing_sources,
    model_calls,
    pages,
    website_analyses,
    website_answers,
)

MONTH = timedelta(days=30)
IDS_AT_ONCE = 5_000  # a statement of SQLite takes 32,766 parameters
_GOT = ("SUCCESS", "EXTRACTED_NO_DATA", "DOWNLOADED")


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of what there is was got; `of` says what is counted."""

    got: int
    expected: int
    of: str

    @property
    def share(self) -> float | None:
        """Between 0 and 1; None if nothing is expected."""
        return self.got / self.expected if self.expected else None

    def __str__(self) -> str:
        return f"{self.got} of {self.expected} {self.of}"


@dataclass(frozen=True, slots=True)
class ChangeRate:
    """Changes a day that are expected, and how sure that is, between 0 and 1."""

    per_day: float
    confidence: float

    def __str__(self) -> str:
        return f"{self.per_day:.3g} ({100 * self.confidence:.0f} %)"


def coverage(connection: Connection, ids: Sequence[str]) -> dict[str, Coverage]:
    """Of each of these sources, as far as its kind allows; a company has nothing to count."""
    return {
        **_chapters(connection, ids),
        **_listings(connection, ids),
        **_pages(connection, ids),
        **_answers(connection, ids),
    }


def _chapters(connection: Connection, ids: Sequence[str]) -> dict[str, Coverage]:
    """Whole numbers it lists, of those between its lowest and its highest: the rest are gaps."""
    number = chapters.c.number
    query = (
        select(
            chapter_sources.c.source_id,
            func.count(distinct(number)),
            func.max(number) - func.min(number) + 1,
        )
        .join(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .where(
            chapter_sources.c.source_id.in_(ids),
            chapter_sources.c.available,
            number == func.floor(func.coalesce(number, 0)),  # SQLite's takes no null
        )
        .group_by(chapter_sources.c.source_id)
    )
    return _read(connection, query, "chapters")


def _listings(connection: Connection, ids: Sequence[str]) -> dict[str, Coverage]:
    """Jobs it lists that were read with their description, of all it lists."""
    has_description = func.count().filter(listing_sources.c.stated.contains("d"))
    query = (
        select(listing_sources.c.source_id, has_description, func.count())
        .where(listing_sources.c.source_id.in_(ids), listing_sources.c.available)
        .group_by(listing_sources.c.source_id)
    )
    return _read(connection, query, "jobs described")


def _pages(connection: Connection, ids: Sequence[str]) -> dict[str, Coverage]:
    """Pages of the last extraction that were got, of all it found."""
    last = (
        select(func.max(extractions.c.id).label("id"), extractions.c.source_id)
        .where(extractions.c.source_id.in_(ids))
        .group_by(extractions.c.source_id)
        .subquery()
    )
    query = (
        select(last.c.source_id, func.count().filter(pages.c.status.in_(_GOT)), func.count())
        .join(pages, pages.c.extraction_id == last.c.id)
        .group_by(last.c.source_id)
    )
    return _read(connection, query, "pages")


def _answers(connection: Connection, ids: Sequence[str]) -> dict[str, Coverage]:
    """Answers of the last analysis that were given, of all that were asked for."""
    last = (
        select(func.max(website_analyses.c.id).label("id"), website_analyses.c.source_id)
        .where(website_analyses.c.source_id.in_(ids))
        .group_by(website_analyses.c.source_id)
        .subquery()
    )
    given = func.count().filter(website_answers.c.status == "answered")
    query = (
        select(last.c.source_id, given, func.count())
        .join(website_answers, website_answers.c.analysis_id == last.c.id)
        .group_by(last.c.source_id)
    )
    return _read(connection, query, "answers")


def _read(connection: Connection, query: Any, of: str) -> dict[str, Coverage]:  # noqa: ANN401
    rows: Sequence[Any] = connection.execute(query).all()
    return {source_id: Coverage(int(had), int(all_), of) for source_id, had, all_ in rows}


def change_rate(source: Source, prices: PollingBudget, *, now: datetime) -> ChangeRate | None:
    """What its next check is decided by; None for a kind of which nothing is estimated.

    Of a source nobody knows yet it is what is usual for its platform, with a confidence of 0.
    """
    if source.kind not in ADAPTIVE:
        return None
    found = expectation(source, prices, now=now)
    return ChangeRate(found["expected_changes_per_day"], found["change_confidence"])


def costs(connection: Connection, ids: Sequence[str], *, now: datetime) -> dict[str, Decimal]:
    """What models took for each in 30 days."""
    query = (
        select(model_calls.c.source_id, func.sum(model_calls.c.cost_usd))
        .where(model_calls.c.source_id.in_(ids), model_calls.c.created_at > now - MONTH)
        .group_by(model_calls.c.source_id)
    )
    return {id_: Decimal(str(cost)) for id_, cost in connection.execute(query) if cost is not None}


def failures(connection: Connection, ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Open dead letters of each, by class: how often each happened."""
    query = (
        select(
            dead_letters.c.source_id,
            dead_letters.c.error_class,
            func.sum(dead_letters.c.occurrences),
        )
        .where(OPEN, dead_letters.c.source_id.in_(ids))
        .group_by(dead_letters.c.source_id, dead_letters.c.error_class)
    )
    found: dict[str, dict[str, int]] = {}
    for id_, error_class, count in connection.execute(query):
        found.setdefault(id_, {})[error_class] = int(count)
    return found
