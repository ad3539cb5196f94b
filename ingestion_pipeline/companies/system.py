"""The system of companies and job boards: how boards are polled, what is published, and its spec."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select

from ingestion_pipeline.companies import checks
from ingestion_pipeline.companies.boards.board_plan import MARK, BoardListing, feed_from_bytes, feed_to_bytes
from ingestion_pipeline.companies.boards.board_polls import ingest_boards
from ingestion_pipeline.companies.boards.listing_rows import place_listings
from ingestion_pipeline.companies.company_runs import WORK
from ingestion_pipeline.companies.job_listing import listing_as_dict
from ingestion_pipeline.companies.lineage import EXPLAINED
from ingestion_pipeline.companies.matching.listing_runs import profile_findings, requeue_job
from ingestion_pipeline.companies.platforms import PLATFORMS, JobBoard, platform
from ingestion_pipeline.companies.platforms import platform as platform_named
from ingestion_pipeline.companies.records import (
    JOB,
    JOB_MATCH,
    CompanyStatus,
    ListingDecision,
    ListingStatus,
    Priority,
    check_config,
    start_analyses,
)
from ingestion_pipeline.companies.reports import board_events
from ingestion_pipeline.engine import system_spec
from ingestion_pipeline.engine.context import DeferredSystem, IngestResult, PolledFeed, SinglePageSnapshot
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.pages.visits.page import StoredPage
from ingestion_pipeline.reading.structured.items import SavedBody, SavedBodyResult
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Definition, Source
from ingestion_pipeline.sources.declarations import BadField
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.store import tables
from ingestion_pipeline.store.tables import companies, ingestions, job_listings, job_matches, listing_sources


class BoardSystem:
    """Job boards as the polling engine sees them."""

    may_be_cut = True

    def feed(self, source: Source) -> JobBoard:
        """Return the source's configured board."""
        return platform(source.platform or "").configure(source.url, source.config)

    def parser_version(self, source: Source) -> str:
        """Return platform, version and configuration as one string."""
        adapter = platform(source.platform or "")
        config = json.dumps(dict(source.config), sort_keys=True)
        return f"{adapter.name}:{adapter.version}:{config}"

    def pace(self, source: Source, settings: Settings) -> Pace:  # noqa: ARG002  no platform publishes a rate
        """Return the configured minimum delay."""
        return Pace(delay_seconds=settings.hosts.delay_seconds)

    def honours_robots(self, source: Source) -> bool:
        """Return False for documented APIs and where an operator decided to ignore robots.txt."""
        return platform(source.platform or "").honours_robots and not source.ignores_robots

    def read(self, source: Source, pages: Sequence[StoredPage]) -> bytes:
        """Return every listing of the pages, serialised."""
        parsed = self.feed(source).read(
            [page.body for page in pages],
            content_types=[page.content_type for page in pages],
            urls=[page.url for page in pages],
            now=min((page.fetched_at for page in pages), default=None),
        )
        return feed_to_bytes(parsed)

    def size(self, parsed: bytes) -> int:
        """Return the number of listings, an estimate of the rows to write."""
        return parsed.count(MARK)

    def ingest(
        self, connection: Connection, feeds: Sequence[PolledFeed], *, now: datetime, settings: Settings
    ) -> Sequence[IngestResult]:
        """Write listings, their links, and their evaluation tasks."""
        listings = [
            BoardListing.of(
                polled.task, polled.source, feed_from_bytes(polled.parsed), ingestion_id=polled.ingestion_id
            )
            for polled in feeds
        ]
        return ingest_boards(connection, listings, now=now, settings=settings)

    def link_snapshots(self, connection: Connection, snapshots: Sequence[SinglePageSnapshot]) -> None:
        """Set the snapshot that each listing was parsed from."""
        place_listings(connection, snapshots)


def read_saved(
    platform: str,
    kind: Kind,  # noqa: ARG001 - every system takes it: one may read several kinds
    saved: SavedBody,
    config: Mapping[str, Any],
) -> SavedBodyResult:
    """Return the body's listings and problems; raise ValueError for a bad config."""
    board = platform_named(platform).configure(saved.url, config)
    return SavedBodyResult.of(
        lambda: board.read([saved.body], content_types=[None], now=saved.fetched_at), listing_as_dict
    )


def _written_companies(source_ids: Sequence[str], run_id: str) -> system_spec.Written:  # noqa: ARG001 - one row for each source
    return companies, [companies.c.source_id.in_(source_ids)]


def _written_listings(source_ids: Sequence[str], run_id: str) -> system_spec.Written:
    listed = select(listing_sources.c.listing_id).where(listing_sources.c.source_id.in_(source_ids))
    is_written = job_listings.c.ingestion_id.in_(system_spec.polls_of_run(source_ids, run_id))
    return job_listings, [job_listings.c.id.in_(listed), is_written]


def _written_matches(source_ids: Sequence[str], run_id: str) -> system_spec.Written:
    return job_matches, [job_matches.c.source_id.in_(source_ids), job_matches.c.run_id == run_id]


_COMPANIES = system_spec.PublishedTable(table=companies, source_id=companies.c.source_id, is_compared=True)
_LISTINGS = system_spec.PublishedTable(
    table=job_listings,
    without=frozenset({"url_key", "fingerprint", "origin_key", "content_hash", "rules_hash"}),
    source_id=job_listings.c.source_id,
    is_compared=True,
    rows=system_spec.joined_to_poll(job_listings),
    origin=system_spec.POLL_ORIGIN,
)
_MATCHES = system_spec.PublishedTable(
    table=job_matches,
    without=frozenset({"rules_hash"}),
    source_id=job_matches.c.source_id,
    is_compared=True,
    rows=job_matches.outerjoin(job_listings, job_listings.c.id == job_matches.c.listing_id).outerjoin(
        ingestions, ingestions.c.id == job_listings.c.ingestion_id
    ),
    origin=(
        job_listings.c.snapshot_id,
        ingestions.c.snapshots.label("snapshot_ids"),
        ingestions.c.run_id.label("listing_run_id"),
        ingestions.c.config_version,
    ),
    meanings={
        "snapshot_id": "body of the list that states the job; null: the list has several pages, or it is older"
        " than lineage",
        "listing_run_id": "the Dagster run that wrote the listing; null: a command did, or it is older than lineage",
    },
)
TABLES = (
    _COMPANIES,
    _LISTINGS,
    system_spec.PublishedTable(
        table=listing_sources,
        without=frozenset({"content_hash", "stated"}),
        source_id=listing_sources.c.source_id,
        rows=system_spec.joined_to_poll(listing_sources),
        origin=system_spec.POLL_ORIGIN,
    ),
    _MATCHES,
)
_AGAIN = "evaluate it again: touch the profile"
CONTRACTS = (
    system_spec.Contract(
        asset="companies",
        table=_COMPANIES,
        rules={
            "website": [system_spec.ADDRESS],
            "status": [system_spec.one_of(*CompanyStatus)],
            "tier": [system_spec.one_of("S", "A", "B", "C", "D")],
        },
        written=_written_companies,
    ),
    system_spec.Contract(
        asset="job_listings",
        table=_LISTINGS,
        rules={
            "title": [system_spec.required("`ingest explain` shows the body; the reader's selector may have moved")],
            "url": [system_spec.ADDRESS],
            "remote": [system_spec.one_of("remote", "hybrid", "on_site")],
            "status": [system_spec.one_of(*ListingStatus)],
            "decision": [system_spec.one_of(*ListingDecision)],
        },
        written=_written_listings,
    ),
    system_spec.Contract(
        asset="job_matches",
        table=_MATCHES,
        rules={
            "score": [system_spec.ContractRule(requirement="0 to 100", cure=_AGAIN, between=(0, 100))],
            "priority": [system_spec.one_of(*Priority)],
            "reason": [system_spec.required(_AGAIN)],
        },
        written=_written_matches,
    ),
)


def _company_problems(definition: Definition, folder: Path | None) -> Iterator[BadField]:  # noqa: ARG001
    try:
        check_config(definition.config)
    except ValueError as error:
        yield BadField("config", str(error))


def _board_problems(definition: Definition, folder: Path | None) -> Iterator[BadField]:  # noqa: ARG001
    try:
        # `first_request` also raises if nothing names the company of the board.
        platform(definition.platform or "").configure(definition.url, definition.config).first_request()
    except ValueError as error:
        yield BadField("config", str(error))


SYSTEM = system_spec.SystemSpec(
    name="companies",
    kinds=(
        system_spec.KindSpec(
            name="company",
            partitions="companies",
            deferred=DeferredSystem(
                check=lambda source: check_config(source.config),
                start=lambda connection, sources, now, _settings: start_analyses(connection, sources, now=now),
            ),
            problems=_company_problems,
        ),
        system_spec.KindSpec(
            name="job_board",
            partitions="job_boards",
            polled=BoardSystem(),
            asset=system_spec.PolledAsset(
                name="job_listings",
                description=(
                    "The jobs that each board lists, a partition each. Materializing polls the board now, due or"
                    " not. A posting that several boards list is one row."
                ),
                events=board_events,
                code_version=", ".join(f"{adapter.name} {adapter.version}" for adapter in PLATFORMS.values()),
                after=("sources", "companies"),
            ),
            coverage=system_spec.CoverageQuery(of="jobs described", select=checks.coverage_query),
            changes=checks.CHANGES,
            read_saved=read_saved,
            problems=_board_problems,
        ),
    ),
    tables=(tables.companies, tables.job_listings, tables.listing_sources, tables.job_matches),
    published=TABLES,
    contracts=CONTRACTS,
    work=WORK,
    checks=(
        system_spec.AssetCheck(
            asset="companies",
            name="enough_data",
            description="Every company's pages give enough data: a name and some words of about or culture.",
            cure="`ingest companies show ID` names the pages that were read; correct the website of the source",
            find=lambda connection, _settings, _now: checks.thin_companies(connection),
        ),
        system_spec.AssetCheck(
            asset="companies",
            name="companies_fresh",
            description="Every company was analysed within three of its source's intervals.",
            cure="`ingest sources show ID` has the last error and what to do about it",
            find=lambda connection, settings, now: checks.stale_companies(connection, now=now, settings=settings),
        ),
        system_spec.AssetCheck(
            asset="job_listings",
            name="no_drop",
            description="No board's listing is quarantined for being empty, or for having lost most of its jobs.",
            cure="if the board is right, `ingest sources update ID --accept-drop`; else correct its config",
            find=lambda connection, _settings, _now: checks.dropped(connection),
            holds_back=True,
            is_cheap=True,
        ),
        system_spec.AssetCheck(
            asset="job_listings",
            name="no_lost_fields",
            description="No board's listing is quarantined because most of its jobs have lost a field.",
            cure="correct the fields in its config; if the board lost them, `ingest sources update ID --accept-drop`",
            find=lambda connection, _settings, _now: checks.lost_fields(connection),
            holds_back=True,
            is_cheap=True,
        ),
        system_spec.AssetCheck(
            asset="job_listings",
            name="boards_fresh",
            description="Every board succeeded within the setting boards.stale_seconds, and none was given up.",
            cure="`ingest sources show ID` has the last error; `ingest sources enable ID` tries a given-up one again",
            find=lambda connection, _settings, now: checks.stale_boards(connection, now=now),
            is_cheap=True,
        ),
        system_spec.AssetCheck(
            asset="job_matches",
            name="not_all_filtered",
            description="Of no board with several listings the filter rejected every one.",
            cure="`ingest matches explain LISTING` shows the rule that rejected one; correct the profile",
            find=lambda connection, _settings, _now: checks.all_filtered(connection),
        ),
        system_spec.AssetCheck(
            asset="job_matches",
            name="profile_readable",
            description="The profile has no mistake: with one, no listing is evaluated.",
            cure="`ingest profile check` names line and field",
            find=lambda _connection, settings, _now: profile_findings(settings),
        ),
    ),
    requeue={JOB: requeue_job},
    ingesting=(JOB,),
    explained=EXPLAINED,
    notices=(JOB_MATCH,),
)
