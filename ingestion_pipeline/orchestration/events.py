"""What Dagster is told of a source: one materialization, with numbers that become plots."""

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
from ingestion_pipeline.sources.scheduling.budget import PollingBudget, market
from ingestion_pipeline.sources.scheduling.explanation import expectation
from ingestion_pipeline.sources.scheduling.tiers import ADAPTIVE

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


def with_expectations(
    connection: Connection,
    events: Iterable[dg.AssetMaterialization],
    *,
    now: datetime,
    settings: Settings,
) -> list[dg.AssetMaterialization]:
    """The events, each with when its source is checked, and why; a source that is gone has none."""
    events, prices = list(events), market(connection, settings)
    known = sources_by_id(connection, [one.partition or "" for one in events])
    return [
        one.with_metadata({**one.metadata, **expected(_facts(source, prices, now))})
        if (source := known.get(one.partition or ""))
        else one
        for one in events
    ]


def expecting(
    shop: RunContext, events: Iterable[dg.AssetMaterialization]
) -> list[dg.AssetMaterialization]:
    """The same, as it stands now."""
    with shop.store.read() as connection:
        now = shop.store.clock.now(connection)
        return with_expectations(connection, events, now=now, settings=shop.settings)


def _facts(source: Source, prices: PollingBudget, now: datetime) -> Mapping[str, Any]:
    """Of a kind whose changes are not learned there is no estimate, only the reason."""
    facts = expectation(source, prices, now=now)
    if source.kind in ADAPTIVE:
        return facts
    return {"checked_when": facts["checked_when"]}
