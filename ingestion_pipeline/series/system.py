"""The system of series: polled feeds by platform, parsed releases, chapters as rows and their lineage; and its spec."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, select

from ingestion_pipeline.engine import system_spec
from ingestion_pipeline.engine.context import PolledFeed, SinglePageSnapshot
from ingestion_pipeline.engine.lineage import ExplainedTable, Hop, Lineage, origin_by_poll, row_of, values_in_body
from ingestion_pipeline.notices.message import CHAPTER
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.pages.visits.page import StoredPage
from ingestion_pipeline.reading.structured.items import ParsedFeed, Problem, SavedBody, SavedBodyResult
from ingestion_pipeline.series import checks
from ingestion_pipeline.series.chapter import Release, release_as_dict, release_from_dict
from ingestion_pipeline.series.chapter_ingestion import ingest_listings
from ingestion_pipeline.series.chapter_plan import SourceListing
from ingestion_pipeline.series.platforms import PLATFORMS, SeriesFeed, platform
from ingestion_pipeline.series.series_reports import chapter_events
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Definition, Source
from ingestion_pipeline.sources.declarations import BadField
from ingestion_pipeline.sources.lookup import series_assignments
from ingestion_pipeline.sources.poll_results import IngestResult
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.store import tables
from ingestion_pipeline.store.tables import chapter_sources, chapters, ingestions, series


def _chapter(connection: Connection, content: ContentStore, row: RowMapping) -> Lineage:
    links = tables.chapter_sources
    query = select(links).where(links.c.chapter_id == row["id"])
    order = (links.c.available.desc(), links.c.ingestion_id.is_(None), links.c.id)
    link = connection.execute(query.order_by(*order).limit(1)).mappings().one_or_none()
    facts = {name: row[name] for name in ("series_id", "key", "number", "title", "published_at")}
    if link is None:
        nobody = Hop.unknown("source", "no source has it any more")
        return Lineage(row=f"chapters:{row['id']}", facts=facts, fields=(), hops=[nobody])
    lineage = _chapter_source(connection, content, link)
    return replace(lineage, row=f"chapters:{row['id']}", facts={**facts, **lineage.facts})


def _chapter_source(connection: Connection, content: ContentStore, row: RowMapping) -> Lineage:
    chapter = row_of(connection, tables.chapters, row["chapter_id"])
    releases: Sequence[Mapping[str, Any]] = row["releases"] or [{}]
    first = releases[0]
    values: dict[str, Any] = {
        "number": chapter["number"] if chapter else None,
        "title": first.get("title"),
        "url": row["url"],
        "source_chapter_id": row["source_chapter_id"],
        "language": row["language"],
        "scanlation_group": row["scanlation_group"],
        "published_at": _moment(first.get("published_at")),
    }
    anchors = [anchor for anchor in (row["source_chapter_id"], row["url"], first.get("title")) if anchor]
    origin = origin_by_poll(connection, row["source_id"], row["ingestion_id"])
    facts = {"source_id": row["source_id"], "link": row["id"], "available": row["available"]}
    return values_in_body(connection, content, f"chapter_sources:{row['id']}", facts, origin, anchors, values)


def _moment(text: str | None) -> datetime | None:
    with suppress(ValueError, TypeError):
        return datetime.fromisoformat(text or "")
    return None


EXPLAINED = (
    ExplainedTable(table=tables.chapters, explain=_chapter),
    ExplainedTable(table=tables.chapter_sources, explain=_chapter_source),
)


def feed_to_bytes(parsed: ParsedFeed[Release]) -> bytes:
    """Serialise the parsed feed for the content store."""
    document = {
        "is_complete": parsed.is_complete,
        "problems": [asdict(problem) for problem in parsed.problems],
        "notes": list(parsed.notes),
        "releases": [release_as_dict(release) for release in parsed.records],
    }
    try:
        return orjson.dumps(document)
    except orjson.JSONEncodeError:  # a lone surrogate is stored; ingestion cleans texts
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="surrogatepass")


def feed_from_bytes(stored: bytes) -> ParsedFeed[Release]:
    """Parse what `feed_to_bytes` wrote."""
    try:
        document: Any = orjson.loads(stored)
    except orjson.JSONDecodeError:  # a lone surrogate, or no JSON at all
        document = json.loads(stored)
    return ParsedFeed(
        records=[release_from_dict(fields) for fields in document["releases"]],
        problems=[Problem(**fields) for fields in document["problems"]],
        is_complete=document["is_complete"],
        notes=document["notes"],
    )


class SeriesSystem:
    """The polled system of the kind `series`."""

    may_be_cut = False

    def feed(self, source: Source) -> SeriesFeed:
        """Return the source's feed."""
        return platform(source.platform or "").configure(source.url, source.config)

    def parser_version(self, source: Source) -> str:
        """Return platform, version and configuration: all that parsing depends on."""
        adapter = platform(source.platform or "")
        config = json.dumps(dict(source.config), sort_keys=True)
        return f"{adapter.name}:{adapter.version}:{config}"

    def pace(self, source: Source, settings: Settings) -> Pace:
        """Return the platform's published rate, else our own floor."""
        rate = platform(source.platform or "").rate
        return rate or Pace(delay_seconds=settings.hosts.delay_seconds)

    def honours_robots(self, source: Source) -> bool:
        """Return False for documented APIs, and where an operator decided so."""
        return platform(source.platform or "").honours_robots and not source.ignores_robots

    def read(self, source: Source, pages: Sequence[StoredPage]) -> bytes:
        """Return every release of the pages, serialised."""
        parsed = self.feed(source).read(
            [page.body for page in pages],
            content_types=[page.content_type for page in pages],
            urls=[page.url for page in pages],
            now=min((page.fetched_at for page in pages), default=None),
        )
        return feed_to_bytes(parsed)

    def size(self, parsed: bytes) -> int:
        """Return roughly how many rows the feed writes: one per release."""
        return parsed.count(b'"source_chapter_id"')

    def ingest(
        self,
        connection: Connection,
        feeds: Sequence[PolledFeed],
        *,
        now: datetime,
        settings: Settings,  # noqa: ARG002 - of the protocol
    ) -> Sequence[IngestResult]:
        """Write chapters, chapter sources and outbox rows."""
        listings = [
            SourceListing.of(polled.source, feed_from_bytes(polled.parsed), origin=polled.origin) for polled in feeds
        ]
        return ingest_listings(connection, listings, now=now)

    def link_snapshots(self, connection: Connection, snapshots: Sequence[SinglePageSnapshot]) -> None:
        """Do nothing: chapters refer to their ingestion, which has its snapshots."""


def read_saved(
    name: str,
    kind: Kind,  # noqa: ARG001 - every system takes it: one may read several kinds
    saved: SavedBody,
    config: Mapping[str, Any],
) -> SavedBodyResult:
    """Return the releases of the body and the problems; a bad config raises ValueError."""
    feed = platform(name).configure(saved.url, config)
    return SavedBodyResult.of(
        lambda: feed.read([saved.body], content_types=[None], now=saved.fetched_at), release_as_dict
    )


def _problems(definition: Definition, folder: Path | None) -> Iterator[BadField]:  # noqa: ARG001
    try:
        platform(definition.platform or "").configure(definition.url, definition.config)
    except ValueError as error:
        yield BadField("config", str(error))


def _facts(connection: Connection, source: Source, settings: Settings) -> dict[str, object]:  # noqa: ARG001
    canonical = series_assignments(connection, [source.id])[source.id]
    return {"effective_series": canonical.series_id, "series_why": canonical.why}


_link = chapter_sources.alias("first_link")
# Of the sources that have the chapter, the link of the one that had it first.
_FIRST_LINK = (
    select(chapter_sources.c.id)
    .where(chapter_sources.c.chapter_id == chapters.c.id)
    .order_by(chapter_sources.c.available.desc(), chapter_sources.c.id)
    .limit(1)
    .correlate(chapters)
    .scalar_subquery()
)
_CHAPTER_SOURCES = system_spec.PublishedTable(
    table=chapter_sources,
    without=frozenset({"fingerprint"}),
    source_id=chapter_sources.c.source_id,
    is_compared=True,
    rows=system_spec.joined_to_poll(chapter_sources).outerjoin(chapters, chapters.c.id == chapter_sources.c.chapter_id),
    origin=(chapters.c.number, chapters.c.title, *system_spec.POLL_ORIGIN),
    meanings={
        "number": "number of the chapter; null: it has none",
        "title": "title of the chapter, as the first source words it; null: no source has one",
    },
)
_PUBLISHED = (
    system_spec.PublishedTable(table=series),
    system_spec.PublishedTable(
        table=chapters,
        rows=chapters.outerjoin(_link, _link.c.id == _FIRST_LINK).outerjoin(
            ingestions, ingestions.c.id == _link.c.ingestion_id
        ),
        origin=(_link.c.source_id, _link.c.ingestion_id, *system_spec.POLL_ORIGIN),
        meanings={
            "source_id": "of the sources that have it, the one that had it first; null: no source has the chapter"
        },
    ),
    _CHAPTER_SOURCES,
)
_CONTRACT = system_spec.Contract(
    asset="chapters",
    table=_CHAPTER_SOURCES,
    rules={
        "chapter_id": [system_spec.required("the chapter is gone; `ingest series` moves links")],
        "url": [system_spec.ADDRESS],
    },
    written=system_spec.written_by_polls(chapter_sources),
    first=("number", "title"),
)

SYSTEM = system_spec.SystemSpec(
    name="series",
    kinds=(
        system_spec.KindSpec(
            name="series",
            partitions="series_sources",
            polled=SeriesSystem(),
            asset=system_spec.PolledAsset(
                name="chapters",
                description=(
                    "The chapters of each series source, a partition each. Materializing polls the"
                    " source now, due or not. Unchanged listings write nothing."
                ),
                events=chapter_events,
                code_version=", ".join(f"{adapter.name} {adapter.version}" for adapter in PLATFORMS.values()),
            ),
            coverage=system_spec.CoverageQuery(of="chapters", select=checks.coverage_query),
            changes=checks.CHANGES,
            facts=_facts,
            read_saved=read_saved,
            problems=_problems,
        ),
    ),
    tables=(series, chapters, chapter_sources),
    published=_PUBLISHED,
    contracts=(_CONTRACT,),
    checks=(
        system_spec.AssetCheck(
            asset="chapters",
            name="no_gaps",
            description="No whole chapter number is missing between a series' first and latest.",
            cure="`ingest series show ID` names the sources; add one that lists what is missing",
            find=lambda connection, _settings, _now: checks.gaps(connection),
        ),
        system_spec.AssetCheck(
            asset="chapters",
            name="not_empty_after_full",
            description="No listing is quarantined for being empty, or for having lost most of its chapters.",
            cure="if the source is right, `ingest sources update ID --accept-drop`; else correct its config",
            find=lambda connection, _settings, _now: checks.quarantined(connection),
            holds_back=True,
            is_cheap=True,
        ),
        system_spec.AssetCheck(
            asset="chapters",
            name="sources_fresh",
            description="Every source succeeded within three of its intervals.",
            cure="`ingest sources show ID` has the last error and what to do about it",
            find=lambda connection, settings, now: checks.stale(connection, now=now, settings=settings),
            is_cheap=True,
        ),
    ),
    explained=EXPLAINED,
    notices=(CHAPTER,),
)
