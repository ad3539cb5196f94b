"""The system of companies and job boards, as the rest of the program sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ingestion_pipeline.companies import checks as company_checks
from ingestion_pipeline.companies import published
from ingestion_pipeline.companies.boards import checks as board_checks
from ingestion_pipeline.companies.boards.system import BoardSystem, read_saved
from ingestion_pipeline.companies.events import board_events
from ingestion_pipeline.companies.matching.requeue import requeue_job
from ingestion_pipeline.companies.matching.runs import profile_findings
from ingestion_pipeline.companies.platforms import platform
from ingestion_pipeline.companies.starting import CompanySystem, check_config
from ingestion_pipeline.companies.states import JOB
from ingestion_pipeline.companies.work import WORK
from ingestion_pipeline.engine.system_spec import AssetCheck, CoverageQuery, KindSpec, PolledAsset, SystemSpec
from ingestion_pipeline.sources import Definition
from ingestion_pipeline.sources.file_model import BadField
from ingestion_pipeline.store import tables


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
            coverage=CoverageQuery(of="jobs described", select=board_checks.coverage_query),
            read_saved=read_saved,
            problems=_board_problems,
        ),
    ),
    tables=(tables.companies, tables.job_listings, tables.listing_sources, tables.job_matches),
    published=published.TABLES,
    contracts=published.CONTRACTS,
    work=WORK,
    checks=(
        AssetCheck(
            asset="companies",
            name="enough_data",
            description="Every company's pages give enough data: a name and some words of about or culture.",
            find=lambda connection, _settings, _now: company_checks.thin(connection),
        ),
        AssetCheck(
            asset="companies",
            name="companies_fresh",
            description="Every company was analysed within three of its source's intervals.",
            find=lambda connection, settings, now: company_checks.stale(connection, now=now, settings=settings),
        ),
        AssetCheck(
            asset="job_listings",
            name="no_drop",
            description="No board's listing is quarantined for being empty, or for having lost most of its jobs.",
            find=lambda connection, _settings, _now: board_checks.dropped(connection),
            holds_back=True,
            is_cheap=True,
        ),
        AssetCheck(
            asset="job_listings",
            name="no_lost_fields",
            description="No board's listing is quarantined because most of its jobs have lost a field.",
            find=lambda connection, _settings, _now: board_checks.lost_fields(connection),
            holds_back=True,
            is_cheap=True,
        ),
        AssetCheck(
            asset="job_listings",
            name="boards_fresh",
            description="Every board succeeded within the setting boards.stale_seconds, and none was given up.",
            find=lambda connection, settings, now: board_checks.stale(connection, now=now, settings=settings),
            is_cheap=True,
        ),
        AssetCheck(
            asset="job_matches",
            name="not_all_filtered",
            description="Of no board with several listings the filter rejected every one.",
            find=lambda connection, _settings, _now: board_checks.all_filtered(connection),
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
