"""The work of detection: tasks claimed, catalogues looked at politely, recipes written, fenced."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from ingestion_pipeline.catalogs.detection.asking import ModelVoters
from ingestion_pipeline.catalogs.detection.detecting import RecipeDetector
from ingestion_pipeline.catalogs.detection.finding import FoundRecipe
from ingestion_pipeline.catalogs.detection.looked import PageAnalysis, look_at
from ingestion_pipeline.catalogs.detection.outcomes import (
    DetectionFailed,
    DetectionNotNeeded,
    RecipeDetected,
    Result,
    write_results,
)
from ingestion_pipeline.catalogs.entities.declared import declared
from ingestion_pipeline.catalogs.entities.entity_type import EntityType
from ingestion_pipeline.catalogs.recipes.coursedog import API_BASE
from ingestion_pipeline.catalogs.recipes.recipe import is_all_rendered
from ingestion_pipeline.catalogs.recipes.stored import (
    DETECT,
    RecipeStatus,
    ensure_all,
    is_by_hand,
    mark,
)
from ingestion_pipeline.pages.host_visits import HostVisits
from ingestion_pipeline.pages.http_fetcher import HttpFetcher
from ingestion_pipeline.pages.leased_hosts import HostLease, LeasedHosts, next_allowed_at
from ingestion_pipeline.pages.page import NewPage, PageVisit
from ingestion_pipeline.pages.polite_visits import PoliteVisitor
from ingestion_pipeline.pages.rendering import Renderer
from ingestion_pipeline.pages.slice_time import TimeBudget
from ingestion_pipeline.pages.workshop import RunContext
from ingestion_pipeline.reading.decode import decode
from ingestion_pipeline.reading.models import ModelClient
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.urls import host_of
from ingestion_pipeline.work.claims import ClaimFilter
from ingestion_pipeline.work.errors import (
    FORBIDDEN,
    Fatal,
    Permanent,
    Resource,
    Transient,
    WorkError,
    classify,
)
from ingestion_pipeline.work.results import Counts
from ingestion_pipeline.work.task import Task
from ingestion_pipeline.work.worker import Worker

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
