"""What listings came to, in one fenced transaction: companies, verdicts, matches, notices, tasks.

A result counts only if its claim still holds and the listing still says what was judged; one that
was changed meanwhile is judged again. The number of statements does not grow with the listings.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeGuard

from sqlalchemy import Connection, Row, select
from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.companies.boards.rows import lock_listings
from ingestion_pipeline.companies.matching.company_rows import (
    Identified,
    identify,
    spawn_analyses,
)
from ingestion_pipeline.companies.matching.judging import Rules, verdict_of
from ingestion_pipeline.companies.matching.rows import (
    write_failures,
    write_gone,
    write_matches,
    write_progress,
    write_scraped,
    write_verdicts,
)
from ingestion_pipeline.companies.matching.work import (
    Evaluated,
    ListingGone,
    ListingWork,
    MatchCounts,
    NotEvaluated,
    Result,
)
from ingestion_pipeline.companies.states import ListingDecision, ListingStatus
from ingestion_pipeline.pages.workshop import RunContext
from ingestion_pipeline.store.tables import job_listings
from ingestion_pipeline.work import claims
from ingestion_pipeline.work.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.work.errors import Fatal, Permanent, Resource, WorkError, classify
from ingestion_pipeline.work.retry import DeadLetterTask, ReleaseTask, Retry, after_failure
from ingestion_pipeline.work.task import Move, Task, TaskStatus, failed, finished, released, retried

log = logging.getLogger(__name__)

WAITS_FOR_COMPANY = "company_sparse"
STATUSES = {
    ListingDecision.MATCHED: TaskStatus.SUCCESS,
    ListingDecision.FILTERED: TaskStatus.FILTERED,
    ListingDecision.SKIPPED: TaskStatus.SKIPPED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingsPersisted:
    """What a flush came to, and when what is tried again is due."""

    counts: MatchCounts = field(default_factory=MatchCounts)
    again_at: Sequence[datetime] = ()

    def __add__(self, other: ListingsPersisted) -> ListingsPersisted:
        """Both."""
        return ListingsPersisted(
            counts=self.counts + other.counts, again_at=[*self.again_at, *other.again_at]
        )


def write_results(shop: RunContext, rules: Rules, results: Sequence[Result]) -> ListingsPersisted:
    """Every result takes effect that is still ours.

    One that cannot be written spoils its transaction: then each is written on its own, so that only
    the culprit fails.
    """
    if not results:
        return ListingsPersisted()
    try:
        return _commit(shop, rules, results)
    except SQLAlchemyError as error:
        if isinstance(classify(error), Fatal):
            raise
        log.warning("a flush of %d listings failed; one by one now", len(results), exc_info=True)
    written = ListingsPersisted()
    for one in results:
        written += _commit_alone(shop, rules, one)
    return written


def _commit_alone(shop: RunContext, rules: Rules, one: Result) -> ListingsPersisted:
    try:
        return _commit(shop, rules, [one])
    except SQLAlchemyError as error:
        if not isinstance(one, Evaluated) or isinstance(classify(error), Fatal):
            raise
        said = f"the verdict on listing {one.work.id} could not be written: {error}"
        failure = Permanent(said[:2_000], code="not_written")
        stack = traceback.format_exc(limit=-20)
        bare = replace(one.work, scraped={})
        return _commit(shop, rules, [NotEvaluated(work=bare, error=failure, stack=stack)])


def _commit(shop: RunContext, rules: Rules, results: Sequence[Result]) -> ListingsPersisted:
    def write(connection: Connection) -> ListingsPersisted:
        now = shop.store.clock.now(connection)
        return _Flush(connection, shop, rules, now=now).write(results)

    return shop.store.write(write)


class _Flush:
    """One transaction."""

    def __init__(
        self, connection: Connection, shop: RunContext, rules: Rules, *, now: datetime
    ) -> None:
        self._connection = connection
        self._shop = shop
        self._rules = rules
        self._now = now
        self._moves: list[Move] = []
        self._burials: list[DeadLetterEntry] = []
        self._again_at: list[datetime] = []
        self._waiting = 0

    def write(self, results: Sequence[Result]) -> ListingsPersisted:
        mine = claims.held(self._connection, [(one.task.id, one.task.fence) for one in results])
        kept = [one for one in results if one.task.id in mine]
        rows = self._locked([_listing_id(one) for one in kept])
        gone = [one.task for one in kept if isinstance(one, ListingGone)]
        self._moves += [_skipped(one.task, one.why) for one in kept if isinstance(one, ListingGone)]
        current: list[Evaluated | NotEvaluated] = []
        pages = {int(one.task.payload["listing_id"]): one.why for one in kept if _is_page_gone(one)}
        withdrawn = write_gone(self._connection, self._rules, pages, now=self._now)
        for one in kept:
            if isinstance(one, ListingGone):
                continue
            if self._is_current(one.work, rows.get(one.work.id), gone):
                current.append(one)
        found = identify(self._connection, [one.work for one in current], now=self._now)
        judged = [one.work for one in current if isinstance(one, Evaluated)]
        counts = self._write_judged(judged, found, rows)
        counts += self._write_others(
            [one for one in current if isinstance(one, NotEvaluated)], found
        )
        works = [one.work for one in current]
        policy = self._shop.settings.work
        spawn_analyses(self._connection, works, found, now=self._now, policy=policy)
        add_dead_letters(self._connection, self._burials, now=self._now)
        claims.apply(self._connection, self._moves, now=self._now)
        counts += MatchCounts(
            skipped=len(gone),
            withdrawn=withdrawn,
            failed=len(self._burials),
            retried=len(self._again_at),
            waiting=self._waiting,
            scraped=sum(bool(work.scraped) for work in works),
            companies=len(found.made),
            lost=len(results) - len(kept),
        )
        return ListingsPersisted(counts=counts, again_at=self._again_at)

    def _locked(self, ids: Sequence[int]) -> dict[int, Row[tuple[int, str, str, str | None]]]:
        """The listings as they stand, before anything is written: in one order, so no deadlock.

        Nor with a board that brings some of them, which writes them step by step.
        """
        if not ids:
            return {}
        lock_listings(self._connection)
        columns = (job_listings.c[name] for name in ("id", "content_hash", "status", "verdict"))
        query = select(*columns).where(job_listings.c.id.in_(ids)).order_by(job_listings.c.id)
        return {row.id: row for row in self._connection.execute(query.with_for_update())}

    def _is_current(
        self,
        work: ListingWork,
        row: Row[tuple[int, str, str, str | None]] | None,
        gone: list[Task],
    ) -> bool:
        """Whether the listing is as it was judged; else its task is dealt with here."""
        if row is None or row.status == ListingStatus.CLOSED.value:
            gone.append(work.task)
            self._moves.append(_skipped(work.task, "the listing was closed meanwhile"))
            return False
        if row.content_hash == work.content_hash:
            return True
        changed = Resource("the listing was changed meanwhile", until=self._now, code="outdated")
        self._moves.append(released(work.task, changed, not_before=self._now))
        self._again_at.append(self._now)
        return False

    def _write_judged(
        self,
        works: Sequence[ListingWork],
        found: Identified,
        rows: Mapping[int, Row[tuple[int, str, str, str | None]]],
    ) -> MatchCounts:
        verdicts = {work.id: verdict_of(work.state) for work in works}
        works = write_scraped(self._connection, works)
        write_verdicts(self._connection, self._rules, works, found.ids, now=self._now)
        before = {id_ for id_ in verdicts if rows[id_].verdict == ListingDecision.MATCHED.value}
        new, withdrawn, told = write_matches(
            self._connection,
            self._rules,
            works,
            found.ids,
            before=before,
            now=self._now,
            run_id=self._shop.run_id,
        )
        for work in works:
            move = finished(work.task, status=STATUSES[verdicts[work.id]])
            self._moves.append(replace(move, stage="SAVE", state=None, error=_why(work)))
        given = list(verdicts.values())
        return MatchCounts(
            matched=given.count(ListingDecision.MATCHED),
            filtered=given.count(ListingDecision.FILTERED),
            skipped=given.count(ListingDecision.SKIPPED),
            new_matches=new,
            withdrawn=withdrawn,
            told=told,
        )

    def _write_others(self, others: Sequence[NotEvaluated], found: Identified) -> MatchCounts:
        works = write_scraped(self._connection, [one.work for one in others])
        write_progress(self._connection, works, found.ids)
        for one in others:
            self._decide(one)
        buried = {one.task.id for one in self._burials}
        given_up = [work for work in works if work.task.id in buried]
        write_failures(self._connection, self._rules, given_up)
        return MatchCounts()

    def _decide(self, one: NotEvaluated) -> None:
        """It is tried again, put off, or given up; how far it came stands in its task."""
        task = replace(one.task, stage=_stage(one), state=_state(one))
        policy, random = self._shop.settings.work, self._shop.random
        match after_failure(task, one.error, now=self._now, policy=policy, random=random):
            case Retry(not_before):
                self._again_at.append(not_before)
                self._moves.append(retried(task, one.error, not_before=not_before))
            case ReleaseTask(not_before):
                self._waiting += 1
                # The engine forgets the stage of what was never tried; here it is where to go on.
                move = released(task, one.error, not_before=not_before)
                self._moves.append(replace(move, stage=task.stage))
            case DeadLetterTask():
                error = _with_cure(one)
                self._burials.append(DeadLetterEntry(task=task, error=error, stack=one.stack))
                self._moves.append(failed(task, error))


def _listing_id(one: Result) -> int:
    return (
        int(one.task.payload.get("listing_id", 0)) if isinstance(one, ListingGone) else one.work.id
    )


def _stage(one: NotEvaluated) -> str:
    from ingestion_pipeline.companies.matching.judging import next_stage

    return next_stage(one.work.state).value


def _state(one: NotEvaluated) -> dict[str, object]:
    state: dict[str, object] = {"has_data": one.work.state.has_data}
    waits = one.work.company_waits + (one.error.code == WAITS_FOR_COMPANY)
    return state | ({"company_waits": waits} if waits else {})


def _why(work: ListingWork) -> str | None:
    """Why it did not become a match, for whoever looks at its task."""
    state = work.state
    if state.stop is not None:
        return state.stop.reason
    if state.filtered is not None and not state.filtered.passed:
        return "; ".join(item.reason for item in state.filtered.items)[:2_000]
    if state.match is not None and not state.match.is_match:
        return f"below {state.match.threshold}: {state.match.reason}"[:2_000]
    return None


def _with_cure(one: NotEvaluated) -> WorkError:
    tries = f"after {one.task.attempts} of its attempts" if one.task.attempts > 1 else "at once"
    where = one.work.listing.url or f"listing {one.work.id}"
    said = (
        f"given up {tries}: {one.error}. Look at {where}; cure what is named, then"
        " `ingest dead-letters replay ID` judges it again"
    )
    return Permanent(said, code=one.error.code)


def _is_page_gone(one: Result) -> TypeGuard[ListingGone]:
    return isinstance(one, ListingGone) and one.is_page_gone


def _skipped(task: Task, why: str) -> Move:
    move = finished(task, status=TaskStatus.SKIPPED)
    return replace(move, error_code="listing_gone", error=why[:2_000])
