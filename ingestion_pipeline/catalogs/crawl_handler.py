"""The crawl as tasks: fetch a page at its host's pace, and write it with what follows from it.

The frontier is in the database. A run holds a bounded number of pages, and of one source or host never more than its
share, so that a large catalogue does not starve others.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, case, func, update

from ingestion_pipeline.catalogs.datasets.dataset_items import carry_over
from ingestion_pipeline.catalogs.datasets.finishing import (
    LONGEST_WAIT,
    FinishReason,
    failed_finishes,
    finish_extractions,
)
from ingestion_pipeline.catalogs.extraction_states import lock_extractions
from ingestion_pipeline.catalogs.frontier import (
    CrawlFilter,
    KnownPageCache,
    PageWork,
    explore_carried,
    open_pages,
    waiting_sources,
    without_progress,
    write_followed,
)
from ingestion_pipeline.catalogs.recipes.next_pages import Followed, PageSource, StepKind, follow_page
from ingestion_pipeline.catalogs.states import (
    EXTRACT_PAGE,
    FETCH_PAGE,
    NO_LINKS,
    OPEN_PAGES,
    ExtractionStatus,
    PageStatus,
    failure_reason,
    lock_extraction_rows,
)
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import (
    Completed,
    EndedTask,
    Failed,
    NotNeeded,
    Outcome,
    Skipped,
    TaskHandler,
    not_done,
    skipped,
)
from ingestion_pipeline.pages.content.snapshots import SnapshotArchive, SnapshotRow
from ingestion_pipeline.pages.content.store import storage_errors_fatal
from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.pages.visits.page import CrawledPage, NewPage, PageAnswer, SamePage
from ingestion_pipeline.pages.visits.polite_visits import LARGE_BYTES, PoliteVisitor
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.statements import row_source
from ingestion_pipeline.store.tables import pages
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.ended_tasks import ReleaseTask
from ingestion_pipeline.tasks.errors import BOT_CHECK, FORBIDDEN, Resource, WorkError
from ingestion_pipeline.tasks.queue import SpawnRequest, continue_all
from ingestion_pipeline.tasks.task import NewTask, Task, TaskStatus, finished

PAGES_HELD = 500  # by a run at the most, of all sources
PAGES_PER_SOURCE = 100  # that a run holds of one source or host
MOST_SOURCES = 200  # considered at a time; the others come first the next time

# Errors of the whole host and not of one page: until they end, nothing of the host is claimed.
_HOST_CODES = frozenset({"host_busy", "host_yielded", "rate_limited", "crawl_delay", "robots_unavailable"})
_RUN_CODES = frozenset({"stopped", "slice_over"})  # reasons of the run, not of page or host
_PUT_OFF_SINCE = "put_off_since"  # in a task's state: when it was first put off


@dataclass(frozen=True, slots=True, kw_only=True)
class PageDone:
    """The answer to a page's request, and the pages that follow from it."""

    answer: PageAnswer
    followed: Followed
    elapsed_ms: int

    @property
    def size_bytes(self) -> int:
        """Size of the body that was sent."""
        return len(self.answer.body) if isinstance(self.answer, NewPage) else 0


CrawlOutcome = Outcome[PageWork, PageDone]
FailedPage = tuple[PageWork, WorkError, EndedTask]


class CrawlHandler(TaskHandler[PageWork, PageDone]):
    """Crawls the pages of catalogues, for one run."""

    flush_after = 250  # pages share the fixed cost of a transaction
    transaction_size = 1_000

    def __init__(
        self, ctx: RunContext, crawl_filter: CrawlFilter, *, visitor: PoliteVisitor, clock: SteadyClock
    ) -> None:
        self.concurrency = ctx.settings.polling.concurrency
        self.capacity = PAGES_HELD
        self.policy = ctx.settings.catalog_work
        self._ctx = ctx
        self._crawl_filter = crawl_filter
        self._visitor = visitor
        self._archive = SnapshotArchive(ctx.store, ctx.content, ctx.run_id)
        self._clock = clock
        self._held_until: dict[str, datetime] = {}  # by host
        self._blocked_sources: set[str] = set()
        self._stored: Mapping[int, SnapshotRow] = {}  # the stored form of each new page, by task
        self._page_cache = KnownPageCache()

    # --- claiming

    def claim_requests(self, room: int, held: Sequence[PageWork]) -> Sequence[tuple[ClaimFilter, int]]:
        """Claim a few pages of each source: within the room, and within its share."""
        with self._ctx.store.read() as connection:
            now = self._ctx.store.clock.now(connection)
            sources = waiting_sources(connection, self._crawl_filter, now=now, limit=MOST_SOURCES)
        share = max(1, min(PAGES_PER_SOURCE, self.capacity // max(len(sources), 1)))
        held_by = Counter(work.source.id for work in held)
        held_by.update(f"host:{work.host}" for work in held)
        claim_requests: list[tuple[ClaimFilter, int]] = []
        now = self._clock.now()
        for source in sources:
            count = min(room, share - max(held_by[source.id], held_by[f"host:{source.host}"]))
            is_held = source.id in self._blocked_sources or self._held_until.get(source.host, now) > now
            if count <= 0 or is_held:
                continue
            held_by[f"host:{source.host}"] += count
            room -= count
            claim_requests.append((ClaimFilter(kind=FETCH_PAGE, frontier_of=source.id), count))
        return claim_requests

    def load(
        self,
        connection: Connection,
        tasks: Sequence[Task],
        *,
        now: datetime,  # noqa: ARG002 - the protocol
    ) -> Sequence[PageWork | Skipped[PageWork]]:
        """Return what is to be done with each page, and mark it as in progress."""
        return open_pages(connection, tasks, archive=self._archive)

    # --- fetching

    async def execute(self, item: PageWork, host: HostLease | None) -> PageDone:
        """Fetch the page, and return it with what follows from it; robots.txt does not apply to a documented API."""
        if item.source.id in self._blocked_sources:  # no further requests to a site that blocks us
            raise NotNeeded("its source blocks robots", code="page_gone")
        if host is None:
            raise ValueError(f"no lease on the host of {item.visit.url}")
        waited, started = host.rate_limiter.waited_seconds, time.monotonic()
        honours_robots = item.step.kind is not StepKind.FETCH_VIA_API and not item.source.ignores_robots
        answer = await self._visitor.visit(item.visit, host=host, honours_robots=honours_robots)
        elapsed = time.monotonic() - started - (host.rate_limiter.waited_seconds - waited)
        if isinstance(answer, NewPage) and len(answer.body) <= LARGE_BYTES:
            followed = self._followed(item, answer)
        else:
            followed = await asyncio.to_thread(self._followed, item, answer)
        return PageDone(answer=answer, followed=followed, elapsed_ms=round(max(elapsed, 0.0) * 1_000))

    def _followed(self, work: PageWork, answer: PageAnswer) -> Followed:
        if isinstance(answer, NewPage):
            page = CrawledPage(
                url=answer.final_url,
                body=answer.body,
                content_type=answer.content_type,
                links=(*answer.links, *answer.discovered),
                is_rendered=answer.is_rendered,
            )
        elif work.step.recipe.leads_on:
            with storage_errors_fatal():
                page = self._archive.stored(answer.known_page)
        else:  # an unchanged page of records alone leads nowhere: it is not read from the store
            return Followed(is_detail=True)
        source = PageSource(
            url=page.url,
            body=page.body,
            content_type=page.content_type,
            known_as=work.visit.url,
            position=work.position,
            memory=work.memory,
            links=page.links,
            is_restricted=page.is_rendered,
        )
        return follow_page(work.step, source)

    def size_bytes(self, value: PageDone) -> int:
        """Return the size of the body."""
        return value.size_bytes

    def is_urgent(self, outcome: CrawlOutcome) -> bool:
        """Hold back the host or the source of a failed page; the crawl of a source that blocks us ends now."""
        if not isinstance(outcome, Failed) or outcome.item is None:
            return False
        error, host = outcome.error, outcome.item.host
        if isinstance(error, Resource) and error.code in _HOST_CODES:
            self._held_until[host] = max(error.until, self._held_until.get(host, error.until))
        if error.code == BOT_CHECK:
            self._blocked_sources.add(outcome.item.source.id)
        return error.code == BOT_CHECK

    # --- writing

    def prepare(self, outcomes: Sequence[CrawlOutcome]) -> None:
        """Store the bodies of new pages."""
        new = {
            outcome.task.id: (outcome.item.source.id, outcome.value.answer)
            for outcome in outcomes
            if isinstance(outcome, Completed) and isinstance(outcome.value.answer, NewPage)
        }
        stored = self._archive.store(list(new.values()), now=self._ctx.store.now())
        self._stored = dict(zip(new, stored, strict=True))

    def lock(self, connection: Connection, outcomes: Sequence[CrawlOutcome]) -> None:
        """Lock the pages' extractions before their tasks: the order of `store.statements`."""
        lock_extraction_rows(
            connection, {outcome.item.extraction_id for outcome in outcomes if outcome.item is not None}
        )

    def persist(
        self, connection: Connection, outcomes: Sequence[CrawlOutcome], *, now: datetime
    ) -> Sequence[EndedTask]:
        """Write pages, the pages that follow, extract tasks, and finish extractions that failed.

        A page of records whose content the published dataset already has is not extracted again.
        Whether an extraction is complete is decided when it is quiet (`datasets.finishing`).
        """
        settings = self._ctx.settings
        done = [(outcome.item, outcome.value) for outcome in outcomes if isinstance(outcome, Completed)]
        failures = self._failed_pages(connection, outcomes, now=now)
        snapshot_ids = self._write_snapshots(connection, done, now=now)
        ids = {work.extraction_id for work, *_ in [*done, *failures]}
        active = lock_extractions(connection, ids, now=now)
        downloaded = _write_visits(connection, done, snapshot_ids, failures, now=now)
        followed = [(work, page.followed) for work, page in done]
        write_followed(connection, followed, known_pages=self._page_cache, now=now, settings=settings)
        carried = carry_over(connection, downloaded, active, now=now, settings=settings)
        carried_tasks = {work.page_id: work.task for work, _ in done if work.page_id in carried}
        explore_carried(connection, carried_tasks, now=now, settings=settings)
        to_extract = [work for work, _ in done if work.page_id in downloaded - carried and work.extraction_id in active]
        continue_all(connection, [_extract_request(work, now) for work in to_extract], now=now)
        # In one call: a second one would lock rows out of order.
        finishes = failed_finishes(connection, ids) | _blocked_finishes(failures)
        finish_extractions(connection, finishes, now=now, settings=settings, random=self._ctx.random)
        return [
            *(_done(work, page) for work, page in done),
            *(end for _, _, end in failures),
            *(skipped(outcome) for outcome in outcomes if isinstance(outcome, Skipped)),
            *(not_done(outcome) for outcome in outcomes if isinstance(outcome, Failed) and outcome.item is None),
        ]

    def _write_snapshots(
        self, connection: Connection, done: Sequence[tuple[PageWork, PageDone]], *, now: datetime
    ) -> dict[int, int]:
        """Write the snapshots of new pages, and renew those of unchanged ones; return the ids by page."""
        new = [work for work, page in done if isinstance(page.answer, NewPage)]
        ids = self._archive.keep(connection, [self._stored[work.task.id] for work in new], now=now)
        same = {work.page_id: page.answer for work, page in done if isinstance(page.answer, SamePage)}
        self._archive.renew(connection, same.values())
        new_ids = dict(zip((work.page_id for work in new), ids, strict=True))
        return new_ids | {page_id: answer.known_page.snapshot_id for page_id, answer in same.items()}

    def _failed_pages(
        self, connection: Connection, outcomes: Sequence[CrawlOutcome], *, now: datetime
    ) -> list[FailedPage]:
        """Return each failed page with the end of its task; one that was put off too long is abandoned.

        Otherwise a crawl might never end. The age alone is not enough: a large catalogue on a slow host puts its
        pages off for weeks.
        """
        failures = [(outcome.item, outcome) for outcome in outcomes if isinstance(outcome, Failed) and outcome.item]
        since = now - LONGEST_WAIT
        old = [work for work, failure in failures if _is_put_off(failure.error) and _put_off_since(work, now) < since]
        abandoned = without_progress(connection, old, since=since) if old else set[int]()
        return [
            (
                work,
                failure.error,
                # A page that robots.txt forbids stays forbidden during this crawl.
                _abandon(work, failure.error)
                if failure.error.code == FORBIDDEN or work.task.id in abandoned
                else _failed(work, failure, now=now),
            )
            for work, failure in failures
        ]


def _done(work: PageWork, page: PageDone) -> EndedTask:
    if isinstance(page.answer, SamePage):
        return EndedTask(move=finished(work.task), count="same")
    return EndedTask(move=finished(work.task), count="new", amounts={"size_bytes": page.size_bytes})


def _is_put_off(error: WorkError) -> bool:
    return isinstance(error, Resource) and error.code not in _RUN_CODES


def _put_off_since(work: PageWork, now: datetime) -> datetime:
    put_off_since = (work.task.state or {}).get(_PUT_OFF_SINCE)
    return now if put_off_since is None else datetime.fromisoformat(put_off_since)


def _failed(work: PageWork, failure: Failed[PageWork], *, now: datetime) -> EndedTask:
    """Return the end of a failed page's task; one that is put off remembers since when."""
    ended = not_done(failure)
    if isinstance(failure.decision, ReleaseTask) and failure.error.code in _HOST_CODES:
        ended = replace(ended, again_at=failure.decision.not_before)
    if ended.move is None or not ended.is_pending or not _is_put_off(failure.error):
        return ended
    return ended.with_move(state={**(ended.move.state or {}), _PUT_OFF_SINCE: _put_off_since(work, now).isoformat()})


def _abandon(work: PageWork, error: WorkError) -> EndedTask:
    ended = EndedTask(move=finished(work.task, status=TaskStatus.SKIPPED), count="failed")
    return ended.with_move(error_class=error.error_class.value, error_code=error.code, error=error.text)


_VISIT_COLUMNS = {
    name: pages.c[name].type
    for name in ("id", "status", "snapshot_id", "outcome", "failure", "size_bytes", "elapsed_ms", "visited_at")
}
LEADS_NOWHERE = {"class": "no_data", "code": NO_LINKS, "message": "the page has no links to follow"}


def _write_visits(
    connection: Connection,
    done: Iterable[tuple[PageWork, PageDone]],
    snapshot_ids: Mapping[int, int],
    failures: Iterable[FailedPage],
    *,
    now: datetime,
) -> set[int]:
    """Write each page's result; return the ids of the pages that are now to be extracted.

    Only pages that are still to be fetched change: what was extracted meanwhile stays as it is.
    """
    rows: list[tuple[Any, ...]] = []
    for work, page in done:
        is_detail = page.followed.is_detail
        status = PageStatus.DOWNLOADED if is_detail else PageStatus.SUCCESS
        outcome = "new" if isinstance(page.answer, NewPage) else "same"
        note = None if is_detail or page.followed.pages else LEADS_NOWHERE
        measured = (page.size_bytes, page.elapsed_ms, now)
        rows.append((work.page_id, status.value, snapshot_ids[work.page_id], outcome, note, *measured))
    for work, error, end in failures:
        status, visited_at = (PageStatus.WAITING, None) if end.is_pending else (PageStatus.ERROR, now)
        rows.append((work.page_id, status.value, None, None, failure_reason(error), None, None, visited_at))
    if not rows:
        return set()
    visits = row_source(connection, _VISIT_COLUMNS, rows, "given")
    was_visited = visits.c.visited_at.is_not(None)
    values = {name: visits.c[name] for name in ("status", "outcome", "failure", "elapsed_ms", "size_bytes")}
    changed = connection.execute(
        update(pages)
        .where(pages.c.id == visits.c.id, pages.c.status.in_(OPEN_PAGES))
        .values(
            **values,
            snapshot_id=func.coalesce(visits.c.snapshot_id, pages.c.snapshot_id),
            visited_at=case((was_visited, visits.c.visited_at), else_=pages.c.visited_at),
        )
        .returning(pages.c.id, pages.c.status)
    )
    return {id_ for id_, status in changed if status == PageStatus.DOWNLOADED.value}


def _extract_request(work: PageWork, now: datetime) -> SpawnRequest:
    """Return the task that extracts the page, as the continuation of the one that fetched it."""
    child = NewTask(
        kind=EXTRACT_PAGE,
        dedupe_key=f"{work.extraction_id}:{work.page_id}",
        not_before=now,
        priority=work.task.priority,
        shard=work.source.shard,
        source_id=work.source.id,
        url=work.visit.url,
        payload={"page": work.page_id, "extraction": work.extraction_id},
    )
    return SpawnRequest(parent=work.task, child=child)


def _blocked_finishes(failures: Iterable[FailedPage]) -> dict[int, FinishReason]:
    """Return finishes for extractions that met a bot wall on any page: it is meant for all pages.

    A password form blocks only its own page; only at the root does it block the source.
    """
    return {
        work.extraction_id: FinishReason(status=ExtractionStatus.CANCELLED, failure=failure_reason(error))
        for work, error, end in failures
        if error.code == BOT_CHECK and not end.is_pending
    }
