"""Events of sources: materializations and metadata, with numbers that Dagster plots."""

import base64
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import dagster as dg
from sqlalchemy import Connection

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.polling.results import PollCounts
from ingestion_pipeline.series.numbers import number_text
from ingestion_pipeline.series.reporting import ListedChapter, SourceReport
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source, SourceStatus
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.scheduling.budget import PollingBudget, current_budget
from ingestion_pipeline.sources.scheduling.explanation import expectation
from ingestion_pipeline.sources.scheduling.tiers import ADAPTIVE

MAX_TITLE_CHARS = 80
MAX_PICTURE_BYTES = 300_000  # Dagster stores every event
_PICTURES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG": "image/png"}
# Control characters and bidirectional marks.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+")
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
# The UI links bare URLs even when their punctuation is escaped.
_ADDRESS = re.compile(r"(https?:|www(?=\.)|@)", re.IGNORECASE)
_BREAK = "\u2060"  # invisible word joiner, which stops the UI from linking the URL


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


def picture(body: bytes, *, name: str = "screenshot") -> str | None:
    """Return an image embedded in Markdown; None if it is too large, or no image.

    It contains no text of the page.
    """
    types = [name for start, name in _PICTURES.items() if body.startswith(start)]
    if not types or len(body) > MAX_PICTURE_BYTES:
        return None
    return f"![{name}](data:{types[0]};base64,{base64.b64encode(body).decode()})"


def plain(text: str | None, *, limit: int = MAX_TITLE_CHARS) -> str:
    """Return the text as one line of Markdown that shows it literally."""
    seen = " ".join(_UNSEEN.sub(" ", text or "").split())
    cut = seen if len(seen) <= limit else seen[: limit - 1] + "…"
    return _PUNCTUATION.sub(r"\\\1", _ADDRESS.sub(rf"\1{_BREAK}", cut))


def moment(at: datetime | None) -> str:
    """Format the time for tables; empty for None."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M}"


def materialization(report: SourceReport) -> dg.AssetMaterialization:
    """Return the event of the source's chapters and of what happened since its last event."""
    metadata: dict[str, dg.MetadataValue] = {
        "outcome": dg.MetadataValue.text(report.outcome[:2_000]),
        "series": dg.MetadataValue.text(report.series_title[:200]),
        "url": dg.MetadataValue.url(report.url),
        "tier": dg.MetadataValue.text(report.tier),
        "newest": dg.MetadataValue.md(chapter_table(report.newest)),
        "polled": dg.MetadataValue.int(report.polls),
        "changed": dg.MetadataValue.int(report.changes),
        "new": dg.MetadataValue.int(report.new),
        "updated": dg.MetadataValue.int(report.updated),
        "withdrawn": dg.MetadataValue.int(report.withdrawn),
        "total": dg.MetadataValue.int(report.total),
    }
    # Unknown numbers are left out: a zero would be plotted.
    if report.latest_chapter is not None:
        metadata["latest_chapter"] = dg.MetadataValue.float(float(report.latest_chapter))
    if report.delay_minutes is not None:
        metadata["delay_minutes"] = dg.MetadataValue.float(round(report.delay_minutes, 1))
    return dg.AssetMaterialization(asset_key="chapters", partition=report.source_id, metadata=metadata)


def expected(facts: Mapping[str, Any]) -> dict[str, dg.MetadataValue]:
    """Return the poll schedule of a source as metadata: numbers to plot and a reason."""
    stated = {name: fact for name, fact in facts.items() if fact is not None}
    return {
        name: dg.MetadataValue.text(fact) if isinstance(fact, str) else dg.MetadataValue.float(float(fact))
        for name, fact in stated.items()
    }


def declared(source: Source, *, problems: int) -> dict[str, dg.MetadataValue]:
    """Return the declaration and status of a source as metadata."""
    metadata: dict[str, dg.MetadataValue] = {
        "url": dg.MetadataValue.url(source.url),
        "tier": dg.MetadataValue.text(source.tier.value + " (pinned)" * source.tier_pinned),
        "state": dg.MetadataValue.text(source.status.value),
        "declared_in": dg.MetadataValue.text(source.origin),
        "problems": dg.MetadataValue.int(problems),
        "records": dg.MetadataValue.int(source.record_count),
        "failures_in_a_row": dg.MetadataValue.int(source.failure_count),
    }
    texts = {"platform": source.platform, "why": source.status_reason, "last_outcome": source.last_outcome}
    metadata |= {name: dg.MetadataValue.text(text) for name, text in texts.items() if text}
    moments = {"next_check": source.next_check_at, "last_success": source.last_success_at}
    metadata |= {name: dg.MetadataValue.timestamp(at) for name, at in moments.items() if at}
    return metadata


def run_numbers(counts: PollCounts, *, new: int, requests: int) -> dict[str, int]:
    """Return what a poll run did, for the page of the run."""
    polled = counts.changed + counts.unchanged + counts.begun + counts.failed
    return {"polled": polled, "new": new, **asdict(counts), "requests": requests}


def is_fresh(source: Source, *, since: datetime) -> bool:
    """Return whether the source was checked successfully since then."""
    return source.last_success_at is not None and source.last_success_at >= since


def why_late(source: Source, *, since: datetime) -> str:
    """Return why the source has not succeeded since then; an older outcome is not a reason."""
    if source.last_checked_at is not None and source.last_checked_at >= since:
        return f"{source.id}: {source.last_outcome or 'failed'}"
    why = "another run has it or its host at this moment, or it waits for a retry"
    return f"{source.id}: {why}; `ingest sources show {source.id}` shows which"


def refuse_unknown(keys: Collection[str], sources: Mapping[str, Source]) -> None:
    """Fail the run if a key is no source, so that no partition is made for a typo."""
    missing = [key for key in keys if key not in sources]
    if missing:
        raise dg.Failure(
            f"there is no source {', '.join(missing[:5])}: declare it in a source file, or"
            " `ingest sources add`; `ingest sources list` shows all",
            allow_retries=False,
        )


_OFF = (SourceStatus.DISABLED, SourceStatus.PENDING_VALIDATION)


def refuse_unusable(keys: Collection[str], sources: Mapping[str, Source]) -> None:
    """Fail the run if it was requested only for sources that cannot be polled."""
    refuse_unknown(keys, sources)
    off = [source for source in sources.values() if source.status in _OFF]
    if sources and len(off) == len(sources):
        details = "; ".join(f"{source.id} ({source.status_reason or 'disabled'})" for source in off[:5])
        word = "disabled" if off[0].status is SourceStatus.DISABLED else "waiting for approval"
        raise dg.Failure(f"{word}: {details}; `ingest sources enable ID` enables one", allow_retries=False)


def with_expectations(
    connection: Connection, events: Iterable[dg.AssetMaterialization], *, now: datetime, settings: Settings
) -> list[dg.AssetMaterialization]:
    """Return the events with the poll schedule of their source, if it still exists."""
    events, prices = list(events), current_budget(connection, settings)
    sources = sources_by_id(connection, [event.partition or "" for event in events])
    return [
        event.with_metadata({**event.metadata, **expected(_facts(source, prices, now))})
        if (source := sources.get(event.partition or ""))
        else event
        for event in events
    ]


def with_current_expectations(
    ctx: RunContext, events: Iterable[dg.AssetMaterialization]
) -> list[dg.AssetMaterialization]:
    """Return the events with the current poll schedule of their source."""
    with ctx.store.read() as connection:
        now = ctx.store.clock.now(connection)
        return with_expectations(connection, events, now=now, settings=ctx.settings)


def _facts(source: Source, prices: PollingBudget, now: datetime) -> Mapping[str, Any]:
    """Return the schedule facts; only the reason for kinds whose changes are not learned."""
    facts = expectation(source, prices, now=now)
    if source.kind in ADAPTIVE:
        return facts
    return {"checked_when": facts["checked_when"]}
