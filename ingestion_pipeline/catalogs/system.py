"""The catalogues as the engine sees them: when a walk begins, what follows, what is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any

from sqlalchemy import Connection, func, select

from ingestion_pipeline.catalogs.extractions import (
    Ended,
    cancel_extractions,
    end_extractions,
    start_extractions,
)
from ingestion_pipeline.catalogs.frontier import (
    PagePlan,
    open_pages,
    waiting_sources,
    without_progress,
)
from ingestion_pipeline.catalogs.recipe import recipe_of
from ingestion_pipeline.catalogs.recipes import is_by_hand
from ingestion_pipeline.catalogs.seen import SeenPage
from ingestion_pipeline.catalogs.states import PageStatus
from ingestion_pipeline.catalogs.steps import Followed, StepKind, what_follows
from ingestion_pipeline.catalogs.writing import (
    failure_reason,
    lock_extractions,
    touched,
    write_followed,
    write_visits,
)
from ingestion_pipeline.pages.crawled import (
    CrawlWanted,
    KnownPages,
    PageArchive,
    PageGone,
    PageOutcomes,
    PageWork,
    StoredPage,
)
from ingestion_pipeline.pages.hosts import Pace
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source, crawls
from ingestion_pipeline.sources.polls import lock_polls
from ingestion_pipeline.store.tables import pages
from ingestion_pipeline.work.errors import BOT_WALL, WALL_CODES, ErrorClass
from ingestion_pipeline.work.task import Task


class CatalogSystem:
    """What catalogues bring to crawling."""

    def pace(self, source: Source, settings: Settings) -> Pace:  # noqa: ARG002 - the protocol
        """Our own floor; robots.txt may ask for more."""
        return Pace(delay_seconds=settings.crawl.delay_seconds)

    def honours_robots(self, work: PageWork) -> bool:
        """Always, but for a documented API, and where an operator decided otherwise."""
        plan: PagePlan = work.plan
        return plan.step.kind is not StepKind.FETCH_VIA_API and not work.source.ignores_robots

    def check(self, source: Source) -> None:
        """Raise `BadRecipe` if the recipe that a person wrote cannot be followed."""
        if is_by_hand(source):
            recipe_of(source.config)

    def start(
        self, connection: Connection, sources: Sequence[Source], *, now: datetime
    ) -> Mapping[str, str]:
        """Each source has an extraction under way."""
        return start_extractions(connection, sources, now=now)

    def waiting(
        self, connection: Connection, wanted: CrawlWanted, *, now: datetime, limit: int
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

    def without_progress(
        self, connection: Connection, works: Sequence[PageWork], *, since: datetime
    ) -> set[int]:
        """The tasks of these whose extraction has got no page of their host since then."""
        return without_progress(connection, works, since=since)

    def follow(self, work: PageWork, page: StoredPage | None) -> Followed:
        """The pages that follow."""
        plan: PagePlan = work.plan
        if page is None:
            return Followed(is_detail=True)
        seen = SeenPage(
            url=page.url,
            body=page.body,
            content_type=page.content_type,
            known_as=plan.known_as,
            position=plan.position,
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
        """Pages, what follows from them, and the end of an extraction that no page keeps open."""
        ids = touched(outcomes)
        lock_extractions(connection, ids, now=now)
        write_visits(connection, outcomes, now=now)
        followed = [done for done, _ in outcomes.done]
        write_followed(connection, followed, known=known, now=now, settings=settings)
        walled = cancel_extractions(connection, _walls(outcomes), now=now)
        over = [*walled, *end_extractions(connection, ids, now=now)]
        # All of them before the first source is written: as whoever registers sources does it.
        lock_polls(connection, [ended.source_id for ended in over])
        for ended in over:
            _tell_source(connection, ended, now=now, settings=settings, random=random)


def _walls(outcomes: PageOutcomes) -> dict[int, dict[str, Any]]:
    """The extractions that met a bot wall anywhere: whoever puts one up means all of his pages.

    A form for a password is a wall in front of its own page; only at the root is it the source's.
    """
    met = [one for one in outcomes.failed if one.error.code == BOT_WALL]
    plans: list[PagePlan] = [one.work.plan for one in met]
    return {
        plan.extraction_id: failure_reason(one.error) for plan, one in zip(plans, met, strict=True)
    }


def _tell_source(
    connection: Connection, ended: Ended, *, now: datetime, settings: Settings, random: Random
) -> None:
    """The source's row says what its extraction came to."""
    if (failure := ended.failure) is not None:
        is_wall = failure["code"] in WALL_CODES
        kind = str(failure["code"]).replace("_", " ")
        walk = crawls.FailedWalk(
            source_id=ended.source_id,
            outcome=f"extraction {ended.id} failed: {failure['message']}",
            error_class=failure["class"],
            # what robots.txt forbids, or a pause that was asked for, is nobody's fault
            is_strike=failure["class"] != ErrorClass.RESOURCE.value,
            wall=f"behind a {kind}: {failure['message']}" if is_wall else None,
        )
        crawls.fail(connection, walk, now=now, settings=settings, random=random)
        return
    new, failed = _counts(connection, ended.id)
    crawls.complete(
        connection,
        ended.source_id,
        outcome=f"extraction {ended.id}: {ended.page_count} pages, {new} new, {failed} failed",
        pages=ended.page_count - failed,
        has_news=new > 0,
        now=now,
    )


def _counts(connection: Connection, extraction_id: int) -> tuple[int, int]:
    """How many pages said something new, and how many failed."""
    query = select(
        func.count().filter(pages.c.outcome == "new"),
        func.count().filter(pages.c.status == PageStatus.ERROR.value),
    ).where(pages.c.extraction_id == extraction_id)
    new, failed = connection.execute(query).one()
    return new, failed
