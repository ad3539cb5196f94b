"""The catalogues as the engine sees them: when a walk begins, what follows, what is written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any

from sqlalchemy import Connection, Integer, String, case, func, select, update

from ingestion_pipeline.catalogs.crawling.following import explore_again, write_followed
from ingestion_pipeline.catalogs.crawling.frontier import (
    PagePlan,
    open_pages,
    waiting_sources,
    without_progress,
)
from ingestion_pipeline.catalogs.datasets.carry_over import ActiveExtraction, carry_over
from ingestion_pipeline.catalogs.datasets.finishing import (
    FinishReason,
    failed_finishes,
    finish_extractions,
)
from ingestion_pipeline.catalogs.extractions import start_extractions
from ingestion_pipeline.catalogs.recipes.next_pages import Followed, StepKind, what_follows
from ingestion_pipeline.catalogs.recipes.page_source import PageSource
from ingestion_pipeline.catalogs.recipes.recipe import recipe_of
from ingestion_pipeline.catalogs.recipes.registry import is_by_hand
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
    KnownPages,
    PageArchive,
    PageDone,
    PageFailed,
    PageGone,
    PageOutcomes,
    PageWork,
)
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.pages.visits.page import CrawledPage
from ingestion_pipeline.settings import Settings, Work
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.tables import extractions, pages, sources
from ingestion_pipeline.store.types import Id, Json, UtcDateTime
from ingestion_pipeline.tasks.errors import BOT_WALL, Resource, WorkError
from ingestion_pipeline.tasks.queue import Spawning, continue_all
from ingestion_pipeline.tasks.task import NewTask, Task


def failure_reason(error: WorkError) -> dict[str, str]:
    """Why a page was not got, for programs and for people."""
    return {"class": error.error_class.value, "code": error.code, "message": error.text}


LEADS_NOWHERE = {"class": "no_data", "code": NO_LINKS, "message": "it leads to no page"}
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
    """Each page's row says what became of it; the ids of those that are now to be read.

    Only a page that is still to be visited changes: what was read meanwhile stays as it is.
    """
    rows = [_done_row(done, snapshot_id, now=now) for done, snapshot_id in outcomes.done]
    rows += [_failed_row(one, PageStatus.WAITING, None) for one in outcomes.waiting]
    rows += [_failed_row(one, PageStatus.ERROR, now) for one in outcomes.failed]
    if not rows:
        return set()
    given = row_source(connection, _VISIT_COLUMNS, rows, "given")
    was_visited = given.c.visited_at.is_not(None)
    values = {name: given.c[name] for name in ("status", "outcome", "failure", "elapsed_ms")}
    changed = connection.execute(
        update(pages)
        .where(pages.c.id == given.c.id, pages.c.status.in_(OPEN_PAGES))
        .values(
            **values,
            snapshot_id=func.coalesce(given.c.snapshot_id, pages.c.snapshot_id),
            size_bytes=given.c.size_bytes,
            visited_at=case((was_visited, given.c.visited_at), else_=pages.c.visited_at),
        )
        .returning(pages.c.id, pages.c.status)
    )
    return {id_ for id_, status in changed if status == PageStatus.DOWNLOADED.value}


def begin_readings(
    connection: Connection,
    done: Iterable[PageDone],
    page_ids: Collection[int],
    going_on: Mapping[int, ActiveExtraction],
    *,
    now: datetime,
) -> None:
    """Each of these pages, if its extraction goes on, has a task that reads it; one statement."""
    wanted: list[Spawning] = []
    for one in done:
        plan: PagePlan = one.work.plan
        if plan.page_id not in page_ids or plan.extraction_id not in going_on:
            continue
        child = NewTask(
            kind=EXTRACT_PAGE,
            dedupe_key=f"{plan.extraction_id}:{plan.page_id}",
            not_before=now,
            priority=one.task.priority,
            shard=one.work.source.shard,
            source_id=one.work.source.id,
            url=one.work.visit.url,
            payload={"page": plan.page_id, "extraction": plan.extraction_id},
        )
        wanted.append(Spawning(parent=one.task, child=child))
    continue_all(connection, wanted, now=now)


def _done_row(done: PageDone, snapshot_id: int, *, now: datetime) -> tuple[Any, ...]:
    plan: PagePlan = done.work.plan
    followed: Followed = done.followed
    status = PageStatus.DOWNLOADED if followed.is_detail else PageStatus.SUCCESS
    outcome = "new" if done.is_new else "same"
    timing = (done.size_bytes, done.elapsed_ms, now)
    leads_nowhere = not followed.pages and not followed.is_detail
    note = dict(LEADS_NOWHERE) if leads_nowhere else None
    return (plan.page_id, status.value, snapshot_id, outcome, note, *timing)


def _failed_row(
    one: PageFailed, status: PageStatus, visited_at: datetime | None
) -> tuple[Any, ...]:
    plan: PagePlan = one.work.plan
    reason = failure_reason(one.error)
    return (plan.page_id, status.value, None, None, reason, None, None, visited_at)


def lock_extractions(
    connection: Connection, ids: Collection[int], *, now: datetime
) -> dict[int, ActiveExtraction]:
    """Nobody else adds to these, or ends them, during this transaction; those that go on."""
    if not ids:
        return {}
    columns = ("id", "source_id", "kind", "entity_type", "base_dataset_id", "recipe", "status")
    query = select(*(extractions.c[name] for name in columns), sources.c.config).join(sources)
    locked = query.where(extractions.c.id.in_(list(ids))).order_by(extractions.c.id)
    rows = connection.execute(locked.with_for_update(of=extractions)).all()
    connection.execute(
        update(extractions).where(extractions.c.id.in_(list(ids))).values(updated_at=now)
    )
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


def touched(outcomes: PageOutcomes) -> set[int]:
    """The extractions whose pages these are."""
    works = [done.work for done, _ in outcomes.done]
    works += [one.work for one in (*outcomes.waiting, *outcomes.failed)]
    plans: Sequence[PagePlan] = [work.plan for work in works]
    return {plan.extraction_id for plan in plans}


class CatalogSystem:
    """What catalogues bring to crawling."""

    def pace(self, source: Source, settings: Settings) -> Pace:  # noqa: ARG002 - the protocol
        """Our own floor; robots.txt may ask for more."""
        return Pace(delay_seconds=settings.crawl.delay_seconds)

    def retries(self, settings: Settings) -> Work:
        """As the documents have it: soon, and twice."""
        return settings.catalog_work

    def honours_robots(self, work: PageWork) -> bool:
        """Always, but for a documented API, and where an operator decided otherwise."""
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
        """Each source has an extraction under way."""
        return start_extractions(connection, sources, now=now)

    def waiting(
        self, connection: Connection, wanted: CrawlFilter, *, now: datetime, limit: int
    ) -> Sequence[Source]:
        """The sources that have pages to be claimed."""
        return waiting_sources(connection, wanted, now=now, limit=limit)

    def open_pages(
        self, connection: Connection, tasks: Sequence[Task], *, archive: PageArchive
    ) -> Sequence[PageWork | PageGone]:
        """What is to be done with each claimed page."""
        return open_pages(connection, tasks, archive=archive)

    def reads_content(self, work: PageWork) -> bool:
        """A page of records alone leads nowhere, unchanged or not."""
        plan: PagePlan = work.plan
        return plan.step.recipe.leads_on

    def lock(self, connection: Connection, works: Sequence[PageWork]) -> None:
        """The pages' extractions, before their tasks: the order of `locking`."""
        plans: Sequence[PagePlan] = [work.plan for work in works]
        lock_rows(connection, {plan.extraction_id for plan in plans})

    def without_progress(
        self, connection: Connection, works: Sequence[PageWork], *, since: datetime
    ) -> set[int]:
        """The tasks of these whose extraction has got no page of their host since then."""
        return without_progress(connection, works, since=since)

    def follow(self, work: PageWork, page: CrawledPage | None) -> Followed:
        """The pages that follow."""
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
        return what_follows(plan.step, seen)

    def write(
        self,
        connection: Connection,
        outcomes: PageOutcomes,
        *,
        known: KnownPages,
        now: datetime,
        settings: Settings,
        random: Random,
    ) -> None:
        """Pages, what follows from them, what is to be read, and the end of what cannot go on.

        A page of records that says what the published dataset knows already is not read again.
        Whether an extraction is complete is decided when it is quiet (`completion`).
        """
        ids = touched(outcomes)
        going_on = lock_extractions(connection, ids, now=now)
        downloaded = write_visits(connection, outcomes, now=now)
        followed = [done for done, _ in outcomes.done]
        write_followed(connection, followed, known=known, now=now, settings=settings)
        carried = carry_over(connection, downloaded, going_on, now=now, settings=settings)
        explore_again(connection, followed, carried, now=now, settings=settings)
        begin_readings(connection, followed, downloaded - carried, going_on, now=now)
        # Together: what a second step locked would come out of order.
        endings = failed_finishes(connection, ids) | _walls(outcomes)
        finish_extractions(connection, endings, now=now, settings=settings, random=random)


def _walls(outcomes: PageOutcomes) -> dict[int, FinishReason]:
    """The extractions that met a bot wall anywhere: whoever puts one up means all of his pages.

    A form for a password is a wall in front of its own page; only at the root is it the source's.
    """
    met = [one for one in outcomes.failed if one.error.code == BOT_WALL]
    plans: list[PagePlan] = [one.work.plan for one in met]
    return {
        plan.extraction_id: FinishReason(
            status=ExtractionStatus.CANCELLED, failure=failure_reason(one.error)
        )
        for plan, one in zip(plans, met, strict=True)
    }
