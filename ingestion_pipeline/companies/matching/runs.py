"""A run over listings: claim a batch, evaluate, write, repeat; and the set-up of such a run.

Missing descriptions are fetched politely, host by host, while other listings are evaluated; a few
model requests run at a time. A run holds a bounded number of listings and releases what it did not
reach.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Mapping, Sequence
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
from ingestion_pipeline.companies.matching.profile import (
    EMPTY_PROFILE,
    BadProfile,
    NoProfile,
    Profile,
    ProfileResult,
    load_profile,
)
from ingestion_pipeline.companies.matching.requeue import (
    external_ids,
    is_work_waiting,
    make_due,
    make_due_for_profile,
    requeue_outdated,
)
from ingestion_pipeline.companies.matching.results import write_results
from ingestion_pipeline.companies.matching.rows import SNAPSHOT
from ingestion_pipeline.companies.matching.stages import ListingStage, Rules, next_stage
from ingestion_pipeline.companies.matching.tasks import (
    Evaluated,
    ListingGone,
    ListingWork,
    MatchCounts,
    NotEvaluated,
    Result,
    open_listings,
)
from ingestion_pipeline.companies.states import JOB
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.host_queue import HostQueues
from ingestion_pipeline.engine.time_budget import TimeBudget
from ingestion_pipeline.pages.content.archive import SnapshotArchive
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.politeness.host_leases import HostLease, LeasedHosts
from ingestion_pipeline.pages.visits.page import NewPage
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.reading.llm import ModelClient
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.health import Finding
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.errors import Fatal, Permanent, Transient, WorkError, classify
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline.urls import host_of

WAIT_SECONDS = 0.5  # between two checks while hosts are crawled


class _Item:
    """A listing whose own page is to be fetched."""

    __slots__ = ("detail", "source", "work")

    def __init__(self, work: ListingWork, source: Source, detail: Detail) -> None:
        self.work = work
        self.source = source
        self.detail = detail


class ListingRun:
    """One run's evaluations, under one worker identity."""

    def __init__(
        self,
        ctx: RunContext,
        worker: Worker,
        fetcher: HttpFetcher,
        rules: Rules,
        evaluator: ListingEvaluator,
        *,
        clock: SteadyClock,
        extractor: DetailExtractor | None = None,
        seconds: float | None = None,
    ) -> None:
        self._ctx = ctx
        self._worker = worker
        self._rules = rules
        self._evaluator = evaluator
        self._extractor = extractor
        self._clock = clock
        self._visitor = PoliteVisitor(fetcher, None, clock, ctx.settings)
        self._archive = SnapshotArchive(ctx.store, ctx.content, ctx.run_id)
        self._hosts = LeasedHosts(ctx, worker, fetcher, clock)
        limit = ctx.settings.polling.slice_seconds if seconds is None else seconds
        self._time = TimeBudget(worker, clock, seconds=limit, network=self._hosts.network)
        self._turns = asyncio.Semaphore(ctx.settings.match.concurrency)
        self._open: dict[int, ListingWork] = {}
        self._results: list[Result] = []
        self._counts = MatchCounts()
        self.boards: set[str] = set()  # with evaluated listings
        self._visits: HostQueues[_Item] = HostQueues(
            self._hosts,
            concurrency=ctx.settings.polling.concurrency,
            execute=self._execute,
            release=lambda item, why: self._release(item.work, why),
            reason_to_stop=self._time.reason_to_stop,
        )

    async def run(self, source_ids: Sequence[str] | None = None) -> MatchCounts:
        """Evaluate while there is work and time; a fatal error is raised at the end."""
        alive = asyncio.create_task(self._worker.keep_alive(self._hosts.renew))
        try:
            await self._drain(source_ids)
        finally:
            alive.cancel()
            await self._visits.stop()
            for work in list(self._open.values()):
                self._release(work, self._time.stopped())
            await self._flush()
        if self._time.fatal is not None:
            raise self._time.fatal
        return self._counts

    async def _drain(self, source_ids: Sequence[str] | None) -> None:
        while self._time.is_left():
            claimed = await self._claim(source_ids)
            if self._visits:
                await self._visits.wait(timeout_seconds=0 if claimed else WAIT_SECONDS)
            await self._flush()
            if not claimed and not self._visits and not await self._time.rest():
                return
        while self._visits:  # they stop by themselves, since the time is up
            await self._visits.wait(timeout_seconds=WAIT_SECONDS)

    async def _claim(self, source_ids: Sequence[str] | None) -> int:
        """Claim and evaluate a batch; listings without data wait for their host."""
        room = self._ctx.settings.match.batch_size - len(self._open)
        if room <= 0:
            return 0
        opened = await asyncio.to_thread(self._opened, source_ids, room)
        self._results += [item for item in opened if isinstance(item, ListingGone)]
        works = [item for item in opened if isinstance(item, ListingWork)]
        started = [work for work in map(self._started, works) if work is not None]
        await self._evaluate_all([work for work in started if not _is_to_scrape(work)])
        await self._assign([work for work in started if _is_to_scrape(work)])
        return len(opened)

    def _opened(self, source_ids: Sequence[str] | None, room: int) -> Sequence[ListingWork | ListingGone]:
        tasks = self._worker.claim_all(_claim_requests(source_ids, room))
        with self._ctx.store.read() as connection:
            now = self._ctx.store.clock.now(connection)
            return open_listings(connection, tasks, now=now)

    def _started(self, work: ListingWork) -> ListingWork | None:
        """Return the work in its initial state; None if it has lost too many workers."""
        if work.task.attempts > self._ctx.settings.work.max_attempts:
            message = f"worker lost {work.task.attempts - 1} times on listing {work.id}"
            self._release(work, Permanent(message, code="worker_lost"))
            return None
        was_read = bool((work.task.state or {}).get("has_data"))
        has_data = work.listing.has_text or work.listing.url is None or was_read
        started = replace(work, state=self._rules.initial_state(work.listing, has_data=has_data))
        self._open[work.task.id] = started
        return started

    async def _evaluate_all(self, works: Sequence[ListingWork]) -> None:
        if self._evaluator.is_pure:
            results = await asyncio.to_thread(lambda: [self._evaluator.evaluate_by_rules(work) for work in works])
            for result in results:
                self._record(result)
            return
        await asyncio.gather(*(self._evaluate(work) for work in works))

    async def _evaluate(self, work: ListingWork) -> None:
        async with self._turns:
            if (why := self._time.reason_to_stop()) is not None:
                self._release(work, why)
                return
            self._record(await self._evaluator.evaluate(work))

    async def _assign(self, works: Sequence[ListingWork]) -> None:
        """Queue each listing on its host; one without a page is evaluated as it is."""
        if not works:
            return
        sources, ids = await asyncio.to_thread(self._board_sources, works)
        by_host: dict[str, list[_Item]] = {}
        for work in works:
            source = sources.get(work.source_id)
            detail = source and detail_of(work, source, external_id=ids.get(work.id))
            if source is None or not detail:
                await self._evaluate(with_detail(work, {}))
            else:
                item = _Item(work, source, detail)
                by_host.setdefault(host_of(detail.visit.url), []).append(item)
        await self._visits.assign(by_host, lambda item: item.source)

    def _board_sources(self, works: Sequence[ListingWork]) -> tuple[Mapping[str, Source], Mapping[int, str]]:
        with self._ctx.store.read() as connection:
            sources = sources_by_id(connection, {work.source_id for work in works})
            return sources, external_ids(connection, [(work.id, work.source_id) for work in works])

    async def _execute(self, item: _Item, host: HostLease) -> None:
        try:
            scraped = await self._scraped(item, host)
        except Exception as error:
            await self._page_failed(item, classify(error), traceback.format_exc(limit=-20))
        else:
            work = with_detail(item.work, scraped)
            self._open[work.task.id] = work
            await self._evaluate(work)

    async def _scraped(self, item: _Item, host: HostLease) -> Mapping[str, object]:
        answer = await self._visitor.visit(
            item.detail.visit, host=host, honours_robots=item.detail.honours_robots, own=host_of(item.detail.visit.url)
        )
        if not isinstance(answer, NewPage):
            raise Transient(f"{item.detail.visit.url} returned no body", code="empty_body")
        now = self._clock.now()
        columns = await read_detail(answer, item.detail, item.source, now=now, extractor=self._extractor)
        return {**columns, SNAPSHOT: await asyncio.to_thread(self._save_page, answer, item.source.id)}

    def _save_page(self, answer: NewPage, source_id: str) -> int:
        """Store the page as a snapshot; return the snapshot's id."""
        now = self._clock.now()
        stored = self._archive.store([(source_id, answer)], now=now)
        with self._ctx.store.begin() as connection:
            return self._archive.keep(connection, stored, now=now)[0]

    async def _page_failed(self, item: _Item, error: WorkError, stack: str) -> None:
        """Skip a listing whose page is gone; evaluate without a page that is forbidden."""
        if error.code in GONE:
            self._open.pop(item.work.task.id, None)
            reason = f"its own page is gone: {error}"
            gone = ListingGone(task=item.work.task, why=reason, is_page_gone=True)
            self._results.append(gone)
        elif error.code == FORBIDDEN:
            await self._evaluate(with_detail(item.work, {}))
        else:
            self._release(item.work, error, stack=stack)

    def _release(self, work: ListingWork, why: WorkError, *, stack: str | None = None) -> None:
        self._record(NotEvaluated(work=work, error=why, stack=stack))

    def _record(self, result: Evaluated | NotEvaluated) -> None:
        self._open.pop(result.task.id, None)
        self._results.append(result)
        if isinstance(result, Evaluated):
            self.boards.add(result.work.source_id)
        elif isinstance(result.error, Fatal):
            self._time.fatal = result.error

    async def _flush(self) -> None:
        results, self._results = self._results, []
        async with self._hosts.releasing() as left:
            if results:
                written = await asyncio.to_thread(write_results, self._ctx, self._rules, results)
                self._counts += written.counts
                self._time.expect(written.again_at)
            if left:
                await asyncio.to_thread(self._hosts.release_in_own_transaction, left)


def _is_to_scrape(work: ListingWork) -> bool:
    return next_stage(work.state) is ListingStage.SCRAPE


def _claim_requests(source_ids: Sequence[str] | None, room: int) -> list[tuple[ClaimFilter, int]]:
    """Return one claim request for all due listings, or an equal share per board."""
    if source_ids is None:
        return [(ClaimFilter(kind=JOB), room)]
    share = max(1, room // max(1, len(source_ids)))
    return [(ClaimFilter(kind=JOB, frontier_of=source_id), share) for source_id in source_ids]


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchRunResult:
    """The result of a run over listings; `problem` says what is wrong with the profile.

    `boards` are those whose listings were evaluated, `closed` counts listings closed because their
    boards are inactive or their deadline has passed.
    """

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
        Finding(subject=f"{profile.path.name}:{problem.line}", message=f"{problem.key}: {problem.message}")
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
    """Evaluate waiting listings, or those of these boards; a bad profile evaluates nothing.

    Listings of inactive boards and listings past their deadline are closed first.
    """
    closed = await asyncio.to_thread(_close_ended, ctx)
    loaded = settings_profile(ctx.settings)
    if isinstance(loaded, BadProfile):
        log.warning("listings not evaluated: fix the profile\n%s", loaded)
        return MatchRunResult(counts=MatchCounts(), problem=str(loaded), closed=closed)
    profile = EMPTY_PROFILE if isinstance(loaded, NoProfile) else loaded
    lacking = loaded if isinstance(loaded, NoProfile) else None
    rules = Rules(profile=profile, settings=ctx.settings)
    rejudged = await asyncio.to_thread(_prepare, ctx, rules, source_ids, lacking)
    run = _RunSetup(ctx, worker, fetcher, rules, lacking, seconds)
    if lacking is not None or not ctx.settings.has_model:
        done = await run.execute(source_ids)
    else:
        async with ModelClient(ctx.store, ctx.settings) as client:
            done = await run.execute(source_ids, client)
    problem = None if lacking is None else str(lacking)
    return replace(done, rejudged=rejudged, closed=closed, problem=problem)


def _close_ended(ctx: RunContext) -> int:
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        inactive = close_inactive_boards(connection, now=now, settings=ctx.settings)
        return inactive + close_expired(connection, now=now)


def _prepare(ctx: RunContext, rules: Rules, source_ids: Sequence[str] | None, lacking: NoProfile | None) -> int:
    """Make waiting listings due and requeue outdated ones, if there is a profile; return how many.

    All listings of boards requested by hand become due.
    """
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


@dataclass(frozen=True, slots=True)
class _RunSetup:
    ctx: RunContext
    worker: Worker
    fetcher: HttpFetcher
    rules: Rules
    lacking: NoProfile | None
    seconds: float | None

    async def execute(self, source_ids: Sequence[str] | None, client: ModelClient | None = None) -> MatchRunResult:
        clock = SteadyClock(await asyncio.to_thread(self.ctx.store.now))
        scorer = client and ModelScorer(client, self.rules.profile)
        evaluator = ListingEvaluator(self.rules, clock=clock, scorer=scorer, lacking=self.lacking)
        loop = ListingRun(
            self.ctx,
            self.worker,
            self.fetcher,
            self.rules,
            evaluator,
            clock=clock,
            extractor=client and DetailExtractor(client),
            seconds=self.seconds,
        )
        counts = await loop.run(source_ids)
        return MatchRunResult(counts=counts, boards=frozenset(loop.boards))
