"""The catalogue system for the crawl engine: starting, opening, following and writing pages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any

from sqlalchemy import Connection, Integer, String, case, func, select, update

from ingestion_pipeline.catalogs.crawling.following import explore_carried, write_followed
from ingestion_pipeline.catalogs.crawling.frontier import PagePlan, open_pages, waiting_sources, without_progress
from ingestion_pipeline.catalogs.datasets.carry_over import ActiveExtraction, carry_over
from ingestion_pipeline.catalogs.datasets.finishing import FinishReason, failed_finishes, finish_extractions
from ingestion_pipeline.catalogs.extractions import start_extractions
from ingestion_pipeline.catalogs.recipes.detected_recipes import is_by_hand
from ingestion_pipeline.catalogs.recipes.next_pages import Followed, StepKind, follow_page
from ingestion_pipeline.catalogs.recipes.page_source import PageSource
from ingestion_pipeline.catalogs.recipes.recipe import recipe_of
from ingestion_pipeline.catalogs.states import (
    CRAWLING_STATES,
    EXTRACT_PAGE,
    NO_LINKS,
    OPEN_PAGES,
    ExtractionKind,
    ExtractionStatus,
    PageStatus,
    lock_rows,
)
from ingestion_pipeline.engine.crawling.protocol import (
    CrawlFilter,
    KnownPageCache,
    PageArchive,
    PageDone,
    PageFailed,
    PageOutcomes,
    PageWork,
)
from ingestion_pipeline.engine.outcomes import Skipped
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.pages.visits.page import CrawledPage
from ingestion_pipeline.settings import Settings, Work
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.tables import extractions, pages, sources
from ingestion_pipeline.store.types import Id, Json, UtcDateTime
from ingestion_pipeline.tasks.errors import BOT_CHECK, Resource, WorkError
from ingestion_pipeline.tasks.queue import SpawnRequest, continue_all
from ingestion_pipeline.tasks.task import NewTask, Task


def failure_reason(error: WorkError) -> dict[str, str]:
    """Return why a page failed, for programs and for people."""
    return {"class": error.error_class.value, "code": error.code, "message": error.text}


LEADS_NOWHERE = {"class": "no_data", "code": NO_LINKS, "message": "the page has no links to follow"}
_VISIT_COLUMNS = {
    "id": Id,
    "status": String(20),
    "snapshot_id": Id,
    "outcome": String(10),
    "failure": Json,
    "size_bytes": Integer(),
    "elapsed_ms": Integer(),
    "visited_at": UtcDateTime(),
}


def write_visits(connection: Connection, outcomes: PageOutcomes, *, now: datetime) -> set[int]:
    """Write each page's result; return the ids of the pages that are now to be extracted.

    Only pages that are still to be fetched change: what was extracted meanwhile stays as it is.
    """
    rows = [_done_row(done, snapshot_id, now=now) for done, snapshot_id in outcomes.done]
    rows += [_failed_row(failed, PageStatus.WAITING, None) for failed in outcomes.waiting]
    rows += [_failed_row(failed, PageStatus.ERROR, now) for failed in outcomes.failed]
    if not rows:
        return set()
    visits = row_source(connection, _VISIT_COLUMNS, rows, "given")
    was_visited = visits.c.visited_at.is_not(None)
    values = {name: visits.c[name] for name in ("status", "outcome", "failure", "elapsed_ms")}
    changed = connection.execute(
        update(pages)
        .where(pages.c.id == visits.c.id, pages.c.status.in_(OPEN_PAGES))
        .values(
            **values,
            snapshot_id=func.coalesce(visits.c.snapshot_id, pages.c.snapshot_id),
            size_bytes=visits.c.size_bytes,
            visited_at=case((was_visited, visits.c.visited_at), else_=pages.c.visited_at),
        )
        .returning(pages.c.id, pages.c.status)
    )
    return {id_ for id_, status in changed if status == PageStatus.DOWNLOADED.value}


def queue_extractions(
    connection: Connection,
    done: Iterable[PageDone],
    page_ids: Collection[int],
    active: Mapping[int, ActiveExtraction],
    *,
    now: datetime,
) -> None:
    """Insert an extract task for each of these pages whose extraction is active; one statement."""
    spawnings: list[SpawnRequest] = []
    for result in done:
        plan: PagePlan = result.work.plan
        if plan.page_id not in page_ids or plan.extraction_id not in active:
            continue
        child = NewTask(
            kind=EXTRACT_PAGE,
            dedupe_key=f"{plan.extraction_id}:{plan.page_id}",
            not_before=now,
            priority=result.task.priority,
            shard=result.work.source.shard,
            source_id=result.work.source.id,
            url=result.work.visit.url,
            payload={"page": plan.page_id, "extraction": plan.extraction_id},
        )
        spawnings.append(SpawnRequest(parent=result.task, child=child))
    continue_all(connection, spawnings, now=now)


def _done_row(done: PageDone, snapshot_id: int, *, now: datetime) -> tuple[Any, ...]:
    plan: PagePlan = done.work.plan
    followed: Followed = done.followed
    status = PageStatus.DOWNLOADED if followed.is_detail else PageStatus.SUCCESS
    outcome = "new" if done.is_new else "same"
    timing = (done.size_bytes, done.elapsed_ms, now)
    leads_nowhere = not followed.pages and not followed.is_detail
    note = dict(LEADS_NOWHERE) if leads_nowhere else None
    return (plan.page_id, status.value, snapshot_id, outcome, note, *timing)


def _failed_row(failed: PageFailed, status: PageStatus, visited_at: datetime | None) -> tuple[Any, ...]:
    plan: PagePlan = failed.work.plan
    reason = failure_reason(failed.error)
    return (plan.page_id, status.value, None, None, reason, None, None, visited_at)


def lock_extractions(connection: Connection, ids: Collection[int], *, now: datetime) -> dict[int, ActiveExtraction]:
    """Lock these extractions for this transaction; return those that are active."""
    if not ids:
        return {}
    columns = ("id", "source_id", "kind", "entity_type", "base_dataset_id", "recipe", "status")
    query = select(*(extractions.c[name] for name in columns), sources.c.config).join(sources)
    locked = query.where(extractions.c.id.in_(list(ids))).order_by(extractions.c.id)
    rows = connection.execute(locked.with_for_update(of=extractions)).all()
    connection.execute(update(extractions).where(extractions.c.id.in_(list(ids))).values(updated_at=now))
    return {
        row.id: ActiveExtraction(
            id=row.id,
            source_id=row.source_id,
            kind=ExtractionKind(row.kind),
            entity_type=row.entity_type,
            base_dataset_id=row.base_dataset_id,
            config=row.config,
            recipe=row.recipe,
        )
        for row in rows
        if row.status in CRAWLING_STATES
    }


def touched_extractions(outcomes: PageOutcomes) -> set[int]:
    """Return the ids of the extractions that these pages belong to."""
    works = [done.work for done, _ in outcomes.done]
    works += [failed.work for failed in (*outcomes.waiting, *outcomes.failed)]
    plans: Sequence[PagePlan] = [work.plan for work in works]
    return {plan.extraction_id for plan in plans}


class CatalogSystem:
    """The catalogue system as the crawl engine uses it."""

    def pace(self, source: Source, settings: Settings) -> Pace:  # noqa: ARG002 - the protocol
        """Return our own minimum delay; robots.txt may ask for more."""
        return Pace(delay_seconds=settings.crawl.delay_seconds)

    def retries(self, settings: Settings) -> Work:
        """Return the retry policy: soon, and twice."""
        return settings.catalog_work

    def honours_robots(self, work: PageWork) -> bool:
        """Whether robots.txt applies: always, except for an API or by an operator's choice."""
        plan: PagePlan = work.plan
        return plan.step.kind is not StepKind.FETCH_VIA_API and not work.source.ignores_robots

    def check(self, source: Source) -> None:
        """Raise `BadRecipe` if the recipe that a person wrote cannot be followed."""
        if is_by_hand(source):
            recipe_of(source.config)

    def start(
        self,
        connection: Connection,
        sources: Sequence[Source],
        *,
        now: datetime,
        settings: Settings,  # noqa: ARG002 - the protocol
    ) -> Mapping[str, str | Resource]:
        """Ensure that each source has a running extraction."""
        return start_extractions(connection, sources, now=now)

    def waiting(
        self, connection: Connection, crawl_filter: CrawlFilter, *, now: datetime, limit: int
    ) -> Sequence[Source]:
        """Return the sources that have claimable pages."""
        return waiting_sources(connection, crawl_filter, now=now, limit=limit)

    def open_pages(
        self, connection: Connection, tasks: Sequence[Task], *, archive: PageArchive
    ) -> Sequence[PageWork | Skipped[PageWork]]:
        """Return the work for each claimed task."""
        return open_pages(connection, tasks, archive=archive)

    def reads_content(self, work: PageWork) -> bool:
        """Whether the content is read for links: a page of records alone leads nowhere."""
        plan: PagePlan = work.plan
        return plan.step.recipe.leads_on

    def lock(self, connection: Connection, works: Sequence[PageWork]) -> None:
        """Lock the pages' extractions before their tasks: the order of `store.locking`."""
        plans: Sequence[PagePlan] = [work.plan for work in works]
        lock_rows(connection, {plan.extraction_id for plan in plans})

    def without_progress(self, connection: Connection, works: Sequence[PageWork], *, since: datetime) -> set[int]:
        """Return the tasks whose extraction has fetched no page of their host since then."""
        return without_progress(connection, works, since=since)

    def follow(self, work: PageWork, page: CrawledPage | None) -> Followed:
        """Return the pages that follow."""
        plan: PagePlan = work.plan
        if page is None:
            return Followed(is_detail=True)
        seen = PageSource(
            url=page.url,
            body=page.body,
            content_type=page.content_type,
            known_as=plan.known_as,
            position=plan.position,
            memory=plan.memory,
            links=page.links,
            is_restricted=page.is_rendered,
        )
        return follow_page(plan.step, seen)

    def write(
        self,
        connection: Connection,
        outcomes: PageOutcomes,
        *,
        page_cache: KnownPageCache,
        now: datetime,
        settings: Settings,
        random: Random,
    ) -> None:
        """Write pages, the pages that follow, extract tasks, and finish extractions that failed.

        A page of records whose content the published dataset already has is not extracted again.
        Whether an extraction is complete is decided when it is quiet (`datasets.completion`).
        """
        ids = touched_extractions(outcomes)
        active = lock_extractions(connection, ids, now=now)
        downloaded = write_visits(connection, outcomes, now=now)
        followed = [done for done, _ in outcomes.done]
        write_followed(connection, followed, known_pages=page_cache, now=now, settings=settings)
        carried = carry_over(connection, downloaded, active, now=now, settings=settings)
        explore_carried(connection, followed, carried, now=now, settings=settings)
        queue_extractions(connection, followed, downloaded - carried, active, now=now)
        # In one call: a second one would lock rows out of order.
        finishes = failed_finishes(connection, ids) | _blocked_finishes(outcomes)
        finish_extractions(connection, finishes, now=now, settings=settings, random=random)


def _blocked_finishes(outcomes: PageOutcomes) -> dict[int, FinishReason]:
    """Return finishes for extractions that met a bot wall on any page: it is meant for all pages.

    A password form blocks only its own page; only at the root does it block the source.
    """
    met = [failed for failed in outcomes.failed if failed.error.code == BOT_CHECK]
    plans: list[PagePlan] = [failed.work.plan for failed in met]
    return {
        plan.extraction_id: FinishReason(status=ExtractionStatus.CANCELLED, failure=failure_reason(failed.error))
        for plan, failed in zip(plans, met, strict=True)
    }
