"""What Dagster is told of a source: one materialization, with numbers that become plots."""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

import dagster as dg

from ingestion_pipeline.orchestration.previews import chapter_table
from ingestion_pipeline.pages.poll_results import PollCounts
from ingestion_pipeline.series.reporting import SourceReport
from ingestion_pipeline.sources import Source, SourceStatus


def materialization(report: SourceReport) -> dg.AssetMaterialization:
    """The source's chapters as they stand, and what happened since the last event of its own."""
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
    # What is not known is left out: a zero would be drawn as one.
    if report.latest_chapter is not None:
        metadata["latest_chapter"] = dg.MetadataValue.float(float(report.latest_chapter))
    if report.delay_minutes is not None:
        metadata["delay_minutes"] = dg.MetadataValue.float(round(report.delay_minutes, 1))
    return dg.AssetMaterialization(
        asset_key="chapters", partition=report.source_id, metadata=metadata
    )


def expected(facts: Mapping[str, Any]) -> dict[str, dg.MetadataValue]:
    """When a source is checked and why, as numbers that become plots and a sentence."""
    known = {name: fact for name, fact in facts.items() if fact is not None}
    return {
        name: dg.MetadataValue.text(fact)
        if isinstance(fact, str)
        else dg.MetadataValue.float(float(fact))
        for name, fact in known.items()
    }


def declared(source: Source, *, problems: int) -> dict[str, dg.MetadataValue]:
    """A source as it is declared and as it stands."""
    metadata: dict[str, dg.MetadataValue] = {
        "url": dg.MetadataValue.url(source.url),
        "tier": dg.MetadataValue.text(source.tier.value + " (pinned)" * source.tier_pinned),
        "state": dg.MetadataValue.text(source.status.value),
        "declared_in": dg.MetadataValue.text(source.origin),
        "problems": dg.MetadataValue.int(problems),
        "records": dg.MetadataValue.int(source.record_count),
        "failures_in_a_row": dg.MetadataValue.int(source.failure_count),
    }
    known = {
        "platform": source.platform,
        "why": source.status_reason,
        "last_outcome": source.last_outcome,
    }
    metadata |= {name: dg.MetadataValue.text(text) for name, text in known.items() if text}
    moments = {"next_check": source.next_check_at, "last_success": source.last_success_at}
    metadata |= {name: dg.MetadataValue.timestamp(at) for name, at in moments.items() if at}
    return metadata


def run_numbers(counts: PollCounts, *, new: int, requests: int) -> dict[str, int]:
    """What a poll run did, for the page of the run."""
    polled = counts.changed + counts.unchanged + counts.begun + counts.failed
    return {"polled": polled, "new": new, **asdict(counts), "requests": requests}


def is_fresh(source: Source, *, since: datetime) -> bool:
    """Whether the source was checked, with success, since then."""
    return source.last_success_at is not None and source.last_success_at >= since


def why_late(source: Source, *, since: datetime) -> str:
    """What kept the source from succeeding since then; an older outcome says nothing about it."""
    if source.last_checked_at is not None and source.last_checked_at >= since:
        return f"{source.id}: {source.last_outcome or 'failed'}"
    why = "another run has it or its host at this moment, or it waits for a retry"
    return f"{source.id}: {why}; `ingest sources show {source.id}` says which"


def refuse_unknown(keys: Collection[str], known: Mapping[str, Source]) -> None:
    """Each key is a source's, or the run ends here: no partition is made for a slip of the pen."""
    missing = [key for key in keys if key not in known]
    if missing:
        raise dg.Failure(
            f"there is no source {', '.join(missing[:5])}: declare it in a source file, or"
            " `ingest sources add`; `ingest sources list` shows all",
            allow_retries=False,
        )


_OFF = (SourceStatus.DISABLED, SourceStatus.PENDING_VALIDATION)


def refuse_unusable(keys: Collection[str], known: Mapping[str, Source]) -> None:
    """A run that was asked only for what cannot be polled says so at once."""
    refuse_unknown(keys, known)
    off = [one for one in known.values() if one.status in _OFF]
    if known and len(off) == len(known):
        said = "; ".join(f"{one.id} ({one.status_reason or 'disabled'})" for one in off[:5])
        word = "disabled" if off[0].status is SourceStatus.DISABLED else "waiting for approval"
        raise dg.Failure(
            f"{word}: {said}; `ingest sources enable ID` enables one", allow_retries=False
        )
