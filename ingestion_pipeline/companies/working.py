"""The work on companies and their boards: tasks claimed, pages visited, results written, fenced.

A company is one pass in one claim; a crash loses nothing that was fetched. A discovery is one
request. Everything that a task came to is one transaction, which checks the claim.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, RowMapping, exists, select, update

from ingestion_pipeline.companies.analysis import asking
from ingestion_pipeline.companies.analysis.analysing import find, judge
from ingestion_pipeline.companies.analysis.scoring import Completeness
from ingestion_pipeline.companies.analysis.visiting import Visits
from ingestion_pipeline.companies.discovery.probing import Probe, ask, probe_of
from ingestion_pipeline.companies.discovery.standing import standing_source
from ingestion_pipeline.companies.ending import write_outcome
from ingestion_pipeline.companies.outcomes import (
    CompanyAnalysed,
    NotDone,
    NotNeeded,
    Outcome,
    Probed,
)
from ingestion_pipeline.companies.records import company, ensure_company, ensure_source
from ingestion_pipeline.companies.states import COMPANY, SCRAPE, SOURCE_DISCOVERY, CompanyStatus
from ingestion_pipeline.companies.system import board_config
from ingestion_pipeline.pages.archive import SnapshotArchive
from ingestion_pipeline.pages.host_work import HostWork
from ingestion_pipeline.pages.http_fetcher import HttpFetcher
from ingestion_pipeline.pages.leased_hosts import HostLease
from ingestion_pipeline.pages.paced import PacedFetch
from ingestion_pipeline.pages.polite_visits import PoliteVisitor
from ingestion_pipeline.pages.rendering import Renderer
from ingestion_pipeline.pages.workshop import RunContext
from ingestion_pipeline.reading.models import ModelClient
from ingestion_pipeline.sources import Source, SourceStatus
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.store.tables import ACTIVE, companies, tasks
from ingestion_pipeline.urls import host_of
from ingestion_pipeline.work.claims import ClaimFilter
from ingestion_pipeline.work.errors import Fatal, Permanent, WorkError, classify
from ingestion_pipeline.work.task import Task, TaskStatus
from ingestion_pipeline.work.worker import Worker

KINDS = (COMPANY, SOURCE_DISCOVERY)
MOST_BY_HAND = 50  # companies whose boards the same run probes; the others' wait for the sensor


@dataclass(slots=True)
class Piece:
    """A task that is ours, of a company and its source; with a probe it is of a board."""

    task: Task
    source: Source
    company_id: str
    website: str
    name: str | None
    probe: Probe | None = None

    @property
    def host(self) -> str:
        """Whom it asks first."""
        return self.probe.host if self.probe else host_of(self.website)


class CompanyTaskHandler:
    """Who analyses companies and probes boards, for one run."""

    def __init__(
        self,
        shop: RunContext,
        worker: Worker,
        fetcher: HttpFetcher,
        *,
        visitor: PoliteVisitor,
        clock: SteadyClock,
        ranks: Mapping[str, int],
        source_ids: Collection[str] | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._shop = shop
        self._worker = worker
        self._fetcher = fetcher
        self._visitor = visitor
        self._clock = clock
        self._ranks = ranks
        self._client: ModelClient | None = None
        self._source_ids = source_ids
        self._is_first = True
        self._archive = SnapshotArchive(shop.store, shop.content, shop.run_id)

    def use(self, client: ModelClient) -> None:
        """Ask this one for what rules do not find."""
        self._client = client

    # --- what is to be done

    def claim(self) -> tuple[Sequence[Piece], Sequence[Outcome]]:
        """A few tasks of each kind, and those that end without a visit."""
        most = self._shop.settings.company.concurrency
        wishes = [(wanted, most) for wanted in self._wanted()]
        pieces: list[Piece] = []
        ended: list[Outcome] = []
        for task in self._worker.claim_all(wishes):
            match self._taken(task):
                case Piece() as piece:
                    pieces.append(piece)
                case outcome:
                    ended.append(outcome)
        return pieces, ended

    def _taken(self, task: Task) -> Piece | Outcome:
        """What is to be done with it; one that cannot be opened spoils no other."""
        try:
            with self._shop.store.begin() as connection:
                return self._opened(connection, task, now=self._shop.store.clock.now(connection))
        except Exception as error:
            failure = classify(error)
            if isinstance(failure, Fatal):
                raise
            return NotDone(task=task, company_id=task.payload.get("company_id"), error=failure)

    def _wanted(self) -> list[ClaimFilter]:
        """What waits; what was asked for by hand due or not, but only once, and then what is due.

        So the boards that an analysis finds are probed by the run that was asked for it.
        """
        ids, is_first, self._is_first = self._source_ids, self._is_first, False
        if ids is None:
            return [ClaimFilter(kind=kind) for kind in KINDS]
        if is_first:
            return [ClaimFilter(kind=kind, source_ids=ids) for kind in KINDS]
        few = sorted(ids)[:MOST_BY_HAND]
        return [ClaimFilter(kind=kind, frontier_of=one) for one in few for kind in KINDS]

    def _opened(self, connection: Connection, task: Task, *, now: datetime) -> Piece | Outcome:
        company_id = task.payload.get("company_id")
        if task.attempts > self._shop.settings.work.max_attempts:
            said = f"the worker died {task.attempts - 1} times over it"
            return NotDone(
                task=task, company_id=company_id, error=Permanent(said, code="worker_lost")
            )
        if task.url is None:
            return NotDone(task=task, error=Permanent("it has no address", code="no_url"))
        try:
            if task.kind == COMPANY:
                return self._opened_company(connection, task, task.url, now=now)
            return self._opened_board(connection, task, task.url)
        except (ValueError, KeyError) as error:  # no address, no company, no token, no platform
            raise Permanent(f"{type(error).__name__}: {error}", code="bad_task") from error

    def _opened_company(
        self, connection: Connection, task: Task, website: str, *, now: datetime
    ) -> Piece | Outcome:
        company_id = ensure_company(
            connection,
            company_id=task.payload.get("company_id") or task.dedupe_key,
            name=task.payload.get("name"),
            website=website,
            discovered_by=task.source_id or "operator",
            tracking_id=task.tracking_id,
            now=now,
        )
        source = ensure_source(connection, company_id, now=now, settings=self._shop.settings)
        row = company(connection, company_id)
        if source is None or row is None:
            said = f"{company_id} has no website; nothing can be read of it"
            return NotDone(task=task, error=Permanent(said, code="no_website"))
        if source.status is SourceStatus.DISABLED:
            return NotNeeded(task=task, why=f"{source.id} is disabled; nothing is asked for it")
        if not task.payload.get("is_asked") and self._is_known_well(row, now):
            said = f"known well since {row['analyzed_at']:%Y-%m-%d}"
            return NotNeeded(task=task, why=said, source_id=source.id)
        connection.execute(
            update(companies)
            .where(companies.c.id == company_id)
            .values(status=CompanyStatus.ANALYZING.value, tracking_id=task.tracking_id)
        )
        return Piece(
            task=task, source=source, company_id=company_id, website=website, name=row["name"]
        )

    def _is_known_well(self, row: RowMapping, now: datetime) -> bool:
        fresh = timedelta(seconds=self._shop.settings.company.fresh_seconds)
        quality: dict[str, Any] = row["quality"]
        at: datetime | None = row["analyzed_at"]
        is_good = quality.get("level") == Completeness.GOOD.value
        return is_good and at is not None and now - at < fresh

    def _opened_board(self, connection: Connection, task: Task, url: str) -> Piece | Outcome:
        platform, token = task.payload["platform"], task.payload.get("token")
        standing = standing_source(connection, platform=platform, url=url, token=token)
        if standing is not None:
            return NotNeeded(task=task, why=f"{standing} is its source", source_id=standing)
        source = sources_by_id(connection, [task.source_id or ""]).get(task.source_id or "")
        if source is None:
            said = f"the company's source {task.source_id} is gone"
            return NotDone(task=task, error=Permanent(said, code="source_deleted"))
        if source.status is SourceStatus.DISABLED:
            return NotNeeded(task=task, why=f"{source.id} is disabled; nothing is asked for it")
        probe = probe_of(platform, url, board_config(source, platform))
        company_id = task.payload.get("company_id") or ""
        return Piece(
            task=task, source=source, company_id=company_id, website=url, name=None, probe=probe
        )

    # --- doing it

    async def serve(self, item: Piece, host: HostLease) -> Outcome:
        """One pass through a company's pages, or one request to a board."""
        return await (self._probed(item, host) if item.probe else self._analysed(item, host))

    async def _analysed(self, item: Piece, host: HostLease) -> Outcome:
        visits = Visits(
            shop=self._shop,
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
            item.task = visits.task  # what was fetched so far, for whoever goes on
        found = await asyncio.to_thread(find, pages, website=item.website, known_name=item.name)
        if self._client is not None and found.missing:
            facts, notes = await asking.ask(
                self._client, found.pages, found.missing, source_id=item.source.id
            )
            found = found.with_more(facts, *notes)
        judgement = judge(found, ranks=self._ranks, rules=self._shop.settings.company)
        failed = {
            one["asked"]: one["code"]
            for one in visits.state.get("failed", ())
            if one["named_by"] != "guess"
        }
        return CompanyAnalysed(
            task=item.task,
            company_id=item.company_id,
            source=item.source,
            findings=found,
            judgement=judgement,
            failed=failed,
        )

    async def _probed(self, item: Piece, host: HostLease) -> Outcome:
        if (probe := item.probe) is None:
            raise ValueError(f"task {item.task.id} is of no board")
        honours = probe.honours_robots and not item.source.ignores_robots
        robots = host.robots if honours else None
        fetch = PacedFetch(self._fetcher, probe.host, host, robots, self._clock)
        verdict = await ask(probe, fetch, now=self._clock.now())
        return Probed(
            task=item.task,
            company_id=item.company_id or None,
            platform=verdict.platform,
            url=probe.url,
            config=verdict.config,
            confidence=verdict.confidence,
            said=verdict.said,
        )

    # --- what became of it

    def failed(self, item: Piece, error: WorkError, stack: str | None) -> Outcome:
        """It was not done."""
        return NotDone(
            task=item.task,
            company_id=item.company_id or None,
            source=item.source,
            error=error,
            stack=stack,
        )

    def unwritten(self, ended: Outcome, error: WorkError) -> Outcome:
        """What it came to could not be written."""
        return NotDone(task=ended.task, error=error)

    def write(self, connection: Connection, ended: Outcome, *, now: datetime) -> datetime | None:
        """Everything it came to, in the caller's transaction; when it is due again, if it is."""
        written = write_outcome(
            connection, ended, now=now, settings=self._shop.settings, random=self._shop.random
        )
        self.counts[written.word] += 1
        return written.again_at


async def company_slice(
    shop: RunContext,
    worker: Worker,
    fetcher: HttpFetcher,
    *,
    ranks: Mapping[str, int] | None = None,
    source_ids: Collection[str] | None = None,
    renderer: Renderer | None = None,
) -> Counter[str]:
    """One run's part: companies and discoveries that wait, or those of the sources asked for.

    `ranks` are the points of the profile's skills; without a profile no technology counts.
    """
    clock = SteadyClock(await asyncio.to_thread(shop.store.now))
    visitor = PoliteVisitor(fetcher, renderer, clock, shop.settings)
    crew = CompanyTaskHandler(
        shop,
        worker,
        fetcher,
        visitor=visitor,
        clock=clock,
        ranks=ranks or {},
        source_ids=source_ids,
    )
    work: HostWork[Piece, Outcome] = HostWork(
        shop, worker, fetcher, crew, clock=clock, concurrency=shop.settings.company.concurrency
    )
    if not shop.settings.has_model:
        await work.run()
        return crew.counts
    async with ModelClient(shop.store, shop.settings) as client:
        crew.use(client)
        await work.run()
    return crew.counts


def is_work_waiting(connection: Connection, *, now: datetime) -> bool:
    """Whether a company, a board or a rotation can be claimed now."""
    claimable = (tasks.c.status == TaskStatus.PENDING.value) | (tasks.c.lease_until < now)
    query = select(
        exists().where(
            ACTIVE, tasks.c.kind.in_((*KINDS, SCRAPE)), tasks.c.not_before <= now, claimable
        )
    )
    return bool(connection.execute(query).scalar_one())
