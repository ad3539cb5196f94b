"""The phases of analyses in the work loop: which to claim, how to execute them, and what follows from each outcome.

The analysis moves to its next status, waits or fails, in the transaction that ends its task. What a phase
does is in `information`, `customer_prompts` and `provider_analysis`.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select, update

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import (
    Completed,
    EndedTask,
    Failed,
    Outcome,
    Skipped,
    TaskHandler,
    completed,
    not_done,
    skipped,
)
from ingestion_pipeline.engine.worker_loop import WorkerLoop
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.pages.visits.page import NewPage, PageVisit, Renderer
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.reading.llm import ModelClient, open_model
from ingestion_pipeline.reading.text.plain_text import decode
from ingestion_pipeline.settings import Work
from ingestion_pipeline.sources import Source, SourceStatus, poll_results
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_results import FailedCrawl
from ingestion_pipeline.sources.poll_tasks import lock_polls
from ingestion_pipeline.store.changes import Cause, set_origins
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.tables import tasks, website_analyses, website_answers, website_rankings
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, LostClaim, Worker
from ingestion_pipeline.tasks.ended_tasks import ReleaseTask, Retry
from ingestion_pipeline.tasks.errors import (
    BLOCKED_CODES,
    FORBIDDEN,
    Permanent,
    Resource,
    Transient,
    WorkError,
    storable,
)
from ingestion_pipeline.tasks.queue import SpawnRequest, continue_all
from ingestion_pipeline.tasks.task import NewTask, Task, TaskStatus
from ingestion_pipeline.urls import host_of
from ingestion_pipeline.websites import analysis_rows, states
from ingestion_pipeline.websites.business import (
    AskedPrompt,
    Business,
    FetchedPage,
    Informed,
    Prompted,
    PromptedBy,
    Visit,
    WebsiteConfig,
    parse_website_config,
)
from ingestion_pipeline.websites.customer_prompts import prompts_for
from ingestion_pipeline.websites.information import information
from ingestion_pipeline.websites.provider_analysis import NO_PROVIDER, Analysis, WebsiteAnalysed
from ingestion_pipeline.websites.provider_pool import ProviderPool, configured_providers


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedPhase:
    """A claimed phase of an analysis, with the answers of an earlier attempt."""

    task: Task
    source: Source
    phase: states.Phase
    analysis_id: int
    business_id: int | None
    url: str
    created_at: datetime
    is_recurring: bool
    is_manual: bool
    info: Mapping[str, Any] | None
    prompts: tuple[AskedPrompt, ...]
    previous_answers: Sequence[states.ProviderAnswer]
    times: Mapping[str, Any]

    @property
    def config(self) -> WebsiteConfig:
        """Return the operator's config of the website."""
        return parse_website_config(self.source.config)[0]

    @property
    def host(self) -> str | None:
        """Return the host whose pages it fetches; None if it fetches none."""
        is_read = self.task.kind == states.WEBSITE_INFO and not self.config.is_manual
        return host_of(self.url) if is_read else None

    @property
    def business(self) -> Business:
        """Return the result of the first phase."""
        if self.info is None:
            raise ValueError(f"analysis {self.analysis_id} has no information yet")
        return Business.from_json(self.info)


PhaseResult = Informed | Prompted | WebsiteAnalysed
PhaseOutcome = Outcome[ClaimedPhase, PhaseResult]
LoadedPhase = ClaimedPhase | PhaseOutcome


CLAIMED_AT_ONCE = 3  # analyses of a phase; other runs take the others


class PhaseHandler(TaskHandler[ClaimedPhase, PhaseResult]):
    """Executes phases of analyses; each phase has `slots` of its own.

    A task without a free slot is not claimed, so waiting costs no attempt and no lease can expire.
    """

    refill_share = 1.0  # a slot that becomes free is filled at once

    def __init__(
        self,
        ctx: RunContext,
        visitor: PoliteVisitor,
        pool: ProviderPool,
        clock: SteadyClock,
        model: ModelClient | None,
        source_ids: Collection[str] | None,
    ) -> None:
        self._ctx, self._visitor, self._pool, self._clock, self._model = ctx, visitor, pool, clock, model
        self._settings = ctx.settings.website
        self._source_ids = source_ids
        self.host_concurrency = self._settings.slots
        self.concurrency = self.capacity = len(states.PHASES) * self._settings.slots
        # as for other tasks, with a longer first wait
        self.policy: Work = ctx.settings.work.model_copy(
            update={"backoff_base_seconds": self._settings.backoff_base_seconds}
        )

    def claim_requests(self, room: int, held: Sequence[ClaimedPhase]) -> Sequence[tuple[ClaimFilter, int]]:  # noqa: ARG002
        """Claim in the order of the phases; nothing from a phase whose next queue is full."""
        with self._ctx.store.read() as connection:
            sizes = analysis_rows.queue_sizes(connection)
        busy = Counter(item.task.kind for item in held)
        requests: list[tuple[ClaimFilter, int]] = []
        for phase in states.PHASES:
            after = states.BY_STATUS.get(phase.after)
            limit = self._settings.queue_limit
            room_after = limit if after is None else limit - sizes.get(after.kind, 0)
            most = min(self._settings.slots - busy[phase.kind], CLAIMED_AT_ONCE, room_after)
            if most > 0 and sizes.get(phase.kind):
                requests.append((ClaimFilter(kind=phase.kind, due_of=self._source_ids), most))
        return requests

    def load(self, connection: Connection, tasks: Sequence[Task], *, now: datetime) -> Sequence[LoadedPhase]:
        """Return the phase of each task with what the phases before it stored; mark its analysis as started.

        Tasks that were lost since they were claimed are left out: another worker has them.
        """
        mine = claims.held(connection, [(task.id, task.fence) for task in tasks])
        ours = [task for task in tasks if task.id in mine]
        ids = [task.payload.get("analysis", 0) for task in ours]
        query = select(website_analyses).where(website_analyses.c.id.in_(ids))
        rows = {row["id"]: row for row in connection.execute(query).mappings()}
        sources = sources_by_id(connection, {task.source_id or "" for task in ours})
        opened = [
            _open_phase(connection, task, rows.get(id_), sources.get(task.source_id or ""), now=now)
            for task, id_ in zip(ours, ids, strict=True)
        ]
        for item in opened:
            if isinstance(item, ClaimedPhase):
                _record_start(connection, item, now=now)
        return opened

    def persist(
        self, connection: Connection, outcomes: Sequence[PhaseOutcome], *, now: datetime
    ) -> Sequence[EndedTask]:
        """Write the end of the phases, and the tasks of the next ones."""
        # Before the analyses, as polls do.
        lock_polls(connection, {outcome.task.source_id for outcome in outcomes if outcome.task.source_id})
        return [write_outcome(connection, outcome, self._ctx, now=now) for outcome in outcomes]

    async def execute(self, item: ClaimedPhase, host: HostLease | None) -> PhaseResult:
        """Execute the phase; the first one fetches pages under its host's lease."""
        if item.task.kind == states.WEBSITE_INFO:
            return await information(
                item.url,
                visit=self._visit(item.source, host),
                model=self._model,
                config=item.config,
                source_id=item.source.id,
            )
        if item.task.kind == states.WEBSITE_PROMPTS:
            return await prompts_for(
                item.business,
                settings=self._settings,
                model=self._model,
                own=item.config.prompts,
                source_id=item.source.id,
            )
        return await self._analysed(item)

    def _visit(self, source: Source, host: HostLease | None) -> Visit:

        async def visit(url: str) -> FetchedPage:
            if host is None:
                raise ValueError(f"no lease on the host of {url}")
            try:
                answer = await self._visitor.visit(
                    PageVisit(url=url), host=host, honours_robots=not source.ignores_robots, own=source.host
                )
            except Resource as error:
                if error.code == FORBIDDEN:  # a retry would not change it
                    raise Permanent(error.text, code=FORBIDDEN) from error
                raise
            if not isinstance(answer, NewPage):
                raise Transient(f"{url} has no content", code="empty_body")
            html = await asyncio.to_thread(decode, answer.body, answer.content_type)
            return FetchedPage(
                url=answer.final_url, html=html, links=answer.links, may_ask_models=answer.may_ask_models
            )

        return visit

    async def _analysed(self, item: ClaimedPhase) -> WebsiteAnalysed:
        def store_answer(connection: Connection, answer: states.ProviderAnswer) -> None:
            _check_claim(connection, item)
            now, run_id = self._ctx.store.clock.now(connection), self._ctx.run_id
            analysis_rows.store_answers(connection, item.analysis_id, [answer], now=now, run_id=run_id)

        def store_progress(done: int, providers: int) -> None:
            with self._ctx.store.begin() as connection:
                _check_claim(connection, item)
                now = self._ctx.store.clock.now(connection)
                percent, message = states.asking_percent(done, providers), f"{done} of {providers} providers are done"
                _change(connection, item.analysis_id, now, progress_percent=percent, progress_message=message)

        async def report_progress(done: int, providers: int) -> None:
            await asyncio.to_thread(store_progress, done, providers)

        analysis = Analysis(
            business=item.business,
            prompts=item.prompts,
            previous_answers=item.previous_answers,
            source_id=item.source.id,
            store=self._ctx.store,
            pool=self._pool,
            settings=self._ctx.settings,
            model=self._model,
            store_answer=store_answer,
            check_claim=partial(_check_claim, item=item),
            report_progress=report_progress,
        )
        return await analysis.run(now=self._clock.now())


def _check_claim(connection: Connection, item: ClaimedPhase) -> None:
    """Raise unless this worker still has the claim; lock it until the transaction ends."""
    if not claims.held(connection, [(item.task.id, item.task.fence)]):
        raise LostClaim(f"task {item.task.id} is another worker's now; nothing was sent or stored")


def _wake_waiting(ctx: RunContext) -> None:
    """Make analyses due that waited because no provider was configured."""
    with ctx.store.begin() as connection:
        analysis_rows.make_due(connection, tasks.c.error_code == NO_PROVIDER, now=ctx.store.clock.now(connection))


async def run_analyses(
    ctx: RunContext, worker: Worker, fetcher: HttpFetcher, source_ids: Collection[str] | None, renderer: Renderer | None
) -> Counter[str]:
    """Execute due phases in this run; return counts by result. BadSetting: that of the providers is invalid."""
    providers = configured_providers(ctx.settings)
    if providers:
        await asyncio.to_thread(_wake_waiting, ctx)
    clock = SteadyClock(await asyncio.to_thread(ctx.store.now))
    async with ProviderPool(ctx.store, ctx.settings, providers) as pool, open_model(ctx.store, ctx.settings) as model:
        visitor = PoliteVisitor(fetcher, renderer, clock, ctx.settings)
        handler = PhaseHandler(ctx, visitor, pool, clock, model, source_ids)
        return await WorkerLoop(ctx, worker, fetcher, handler, clock=clock).run()


def _open_phase(
    connection: Connection, task: Task, row: RowMapping | None, source: Source | None, *, now: datetime
) -> LoadedPhase:
    phase = states.BY_KIND[task.kind]
    if row is None or source is None:
        return Skipped(task=task, reason="its analysis or its source was deleted", code="unwanted")
    if row["status"] != phase.status.value:
        return Skipped(task=task, reason=f"its analysis is {row['status']}", code="unwanted")
    if source.status is SourceStatus.DISABLED:
        return Skipped(task=task, reason=f"{source.id} is disabled: {source.status_reason}", code="unwanted")
    prompts = tuple(
        AskedPrompt(text=stored["text"], is_direct=stored["is_direct"], by=PromptedBy(stored["by"]))
        for stored in row["prompts"] or ()
    )
    direct = frozenset(number for number, prompt in enumerate(prompts) if prompt.is_direct)
    claimable_at = max(task.created_at, task.not_before)
    # of several attempts the last
    times = {"claimable": claimable_at.isoformat(), "began": now.isoformat(), "attempts": task.attempts}
    taken = ("business_id", "url", "created_at", "is_recurring", "is_manual", "info")
    return ClaimedPhase(
        task=task,
        source=source,
        phase=phase,
        analysis_id=row["id"],
        prompts=prompts,
        previous_answers=analysis_rows.answers_of(connection, row["id"], direct=direct)
        if task.kind == states.WEBSITE_ANALYSIS
        else (),
        times={**row["phase_times"], phase.queue: times},
        **{name: row[name] for name in taken},
    )


def _record_start(connection: Connection, item: ClaimedPhase, *, now: datetime) -> None:
    started: dict[str, Any] = {
        "started_at": func.coalesce(website_analyses.c.started_at, now),
        "progress_message": item.phase.message,
        "phase_times": dict(item.times),
    }
    if item.task.kind == states.WEBSITE_INFO:
        started["progress_percent"] = states.STARTED_PERCENT
    _change(connection, item.analysis_id, now, **started)


def _change(
    connection: Connection,
    analysis_id: int,
    now: datetime,
    before: states.AnalysisStatus | None = None,
    /,
    **values: object,
) -> int:
    """Update the analysis, if its status is `before`; return how many rows were updated."""
    is_it = website_analyses.c.id == analysis_id
    if before is not None:
        is_it &= website_analyses.c.status == before.value
    statement = update(website_analyses).where(is_it)
    return connection.execute(statement.values(updated_at=now, **values)).rowcount


LOWEST = states.task_priority(0)


def write_outcome(connection: Connection, outcome: PhaseOutcome, ctx: RunContext, *, now: datetime) -> EndedTask:
    """Write everything that follows from the outcome, and return the end of its task."""
    match outcome:
        case Completed(item=item, value=value):
            origin = replace(ctx.origin, cause=_cause(connection, item, value), source_id=item.source.id)
            set_origins(connection, {}, now=now, default=origin)
            return _done(connection, outcome, now=now)
        case Failed():
            return _failed(connection, outcome, ctx, now=now)
        case Skipped(task=task, reason=reason):
            # an analysis that is in this phase has no other task
            _fail(connection, task.payload.get("analysis", 0), reason, now=now, phase=states.BY_KIND[task.kind])
            return skipped(outcome, "unwanted")


def _cause(connection: Connection, item: ClaimedPhase, result: PhaseResult) -> Cause:
    """Return why what is known of the website changes: another model was asked, or it speaks otherwise of it."""
    if item.is_manual and isinstance(result, Informed):
        return Cause.OPERATOR
    if not item.is_recurring:
        return Cause.FIRST_SYNC
    if not isinstance(result, WebsiteAnalysed):
        return Cause.SOURCE_CHANGED
    is_before = (website_analyses.c.source_id == item.source.id) & (website_analyses.c.id < item.analysis_id)
    last = select(func.max(website_analyses.c.id)).where(is_before).scalar_subquery()
    names = (website_answers.c.provider, website_answers.c.model, website_answers.c.model_version)
    models = [
        set(connection.execute(select(*names).where(website_answers.c.analysis_id == id_)).all())
        for id_ in (item.analysis_id, last)
    ]
    return Cause.MODEL_CHANGED if all(models) and models[0] != models[1] else Cause.SOURCE_CHANGED


def _done(connection: Connection, done: Completed[ClaimedPhase, PhaseResult], *, now: datetime) -> EndedTask:
    item = done.item
    phase, after = item.phase, states.BY_STATUS.get(item.phase.after)
    columns = _phase_columns(connection, item, done.value, now=now)
    moved = _change(
        connection,
        item.analysis_id,
        now,
        phase.status,
        status=phase.after.value,
        current_step=phase.after.value,
        progress_percent=phase.progress_percent,
        progress_message="waits" if after else "completed",
        phase_times={**item.times, phase.queue: {**item.times[phase.queue], "ended": now.isoformat()}},
        finished_at=None if after else now,
        failure=None,
        **columns,
    )
    if not moved:
        raise LostClaim(f"analysis {item.analysis_id} is no longer {phase.status.value}")
    if after is not None:
        child = NewTask(
            kind=after.kind,
            dedupe_key=states.dedupe_key(item.analysis_id),
            not_before=now,
            priority=_priority(item, retries=0, now=now),
            shard=item.source.shard,
            source_id=item.source.id,
            url=item.url,
            payload={"analysis": item.analysis_id},
        )
        continue_all(connection, [SpawnRequest(parent=item.task, child=child)], now=now)
    return completed(item.task, f"{phase.kind}_done")


def _phase_columns(connection: Connection, item: ClaimedPhase, result: PhaseResult, *, now: datetime) -> dict[str, Any]:
    """Write the phase's rows; return the columns of the analysis that it fills."""
    match result:
        case Informed() as informed:
            names = ("where", "code", "message")
            problems = [{name: getattr(problem, name) for name in names} for problem in informed.problems]
            info = informed.business.as_json() | {"pages": list(informed.pages), "problems": problems}
            return {"info": info, "business_id": analysis_rows.upsert_business(connection, informed.business, now=now)}
        case Prompted() as formed:
            return {"prompts": formed.as_json()}
        case WebsiteAnalysed() as analysed:
            _rank(connection, item, analysed, now=now)
            ranking, cost = analysed.ranking, analysed.ranking.cost_usd
            more = {"sentiments": dict(ranking.sentiments), "failures": dict(analysed.failures)}
            return {"analysis": ranking.as_json() | more | {"cost_usd": None if cost is None else str(cost)}}


def _rank(connection: Connection, item: ClaimedPhase, analysed: WebsiteAnalysed, *, now: datetime) -> None:
    """Write the mentions, the ranking of the day and the source's result."""
    if item.business_id is None:
        raise ValueError(f"analysis {item.analysis_id} has no business")
    analysis_rows.store_mentions(connection, item.analysis_id, analysed)
    overall = analysed.ranking.overall
    before = _last_ranking(connection, item.business_id)
    analysis_rows.upsert_ranking(connection, item.business_id, item.analysis_id, analysed, now=now)
    poll_results.complete_crawl(
        connection,
        item.source.id,
        outcome=f"visible in {overall.visibility:.0%} of {overall.answers} answers, score {overall.score}",
        records=overall.answers,
        has_news=before != (overall.visibility, overall.score),
        now=now,
    )


def _last_ranking(connection: Connection, business_id: int) -> tuple[float, int] | None:
    query = (
        select(website_rankings.c.visibility, website_rankings.c.score)
        .where(website_rankings.c.business_id == business_id)
        .order_by(website_rankings.c.day.desc())
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else (row.visibility, row.score)


def _priority(item: ClaimedPhase, *, retries: int, now: datetime) -> int:
    return states.task_priority(
        states.analysis_priority(
            created_at=item.created_at,
            now=now,
            retries=retries,
            is_recurring=item.is_recurring,
            is_manual=item.is_manual,
        )
    )


def _failed(connection: Connection, failure: Failed[ClaimedPhase], ctx: RunContext, *, now: datetime) -> EndedTask:
    ended, item = not_done(failure), failure.item
    if item is None or ended.move is None:
        return ended
    error, task = failure.error, failure.task
    match failure.decision:
        case Retry():
            message = f"attempt {task.attempts} of {ctx.settings.work.max_attempts} failed: {error.text}"
            _change(connection, item.analysis_id, now, progress_message=storable(message[:2_000]))
            return ended.with_move(priority=_priority(item, retries=task.attempts, now=now))
        case ReleaseTask(not_before):
            _change(connection, item.analysis_id, now, progress_message=storable(f"waits: {error.text}"[:2_000]))
            return replace(ended.with_move(priority=min(task.priority + 1, LOWEST)), again_at=not_before)
        case _:
            _give_up(connection, item, error, ctx, now=now)
    if error.code == FORBIDDEN:
        return replace(ended.with_move(status=TaskStatus.SKIPPED), count="forbidden", dead_letter=None)
    return ended


def _give_up(connection: Connection, item: ClaimedPhase, error: WorkError, ctx: RunContext, *, now: datetime) -> None:
    """Fail the analysis with the reason; the source gets a strike if its site is the cause.

    What robots.txt forbids is not a failure: no dead letter, no strike.
    """
    _fail(connection, item.analysis_id, f"{item.phase.queue}: {error.text}", now=now, phase=item.phase)
    blocked = f"behind a {error.code.replace('_', ' ')}: {error.text}" if error.code in BLOCKED_CODES else None
    failure = FailedCrawl(
        source_id=item.source.id,
        outcome=f"{item.phase.queue} failed ({error.code}): {error.text}",
        error_class=error.error_class.value,
        is_strike=item.task.kind == states.WEBSITE_INFO and error.code != FORBIDDEN,
        blocked_reason=blocked,
    )
    poll_results.fail_crawl(connection, failure, now=now, settings=ctx.settings, random=ctx.random)


def _fail(connection: Connection, analysis_id: int, why: str, *, now: datetime, phase: states.Phase) -> None:
    _change(
        connection,
        analysis_id,
        now,
        phase.status,
        status=states.AnalysisStatus.FAILED.value,
        current_step=states.AnalysisStatus.FAILED.value,
        failure=storable(why[:2_000]),
        progress_message="failed",
        finished_at=now,
    )
