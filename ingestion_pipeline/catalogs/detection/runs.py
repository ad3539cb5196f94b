"""What detections came to, in one transaction: recipes, notices, first extractions, tasks."""

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
from ingestion_pipeline.catalogs.detection.page_analysis import PageAnalysis, look_at
from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.source_config import declared
from ingestion_pipeline.catalogs.recipes.coursedog import API_BASE
from ingestion_pipeline.catalogs.recipes.recipe import is_all_rendered
from ingestion_pipeline.catalogs.recipes.registry import (
    DETECT,
    MESSAGE_LENGTH,
    DetectedRecipe,
    RecipeStatus,
    detected,
    ensure_all,
    fingerprint,
    is_by_hand,
    mark,
)
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.host_queue import HostVisits
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
class RecipeDetected:
    """A detection that found a recipe."""

    task: Task
    source: Source
    found: FoundRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionNotNeeded:
    """A detection that nobody needs any more: a person has written the recipe."""

    task: Task
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionFailed:
    """A detection that did not."""

    task: Task
    source: Source
    error: WorkError
    stack: str | None = None


Result = RecipeDetected | DetectionNotNeeded | DetectionFailed


def write_results(
    connection: Connection,
    results: Sequence[Result],
    *,
    now: datetime,
    policy: Work,
    random: Random,
) -> tuple[dict[str, int], list[datetime]]:
    """Everything that is still ours takes effect; the counts, and when what is retried is due.

    A failure is told only when it is final; a success always. What was looked at under an address
    or a configuration that the source no longer has says nothing: it is looked at again.
    """
    mine = claims.held(connection, [(one.task.id, one.task.fence) for one in results])
    kept = [one for one in results if one.task.id in mine]
    counts = {"found": 0, "failed": 0, "retried": 0, "given_back": 0}
    moves: list[Move] = []
    new: list[str] = []
    again_at: list[datetime] = []
    ids = [one.source.id for one in kept]
    lock_polls(connection, ids)  # before recipes: so has whoever polls and looks for one again
    lock_rows(connection, recipes.c.source_id, ids)
    known, current = detected(connection, ids), sources_by_id(connection, ids)
    for one in kept:
        if isinstance(one, DetectionNotNeeded):
            _stand_aside(connection, one, now=now)
            moves.append(finished(one.task, status=TaskStatus.SKIPPED))
            continue
        if fingerprint(one.source) != fingerprint(current[one.source.id]):
            changed = Resource("the source was changed meanwhile", until=now, code="outdated")
            mark(connection, [one.source.id], RecipeStatus.WAITING, now=now)
            moves.append(released(one.task, changed, not_before=now))
            again_at.append(now)
            counts["given_back"] += 1
            continue
        if isinstance(one, RecipeDetected):
            new += _succeed(connection, one, known.get(one.source.id), now=now)
            moves.append(finished(one.task))
            counts["found"] += 1
            continue
        match after_failure(one.task, one.error, now=now, policy=policy, random=random):
            case Retry(not_before):
                _wait(connection, one, now=now)
                moves.append(retried(one.task, one.error, not_before=not_before))
                again_at.append(not_before)
                counts["retried"] += 1
            case ReleaseTask(not_before):
                _wait(connection, one, now=now)
                moves.append(released(one.task, one.error, not_before=not_before))
                counts["given_back"] += 1
            case DeadLetterTask():
                _give_up(connection, one, now=now)
                moves.append(_given_up(one))
                counts["failed"] += 1
    make_due(connection, new, now=now)
    claims.apply(connection, moves, now=now)
    return counts | {"lost": len(results) - len(kept)}, again_at


def _stand_aside(connection: Connection, one: DetectionNotNeeded, *, now: datetime) -> None:
    """Nothing is told, and nothing failed; it would be looked for if the recipe were taken away."""
    said = "a recipe was written by hand meanwhile: nothing is to be detected"
    mark(
        connection,
        [one.source.id],
        RecipeStatus.WAITING,
        now=now,
        message=said,
        detected_for=null(),
    )


def _succeed(
    connection: Connection, one: RecipeDetected, before: DetectedRecipe | None, *, now: datetime
) -> list[str]:
    """The recipe is followed from now on: a new one at once, by the source that is named then."""
    source, found = one.source, one.found
    mark(
        connection,
        [source.id],
        RecipeStatus.SUCCESS,
        now=now,
        recipe=dict(found.recipe),
        message=_said(found.message),
        evidence=dict(found.evidence),
        detected_for=fingerprint(source),
        notified_at=now,
    )
    _tell(connection, one, RecipeStatus.SUCCESS, found.message, now=now)
    return [source.id] if before is None or before.recipe != found.recipe else []


def _wait(connection: Connection, one: DetectionFailed, *, now: datetime) -> None:
    said = f"attempt {one.task.attempts} came to nothing: {one.error.text}; it is tried again"
    mark(connection, [one.source.id], RecipeStatus.WAITING, now=now, message=_said(said))


def _give_up(connection: Connection, one: DetectionFailed, *, now: datetime) -> None:
    message = _said(one.error.text)
    mark(
        connection,
        [one.source.id],
        RecipeStatus.ERROR,
        now=now,
        message=message,
        evidence={"code": one.error.code, "class": one.error.error_class.value},
        notified_at=now,
    )
    _tell(connection, one, RecipeStatus.ERROR, message, now=now)
    if one.error.code != FORBIDDEN:  # by robots.txt: nobody's fault, and no replay helps
        add_dead_letters(
            connection, [DeadLetterEntry(task=one.task, error=one.error, stack=one.stack)], now=now
        )


def _given_up(one: DetectionFailed) -> Move:
    move = failed(one.task, one.error)
    return replace(move, status=TaskStatus.SKIPPED) if one.error.code == FORBIDDEN else move


def _tell(
    connection: Connection,
    one: RecipeDetected | DetectionFailed,
    status: RecipeStatus,
    message: str,
    *,
    now: datetime,
) -> None:
    """Notify whoever wants recipes of the end of a detection, once."""
    result = "recipe detected" if status is RecipeStatus.SUCCESS else "no recipe detected"
    payload: dict[str, Any] = {
        "source_id": one.source.id,
        "title": f"{one.source.id}: {result}",
        "text": _said(message) or result,
        "name": one.source.name,
        "url": one.source.url,
        "status": status.value,
        "message": _said(message),
    }
    subject_id = f"{one.source.id}:{one.task.id}:{one.task.fence}"
    write_notice(connection, RECIPE, subject_id, payload, now=now)


def _said(message: str) -> str:
    return storable(message[:MESSAGE_LENGTH])


CLAIMED_AT_ONCE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionCounts(Counts):
    """How many detections ended how."""

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
    """Looks at the pages of one source, at its host's pace; other hosts are borrowed."""

    def __init__(
        self, visitor: PoliteVisitor, host: HostLease, source: Source, *, kind: EntityType
    ) -> None:
        self._visitor = visitor
        self._host = host
        self._source = source
        self._kind = kind
        self._seen: dict[str, PageAnalysis] = {}

    async def page(self, url: str) -> PageAnalysis:
        """The page; each is asked for once."""
        if url not in self._seen:
            render = is_all_rendered(self._source.config)
            answer = await self._visit(PageVisit(url=url, render=render))
            html = decode(answer.body, answer.content_type)
            self._seen[url] = await asyncio.to_thread(
                look_at,
                html,
                answer.final_url,
                kind=self._kind,
                is_rendered=answer.is_rendered,
            )
        return self._seen[url]

    async def data(self, url: str) -> object:
        """An API's answer; its robots.txt does not govern it (docs/decisions.md)."""
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
            if error.code == FORBIDDEN:  # it will be so tomorrow
                raise Permanent(error.text, code=FORBIDDEN) from error
            raise
        if not isinstance(answer, NewPage):
            raise Transient(f"{visit.url} was not sent", code="empty_body")
        return answer


class DetectionSlice:
    """One run's detections, under one worker identity."""

    def __init__(
        self,
        shop: RunContext,
        worker: Worker,
        fetcher: HttpFetcher,
        *,
        renderer: Renderer | None,
        clock: SteadyClock,
        client: ModelClient | None,
    ) -> None:
        self._shop = shop
        self._worker = worker
        self._clock = clock
        self._client = client
        self._visitor = PoliteVisitor(fetcher, renderer, clock, shop.settings)
        self._hosts = LeasedHosts(shop, worker, fetcher, clock)
        self._time = TimeBudget(
            worker, clock, seconds=shop.settings.polling.slice_seconds, network=self._hosts.network
        )
        self._results: list[Result] = []
        self._counts = DetectionCounts()
        self._open: dict[int, _Item] = {}
        self._visits: HostVisits[_Item] = HostVisits(
            self._hosts,
            concurrency=shop.settings.polling.concurrency,
            serve=self._serve,
            leave=self._leave,
            reason_to_stop=self._time.reason_to_stop,
        )

    async def run(self, source_ids: Collection[str] | None = None) -> DetectionCounts:
        """Detect as long as there is work and time; a fatal error is raised at the end."""
        wanted = ClaimFilter(kind=DETECT, source_ids=source_ids)
        alive = asyncio.create_task(self._worker.keep_alive(self._hosts.renew))
        try:
            while self._time.is_left():
                done = await self._round(wanted)
                # Asked for by hand, a task is claimed due or not: once, and when it is due again.
                if (source_ids is not None or not done) and not await self._time.rest():
                    break
        finally:
            alive.cancel()
            await self._visits.stop()
            for item in list(self._open.values()):
                self._leave(item, self._time.stopped())
            await self._flush()
        if self._time.fatal is not None:
            raise self._time.fatal
        return self._counts

    async def _round(self, wanted: ClaimFilter) -> int:
        """Claim a few, look at them side by side, write; how many that were."""
        items = await asyncio.to_thread(self._claim, wanted)
        by_host: dict[str, list[_Item]] = {}
        for item in items:
            self._open[item.task.id] = item
            if item.task.attempts > self._shop.settings.work.max_attempts:
                said = f"the worker died {item.task.attempts - 1} times over this detection"
                self._leave(item, Permanent(said, code="worker_lost"))
            elif is_by_hand(item.source):
                self._open.pop(item.task.id)
                self._results.append(DetectionNotNeeded(task=item.task, source=item.source))
            else:
                by_host.setdefault(host_of(item.source.url), []).append(item)
        await self._visits.assign(by_host, lambda item: item.source)
        while self._visits:
            await self._visits.wait(timeout_seconds=1.0)
            await self._flush()
        await self._flush()
        return len(items)

    def _claim(self, wanted: ClaimFilter) -> list[_Item]:
        tasks = self._worker.claim(wanted, limit=CLAIMED_AT_ONCE)
        with self._shop.store.begin() as connection:
            now = self._shop.store.clock.now(connection)
            known = sources_by_id(connection, {task.source_id or "" for task in tasks})
            mark(connection, known, RecipeStatus.IN_PROGRESS, now=now)
        return [
            _Item(task=task, source=known[task.source_id])
            for task in tasks
            if task.source_id in known
        ]

    async def _serve(self, item: _Item, host: HostLease) -> None:
        try:
            found = await self._detected(item.source, host)
        except Exception as error:
            self._leave(item, classify(error), stack=traceback.format_exc(limit=-20))
        else:
            self._open.pop(item.task.id, None)
            self._results.append(RecipeDetected(task=item.task, source=item.source, found=found))

    def _kind(self, source: Source) -> EntityType:
        try:
            return declared(source.config, self._shop.settings).kind
        except ValueError as error:
            raise Permanent(f"{error}; correct the source's config", code="bad_config") from error

    async def _detected(self, source: Source, host: HostLease) -> FoundRecipe:
        kind = self._kind(source)
        detection = self._shop.settings.detection
        voters = self._client and ModelVoters(
            self._client, detection, source_id=source.id, entity=kind.name
        )
        detective = RecipeDetector(
            look=HostFetch(self._visitor, host, source, kind=kind),
            settings=detection,
            entity=kind.name,
            api_base=str(source.config.get("api_base") or API_BASE).rstrip("/"),
            voters=voters,
        )
        return await detective.detect(source.url)

    def _leave(self, item: _Item, why: WorkError, *, stack: str | None = None) -> None:
        self._open.pop(item.task.id, None)
        self._results.append(
            DetectionFailed(task=item.task, source=item.source, error=why, stack=stack)
        )
        if isinstance(why, Fatal):
            self._time.fatal = why

    async def _flush(self) -> None:
        results, self._results = self._results, []
        async with self._hosts.letting_go() as left:
            if results or left:
                counts, again_at = await asyncio.to_thread(self._write, results, left)
                self._counts += DetectionCounts(**counts)
                self._time.expect(again_at)

    def _write(
        self, results: Sequence[Result], left: Mapping[str, HostLease]
    ) -> tuple[dict[str, int], list[datetime]]:
        def write(connection: Connection) -> tuple[dict[str, int], list[datetime]]:
            now = self._shop.store.clock.now(connection)
            free = next_allowed_at(left, self._shop.store, connection)
            written = write_results(
                connection,
                results,
                now=now,
                policy=self._shop.settings.catalog_work,
                random=self._shop.random,
            )
            self._hosts.release(connection, left, free, now=now)
            return written

        return self._shop.store.write(write)


async def detect_slice(
    shop: RunContext,
    worker: Worker,
    fetcher: HttpFetcher,
    *,
    source_ids: Collection[str] | None = None,
    renderer: Renderer | None = None,
) -> DetectionCounts:
    """One run's detections, of every catalogue that waits for a recipe or of those asked for."""
    await asyncio.to_thread(_ensure, shop)
    clock = SteadyClock(await asyncio.to_thread(shop.store.now))
    parts: dict[str, Any] = {"renderer": renderer, "clock": clock}
    if not shop.settings.has_model:
        return await DetectionSlice(shop, worker, fetcher, client=None, **parts).run(source_ids)
    async with ModelClient(shop.store, shop.settings) as client:
        return await DetectionSlice(shop, worker, fetcher, client=client, **parts).run(source_ids)


def _ensure(shop: RunContext) -> None:
    with shop.store.begin() as connection:
        ensure_all(connection, now=shop.store.clock.now(connection))
