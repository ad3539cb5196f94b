"""How a task of a company or a board ends, in one transaction that checks its claim."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

from sqlalchemy import Connection, RowMapping, exists, select, update

from ingestion_pipeline.companies.analysis import model_facts
from ingestion_pipeline.companies.analysis.analysis import find, judge
from ingestion_pipeline.companies.analysis.results import save_company, summary
from ingestion_pipeline.companies.analysis.scoring import Completeness
from ingestion_pipeline.companies.analysis.visiting import Visits
from ingestion_pipeline.companies.board_discovery import (
    Probe,
    ask,
    change_board,
    probe_of,
    save_board,
    standing_source,
)
from ingestion_pipeline.companies.outcomes import (
    CompanyAnalysed,
    NotDone,
    NotNeeded,
    Outcome,
    Probed,
)
from ingestion_pipeline.companies.records import company, ensure_company, ensure_source
from ingestion_pipeline.companies.states import (
    COMPANY,
    SCRAPE,
    SOURCE_DISCOVERY,
    CompanyStatus,
    Confidence,
)
from ingestion_pipeline.companies.system import board_config
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.host_queue import HostWork
from ingestion_pipeline.pages.content.archive import SnapshotArchive
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.pages.politeness.paced_fetch import PacedFetch
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.pages.visits.rendering import Renderer
from ingestion_pipeline.reading.llm import ModelClient
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source, SourceStatus, crawls
from ingestion_pipeline.sources.crawls import FailedWalk
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_tasks import lock_polls
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.store.tables import ACTIVE, companies, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, LostClaim
from ingestion_pipeline.tasks.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.tasks.errors import (
    FORBIDDEN,
    WALL_CODES,
    Fatal,
    Permanent,
    WorkError,
    classify,
)
from ingestion_pipeline.tasks.retry import DeadLetterTask, ReleaseTask, Retry, after_failure
from ingestion_pipeline.tasks.task import (
    Move,
    Task,
    TaskStatus,
    failed,
    finished,
    released,
    retried,
)
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline.urls import host_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksPersisted:
    """What became of the task, in a word that is counted; when it is due again, if it is."""

    word: str
    again_at: datetime | None = None


def write_outcome(
    connection: Connection, outcome: Outcome, *, now: datetime, settings: Settings, random: Random
) -> TasksPersisted:
    """Everything that the outcome means is written, or `LostClaim` and nothing is."""
    task = outcome.task
    if not claims.held(connection, [(task.id, task.fence)]):
        raise LostClaim(f"task {task.id} is another worker's now; nothing is kept")
    match outcome:
        case CompanyAnalysed():
            move, written = _analysed(connection, outcome, now=now, settings=settings)
        case Probed():
            move, written = _probed(connection, outcome, now=now, settings=settings)
        case NotNeeded():
            move, written = _needless(connection, outcome, now=now)
        case NotDone():
            move, written = _not_done(
                connection, outcome, now=now, settings=settings, random=random
            )
    claims.apply(connection, [move], now=now)
    return written


def _analysed(
    connection: Connection, done: CompanyAnalysed, *, now: datetime, settings: Settings
) -> tuple[Move, TasksPersisted]:
    save_company(connection, done, now=now, settings=settings)
    is_thin = done.judgement.completeness is Completeness.THIN
    status = TaskStatus.SKIPPED if is_thin else TaskStatus.SUCCESS
    move = _ended(done.task, status, summary(done), code="thin" if is_thin else None)
    return move, TasksPersisted(word="thin" if is_thin else "analysed")


def _probed(
    connection: Connection, probed: Probed, *, now: datetime, settings: Settings
) -> tuple[Move, TasksPersisted]:
    source_id = save_board(connection, probed, now=now, settings=settings)
    if source_id is None:
        said = "the board has a source, or its lineage refuses its poll"
        return _ended(probed.task, TaskStatus.SKIPPED, said), TasksPersisted(word="needless")
    is_sure = probed.confidence is Confidence.HIGH
    said = f"{source_id}: {probed.said}"
    word = "boards_active" if is_sure else "boards_pending"
    return _ended(probed.task, TaskStatus.SUCCESS, said), TasksPersisted(word=word)


def _needless(
    connection: Connection, one: NotNeeded, *, now: datetime
) -> tuple[Move, TasksPersisted]:
    """Nothing was asked; a company that is known well counts as a success of its source."""
    if one.task.kind == COMPANY and one.source_id is not None:
        known = sources_by_id(connection, [one.source_id])[one.source_id]
        lock_polls(connection, [one.source_id])
        crawls.complete(
            connection,
            one.source_id,
            outcome=one.why,
            records=known.record_count,
            has_news=False,
            now=now,
        )
    if one.task.kind == SOURCE_DISCOVERY:
        company_id = one.task.payload.get("company_id")
        change_board(connection, company_id, one.task, {"source_id": one.source_id}, now=now)
    return _ended(one.task, TaskStatus.SKIPPED, one.why), TasksPersisted(word="needless")


def _not_done(
    connection: Connection, one: NotDone, *, now: datetime, settings: Settings, random: Random
) -> tuple[Move, TasksPersisted]:
    match after_failure(one.task, one.error, now=now, policy=settings.work, random=random):
        case Retry(not_before):
            _wait(connection, one, now=now)
            move = retried(one.task, one.error, not_before=not_before)
            return move, TasksPersisted(word="retried", again_at=not_before)
        case ReleaseTask(not_before):
            _wait(connection, one, now=now)
            return released(one.task, one.error, not_before=not_before), TasksPersisted(
                word="given_back"
            )
        case DeadLetterTask():
            _give_up(connection, one, now=now, settings=settings, random=random)
            move = failed(one.task, one.error)
            if one.error.code == FORBIDDEN:
                return replace(move, status=TaskStatus.SKIPPED), TasksPersisted(word="forbidden")
            return move, TasksPersisted(word="failed")


def _wait(connection: Connection, one: NotDone, *, now: datetime) -> None:
    """The company's record says why it waits, and is as complete as it was."""
    if one.task.kind == COMPANY:
        _mark(connection, one, now=now, is_final=False)


def _give_up(
    connection: Connection, one: NotDone, *, now: datetime, settings: Settings, random: Random
) -> None:
    is_forbidden = one.error.code == FORBIDDEN  # by robots.txt: no dead letter, no strike
    if not is_forbidden:
        add_dead_letters(
            connection, [DeadLetterEntry(task=one.task, error=one.error, stack=one.stack)], now=now
        )
    if one.task.kind != COMPANY:
        said = {"note": f"its discovery failed ({one.error.code}): {one.error.text[:300]}"}
        company_id = one.task.payload.get("company_id")
        change_board(connection, company_id, one.task, said, now=now)
        return
    source_id = _source_id(connection, one)
    lock_polls(connection, [source_id] if source_id else [])  # before the company, as all do it
    _mark(connection, one, now=now, is_final=True)
    if source_id is None:
        return
    is_wall = one.error.code in WALL_CODES
    walk = FailedWalk(
        source_id=source_id,
        outcome=f"{one.error.code}: {one.error.text}",
        error_class=one.error.error_class.value,
        is_strike=not is_forbidden,
        wall=f"behind a {one.error.code.replace('_', ' ')}: {one.error.text}" if is_wall else None,
    )
    crawls.fail(connection, walk, now=now, settings=settings, random=random)


def _source_id(connection: Connection, one: NotDone) -> str | None:
    """The company's source, which bears the strike."""
    if one.source is not None:
        return one.source.id
    row = company(connection, one.company_id) if one.company_id else None
    source_id = row["source_id"] if row is not None else None
    return source_id if source_id and sources_by_id(connection, [source_id]) else None


def _mark(connection: Connection, one: NotDone, *, now: datetime, is_final: bool) -> None:
    company_id = one.company_id or one.task.payload.get("company_id")
    row = company(connection, company_id) if company_id else None
    if row is None:
        return
    is_known = row["score"] is not None and row["quality"].get("level") != Completeness.THIN.value
    was = CompanyStatus.ACTIVE if is_known else CompanyStatus.PENDING
    status = CompanyStatus.FAILED if is_final and row["score"] is None else was
    values: dict[str, Any] = {"status": status.value, "failure": one.error.text}
    connection.execute(
        update(companies).where(companies.c.id == row["id"]).values(**values, updated_at=now)
    )


def _ended(task: Task, status: TaskStatus, said: str, *, code: str | None = None) -> Move:
    """Done, with what it came to in its row; how it got there is no longer needed."""
    move = finished(task, status=status)
    is_skipped = status is TaskStatus.SKIPPED
    state = {**(task.state or {}), "said": said[:500]}
    return replace(
        move,
        state=state,
        error_code=(code or "needless") if is_skipped else None,
        error=said[:500] if is_skipped else None,
    )


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
            facts, notes = await model_facts.ask(
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
