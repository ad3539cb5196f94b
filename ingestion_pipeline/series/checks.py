"""What can be wrong with chapters although every run succeeded: gaps, quarantines, silence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import Connection

from ingestion_pipeline.series.numbers import is_special, missing_numbers
from ingestion_pipeline.series.reporting import chapter_numbers
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.sources.lookup import list_sources
from ingestion_pipeline.sources.polling import is_stale

SHOWN = 20  # findings written out; their number tells of the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be."""

    subject: str
    message: str


def gaps(connection: Connection, series_id: str | None = None) -> list[Finding]:
    """Series with whole numbers missing between the first and the latest chapter, or the one."""
    found: list[Finding] = []
    for one, all_numbers in chapter_numbers(connection, series_id).items():
        # an extra neither opens a gap nor stands for the chapter it belongs to
        numbers = [n for n in all_numbers if not is_special(n)] or [Decimal(0)]
        skipped = max(int(numbers[0]) - 1, 0)  # what lies before its first chapter is no gap
        missing = [n + skipped for n in missing_numbers([n - skipped for n in numbers])]
        if missing:
            shown = ", ".join(map(str, missing[:SHOWN])) + (", ..." if len(missing) > SHOWN else "")
            found.append(Finding(subject=one, message=f"missing: {shown}"))
    return found


def quarantined(connection: Connection) -> list[Finding]:
    """Sources whose last listing was not believed: empty after full, or a large drop."""
    return [
        Finding(subject=source.id, message=source.last_outcome or "")
        for source in list_sources(connection, kind=Kind.SERIES)
        if (source.last_outcome or "").startswith("quarantined")
    ]


def stale(connection: Connection, *, now: datetime, settings: Settings) -> list[Finding]:
    """Sources that should have succeeded several times by now and did not."""
    return [
        Finding(subject=source.id, message=_since(source))
        for source in list_sources(connection, kind=Kind.SERIES)
        if is_stale(source, now=now, settings=settings)
    ]


def _since(source: Source) -> str:
    last = source.last_success_at
    success = f"last success {last:%Y-%m-%d %H:%M} UTC" if last else "never succeeded"
    return f"{success}; {source.last_outcome or 'not polled yet'}"


def summary(findings: Sequence[Finding]) -> str:
    """The first findings, a line each."""
    lines = [f"{one.subject}: {one.message}" for one in findings[:SHOWN]]
    more = len(findings) - SHOWN
    return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])])
