"""A flush of a crawl: pages to the disk, then everything else in one transaction, fenced.

A page that cannot be written spoils its transaction: then each is written on its own, so that only
the culprit fails.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.pages.crawl_results import write_pages
from ingestion_pipeline.pages.crawled import (
    CrawlCounts,
    CrawledSystem,
    KnownPages,
    PageArchive,
    PageDone,
    PageFailed,
    PageResult,
)
from ingestion_pipeline.pages.leased_hosts import HostLease, LeasedHosts, next_allowed_at
from ingestion_pipeline.pages.page import NewPage
from ingestion_pipeline.pages.workshop import RunContext
from ingestion_pipeline.work.errors import Fatal, Permanent, classify

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesPersisted:
    """What a flush came to, and when what is tried again is due; a `fatal` error ends the run."""

    counts: CrawlCounts = field(default_factory=CrawlCounts)
    again_at: Sequence[datetime] = ()
    fatal: Fatal | None = None

    def __add__(self, other: PagesPersisted) -> PagesPersisted:
        """Both."""
        return PagesPersisted(
            counts=self.counts + other.counts,
            again_at=[*self.again_at, *other.again_at],
            fatal=self.fatal or other.fatal,
        )


class PageWriter:
    """Writes what became of a run's pages, and frees the hosts that it left."""

    def __init__(
        self, shop: RunContext, system: CrawledSystem, archive: PageArchive, hosts: LeasedHosts
    ) -> None:
        self._shop = shop
        self._system = system
        self._archive = archive
        self._hosts = hosts
        self._known = KnownPages()

    def write(self, results: Sequence[PageResult], left: Mapping[str, HostLease]) -> PagesPersisted:
        """Every result takes effect that is still ours, and the hosts are free."""
        try:
            stored = self._stored(results)
        except Fatal as error:
            # Nothing is lost but the visit: the pages go back, and then the run ends.
            put_back = [_put_back(one, error) for one in results]
            return self._commit(put_back, {}, left) + PagesPersisted(fatal=error)
        try:
            return self._commit(results, stored, left)
        except SQLAlchemyError as error:
            if isinstance(classify(error), Fatal):
                raise
            log.warning("a flush of %d pages failed; one by one now", len(results), exc_info=True)
        self._hosts.let_go(left)
        written = PagesPersisted()
        for one in results:
            written += self._commit_alone(one, stored)
        return written

    def _stored(self, results: Sequence[PageResult]) -> dict[int, Any]:
        """What the archive has of each new page, by its task."""
        new = [
            (one.task.id, one.work.source.id, one.answer)
            for one in results
            if isinstance(one, PageDone) and isinstance(one.answer, NewPage)
        ]
        pages = [(source, page) for _, source, page in new]
        kept = self._archive.store(pages, now=self._shop.store.now())
        return dict(zip((task_id for task_id, _, _ in new), kept, strict=True))

    def _commit(
        self,
        results: Sequence[PageResult],
        stored: Mapping[int, Any],
        left: Mapping[str, HostLease],
    ) -> PagesPersisted:
        def write(connection: Connection) -> PagesPersisted:
            now = self._shop.store.clock.now(connection)
            free = next_allowed_at(left, self._shop.store, connection)
            counts, again_at = write_pages(
                connection,
                self._shop,
                self._system,
                results,
                stored,
                archive=self._archive,
                known=self._known,
                now=now,
            )
            self._hosts.release(connection, left, free, now=now)
            return PagesPersisted(counts=counts, again_at=again_at)

        return self._shop.store.write(write)

    def _commit_alone(self, one: PageResult, stored: Mapping[int, Any]) -> PagesPersisted:
        try:
            return self._commit([one], stored, {})
        except SQLAlchemyError as error:
            if not isinstance(one, PageDone) or isinstance(classify(error), Fatal):
                raise
            said = f"what {one.work.visit.url} leads to could not be written: {error}"
            failure = Permanent(said[:2_000], code="not_written")
            stack = traceback.format_exc(limit=-20)
            return self._commit([PageFailed(work=one.work, error=failure, stack=stack)], {}, {})


def _put_back(result: PageResult, error: Fatal) -> PageResult:
    return PageFailed(work=result.work, error=error) if isinstance(result, PageDone) else result
