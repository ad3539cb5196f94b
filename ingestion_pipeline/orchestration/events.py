"""Events of sources: materializations and metadata, with numbers that Dagster plots."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

import dagster as dg
from sqlalchemy import Connection

from ingestion_pipeline.engine.asset_events import AssetEvent, DataTable, EventValue, Markdown, Url
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.polling.poll_handler import PollCounts
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source, SourceStatus
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.scheduling.budget import PollingBudget, current_budget
from ingestion_pipeline.sources.scheduling.tiers import REPEATED, expectation


def materialization(event: AssetEvent) -> dg.AssetMaterialization:
    """Return the event as Dagster takes it."""
    metadata = {name: metadata_value(value) for name, value in event.metadata.items()}
    return dg.AssetMaterialization(event.asset, partition=event.partition, metadata=metadata)


def metadata_value(value: EventValue) -> EventValue:
    """Return the value in the type that the UI shows it by; Dagster knows numbers, text and JSON."""
    match value:
        case Markdown():
            return dg.MetadataValue.md(value)
        case Url():
            return dg.MetadataValue.url(value)
        case DataTable():
            schema = dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in value.columns.items()])
            return dg.MetadataValue.table([dg.TableRecord(dict(row)) for row in value.rows], schema=schema)
        case _:
            return value


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
    polled = counts.changed + counts.unchanged + counts.started + counts.failed
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
    connection: Connection, events: Iterable[AssetEvent], *, now: datetime, settings: Settings
) -> list[dg.AssetMaterialization]:
    """Return the events with the poll schedule of their source, if it still exists."""
    events, prices = list(events), current_budget(connection, settings)
    sources = sources_by_id(connection, [event.partition for event in events])
    return [
        materialized.with_metadata({**materialized.metadata, **expected(_facts(source, prices, now))})
        if (source := sources.get(event.partition))
        else materialized
        for event in events
        for materialized in [materialization(event)]
    ]


def with_current_expectations(ctx: RunContext, events: Iterable[AssetEvent]) -> list[dg.AssetMaterialization]:
    """Return the events with the current poll schedule of their source."""
    with ctx.store.read() as connection:
        now = ctx.store.clock.now(connection)
        return with_expectations(connection, events, now=now, settings=ctx.settings)


def _facts(source: Source, prices: PollingBudget, now: datetime) -> Mapping[str, Any]:
    """Return the schedule facts; only the reason for kinds whose changes are not learned."""
    facts = expectation(source, prices, now=now)
    if source.kind not in REPEATED:
        return facts
    return {"checked_when": facts["checked_when"]}
