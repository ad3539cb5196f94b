"""Detection runs: claim detection tasks, detect recipes politely, and write the results."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import Any

from sqlalchemy import Connection, null

from ingestion_pipeline.catalogs.detection.detected import FoundRecipe
from ingestion_pipeline.catalogs.detection.detector import RecipeDetector
from ingestion_pipeline.catalogs.detection.model_votes import ModelVoters
from ingestion_pipeline.catalogs.detection.page_analysis import PageAnalysis, analyze_page
from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.source_config import load_entity_config
from ingestion_pipeline.catalogs.recipes.coursedog import API_BASE
from ingestion_pipeline.catalogs.recipes.recipe import is_all_rendered
from ingestion_pipeline.catalogs.recipes.registry import (
    DETECT,
    MESSAGE_LENGTH,
    DetectedRecipe,
    RecipeStatus,
    detected_recipes,
    ensure_all,
    fingerprint,
    is_by_hand,
    mark_recipes,
)
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.host_queue import HostQueues
from ingestion_pipeline.engine.time_budget import TimeBudget
from ingestion_pipeline.notices.message import RECIPE, write_notice
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.politeness.host_leases import HostLease, LeasedHosts, next_allowed_at
from ingestion_pipeline.pages.visits.page import NewPage, PageVisit
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.pages.visits.rendering import Renderer
from ingestion_pipeline.reading.llm import ModelClient
from ingestion_pipeline.reading.text.decoding import decode
from ingestion_pipeline.settings import Work
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_tasks import lock_polls, make_due
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.store.locking import lock_rows
from ingestion_pipeline.store.tables import recipes
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.tasks.errors import (
    FORBIDDEN,
    Fatal,
    Permanent,
    Resource,
    Transient,
    WorkError,
    classify,
    storable,
)
from ingestion_pipeline.tasks.results import Counts
from ingestion_pipeline.tasks.retry import DeadLetterTask, ReleaseTask, Retry, after_failure
from ingestion_pipeline.tasks.task import Move, Task, TaskStatus, failed, finished, released, retried
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline.urls import host_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeDetected:
    """A detection that found a recipe."""

    task: Task
    source: Source
    recipe: FoundRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionNotNeeded:
    """A detection that is no longer needed: a person has written the recipe."""

    task: Task
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionFailed:
    """A detection that failed."""

    task: Task
    source: Source
    error: WorkError
    stack: str | None = None


Result = RecipeDetected | DetectionNotNeeded | DetectionFailed


def write_results(
    connection: Connection, results: Sequence[Result], *, now: datetime, policy: Work, random: Random
) -> tuple[dict[str, int], list[datetime]]:
    """Write the results whose tasks are still claimed; return the counts and when retries are due.

    A success notifies always, a failure only when it is final. A result for a URL or configuration
    that the source no longer has is discarded, and the detection runs again.
    """
    held_ids = claims.held(connection, [(result.task.id, result.task.fence) for result in results])
    owned = [result for result in results if result.task.id in held_ids]
    counts = {"found": 0, "failed": 0, "retried": 0, "given_back": 0}
    moves: list[Move] = []
    new: list[str] = []
    again_at: list[datetime] = []
    ids = [result.source.id for result in owned]
    lock_polls(connection, ids)  # before recipes: the lock order of polls that queue a detection
    lock_rows(connection, recipes.c.source_id, ids)
    detections, current = detected_recipes(connection, ids), sources_by_id(connection, ids)
    for result in owned:
        if isinstance(result, DetectionNotNeeded):
            _skip_detection(connection, result, now=now)
            moves.append(finished(result.task, status=TaskStatus.SKIPPED))
            continue
        if fingerprint(result.source) != fingerprint(current[result.source.id]):
            changed = Resource("the source was changed meanwhile", until=now, code="outdated")
            mark_recipes(connection, [result.source.id], RecipeStatus.WAITING, now=now)
            moves.append(released(result.task, changed, not_before=now))
            again_at.append(now)
            counts["given_back"] += 1
            continue
        if isinstance(result, RecipeDetected):
            new += _store_recipe(connection, result, detections.get(result.source.id), now=now)
            moves.append(finished(result.task))
            counts["found"] += 1
            continue
        match after_failure(result.task, result.error, now=now, policy=policy, random=random):
            case Retry(not_before):
                _record_retry(connection, result, now=now)
                moves.append(retried(result.task, result.error, not_before=not_before))
                again_at.append(not_before)
                counts["retried"] += 1
            case ReleaseTask(not_before):
                _record_retry(connection, result, now=now)
                moves.append(released(result.task, result.error, not_before=not_before))
                counts["given_back"] += 1
            case DeadLetterTask():
                _record_failure(connection, result, now=now)
                moves.append(_failed_move(result))
                counts["failed"] += 1
    make_due(connection, new, now=now)
    claims.apply(connection, moves, now=now)
    return counts | {"lost": len(results) - len(owned)}, again_at


def _skip_detection(connection: Connection, result: DetectionNotNeeded, *, now: datetime) -> None:
    """Reset the row without notifying: if the manual recipe is removed, detection runs again."""
    message = "detection skipped: config.recipe was written by hand meanwhile"
    mark_recipes(connection, [result.source.id], RecipeStatus.WAITING, now=now, message=message, detected_for=null())


def _store_recipe(
    connection: Connection, result: RecipeDetected, before: DetectedRecipe | None, *, now: datetime
) -> list[str]:
    """Store the recipe and notify; return the source's id if its recipe is new, to poll it now."""
    source, found_recipe = result.source, result.recipe
    mark_recipes(
        connection,
        [source.id],
        RecipeStatus.SUCCESS,
        now=now,
        recipe=dict(found_recipe.recipe),
        message=_stored_message(found_recipe.message),
        evidence=dict(found_recipe.evidence),
        detected_for=fingerprint(source),
        notified_at=now,
    )
    _notify(connection, result, RecipeStatus.SUCCESS, found_recipe.message, now=now)
    return [source.id] if before is None or before.recipe != found_recipe.recipe else []


def _record_retry(connection: Connection, result: DetectionFailed, *, now: datetime) -> None:
    message = f"attempt {result.task.attempts} failed: {result.error.text}; it will be retried"
    mark_recipes(connection, [result.source.id], RecipeStatus.WAITING, now=now, message=_stored_message(message))


def _record_failure(connection: Connection, result: DetectionFailed, *, now: datetime) -> None:
    """Mark the detection as failed, notify, and add a dead letter unless robots.txt forbids it."""
    message = _stored_message(result.error.text)
    mark_recipes(
        connection,
        [result.source.id],
        RecipeStatus.ERROR,
        now=now,
        message=message,
        evidence={"code": result.error.code, "class": result.error.error_class.value},
        notified_at=now,
    )
    _notify(connection, result, RecipeStatus.ERROR, message, now=now)
    if result.error.code != FORBIDDEN:  # by robots.txt: no error of ours, and a replay would not help
        add_dead_letters(
            connection, [DeadLetterEntry(task=result.task, error=result.error, stack=result.stack)], now=now
        )


def _failed_move(result: DetectionFailed) -> Move:
    move = failed(result.task, result.error)
    return replace(move, status=TaskStatus.SKIPPED) if result.error.code == FORBIDDEN else move


def _notify(
    connection: Connection,
    result: RecipeDetected | DetectionFailed,
    status: RecipeStatus,
    message: str,
    *,
    now: datetime,
) -> None:
    """Notify those who follow recipes of the end of a detection, once."""
    headline = "recipe detected" if status is RecipeStatus.SUCCESS else "no recipe detected"
    payload: dict[str, Any] = {
        "source_id": result.source.id,
        "title": f"{result.source.id}: {headline}",
        "text": _stored_message(message) or headline,
        "name": result.source.name,
        "url": result.source.url,
        "status": status.value,
        "message": _stored_message(message),
    }
    subject_id = f"{result.source.id}:{result.task.id}:{result.task.fence}"
    write_notice(connection, RECIPE, subject_id, payload, now=now)


def _stored_message(message: str) -> str:
    return storable(message[:MESSAGE_LENGTH])


CLAIMED_AT_ONCE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionCounts(Counts):
    """Numbers of detections by result."""

    found: int = 0
    failed: int = 0
    retried: int = 0
    given_back: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    task: Task
    source: Source


class HostFetch:
    """Fetches the pages of one source at its host's pace; other hosts are leased for redirects."""

    def __init__(self, visitor: PoliteVisitor, host: HostLease, source: Source, *, kind: EntityType) -> None:
        self._visitor = visitor
        self._host = host
        self._source = source
        self._kind = kind
        self._seen: dict[str, PageAnalysis] = {}

    async def page(self, url: str) -> PageAnalysis:
        """Fetch and analyze the page; each is fetched once."""
        if url not in self._seen:
            render = is_all_rendered(self._source.config)
            answer = await self._visit(PageVisit(url=url, render=render))
            html = decode(answer.body, answer.content_type)
            self._seen[url] = await asyncio.to_thread(
                analyze_page, html, answer.final_url, kind=self._kind, is_rendered=answer.is_rendered
            )
        return self._seen[url]

    async def data(self, url: str) -> object:
        """Fetch an API response; robots.txt does not apply to it (docs/decisions.md)."""
        answer = await self._visit(PageVisit(url=url, is_data=True))
        try:
            return json.loads(decode(answer.body, answer.content_type))
        except (ValueError, RecursionError) as error:
            raise Transient(f"{url} sent no JSON: {error}"[:500], code="not_json") from None

    async def _visit(self, visit: PageVisit) -> NewPage:
        try:
            answer = await self._visitor.visit(
                visit,
                host=self._host,
                honours_robots=not (visit.is_data or self._source.ignores_robots),
                own=self._source.host,
            )
        except Resource as error:
            if error.code == FORBIDDEN:  # a retry would not help
                raise Permanent(error.text, code=FORBIDDEN) from error
            raise
        if not isinstance(answer, NewPage):
            raise Transient(f"{visit.url} was not sent", code="empty_body")
        return answer


class DetectionRun:
    """The detections of one run, under one worker identity."""

    def __init__(
        self,
        ctx: RunContext,
        worker: Worker,
        fetcher: HttpFetcher,
        *,
        renderer: Renderer | None,
        clock: SteadyClock,
        client: ModelClient | None,
    ) -> None:
        self._ctx = ctx
        self._worker = worker
        self._clock = clock
        self._client = client
        self._visitor = PoliteVisitor(fetcher, renderer, clock, ctx.settings)
        self._hosts = LeasedHosts(ctx, worker, fetcher, clock)
        self._time = TimeBudget(worker, clock, seconds=ctx.settings.polling.slice_seconds, network=self._hosts.network)
        self._results: list[Result] = []
        self._counts = DetectionCounts()
        self._open: dict[int, _Item] = {}
        self._host_queues: HostQueues[_Item] = HostQueues(
            self._hosts,
            concurrency=ctx.settings.polling.concurrency,
            execute=self._execute,
            release=self._release,
            reason_to_stop=self._time.reason_to_stop,
        )

    async def run(self, source_ids: Collection[str] | None = None) -> DetectionCounts:
        """Run detections while there is work and time; raise a fatal error at the end."""
        claim_filter = ClaimFilter(kind=DETECT, source_ids=source_ids)
        alive = asyncio.create_task(self._worker.keep_alive(self._hosts.renew))
        try:
            while self._time.is_left():
                done = await self._round(claim_filter)
                # A task requested by id is claimed due or not: once now, then when due again.
                if (source_ids is not None or not done) and not await self._time.rest():
                    break
        finally:
            alive.cancel()
            await self._host_queues.stop()
            for item in list(self._open.values()):
                self._release(item, self._time.stopped())
            await self._flush()
        if self._time.fatal is not None:
            raise self._time.fatal
        return self._counts

    async def _round(self, claim_filter: ClaimFilter) -> int:
        """Claim some tasks, detect them concurrently and write the results; return their number."""
        items = await asyncio.to_thread(self._claim, claim_filter)
        by_host: dict[str, list[_Item]] = {}
        for item in items:
            self._open[item.task.id] = item
            if item.task.attempts > self._ctx.settings.work.max_attempts:
                message = f"worker lost {item.task.attempts - 1} times on this detection"
                self._release(item, Permanent(message, code="worker_lost"))
            elif is_by_hand(item.source):
                self._open.pop(item.task.id)
                self._results.append(DetectionNotNeeded(task=item.task, source=item.source))
            else:
                by_host.setdefault(host_of(item.source.url), []).append(item)
        await self._host_queues.assign(by_host, lambda item: item.source)
        while self._host_queues:
            await self._host_queues.wait(timeout_seconds=1.0)
            await self._flush()
        await self._flush()
        return len(items)

    def _claim(self, claim_filter: ClaimFilter) -> list[_Item]:
        tasks = self._worker.claim(claim_filter, limit=CLAIMED_AT_ONCE)
        with self._ctx.store.begin() as connection:
            now = self._ctx.store.clock.now(connection)
            sources = sources_by_id(connection, {task.source_id or "" for task in tasks})
            mark_recipes(connection, sources, RecipeStatus.IN_PROGRESS, now=now)
        return [_Item(task=task, source=sources[task.source_id]) for task in tasks if task.source_id in sources]

    async def _execute(self, item: _Item, host: HostLease) -> None:
        try:
            recipe = await self._detect(item.source, host)
        except Exception as error:
            self._release(item, classify(error), stack=traceback.format_exc(limit=-20))
        else:
            self._open.pop(item.task.id, None)
            self._results.append(RecipeDetected(task=item.task, source=item.source, recipe=recipe))

    def _kind(self, source: Source) -> EntityType:
        try:
            return load_entity_config(source.config, self._ctx.settings).kind
        except ValueError as error:
            raise Permanent(f"{error}; correct the source's config", code="bad_config") from error

    async def _detect(self, source: Source, host: HostLease) -> FoundRecipe:
        kind = self._kind(source)
        detection = self._ctx.settings.detection
        voters = self._client and ModelVoters(self._client, detection, source_id=source.id, entity=kind.name)
        detector = RecipeDetector(
            fetcher=HostFetch(self._visitor, host, source, kind=kind),
            settings=detection,
            entity=kind.name,
            api_base=str(source.config.get("api_base") or API_BASE).rstrip("/"),
            voters=voters,
        )
        return await detector.detect(source.url)

    def _release(self, item: _Item, why: WorkError, *, stack: str | None = None) -> None:
        self._open.pop(item.task.id, None)
        self._results.append(DetectionFailed(task=item.task, source=item.source, error=why, stack=stack))
        if isinstance(why, Fatal):
            self._time.fatal = why

    async def _flush(self) -> None:
        results, self._results = self._results, []
        async with self._hosts.releasing() as left:
            if results or left:
                counts, again_at = await asyncio.to_thread(self._write, results, left)
                self._counts += DetectionCounts(**counts)
                self._time.expect(again_at)

    def _write(self, results: Sequence[Result], left: Mapping[str, HostLease]) -> tuple[dict[str, int], list[datetime]]:
        def write(connection: Connection) -> tuple[dict[str, int], list[datetime]]:
            now = self._ctx.store.clock.now(connection)
            free = next_allowed_at(left, self._ctx.store, connection)
            written = write_results(
                connection, results, now=now, policy=self._ctx.settings.catalog_work, random=self._ctx.random
            )
            self._hosts.release(connection, left, free, now=now)
            return written

        return self._ctx.store.write(write)


async def run_detection(
    ctx: RunContext,
    worker: Worker,
    fetcher: HttpFetcher,
    *,
    source_ids: Collection[str] | None = None,
    renderer: Renderer | None = None,
) -> DetectionCounts:
    """Run the detections of all catalogues that wait for a recipe, or of `source_ids`."""
    await asyncio.to_thread(_ensure_detections, ctx)
    clock = SteadyClock(await asyncio.to_thread(ctx.store.now))
    parts: dict[str, Any] = {"renderer": renderer, "clock": clock}
    if not ctx.settings.has_model:
        return await DetectionRun(ctx, worker, fetcher, client=None, **parts).run(source_ids)
    async with ModelClient(ctx.store, ctx.settings) as client:
        return await DetectionRun(ctx, worker, fetcher, client=client, **parts).run(source_ids)


def _ensure_detections(ctx: RunContext) -> None:
    with ctx.store.begin() as connection:
        ensure_all(connection, now=ctx.store.clock.now(connection))
