"""The evaluation of listings as tasks, and the set-up of a run over them.

Missing descriptions are fetched politely, host by host, while other listings are evaluated; a few
model requests run at a time.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection

from ingestion_pipeline.companies.boards.closing import (
    close_expired,
    close_inactive_boards,
    expired_listings,
    has_inactive_boards,
)
from ingestion_pipeline.companies.company_states import JOB
from ingestion_pipeline.companies.matching.details import (
    FORBIDDEN,
    GONE,
    Detail,
    DetailExtractor,
    detail_of,
    read_detail,
    with_detail,
)
from ingestion_pipeline.companies.matching.evaluation import ListingEvaluator, ModelScorer
from ingestion_pipeline.companies.matching.listing_requeue import (
    external_ids,
    is_work_waiting,
    make_due,
    make_due_for_profile,
    requeue_outdated,
)
from ingestion_pipeline.companies.matching.match_rows import SNAPSHOT
from ingestion_pipeline.companies.matching.profile import (
    EMPTY_PROFILE,
    BadProfile,
    NoProfile,
    Profile,
    ProfileResult,
    load_profile,
)
from ingestion_pipeline.companies.matching.results import PAGE_GONE, ListingWriter
from ingestion_pipeline.companies.matching.tasks import (
    ListingItem,
    ListingOutcome,
    ListingStage,
    ListingWork,
    MatchCounts,
    Rules,
    next_stage,
    open_listings,
)
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import TaskHandler
from ingestion_pipeline.engine.outcomes import Completed, EndedTask, NotNeeded, Skipped
from ingestion_pipeline.engine.worker_loop import WorkerLoop
from ingestion_pipeline.pages.content.snapshots import SnapshotArchive
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.pages.visits.page import NewPage
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.reading.llm import ModelClient
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.health import Finding
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.errors import Transient, WorkError
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline.urls import host_of


class ListingHandler(TaskHandler[ListingItem, ListingWork]):
    """Evaluates listings, for one run; missing descriptions are fetched from the listings' own pages first."""

    concurrency = 8  # listings that ask a model
    flush_after = 100
    transaction_size = 500

    def __init__(
        self,
        ctx: RunContext,
        fetcher: HttpFetcher,
        rules: Rules,
        evaluator: ListingEvaluator,
        *,
        clock: SteadyClock,
        extractor: DetailExtractor | None = None,
        source_ids: Sequence[str] | None = None,
    ) -> None:
        self.host_concurrency = ctx.settings.polling.concurrency
        self.capacity = ctx.settings.match.batch_size
        self.policy = ctx.settings.work
        self.boards: set[str] = set()  # with evaluated listings
        self._ctx = ctx
        self._rules = rules
        self._evaluator = evaluator
        self._extractor = extractor
        self._clock = clock
        self._source_ids = source_ids
        self._visitor = PoliteVisitor(fetcher, None, clock, ctx.settings)
        self._archive = SnapshotArchive(ctx.store, ctx.content, ctx.run_id)
        self._turns = asyncio.Semaphore(self.concurrency)

    def claim_requests(self, room: int, held: Sequence[ListingItem]) -> Sequence[tuple[ClaimFilter, int]]:  # noqa: ARG002
        """Claim all due listings, or an equal share per board."""
        if self._source_ids is None:
            return [(ClaimFilter(kind=JOB), room)]
        share = max(1, room // max(1, len(self._source_ids)))
        return [(ClaimFilter(kind=JOB, frontier_of=source_id), share) for source_id in self._source_ids]

    def load(
        self, connection: Connection, tasks: Sequence[Task], *, now: datetime
    ) -> Sequence[ListingItem | Skipped[ListingItem]]:
        """Return the listings in their initial state, with where the rest of their data is."""
        opened = open_listings(connection, tasks, now=now)
        works = [self._started(work) for work in opened if isinstance(work, ListingWork)]
        to_scrape = [work for work in works if next_stage(work.state) is ListingStage.SCRAPE]
        sources = sources_by_id(connection, {work.source_id for work in to_scrape})
        ids = external_ids(connection, [(work.id, work.source_id) for work in to_scrape])
        scraped = {work.id: _item(work, sources.get(work.source_id), ids.get(work.id)) for work in to_scrape}
        items = [scraped.get(work.id) or ListingItem(work=work) for work in works]
        return [*items, *(outcome for outcome in opened if isinstance(outcome, Skipped))]

    def _started(self, work: ListingWork) -> ListingWork:
        was_read = bool((work.task.state or {}).get("has_data"))
        has_data = work.listing.has_text or work.listing.url is None or was_read
        return replace(work, state=self._rules.initial_state(work.listing, has_data=has_data))

    async def execute(self, item: ListingItem, host: HostLease | None) -> ListingWork:
        """Fetch the listing's own page if it is needed, and evaluate the listing."""
        if host is not None and item.source is not None and item.detail is not None:
            item.work = with_detail(item.work, await self._scraped(item.source, item.detail, host))
        item.work = self._evaluator.filtered(item.work)
        async with self._turns:
            item.work = await self._evaluator.scored(item.work)
        return item.work

    async def _scraped(self, source: Source, detail: Detail, host: HostLease) -> Mapping[str, object]:
        """Return the columns that the page fills, none if robots.txt forbids it; raise NotNeeded if it is gone."""
        try:
            answer = await self._visitor.visit(
                detail.visit, host=host, honours_robots=detail.honours_robots, own=host_of(detail.visit.url)
            )
        except WorkError as error:
            if error.code in GONE:
                raise NotNeeded(f"its own page is gone: {error}", code=PAGE_GONE) from error
            if error.code == FORBIDDEN:
                return {}
            raise
        if not isinstance(answer, NewPage):
            raise Transient(f"{detail.visit.url} returned no body", code="empty_body")
        columns = await read_detail(answer, detail, source, now=self._clock.now(), extractor=self._extractor)
        return {**columns, SNAPSHOT: await asyncio.to_thread(self._save_page, answer, source.id)}

    def _save_page(self, answer: NewPage, source_id: str) -> int:
        """Store the page as a snapshot; return the snapshot's id."""
        now = self._clock.now()
        stored = self._archive.store([(source_id, answer)], now=now)
        with self._ctx.store.begin() as connection:
            return self._archive.keep(connection, stored, now=now)[0]

    def persist(
        self, connection: Connection, outcomes: Sequence[ListingOutcome], *, now: datetime
    ) -> Sequence[EndedTask]:
        """Write companies, decisions and matches."""
        self.boards |= {outcome.value.source_id for outcome in outcomes if isinstance(outcome, Completed)}
        return ListingWriter(connection, self._ctx, self._rules, now=now).write(outcomes)


def _item(work: ListingWork, source: Source | None, external_id: str | None) -> ListingItem:
    """Return the listing with its own page; one without a page is evaluated as it is."""
    detail = source and detail_of(work, source, external_id=external_id)
    return ListingItem(work=work, source=source, detail=detail) if detail else ListingItem(work=with_detail(work, {}))


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchRunResult:
    """The evaluated `boards`, listings `closed` for their boards or deadlines, and the profile's `problem`."""

    counts: MatchCounts
    boards: frozenset[str] = frozenset()
    rejudged: int = 0
    closed: int = 0
    problem: str | None = None


def profile_path(settings: Settings) -> Path:
    """Return the profile's path; a relative path is in the working directory."""
    return Path(settings.match.profile).expanduser().absolute()


def settings_profile(settings: Settings) -> ProfileResult:
    """Return the profile that the settings name, or why there is none."""
    return load_profile(profile_path(settings))


def rules_of(settings: Settings) -> Rules | None:
    """Return the current rules; None without a usable profile."""
    profile = settings_profile(settings)
    return Rules(profile=profile, settings=settings) if isinstance(profile, Profile) else None


def are_listings_waiting(connection: Connection, settings: Settings, *, now: datetime) -> bool:
    """Return whether a run would evaluate or close anything; a bad profile evaluates none."""
    if has_inactive_boards(connection, now=now, settings=settings) or expired_listings(connection, now=now):
        return True
    profile = settings_profile(settings)
    if isinstance(profile, BadProfile):
        return False
    rules = Rules(profile=profile, settings=settings) if isinstance(profile, Profile) else None
    return is_work_waiting(connection, rules, now=now)


def profile_findings(settings: Settings) -> list[Finding]:
    """Return the profile's problems; empty if there is no profile."""
    profile = settings_profile(settings)
    if not isinstance(profile, BadProfile):
        return []
    return [
        Finding(subject=f"{profile.path.name}:{problem.line}", message=f"{problem.field}: {problem.message}")
        for problem in profile.problems
    ]


async def match_listings(
    ctx: RunContext,
    worker: Worker,
    fetcher: HttpFetcher,
    *,
    source_ids: Sequence[str] | None = None,
    seconds: float | None = None,
) -> MatchRunResult:
    """Evaluate waiting listings, or those of these boards, after closing ended ones; none with a bad profile."""
    closed = await asyncio.to_thread(_close_ended, ctx)
    loaded = settings_profile(ctx.settings)
    if isinstance(loaded, BadProfile):
        log.warning("listings not evaluated: fix the profile\n%s", loaded)
        return MatchRunResult(counts=MatchCounts(), problem=str(loaded), closed=closed)
    profile = EMPTY_PROFILE if isinstance(loaded, NoProfile) else loaded
    lacking = loaded if isinstance(loaded, NoProfile) else None
    rules = Rules(profile=profile, settings=ctx.settings)
    rejudged = await asyncio.to_thread(_prepare, ctx, rules, source_ids, lacking)
    clock = SteadyClock(await asyncio.to_thread(ctx.store.now))
    async with AsyncExitStack() as stack:
        is_asking = lacking is None and ctx.settings.has_model
        client = await stack.enter_async_context(ModelClient(ctx.store, ctx.settings)) if is_asking else None
        scorer = client and ModelScorer(client, profile)
        handler = ListingHandler(
            ctx,
            fetcher,
            rules,
            ListingEvaluator(rules, clock=clock, scorer=scorer, lacking=lacking),
            clock=clock,
            extractor=client and DetailExtractor(client),
            source_ids=source_ids,
        )
        loop: WorkerLoop[ListingItem, ListingWork] = WorkerLoop(
            ctx, worker, fetcher, handler, clock=clock, seconds=seconds
        )
        counts = MatchCounts.of(await loop.run())
    problem = None if lacking is None else str(lacking)
    return MatchRunResult(
        counts=counts, boards=frozenset(handler.boards), rejudged=rejudged, closed=closed, problem=problem
    )


def _close_ended(ctx: RunContext) -> int:
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        return close_inactive_boards(connection, now=now, settings=ctx.settings) + close_expired(connection, now=now)


def _prepare(ctx: RunContext, rules: Rules, source_ids: Sequence[str] | None, lacking: NoProfile | None) -> int:
    """Make waiting listings due, all of boards requested by hand, and requeue outdated ones; return how many."""
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        if source_ids is not None:
            make_due(connection, source_ids, now=now)
        if lacking is not None:
            return 0
        make_due_for_profile(connection, now=now)
    # A second transaction: a transaction that waits to insert a task must hold no other.
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        return requeue_outdated(connection, rules, now=now, source_ids=source_ids)
