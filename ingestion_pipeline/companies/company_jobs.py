"""The work of companies: analyse their pages, probe and choose boards, evaluate listings."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, or_, select

from ingestion_pipeline.companies.analysis.company_score import Score, rank_points, score, scoring_hash
from ingestion_pipeline.companies.boards.listing_rows import update_rows
from ingestion_pipeline.companies.boards.rotation import drain_scrapes
from ingestion_pipeline.companies.company_events import company_event, match_event
from ingestion_pipeline.companies.company_runs import is_work_waiting, run_companies
from ingestion_pipeline.companies.matching.listing_runs import are_listings_waiting, match_listings, settings_profile
from ingestion_pipeline.companies.matching.profile import Profile
from ingestion_pipeline.companies.records import start_analyses
from ingestion_pipeline.companies.reports import CompanyReport, analysed_since, match_report, sources_in_progress
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.system_spec import WorkAsset, WorkJob, WorkReport, WorkRun, WorkSpec, all_failed
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import crawls
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store.tables import companies


async def _analyze(run: WorkRun) -> WorkReport:
    """Analyse waiting companies, or the requested ones, and discover their boards."""
    ctx, keys, since = run.ctx, run.scope.source_ids, run.ctx.store.now()
    rotated = 0
    if keys is None:
        rotated = await asyncio.to_thread(drain_scrapes, ctx.store, run.worker, settings=ctx.settings)
    counts = await run_companies(
        ctx, run.worker, run.fetcher, ranks=ranks_of(ctx.settings), source_ids=keys, renderer=run.renderer
    )
    rescored = await asyncio.to_thread(_rescore, ctx) if keys is None else 0
    with ctx.store.read() as connection:
        limit = ctx.settings.polling.reported_events
        reports = analysed_since(connection, since=since, source_ids=keys, limit=limit)
    failure, warning = _requested_failure(ctx, reports, keys) if keys is not None else (None, None)
    return WorkReport(
        numbers=dict(sorted(counts.items())) | {"rotations": rotated, "rescored": rescored},
        events=list(map(company_event, reports)),
        written={"companies": [report.row["source_id"] for report in reports]},
        failure=failure if keys is not None else all_failed(counts, "analyses"),
        warning=warning,
    )


def _rescore(ctx: RunContext) -> int:
    """Rescore all companies that were scored by another profile, a batch per transaction."""
    count = 0
    while True:
        with ctx.store.begin() as connection:
            done = rescore(connection, ctx.settings, now=ctx.store.clock.now(connection))
        count += done
        if not done:
            return count


def _request(ctx: RunContext, source_ids: list[str]) -> dict[str, str]:
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        sources = sources_by_id(connection, source_ids)
        polls = crawls.claim_polls(connection, source_ids, now=now, settings=ctx.settings)
        outcomes = start_analyses(connection, list(sources.values()), now=now, is_asked=True)
        started = [(polls[key], sources[key], outcomes[key]) for key in sorted(polls)]
        crawls.begin(connection, started, now=now, settings=ctx.settings, random=ctx.random)
    return outcomes


def _requested_failure(
    ctx: RunContext, reports: Sequence[CompanyReport], keys: list[str]
) -> tuple[str | None, str | None]:
    """Return why no requested company was analysed: a failure, or a warning if another run analyses them."""
    if reports:
        return None, None
    with ctx.store.read() as connection:
        held = sources_in_progress(connection, keys, now=ctx.store.clock.now(connection))
        sources = sources_by_id(connection, keys)
    if held:
        return None, f"another run analyses and reports sources={','.join(held)}"
    outcomes = "; ".join(f"{source.id}: {source.last_outcome or 'waits'}" for source in sources.values())
    return f"no company was analysed. {outcomes[:1_000]}", None


async def _judge(run: WorkRun) -> WorkReport:
    """Evaluate every waiting listing, or those of the requested boards."""
    ctx, keys = run.ctx, run.scope.source_ids
    done = await match_listings(ctx, run.worker, run.fetcher, source_ids=keys)
    board_ids = (sorted(done.boards) if keys is None else keys)[: ctx.settings.polling.reported_events]
    with ctx.store.read() as connection:
        reports = [match_report(connection, key) for key in board_ids]
    return WorkReport(
        numbers=asdict(done.counts) | {"rejudged": done.rejudged, "closed": done.closed},
        events=list(map(match_event, reports)),
        written={"job_matches": board_ids},
        warning=done.problem,
    )


WORK = (
    WorkSpec(
        name="analyze",
        kind="company",
        work=_analyze,
        job=WorkJob(
            name="process_companies",
            description="Analyse the companies that wait, probe the boards they lead to, choose boards.",
            pending=lambda connection, settings, now: (
                is_work_waiting(connection, now=now) or is_scoring_due(connection, settings)
            ),
        ),
        assets=(
            WorkAsset(
                name="companies",
                description=(
                    "Facts from a company's own pages, one partition a company. Materializing fetches its"
                    " pages now, whatever is stored, and discovers its job boards."
                ),
            ),
        ),
        request=_request,
    ),
    WorkSpec(
        name="judge",
        kind="job_board",
        work=_judge,
        job=WorkJob(
            name="process_listings",
            description="Evaluate waiting listings: stop lists, filter, score, match.",
            pending=lambda connection, settings, now: are_listings_waiting(connection, settings, now=now),
        ),
        assets=(
            WorkAsset(
                name="job_matches",
                after="job_listings",
                technologies=frozenset({"python", "sql"}),
                description=(
                    "Which listings of a board fit the profile, one partition a board. Materializing"
                    " evaluates its waiting listings now, and again those evaluated by other rules;"
                    " `process_listings` does so for all boards as listings arrive."
                ),
            ),
        ),
    ),
)


SCORED_AT_ONCE = 500


def ranks_of(settings: Settings) -> dict[str, int]:
    """Return the points of the profile's skills; empty without a usable profile."""
    profile = settings_profile(settings)
    return rank_points(profile.skills) if isinstance(profile, Profile) else {}


def is_scoring_due(connection: Connection, settings: Settings) -> bool:
    """Return whether a company was scored with another profile or other points."""
    own = scoring_hash(ranks_of(settings), settings.company)
    query = select(companies.c.id).where(_scored_otherwise(own)).limit(1)
    return connection.execute(query).first() is not None


def rescore(connection: Connection, settings: Settings, *, now: datetime) -> int:
    """Rescore a batch of companies with outdated scores; return how many."""
    ranks = ranks_of(settings)
    own = scoring_hash(ranks, settings.company)
    query = select(companies.c.id, companies.c.tech_stack, companies.c.is_remote_first, companies.c.score_parts)
    batch = query.where(_scored_otherwise(own)).order_by(companies.c.id).limit(SCORED_AT_ONCE).with_for_update()
    scores: dict[str, Score] = {}
    for row in connection.execute(batch).mappings():
        parts: Mapping[str, int] = row["score_parts"] or {}
        scores[row["id"]] = score(
            tech_stack=row["tech_stack"] or {},
            is_remote_first=row["is_remote_first"],
            places=[settings.company.bonus_city] if parts.get("city", 0) > 0 else [],
            ranks=ranks,
            rules=settings.company,
        )
    if not scores:
        return 0
    rows = [(id_, result.points, result.tier, dict(result.parts)) for id_, result in scores.items()]
    names = ("id", "score", "tier", "score_parts")
    update_rows(connection, companies, names, rows, {"scoring_hash": own, "updated_at": now})
    return len(scores)


def _scored_otherwise(own: str) -> ColumnElement[bool]:
    stored = companies.c.scoring_hash
    return and_(companies.c.score.is_not(None), or_(stored.is_(None), stored < own, stored > own))
