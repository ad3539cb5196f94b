"""What is reported of the asset `chapters`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from ingestion_pipeline.engine.asset_events import AssetEvent, EventValue, Markdown, Url, moment, plain
from ingestion_pipeline.series.numbers import number_text
from ingestion_pipeline.series.reporting import ListedChapter, SourceReport, reports


def chapter_events(connection: Connection, source_ids: Collection[str]) -> list[AssetEvent]:
    """Return the event of each source."""
    return [chapter_event(report) for report in reports(connection, source_ids)]


def chapter_event(report: SourceReport) -> AssetEvent:
    """Return the event of the source's chapters and of what happened since its last event."""
    metadata: dict[str, EventValue] = {
        "outcome": report.outcome[:2_000],
        "series": report.series_title[:200],
        "url": Url(report.url),
        "tier": report.tier,
        "newest": Markdown(chapter_table(report.newest)),
        "polled": report.polls,
        "changed": report.changes,
        "new": report.new,
        "updated": report.updated,
        "withdrawn": report.withdrawn,
        "total": report.total,
    }
    # Unknown numbers are left out: a zero would be plotted.
    if report.latest_chapter is not None:
        metadata["latest_chapter"] = float(report.latest_chapter)
    if report.delay_minutes is not None:
        metadata["delay_minutes"] = round(report.delay_minutes, 1)
    return AssetEvent(asset="chapters", partition=report.source_id, metadata=metadata)


def chapter_table(chapters: Sequence[ListedChapter]) -> str:
    """Return the chapters as a Markdown table, in the order given."""
    if not chapters:
        return "no chapters"
    lines = ["| chapter | title | published (UTC) | detected (UTC) | |", "|--:|---|---|---|---|"]
    for chapter in chapters:
        number = "" if chapter.number is None else number_text(chapter.number)
        cells = (number, plain(chapter.title), moment(chapter.published_at), moment(chapter.detected_at))
        lines.append(f"| {' | '.join(cells)} | {'**new**' if chapter.is_new else ''} |")
    return "\n".join(lines)
