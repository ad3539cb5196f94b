"""The system of companies and job boards, as the rest of the program sees it, and what it publishes."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from sqlalchemy import select

from ingestion_pipeline.companies import checks
from ingestion_pipeline.companies.boards.system import BoardSystem, read_saved
from ingestion_pipeline.companies.company_events import board_events
from ingestion_pipeline.companies.company_jobs import WORK
from ingestion_pipeline.companies.company_states import JOB, CompanyStatus, ListingDecision, ListingStatus, Priority
from ingestion_pipeline.companies.matching.listing_requeue import requeue_job
from ingestion_pipeline.companies.matching.listing_runs import profile_findings
from ingestion_pipeline.companies.platforms import platform
from ingestion_pipeline.companies.records import CompanySystem, check_config
from ingestion_pipeline.engine.published import (
    ADDRESS,
    POLL_ORIGIN,
    Contract,
    ContractRule,
    PublishedTable,
    Written,
    joined_to_poll,
    one_of,
    polls_of_run,
    required,
)
from ingestion_pipeline.engine.system_spec import AssetCheck, CoverageQuery, KindSpec, PolledAsset, SystemSpec
from ingestion_pipeline.sources import Definition
from ingestion_pipeline.sources.file_model import BadField
from ingestion_pipeline.store import tables
from ingestion_pipeline.store.tables import companies, ingestions, job_listings, job_matches, listing_sources


def _written_companies(source_ids: Sequence[str], run_id: str) -> Written:  # noqa: ARG001 - one row for each source
    return companies, [companies.c.source_id.in_(source_ids)]


def _written_listings(source_ids: Sequence[str], run_id: str) -> Written:
    listed = select(listing_sources.c.listing_id).where(listing_sources.c.source_id.in_(source_ids))
    is_written = job_listings.c.ingestion_id.in_(polls_of_run(source_ids, run_id))
    return job_listings, [job_listings.c.id.in_(listed), is_written]


def _written_matches(source_ids: Sequence[str], run_id: str) -> Written:
    return job_matches, [job_matches.c.source_id.in_(source_ids), job_matches.c.run_id == run_id]


_COMPANIES = PublishedTable(table=companies, source_id=companies.c.source_id)
_LISTINGS = PublishedTable(
    table=job_listings,
    without=frozenset({"url_key", "fingerprint", "origin_key", "content_hash", "rules_hash"}),
    source_id=job_listings.c.source_id,
    rows=joined_to_poll(job_listings),
    origin=POLL_ORIGIN,
)
_MATCHES = PublishedTable(
    table=job_matches,
    without=frozenset({"rules_hash"}),
    source_id=job_matches.c.source_id,
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
    PublishedTable(
        table=listing_sources,
        without=frozenset({"content_hash", "stated"}),
        source_id=listing_sources.c.source_id,
        rows=joined_to_poll(listing_sources),
        origin=POLL_ORIGIN,
    ),
    _MATCHES,
)
_AGAIN = "evaluate it again: touch the profile"
CONTRACTS = (
    Contract(
        asset="companies",
        table=_COMPANIES,
        rules={
            "website": [ADDRESS],
            "status": [one_of(*CompanyStatus)],
            "tier": [one_of("S", "A", "B", "C", "D")],
        },
        written=_written_companies,
    ),
    Contract(
        asset="job_listings",
        table=_LISTINGS,
        rules={
            "title": [required("`ingest explain` shows the body; the reader's selector may have moved")],
            "url": [ADDRESS],
            "remote": [one_of("remote", "hybrid", "on_site")],
            "status": [one_of(*ListingStatus)],
            "decision": [one_of(*ListingDecision)],
        },
        written=_written_listings,
    ),
    Contract(
        asset="job_matches",
        table=_MATCHES,
        rules={
            "score": [ContractRule(requirement="0 to 100", cure=_AGAIN, between=(0, 100))],
            "priority": [one_of(*Priority)],
            "reason": [required(_AGAIN)],
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


SYSTEM = SystemSpec(
    name="companies",
    kinds=(
        KindSpec(name="company", partitions="companies", deferred=CompanySystem(), problems=_company_problems),
        KindSpec(
            name="job_board",
            partitions="job_boards",
            polled=BoardSystem(),
            asset=PolledAsset(
                name="job_listings",
                description=(
                    "The jobs a board lists, one partition a board. Materializing polls the board now, due or"
                    " not, under the host's lease; a posting that several boards list is one row."
                ),
                events=board_events,
            ),
            coverage=CoverageQuery(of="jobs described", select=checks.coverage_query),
            read_saved=read_saved,
            problems=_board_problems,
        ),
    ),
    tables=(tables.companies, tables.job_listings, tables.listing_sources, tables.job_matches),
    published=TABLES,
    contracts=CONTRACTS,
    work=WORK,
    checks=(
        AssetCheck(
            asset="companies",
            name="enough_data",
            description="Every company's pages give enough data: a name and some words of about or culture.",
            find=lambda connection, _settings, _now: checks.thin_companies(connection),
        ),
        AssetCheck(
            asset="companies",
            name="companies_fresh",
            description="Every company was analysed within three of its source's intervals.",
            find=lambda connection, settings, now: checks.stale_companies(connection, now=now, settings=settings),
        ),
        AssetCheck(
            asset="job_listings",
            name="no_drop",
            description="No board's listing is quarantined for being empty, or for having lost most of its jobs.",
            find=lambda connection, _settings, _now: checks.dropped(connection),
            holds_back=True,
            is_cheap=True,
        ),
        AssetCheck(
            asset="job_listings",
            name="no_lost_fields",
            description="No board's listing is quarantined because most of its jobs have lost a field.",
            find=lambda connection, _settings, _now: checks.lost_fields(connection),
            holds_back=True,
            is_cheap=True,
        ),
        AssetCheck(
            asset="job_listings",
            name="boards_fresh",
            description="Every board succeeded within the setting boards.stale_seconds, and none was given up.",
            find=lambda connection, settings, now: checks.stale_boards(connection, now=now, settings=settings),
            is_cheap=True,
        ),
        AssetCheck(
            asset="job_matches",
            name="not_all_filtered",
            description="Of no board with several listings the filter rejected every one.",
            find=lambda connection, _settings, _now: checks.all_filtered(connection),
        ),
        AssetCheck(
            asset="job_matches",
            name="profile_readable",
            description="The profile has no mistake: with one, no listing is evaluated.",
            find=lambda _connection, settings, _now: profile_findings(settings),
        ),
    ),
    requeue={JOB: requeue_job},
)
