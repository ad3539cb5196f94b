"""The loop of one run over listings: claim a batch, judge, write, go on.

What a list left out is fetched politely, host by host, while others are judged; a model is asked
by a few at a time. A run holds a bounded number of listings; what it could not get to is given
back.
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
    close_unwatched,
    expired_listings,
    is_any_unwatched,
)
from ingestion_pipeline.companies.matching.details import (
    FORBIDDEN,
    GONE,
    Detail,
    DetailAsker,
    detail_of,
    read_detail,
    with_detail,
)
from ingestion_pipeline.companies.matching.evaluation import Analyst, ModelScorer
from ingestion_pipeline.companies.matching.profile import (
    NOBODY,
    BadProfile,
    FoundProfile,
    NoProfile,
    Profile,
    load_profile,
)
from ingestion_pipeline.companies.matching.requeue import (
    external_ids,
    is_work_waiting,
    judge_anew,
    make_due,
    wake_for_profile,
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
from ingestion_pipeline.engine.host_queue import HostVisits
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

WAIT_SECONDS = 0.5  # between two looks while hosts are visited


class _Item:
    """A listing whose own page is to be read."""

    __slots__ = ("detail", "source", "work")

    def __init__(self, work: ListingWork, source: Source, detail: Detail) -> None:
        self.work = work
        self.source = source
        self.detail = detail


class ListingSlice:
    """One run's judgements, under one worker identity."""

    def __init__(
        self,
        shop: RunContext,
        worker: Worker,
        fetcher: HttpFetcher,
        rules: Rules,
        analyst: Analyst,
        *,
        clock: SteadyClock,
        asker: DetailAsker | None = None,
        seconds: float | None = None,
    ) -> None:
        self._shop = shop
        self._worker = worker
        self._rules = rules
        self._analyst = analyst
        self._asker = asker
        self._clock = clock
        self._visitor = PoliteVisitor(fetcher, None, clock, shop.settings)
        self._archive = SnapshotArchive(shop.store, shop.content, shop.run_id)
        self._hosts = LeasedHosts(shop, worker, fetcher, clock)
        limit = shop.settings.polling.slice_seconds if seconds is None else seconds
        self._time = TimeBudget(worker, clock, seconds=limit, network=self._hosts.network)
        self._turns = asyncio.Semaphore(shop.settings.match.concurrency)
        self._open: dict[int, ListingWork] = {}
        self._results: list[Result] = []
        self._counts = MatchCounts()
        self.boards: set[str] = set()  # of which listings were judged
        self._visits: HostVisits[_Item] = HostVisits(
            self._hosts,
            concurrency=shop.settings.polling.concurrency,
            serve=self._serve,
            leave=lambda item, why: self._leave(item.work, why),
            reason_to_stop=self._time.reason_to_stop,
        )

    async def run(self, source_ids: Sequence[str] | None = None) -> MatchCounts:
        """Judge on as long as there is work and time; a fatal error is raised at the end."""
        alive = asyncio.create_task(self._worker.keep_alive(self._hosts.renew))
        try:
            await self._drain(source_ids)
        finally:
            alive.cancel()
            await self._visits.stop()
            for work in list(self._open.values()):
                self._leave(work, self._time.stopped())
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
        while self._visits:  # they leave by themselves, since the time is over
            await self._visits.wait(timeout_seconds=WAIT_SECONDS)

    async def _claim(self, source_ids: Sequence[str] | None) -> int:
        """Claim a batch and judge it; what needs its page waits for its host."""
        room = self._shop.settings.match.batch_size - len(self._open)
        if room <= 0:
            return 0
        opened = await asyncio.to_thread(self._opened, source_ids, room)
        self._results += [one for one in opened if isinstance(one, ListingGone)]
        works = [one for one in opened if isinstance(one, ListingWork)]
        begun = [one for one in map(self._begun, works) if one is not None]
        await self._judge_all([one for one in begun if not _is_to_scrape(one)])
        await self._assign([one for one in begun if _is_to_scrape(one)])
        return len(opened)

    def _opened(
        self, source_ids: Sequence[str] | None, room: int
    ) -> Sequence[ListingWork | ListingGone]:
        tasks = self._worker.claim_all(_wishes(source_ids, room))
        with self._shop.store.read() as connection:
            now = self._shop.store.clock.now(connection)
            return open_listings(connection, tasks, now=now)

    def _begun(self, work: ListingWork) -> ListingWork | None:
        """The work in its first state, open from now on; None if its worker dies of it."""
        if work.task.attempts > self._shop.settings.work.max_attempts:
            said = f"the worker died {work.task.attempts - 1} times over this listing"
            self._leave(work, Permanent(said, code="worker_lost"))
            return None
        was_read = bool((work.task.state or {}).get("has_data"))
        has_data = work.listing.has_text or work.listing.url is None or was_read
        begun = replace(work, state=self._rules.begun(work.listing, has_data=has_data))
        self._open[work.task.id] = begun
        return begun

    async def _judge_all(self, works: Sequence[ListingWork]) -> None:
        if self._analyst.is_pure:
            results = await asyncio.to_thread(lambda: [self._analyst.judged(one) for one in works])
            for result in results:
                self._settle(result)
            return
        await asyncio.gather(*(self._judge(one) for one in works))

    async def _judge(self, work: ListingWork) -> None:
        async with self._turns:
            if (why := self._time.reason_to_stop()) is not None:
                self._leave(work, why)
                return
            self._settle(await self._analyst.analysed(work))

    async def _assign(self, works: Sequence[ListingWork]) -> None:
        """Each waits for its host's turn; what has nowhere to be read is judged as it is."""
        if not works:
            return
        sources, ids = await asyncio.to_thread(self._known, works)
        by_host: dict[str, list[_Item]] = {}
        for work in works:
            source = sources.get(work.source_id)
            detail = source and detail_of(work, source, external_id=ids.get(work.id))
            if source is None or not detail:
                await self._judge(with_detail(work, {}))
            else:
                item = _Item(work, source, detail)
                by_host.setdefault(host_of(detail.visit.url), []).append(item)
        await self._visits.assign(by_host, lambda item: item.source)

    def _known(
        self, works: Sequence[ListingWork]
    ) -> tuple[Mapping[str, Source], Mapping[int, str]]:
        with self._shop.store.read() as connection:
            known = sources_by_id(connection, {work.source_id for work in works})
            return known, external_ids(connection, [(work.id, work.source_id) for work in works])

    async def _serve(self, item: _Item, host: HostLease) -> None:
        try:
            scraped = await self._scraped(item, host)
        except Exception as error:
            await self._left_out(item, classify(error), traceback.format_exc(limit=-20))
        else:
            work = with_detail(item.work, scraped)
            self._open[work.task.id] = work
            await self._judge(work)

    async def _scraped(self, item: _Item, host: HostLease) -> Mapping[str, object]:
        answer = await self._visitor.visit(
            item.detail.visit,
            host=host,
            honours_robots=item.detail.honours_robots,
            own=host_of(item.detail.visit.url),
        )
        if not isinstance(answer, NewPage):
            raise Transient(f"{item.detail.visit.url} was not sent", code="empty_body")
        now = self._clock.now()
        found = await read_detail(answer, item.detail, item.source, now=now, asker=self._asker)
        return {**found, SNAPSHOT: await asyncio.to_thread(self._kept, answer, item.source.id)}

    def _kept(self, answer: NewPage, source_id: str) -> int:
        """The page is a snapshot: what the listing says can be looked up there."""
        now = self._clock.now()
        stored = self._archive.store([(source_id, answer)], now=now)
        with self._shop.store.begin() as connection:
            return self._archive.keep(connection, stored, now=now)[0]

    async def _left_out(self, item: _Item, error: WorkError, stack: str) -> None:
        """A page that is gone ends its listing; one that is forbidden is done without."""
        if error.code in GONE:
            self._open.pop(item.work.task.id, None)
            said = f"its own page is gone: {error}"
            gone = ListingGone(task=item.work.task, why=said, is_page_gone=True)
            self._results.append(gone)
        elif error.code == FORBIDDEN:
            await self._judge(with_detail(item.work, {}))
        else:
            self._leave(item.work, error, stack=stack)

    def _leave(self, work: ListingWork, why: WorkError, *, stack: str | None = None) -> None:
        self._settle(NotEvaluated(work=work, error=why, stack=stack))

    def _settle(self, result: Evaluated | NotEvaluated) -> None:
        self._open.pop(result.task.id, None)
        self._results.append(result)
        if isinstance(result, Evaluated):
            self.boards.add(result.work.source_id)
        elif isinstance(result.error, Fatal):
            self._time.fatal = result.error

    async def _flush(self) -> None:
        results, self._results = self._results, []
        async with self._hosts.letting_go() as left:
            if results:
                written = await asyncio.to_thread(write_results, self._shop, self._rules, results)
                self._counts += written.counts
                self._time.expect(written.again_at)
            if left:
                await asyncio.to_thread(self._hosts.let_go, left)


def _is_to_scrape(work: ListingWork) -> bool:
    return next_stage(work.state) is ListingStage.SCRAPE


def _wishes(source_ids: Sequence[str] | None, room: int) -> list[tuple[ClaimFilter, int]]:
    """All that are due, or those of these boards, a share each."""
    if source_ids is None:
        return [(ClaimFilter(kind=JOB), room)]
    share = max(1, room // max(1, len(source_ids)))
    return [(ClaimFilter(kind=JOB, frontier_of=one), share) for one in source_ids]


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedSlice:
    """What a run over listings came to; `problem` is what is wrong with the profile, if so.

    `boards` are those of which listings were judged, `closed` how many listings were closed since
    nobody asks their boards any more or their deadline has passed.
    """

    counts: MatchCounts
    boards: frozenset[str] = frozenset()
    rejudged: int = 0
    closed: int = 0
    problem: str | None = None


def profile_path(settings: Settings) -> Path:
    """The profile's file; a relative name is one of the working directory."""
    return Path(settings.match.profile).expanduser().absolute()


def found_profile(settings: Settings) -> FoundProfile:
    """The profile that the settings name, or why there is none."""
    return load_profile(profile_path(settings))


def rules_of(settings: Settings) -> Rules | None:
    """By what listings are judged now; None without a profile that can be used."""
    found = found_profile(settings)
    return Rules(profile=found, settings=settings) if isinstance(found, Profile) else None


def are_listings_waiting(connection: Connection, settings: Settings, *, now: datetime) -> bool:
    """Whether a run would judge or close anything; with a bad profile none would judge."""
    if is_any_unwatched(connection, now=now, settings=settings) or expired_listings(
        connection, now=now
    ):
        return True
    found = found_profile(settings)
    if isinstance(found, BadProfile):
        return False
    rules = Rules(profile=found, settings=settings) if isinstance(found, Profile) else None
    return is_work_waiting(connection, rules, now=now)


def profile_findings(settings: Settings) -> list[Finding]:
    """What is wrong with the profile; nothing where there is none."""
    found = found_profile(settings)
    if not isinstance(found, BadProfile):
        return []
    return [
        Finding(subject=f"{found.path.name}:{one.line}", message=f"{one.key}: {one.message}")
        for one in found.problems
    ]


async def match_slice(
    shop: RunContext,
    worker: Worker,
    fetcher: HttpFetcher,
    *,
    source_ids: Sequence[str] | None = None,
    seconds: float | None = None,
) -> MatchedSlice:
    """Judge what waits, or the listings of these boards; a bad profile judges nothing.

    What only boards list that nobody asks any more, or whose deadline has passed, is closed before.
    """
    closed = await asyncio.to_thread(_close_ended, shop)
    found = found_profile(shop.settings)
    if isinstance(found, BadProfile):
        log.warning("no listing is judged before the profile is mended:\n%s", found)
        return MatchedSlice(counts=MatchCounts(), problem=str(found), closed=closed)
    profile = NOBODY if isinstance(found, NoProfile) else found
    lacking = found if isinstance(found, NoProfile) else None
    rules = Rules(profile=profile, settings=shop.settings)
    rejudged = await asyncio.to_thread(_prepare, shop, rules, source_ids, lacking)
    run = _Run(shop, worker, fetcher, rules, lacking, seconds)
    if lacking is not None or not shop.settings.has_model:
        done = await run.judge(source_ids)
    else:
        async with ModelClient(shop.store, shop.settings) as client:
            done = await run.judge(source_ids, client)
    said = None if lacking is None else str(lacking)
    return replace(done, rejudged=rejudged, closed=closed, problem=said)


def _close_ended(shop: RunContext) -> int:
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        unwatched = close_unwatched(connection, now=now, settings=shop.settings)
        return unwatched + close_expired(connection, now=now)


def _prepare(
    shop: RunContext, rules: Rules, source_ids: Sequence[str] | None, lacking: NoProfile | None
) -> int:
    """With a profile, what waited for one is due, and what others judged is to be judged anew.

    Of boards that were asked for by hand everything is due.
    """
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        if source_ids is not None:
            make_due(connection, source_ids, now=now)
        if lacking is not None:
            return 0
        wake_for_profile(connection, now=now)
    with shop.store.begin() as connection:  # apart: who waits to insert a task holds none
        now = shop.store.clock.now(connection)
        return judge_anew(connection, rules, now=now, source_ids=source_ids)


@dataclass(frozen=True, slots=True)
class _Run:
    shop: RunContext
    worker: Worker
    fetcher: HttpFetcher
    rules: Rules
    lacking: NoProfile | None
    seconds: float | None

    async def judge(
        self, source_ids: Sequence[str] | None, client: ModelClient | None = None
    ) -> MatchedSlice:
        clock = SteadyClock(await asyncio.to_thread(self.shop.store.now))
        scorer = client and ModelScorer(client, self.rules.profile)
        analyst = Analyst(self.rules, clock=clock, scorer=scorer, lacking=self.lacking)
        loop = ListingSlice(
            self.shop,
            self.worker,
            self.fetcher,
            self.rules,
            analyst,
            clock=clock,
            asker=client and DetailAsker(client),
            seconds=self.seconds,
        )
        counts = await loop.run(source_ids)
        return MatchedSlice(counts=counts, boards=frozenset(loop.boards))
