"""Runs over companies and boards, and the kinds of work that start them.

A run claims tasks, analyses or probes, and writes the outcome. The work: analyse companies and score them again,
probe and choose boards, evaluate listings.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from random import Random

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, or_, select, update

from ingestion_pipeline.companies.analysis import company_pages
from ingestion_pipeline.companies.analysis.company_analysis import (
    CompanyAnalysed,
    CompanyCrawl,
    Score,
    collect_findings,
    evaluate_company,
    rank_points,
    save_company,
    score,
    scoring_hash,
    summary,
)
from ingestion_pipeline.companies.board_discovery import (
    Probe,
    Probed,
    change_board,
    find_board_source,
    probe_board,
    probe_of,
    save_board,
)
from ingestion_pipeline.companies.boards.board_polls import drain_scrapes
from ingestion_pipeline.companies.boards.listing_rows import update_rows
from ingestion_pipeline.companies.matching.listing_rules import RULES_VERSION
from ingestion_pipeline.companies.matching.listing_runs import (
    MatchCounts,
    are_listings_waiting,
    match_listings,
    settings_profile,
)
from ingestion_pipeline.companies.matching.profile import Profile
from ingestion_pipeline.companies.records import (
    COMPANY,
    SCRAPE,
    SOURCE_DISCOVERY,
    CompanyStatus,
    Completeness,
    Confidence,
    board_config,
    company,
    ensure_company,
    ensure_source,
    start_analyses,
)
from ingestion_pipeline.companies.reports import (
    CompanyReport,
    analysed_since,
    company_event,
    match_event,
    match_report,
    sources_in_progress,
)
from ingestion_pipeline.engine import system_spec
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import Completed, EndedTask, Failed, Outcome, Skipped, TaskHandler, not_done
from ingestion_pipeline.engine.worker_loop import WorkerLoop
from ingestion_pipeline.pages.content.snapshots import SnapshotArchive
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.politeness.host_leases import HostLease, PacedFetch
from ingestion_pipeline.pages.visits.page import Renderer
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.reading.html.markdown import MARKDOWN_VERSION
from ingestion_pipeline.reading.llm import ModelClient, open_model
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source, SourceStatus, poll_results
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_results import FailedCrawl
from ingestion_pipeline.sources.poll_tasks import lock_polls
from ingestion_pipeline.store.changes import Cause, set_origins
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.tables import companies
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker, is_any_claimable
from ingestion_pipeline.tasks.ended_tasks import DeadLetterTask
from ingestion_pipeline.tasks.errors import BLOCKED_CODES, FORBIDDEN, Permanent
from ingestion_pipeline.tasks.task import Move, Task, TaskStatus, finished
from ingestion_pipeline.urls import host_of


def _analysed(connection: Connection, analysed: CompanyAnalysed, ctx: RunContext, *, now: datetime) -> EndedTask:
    save_company(connection, analysed, now=now, settings=ctx.settings, run_id=ctx.run_id)
    if analysed.evaluation.completeness is Completeness.THIN:
        move = _finish(analysed.task, TaskStatus.SKIPPED, summary(analysed), code="thin")
        return EndedTask(move=move, count="thin")
    return EndedTask(move=_finish(analysed.task, TaskStatus.SUCCESS, summary(analysed)), count="analysed")


def _probed(connection: Connection, probed: Probed, *, now: datetime, settings: Settings) -> EndedTask:
    source_id = save_board(connection, probed, now=now, settings=settings)
    if source_id is None:
        details = "the board has a source, or its lineage refuses its poll"
        return EndedTask(move=_finish(probed.probe.task, TaskStatus.SKIPPED, details), count="needless")
    count = "boards_active" if probed.confidence is Confidence.HIGH else "boards_pending"
    return EndedTask(move=_finish(probed.probe.task, TaskStatus.SUCCESS, f"{source_id}: {probed.details}"), count=count)


def _not_needed(connection: Connection, outcome: Skipped[CompanyWork], *, now: datetime) -> EndedTask:
    """Finish a task without work; a company that is known well is a success of its source."""
    if outcome.task.kind == COMPANY and outcome.source_id is not None:
        source = sources_by_id(connection, [outcome.source_id])[outcome.source_id]
        lock_polls(connection, [outcome.source_id])
        poll_results.complete_crawl(
            connection, outcome.source_id, outcome=outcome.reason, records=source.record_count, has_news=False, now=now
        )
    if outcome.task.kind == SOURCE_DISCOVERY:
        company_id = outcome.task.payload.get("company_id")
        change_board(connection, company_id, outcome.task, {"source_id": outcome.source_id}, now=now)
    return EndedTask(move=_finish(outcome.task, TaskStatus.SKIPPED, outcome.reason), count="needless")


def persist_failure(
    connection: Connection, failure: Failed[CompanyWork], *, now: datetime, settings: Settings, random: Random
) -> EndedTask:
    """Record why a company waits or failed, with a strike of its source in the end."""
    ended = not_done(failure)
    if not isinstance(failure.decision, DeadLetterTask):
        if failure.task.kind == COMPANY:
            _mark(connection, failure, now=now, is_final=False)
        return ended
    _give_up(connection, failure, now=now, settings=settings, random=random)
    if failure.error.code == FORBIDDEN:  # by robots.txt: no dead letter, no strike
        return replace(ended.with_move(status=TaskStatus.SKIPPED), count="forbidden", dead_letter=None)
    return ended


def _give_up(
    connection: Connection, outcome: Failed[CompanyWork], *, now: datetime, settings: Settings, random: Random
) -> None:
    if outcome.task.kind != COMPANY:
        changes = {"note": f"its discovery failed ({outcome.error.code}): {outcome.error.text[:300]}"}
        company_id = outcome.task.payload.get("company_id")
        change_board(connection, company_id, outcome.task, changes, now=now)
        return
    source_id = _source_id(connection, outcome)
    # Polls are locked before the company everywhere.
    lock_polls(connection, [source_id] if source_id else [])
    _mark(connection, outcome, now=now, is_final=True)
    if source_id is None:
        return
    is_blocked = outcome.error.code in BLOCKED_CODES
    crawl = FailedCrawl(
        source_id=source_id,
        outcome=f"{outcome.error.code}: {outcome.error.text}",
        error_class=outcome.error.error_class.value,
        is_strike=outcome.error.code != FORBIDDEN,
        blocked_reason=f"behind a {outcome.error.code.replace('_', ' ')}: {outcome.error.text}" if is_blocked else None,
    )
    poll_results.fail_crawl(connection, crawl, now=now, settings=settings, random=random)


def _source_id(connection: Connection, outcome: Failed[CompanyWork]) -> str | None:
    """Return the company's source, on which the failure is counted."""
    if outcome.item is not None:
        return outcome.item.source.id
    company_id = outcome.task.payload.get("company_id")
    row = company(connection, company_id) if company_id else None
    source_id = row["source_id"] if row is not None else None
    return source_id if source_id and sources_by_id(connection, [source_id]) else None


def _mark(connection: Connection, outcome: Failed[CompanyWork], *, now: datetime, is_final: bool) -> None:
    company_id = outcome.item.company_id if outcome.item else outcome.task.payload.get("company_id")
    row = company(connection, company_id) if company_id else None
    if row is None:
        return
    is_known = row["score"] is not None and row["quality"].get("level") != Completeness.THIN.value
    was = CompanyStatus.ACTIVE if is_known else CompanyStatus.PENDING
    status = CompanyStatus.FAILED if is_final and row["score"] is None else was
    statement = update(companies).where(companies.c.id == row["id"])
    connection.execute(statement.values(status=status.value, failure=outcome.error.text, updated_at=now))


def _finish(task: Task, status: TaskStatus, details: str, *, code: str | None = None) -> Move:
    move = finished(task, status=status)
    is_skipped = status is TaskStatus.SKIPPED
    return replace(
        move,
        state={**(task.state or {}), "details": details[:500]},
        error_code=(code or "needless") if is_skipped else None,
        error=details[:500] if is_skipped else None,
    )


KINDS = (COMPANY, SOURCE_DISCOVERY)
MAX_REQUESTED = 50  # companies whose boards the same run probes; other boards wait for the sensor


@dataclass(slots=True)
class CompanyWork:
    """A claimed task of a company and its source; with a probe it is of a board."""

    task: Task
    source: Source
    company_id: str
    website: str
    name: str | None
    probe: Probe | None = None

    @property
    def host(self) -> str:
        """Return the host of the first request."""
        return self.probe.host if self.probe else host_of(self.website)


LoadedCompany = CompanyWork | Skipped[CompanyWork] | Failed[CompanyWork]


class CompanyHandler(TaskHandler[CompanyWork, CompanyAnalysed | Probed]):
    """Analyses companies and probes boards, for one run."""

    concurrency = 8  # companies
    capacity = 2 * concurrency
    transaction_size = 1  # companies and boards that name each other lock each other's rows

    def __init__(
        self,
        ctx: RunContext,
        fetcher: HttpFetcher,
        *,
        visitor: PoliteVisitor,
        clock: SteadyClock,
        ranks: Mapping[str, int],
        client: ModelClient | None,
        source_ids: Collection[str] | None = None,
    ) -> None:
        self.policy = ctx.settings.work
        self._ctx = ctx
        self._fetcher = fetcher
        self._visitor = visitor
        self._clock = clock
        self._ranks = ranks
        self._client = client
        self._source_ids = source_ids
        self._is_first = True
        self._archive = SnapshotArchive(ctx.store, ctx.content, ctx.run_id)

    def claim_requests(self, room: int, held: Sequence[CompanyWork]) -> Sequence[tuple[ClaimFilter, int]]:  # noqa: ARG002
        """Claim a few tasks of each kind."""
        return [(claim_filter, max(room // 2, 1)) for claim_filter in self._claim_filters()]

    def load(self, connection: Connection, tasks: Sequence[Task], *, now: datetime) -> Sequence[LoadedCompany]:
        """Return the work of each task; a company and its source are created if they do not exist."""
        return [self._opened(connection, task, now=now) for task in tasks]

    def persist(
        self,
        connection: Connection,
        outcomes: Sequence[Outcome[CompanyWork, CompanyAnalysed | Probed]],
        *,
        now: datetime,
    ) -> Sequence[EndedTask]:
        """Store companies, boards and failures."""
        return [self._persist(connection, outcome, now=now) for outcome in outcomes]

    def _persist(
        self, connection: Connection, outcome: Outcome[CompanyWork, CompanyAnalysed | Probed], *, now: datetime
    ) -> EndedTask:
        settings = self._ctx.settings
        match outcome:
            case Completed(value=value):
                if isinstance(value, CompanyAnalysed):
                    return _analysed(connection, value, self._ctx, now=now)
                return _probed(connection, value, now=now, settings=settings)
            case Skipped():
                return _not_needed(connection, outcome, now=now)
            case Failed():
                return persist_failure(connection, outcome, now=now, settings=settings, random=self._ctx.random)

    def _claim_filters(self) -> list[ClaimFilter]:
        """Return filters for waiting tasks; sources requested by hand are claimed once, due or not.

        After that only their due tasks are claimed, so that the same run probes the boards its analyses find.
        """
        ids, is_first, self._is_first = self._source_ids, self._is_first, False
        if ids is None:
            return [ClaimFilter(kind=kind) for kind in KINDS]
        if is_first:
            return [ClaimFilter(kind=kind, source_ids=ids) for kind in KINDS]
        few = sorted(ids)[:MAX_REQUESTED]
        return [ClaimFilter(kind=kind, frontier_of=source_id) for source_id in few for kind in KINDS]

    def _opened(self, connection: Connection, task: Task, *, now: datetime) -> LoadedCompany:
        if task.url is None:
            return Failed(task=task, error=Permanent("the task has no URL", code="no_url"))
        try:
            if task.kind == COMPANY:
                return self._opened_company(connection, task, task.url, now=now)
            return self._opened_board(connection, task, task.url)
        except (ValueError, KeyError) as error:  # no address, no company, no token, no platform
            raise Permanent(f"{type(error).__name__}: {error}", code="bad_task") from error

    def _opened_company(self, connection: Connection, task: Task, website: str, *, now: datetime) -> LoadedCompany:
        company_id = ensure_company(
            connection,
            company_id=task.payload.get("company_id") or task.dedupe_key,
            name=task.payload.get("name"),
            website=website,
            discovered_by=task.source_id or "operator",
            tracking_id=task.tracking_id,
            now=now,
        )
        source = ensure_source(connection, company_id, now=now, settings=self._ctx.settings)
        row = company(connection, company_id)
        if source is None or row is None:
            message = f"{company_id} has no website; it cannot be analysed"
            return Failed(task=task, error=Permanent(message, code="no_website"))
        if source.status is SourceStatus.DISABLED:
            return Skipped(task=task, reason=f"{source.id} is disabled; nothing is fetched for it")
        if not task.payload.get("is_asked") and self._is_known_well(row, now):
            message = f"known well since {row['analyzed_at']:%Y-%m-%d}"
            return Skipped(task=task, reason=message, source_id=source.id)
        connection.execute(
            update(companies)
            .where(companies.c.id == company_id)
            .values(status=CompanyStatus.ANALYZING.value, tracking_id=task.tracking_id)
        )
        return CompanyWork(task=task, source=source, company_id=company_id, website=website, name=row["name"])

    def _is_known_well(self, row: RowMapping, now: datetime) -> bool:
        fresh = timedelta(seconds=self._ctx.settings.company.fresh_seconds)
        at: datetime | None = row["analyzed_at"]
        return row["quality"].get("level") == Completeness.GOOD.value and at is not None and now - at < fresh

    def _opened_board(self, connection: Connection, task: Task, url: str) -> LoadedCompany:
        platform = task.payload["platform"]
        existing_id = find_board_source(connection, platform=platform, url=url)
        if existing_id is not None:
            return Skipped(task=task, reason=f"{existing_id} is its source", source_id=existing_id)
        source = sources_by_id(connection, [task.source_id or ""]).get(task.source_id or "")
        if source is None:
            message = f"the company's source {task.source_id} is gone"
            return Failed(task=task, error=Permanent(message, code="source_deleted"))
        if source.status is SourceStatus.DISABLED:
            return Skipped(task=task, reason=f"{source.id} is disabled; nothing is fetched for it")
        probe = probe_of(task, platform, url, board_config(source, platform))
        company_id = task.payload.get("company_id") or ""
        return CompanyWork(task=task, source=source, company_id=company_id, website=url, name=None, probe=probe)

    async def execute(self, item: CompanyWork, host: HostLease | None) -> CompanyAnalysed | Probed:
        """Crawl and analyse a company's pages, or request a board's first page."""
        if host is None:
            raise ValueError(f"no lease on {item.host}")
        return await (self._probed(item, host) if item.probe else self._analysed(item, host))

    async def _analysed(self, item: CompanyWork, host: HostLease) -> CompanyAnalysed:
        visits = CompanyCrawl(
            ctx=self._ctx,
            visitor=self._visitor,
            archive=self._archive,
            host=host,
            source=item.source,
            task=item.task,
            state=dict(item.task.state or {}),
        )
        try:
            pages = await visits.all_pages(item.website)
        finally:
            item.task = visits.task  # what was fetched so far, for the next attempt
        findings = await asyncio.to_thread(collect_findings, pages, website=item.website, known_name=item.name)
        if self._client is not None and findings.missing:
            facts, notes = await company_pages.ask_model(
                self._client, findings.pages, findings.missing, source_id=item.source.id
            )
            findings = findings.with_more(facts, *notes)
        evaluation = evaluate_company(findings, ranks=self._ranks, rules=self._ctx.settings.company)
        failed = {
            failure["asked"]: failure["code"]
            for failure in visits.state.get("failed", ())
            if failure["named_by"] != "guess"
        }
        return CompanyAnalysed(
            task=item.task,
            company_id=item.company_id,
            source=item.source,
            findings=findings,
            evaluation=evaluation,
            failed=failed,
        )

    async def _probed(self, item: CompanyWork, host: HostLease) -> Probed:
        if (probe := item.probe) is None:
            raise ValueError(f"task {item.task.id} is of no board")
        robots = host.robots if probe.honours_robots and not item.source.ignores_robots else None
        fetch = PacedFetch(self._fetcher, probe.host, host, robots, self._clock)
        return await probe_board(probe, fetch, now=self._clock.now())


async def run_companies(
    ctx: RunContext,
    worker: Worker,
    fetcher: HttpFetcher,
    *,
    ranks: Mapping[str, int] | None = None,
    source_ids: Collection[str] | None = None,
    renderer: Renderer | None = None,
) -> Counter[str]:
    """Run the waiting analyses and discoveries, or those of the requested sources."""
    clock = SteadyClock(await asyncio.to_thread(ctx.store.now))
    visitor = PoliteVisitor(fetcher, renderer, clock, ctx.settings)
    async with open_model(ctx.store, ctx.settings) as client:
        handler = CompanyHandler(
            ctx, fetcher, visitor=visitor, clock=clock, ranks=ranks or {}, client=client, source_ids=source_ids
        )
        loop: WorkerLoop[CompanyWork, CompanyAnalysed | Probed] = WorkerLoop(ctx, worker, fetcher, handler, clock=clock)
        return await loop.run()


def is_work_waiting(connection: Connection, *, now: datetime) -> bool:
    """Return whether a company, a board or a rotation can be claimed now."""
    return is_any_claimable(connection, *KINDS, SCRAPE, now=now)


async def _analyze(run: system_spec.WorkRun) -> system_spec.WorkReport:
    ctx, keys, since = run.ctx, run.scope.source_ids, run.ctx.store.now()
    rotated = 0
    if keys is None:
        rotated = await asyncio.to_thread(drain_scrapes, ctx.store, run.worker)
    counts = await run_companies(
        ctx, run.worker, run.fetcher, ranks=ranks_of(ctx.settings), source_ids=keys, renderer=run.renderer
    )
    rescored = await asyncio.to_thread(_rescore, ctx) if keys is None else 0
    with ctx.store.read() as connection:
        limit = system_spec.REPORTED_EVENTS
        reports = analysed_since(connection, since=since, source_ids=keys, limit=limit)
    failure, warning = _requested_failure(ctx, reports, keys) if keys is not None else (None, None)
    return system_spec.WorkReport(
        numbers=dict(sorted(counts.items())) | {"rotations": rotated, "rescored": rescored},
        events=list(map(company_event, reports)),
        written={"companies": [report.row["source_id"] for report in reports]},
        failure=failure if keys is not None else system_spec.all_failed(counts, "analyses"),
        warning=warning,
    )


def _rescore(ctx: RunContext) -> int:
    """Rescore all companies that were scored by another profile, a batch per transaction."""
    count = 0
    while True:
        with ctx.store.begin() as connection:
            now = ctx.store.clock.now(connection)
            set_origins(connection, {}, now=now, default=replace(ctx.origin, cause=Cause.PROFILE_CHANGED))
            done = rescore(connection, ctx.settings, now=now)
        count += done
        if not done:
            return count


def _request(ctx: RunContext, source_ids: list[str]) -> dict[str, str]:
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        sources = sources_by_id(connection, source_ids)
        polls = poll_results.claim_polls(connection, source_ids, now=now, settings=ctx.settings)
        outcomes = start_analyses(connection, list(sources.values()), now=now, is_asked=True)
        started = [(polls[key], sources[key], outcomes[key]) for key in sorted(polls)]
        poll_results.begin_crawls(connection, started, now=now, settings=ctx.settings, random=ctx.random)
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


async def _evaluate(run: system_spec.WorkRun) -> system_spec.WorkReport:
    ctx, keys = run.ctx, run.scope.source_ids
    done = await match_listings(ctx, run.worker, run.fetcher, source_ids=keys)
    board_ids = (sorted(done.boards) if keys is None else keys)[: system_spec.REPORTED_EVENTS]
    with ctx.store.read() as connection:
        reports = [match_report(connection, key) for key in board_ids]
    return system_spec.WorkReport(
        numbers=asdict(done.counts) | {"reevaluated": done.reevaluated, "closed": done.closed},
        events=list(map(match_event, reports)),
        written={"job_matches": board_ids},
        message="nothing waits: every listing is evaluated" if keys and done.counts == MatchCounts() else None,
        warning=done.problem,
    )


WORK = (
    system_spec.WorkSpec(
        name="analyze",
        kind="company",
        work=_analyze,
        job=system_spec.WorkJob(
            name="process_companies",
            description="Analyse the companies that wait, probe the boards they lead to, choose boards.",
            pending=lambda connection, settings, now: (
                is_work_waiting(connection, now=now) or is_scoring_due(connection, settings)
            ),
        ),
        assets=(
            system_spec.WorkAsset(
                name="companies",
                code_version=f"{company_pages.VERSION}, {MARKDOWN_VERSION}",
                description=(
                    "Facts from each company's own pages, a partition each. Materializing fetches its"
                    " pages now, whatever is stored, and discovers its job boards."
                ),
            ),
        ),
        request=_request,
    ),
    system_spec.WorkSpec(
        name="evaluate",
        kind="job_board",
        work=_evaluate,
        job=system_spec.WorkJob(
            name="process_listings",
            description="Evaluate waiting listings: stop lists, filter, score, match.",
            pending=lambda connection, settings, now: are_listings_waiting(connection, settings, now=now),
        ),
        assets=(
            system_spec.WorkAsset(
                name="job_matches",
                code_version=f"rules {RULES_VERSION}",
                after="job_listings",
                technologies=frozenset({"python", "sql"}),
                description=(
                    "The listings that fit the profile, a partition a board. Materializing"
                    " evaluates its waiting listings now, and again those evaluated by other rules."
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
