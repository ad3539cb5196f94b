"""The detection of recipes as tasks: fetch pages politely, detect, store the recipe or the failure, notify."""

import asyncio
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, null

from ingestion_pipeline.catalogs.detection.detector import FoundRecipe, RecipeDetector
from ingestion_pipeline.catalogs.detection.model_votes import DetectionLimits, ModelVoters
from ingestion_pipeline.catalogs.detection.page_analysis import PageAnalysis, analyze_page
from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.source_selectors import load_entity_config
from ingestion_pipeline.catalogs.recipes.detected_recipes import (
    DETECT,
    MESSAGE_LENGTH,
    RecipeStatus,
    detected_recipes,
    ensure_all,
    fingerprint,
    is_by_hand,
    mark_recipes,
)
from ingestion_pipeline.catalogs.recipes.recipe import API_BASE, is_all_rendered
from ingestion_pipeline.catalogs.states import RECIPE_NOTICE
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
from ingestion_pipeline.notices.message import write_notice
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.pages.visits.page import NewPage, PageVisit, Renderer
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.reading.llm import ModelClient, open_model
from ingestion_pipeline.reading.text.plain_text import decode
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_tasks import lock_polls, make_due
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.statements import lock_rows
from ingestion_pipeline.store.tables import recipes
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.ended_tasks import Counts, DeadLetterTask
from ingestion_pipeline.tasks.errors import FORBIDDEN, Permanent, Resource, Transient, storable
from ingestion_pipeline.tasks.task import Task, TaskStatus, released
from ingestion_pipeline.urls import host_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionItem:
    """A claimed detection and its catalogue."""

    task: Task
    source: Source

    @property
    def host(self) -> str:
        """Return the host of the first request."""
        return host_of(self.source.url)


DetectionOutcome = Outcome[DetectionItem, FoundRecipe]


def persist_detections(
    connection: Connection, outcomes: Sequence[DetectionOutcome], *, now: datetime
) -> list[EndedTask]:
    """Write the outcomes, and return what becomes of their tasks.

    A success notifies always, a failure only when it is final. An outcome for a URL or configuration
    that the source no longer has is discarded, and the detection runs again.
    """
    ids = [outcome.item.source.id for outcome in outcomes if outcome.item is not None]
    lock_polls(connection, ids)  # before recipes: the lock order of polls that queue a detection
    lock_rows(connection, recipes.c.source_id, ids)
    detections, current = detected_recipes(connection, ids), sources_by_id(connection, ids)
    ended: list[EndedTask] = []
    new: list[str] = []
    for outcome in outcomes:
        source = outcome.item.source if outcome.item is not None else None
        if isinstance(outcome, Skipped):
            # Without a notice; if the manual recipe is removed, detection runs again.
            message, waiting = f"detection skipped: {outcome.reason}", RecipeStatus.WAITING
            skipped_ids = [source.id] if source is not None else []
            mark_recipes(connection, skipped_ids, waiting, now=now, message=message, detected_for=null())
            ended.append(skipped(outcome))
        elif source is not None and fingerprint(source) != fingerprint(current[source.id]):
            changed = Resource("the source was changed meanwhile", until=now, code="outdated")
            mark_recipes(connection, [source.id], RecipeStatus.WAITING, now=now)
            move = released(outcome.task, changed, not_before=now)
            ended.append(EndedTask(move=move, count="given_back", again_at=now))
        elif isinstance(outcome, Completed):
            _store_recipe(connection, outcome, now=now)
            before = detections.get(outcome.item.source.id)
            if before is None or before.recipe != outcome.value.recipe:
                new.append(outcome.item.source.id)
            ended.append(completed(outcome.task, "found"))
        else:
            ended.append(_persist_failure(connection, outcome, now=now))
    make_due(connection, new, now=now)  # to poll with the new recipe
    return ended


def _persist_failure(connection: Connection, failure: Failed[DetectionItem], *, now: datetime) -> EndedTask:
    """Store why the detection failed; notify only when it will not be retried."""
    ended = not_done(failure)
    if failure.item is None:
        return ended
    source, error = failure.item.source, failure.error
    if not isinstance(failure.decision, DeadLetterTask):
        message = _stored_message(f"attempt {failure.task.attempts} failed: {error.text}; it will be retried")
        mark_recipes(connection, [source.id], RecipeStatus.WAITING, now=now, message=message)
        return ended
    message, evidence = _stored_message(error.text), {"code": error.code, "class": error.error_class.value}
    mark_recipes(
        connection, [source.id], RecipeStatus.ERROR, now=now, message=message, evidence=evidence, notified_at=now
    )
    _notify(connection, failure.task, source, RecipeStatus.ERROR, message, now=now)
    if error.code == FORBIDDEN:  # by robots.txt: no error of ours, and a replay would not help
        return replace(ended.with_move(status=TaskStatus.SKIPPED), dead_letter=None)
    return ended


def _store_recipe(connection: Connection, outcome: Completed[DetectionItem, FoundRecipe], *, now: datetime) -> None:
    """Store the recipe and notify."""
    source, found_recipe = outcome.item.source, outcome.value
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
    _notify(connection, outcome.task, source, RecipeStatus.SUCCESS, found_recipe.message, now=now)


def _notify(
    connection: Connection, task: Task, source: Source, status: RecipeStatus, message: str, *, now: datetime
) -> None:
    """Notify those who follow recipes of the end of a detection, once."""
    headline = "recipe detected" if status is RecipeStatus.SUCCESS else "no recipe detected"
    payload: dict[str, Any] = {
        "source_id": source.id,
        "title": f"{source.id}: {headline}",
        "text": _stored_message(message) or headline,
        "name": source.name,
        "url": source.url,
        "status": status.value,
        "message": _stored_message(message),
    }
    subject_id = f"{source.id}:{task.id}:{task.fence}"
    write_notice(connection, RECIPE_NOTICE, subject_id, payload, now=now)


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


class HostFetch:
    """Fetches the pages of one source at its host's pace; other hosts are leased for redirects."""

    def __init__(self, visitor: PoliteVisitor, host: HostLease, source: Source, *, kind: EntityType) -> None:
        self._visitor = visitor
        self._host = host
        self._source = source
        self._kind = kind

    async def page(self, url: str) -> PageAnalysis:
        """Fetch and analyze the page."""
        answer = await self._visit(PageVisit(url=url, render=is_all_rendered(self._source.config)))
        html = decode(answer.body, answer.content_type)
        page = await asyncio.to_thread(
            analyze_page, html, answer.final_url, kind=self._kind, is_rendered=answer.is_rendered
        )
        return replace(page, may_ask_models=answer.may_ask_models)

    async def data(self, url: str) -> object:
        """Fetch an API response; robots.txt does not apply to it (docs/adr)."""
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


class DetectionHandler(TaskHandler[DetectionItem, FoundRecipe]):
    """Detects the recipes of catalogues, for one run."""

    transaction_size = capacity = CLAIMED_AT_ONCE

    def __init__(
        self, ctx: RunContext, visitor: PoliteVisitor, *, client: ModelClient | None, source_ids: Collection[str] | None
    ) -> None:
        self.concurrency = ctx.settings.polling.concurrency
        self.policy = ctx.settings.catalog_work
        self._ctx = ctx
        self._visitor = visitor
        self._client = client
        self._claims = ClaimFilter(kind=DETECT, source_ids=source_ids)
        self._next_claims = ClaimFilter(kind=DETECT, due_of=source_ids)

    def claim_requests(self, room: int, held: Sequence[DetectionItem]) -> Sequence[tuple[ClaimFilter, int]]:  # noqa: ARG002
        """Claim what waits; detections requested by source are claimed once, due or not, then when due."""
        claim_filter, self._claims = self._claims, self._next_claims
        return [(claim_filter, room)]

    def load(
        self, connection: Connection, tasks: Sequence[Task], *, now: datetime
    ) -> Sequence[DetectionItem | Skipped[DetectionItem]]:
        """Return the tasks with their sources; a recipe that was written by hand needs no detection."""
        sources = sources_by_id(connection, {task.source_id or "" for task in tasks})
        mark_recipes(connection, sources, RecipeStatus.IN_PROGRESS, now=now)
        items = [
            DetectionItem(task=task, source=sources[task.source_id]) for task in tasks if task.source_id in sources
        ]
        reason = "config.recipe was written by hand meanwhile"
        return [
            Skipped(task=item.task, item=item, reason=reason) if is_by_hand(item.source) else item for item in items
        ]

    async def execute(self, item: DetectionItem, host: HostLease | None) -> FoundRecipe:
        """Fetch pages of the catalogue and detect its recipe."""
        if host is None:
            raise ValueError(f"no lease on {item.host}")
        source, settings = item.source, self._ctx.settings
        try:
            kind = load_entity_config(source.config, settings).kind
        except ValueError as error:
            raise Permanent(f"{error}; correct the source's config", code="bad_config") from error
        detector = RecipeDetector(
            fetcher=HostFetch(self._visitor, host, source, kind=kind),
            entity=kind.name,
            api_base=str(source.config.get("api_base") or API_BASE).rstrip("/"),
            voters=self._client and ModelVoters(self._client, DetectionLimits(), source_id=source.id, entity=kind.name),
        )
        return await detector.detect(source.url)

    def persist(
        self, connection: Connection, outcomes: Sequence[DetectionOutcome], *, now: datetime
    ) -> Sequence[EndedTask]:
        """Store recipes and failures."""
        return persist_detections(connection, outcomes, now=now)


async def run_detection(
    ctx: RunContext,
    worker: Worker,
    fetcher: HttpFetcher,
    *,
    source_ids: Collection[str] | None = None,
    renderer: Renderer | None = None,
) -> DetectionCounts:
    """Run the detections of all catalogues that wait for a recipe, or of `source_ids`."""

    def queue_detections() -> None:
        with ctx.store.begin() as connection:
            ensure_all(connection, now=ctx.store.clock.now(connection))

    await asyncio.to_thread(queue_detections)
    clock = SteadyClock(await asyncio.to_thread(ctx.store.now))
    visitor = PoliteVisitor(fetcher, renderer, clock, ctx.settings)
    async with open_model(ctx.store, ctx.settings) as client:
        handler = DetectionHandler(ctx, visitor, client=client, source_ids=source_ids)
        loop: WorkerLoop[DetectionItem, FoundRecipe] = WorkerLoop(ctx, worker, fetcher, handler, clock=clock)
        return DetectionCounts.of(await loop.run())
