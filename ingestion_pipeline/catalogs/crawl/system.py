"""The catalogues as the engine sees them: when a walk begins, what follows, what is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from random import Random

from sqlalchemy import Connection

from ingestion_pipeline.catalogs.completing.ending import (
    FinishReason,
    failed_finishes,
    finish_extractions,
)
from ingestion_pipeline.catalogs.crawl.frontier import (
    PagePlan,
    open_pages,
    waiting_sources,
    without_progress,
)
from ingestion_pipeline.catalogs.crawl.spawning import write_followed
from ingestion_pipeline.catalogs.crawl.worth_following import explore_again
from ingestion_pipeline.catalogs.crawl.writing import (
    begin_readings,
    failure_reason,
    lock_extractions,
    touched,
    write_visits,
)
from ingestion_pipeline.catalogs.extractions import start_extractions
from ingestion_pipeline.catalogs.locking import lock_rows
from ingestion_pipeline.catalogs.readings.carrying import carry_over
from ingestion_pipeline.catalogs.recipes.recipe import recipe_of
from ingestion_pipeline.catalogs.recipes.seen import PageSource
from ingestion_pipeline.catalogs.recipes.steps import Followed, StepKind, what_follows
from ingestion_pipeline.catalogs.recipes.stored import is_by_hand
from ingestion_pipeline.catalogs.states import ExtractionStatus
from ingestion_pipeline.pages.crawled import (
    CrawledPage,
    CrawlFilter,
    KnownPages,
    PageArchive,
    PageGone,
    PageOutcomes,
    PageWork,
)
from ingestion_pipeline.pages.hosts import Pace
from ingestion_pipeline.settings import Settings, Work
from ingestion_pipeline.sources import Source
from ingestion_pipeline.work.errors import BOT_WALL, Resource
from ingestion_pipeline.work.task import Task


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
