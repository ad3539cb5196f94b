"""Writes evaluation results in one fenced transaction: companies, decisions, matches, tasks.

A result counts only if its claim still holds and the listing is unchanged since it was claimed; a
listing changed in between is evaluated again. The number of statements does not grow with the
number of listings.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeGuard

from sqlalchemy import Connection, Row, RowMapping, or_, select
from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.companies.boards.rows import lock_listings
from ingestion_pipeline.companies.matching.rows import (
    write_decisions,
    write_failures,
    write_gone,
    write_matches,
    write_progress,
    write_scraped,
)
from ingestion_pipeline.companies.matching.stages import Rules, decision_of
from ingestion_pipeline.companies.matching.tasks import (
    Evaluated,
    ListingGone,
    ListingWork,
    MatchCounts,
    NotEvaluated,
    Result,
)
from ingestion_pipeline.companies.names import clean_company_name, company_slug, stated_company
from ingestion_pipeline.companies.records import website_key
from ingestion_pipeline.companies.states import COMPANY, CompanyStatus, ListingDecision, ListingStatus
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.settings import Work
from ingestion_pipeline.sources.source import shard_of
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import ACTIVE, companies, job_listings, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.dead_letters import DeadLetterEntry, add_dead_letters
from ingestion_pipeline.tasks.errors import Fatal, Permanent, Resource, WorkError, classify
from ingestion_pipeline.tasks.queue import Refusal, spawn
from ingestion_pipeline.tasks.retry import DeadLetterTask, ReleaseTask, Retry, after_failure
from ingestion_pipeline.tasks.task import Move, NewTask, Task, TaskStatus, failed, finished, released, retried
from ingestion_pipeline.urls import BadUrl, canonical_url, checked_url, host_of

UNANALYSED = ("about", "culture", "mission", "size", "headquarters", "industry", "founded")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifiedCompanies:
    """The company of each listing, by the listing's id, and which companies are new.

    `unanalysed` are companies without an analysis, new ones included, each with the key of its
    website if that is known.
    """

    ids: Mapping[int, str]
    made: frozenset[str]
    unanalysed: Mapping[str, str | None] = field(default_factory=dict[str, str | None])


def company_id_of(work: ListingWork) -> str | None:
    """Return the company named by the board's source, else by the listing; None if neither."""
    if work.company_id or work.source_company_id:
        return work.company_id or work.source_company_id
    name = stated_company(work.listing.company)
    return company_slug(name) if name else None


def website_of(work: ListingWork) -> str | None:
    """Return the company's website as the listing states it, if it is a valid URL."""
    stated = work.scraped.get("company_website") or work.company_website
    try:
        return None if stated is None else canonical_url(checked_url(stated))
    except BadUrl:
        return None


def identify_companies(connection: Connection, works: Sequence[ListingWork], *, now: datetime) -> IdentifiedCompanies:
    """Ensure a row for every company that a listing names; safe for concurrent workers."""
    company_ids = {work.id: company_id for work in works if (company_id := company_id_of(work))}
    rows = {company_ids[work.id]: _row(work, company_ids[work.id], now) for work in works if work.id in company_ids}
    if not rows:
        return IdentifiedCompanies(ids={}, made=frozenset())
    existing = _existing_companies(connection, rows.values())
    missing = [row for id_, row in sorted(rows.items()) if id_ not in existing]
    made: set[str] = set()
    if missing:
        statement = insert_into(connection, companies).values(missing).on_conflict_do_nothing()
        made = set(connection.execute(statement.returning(companies.c.id)).scalars())
        if len(made) < len(missing):
            existing |= _existing_companies(connection, [row for row in missing if row["id"] not in made])
    ids = {id_: existing[name].id if name in existing else name for id_, name in company_ids.items()}
    pending = {stored.id: stored.website_key for stored in existing.values() if stored.is_unanalysed}
    pending |= {name: rows[name]["website_key"] for name in made}
    return IdentifiedCompanies(ids=ids, made=frozenset(made), unanalysed=pending)


@dataclass(frozen=True, slots=True)
class _StoredCompany:
    id: str
    website_key: str | None
    is_unanalysed: bool


def _existing_companies(connection: Connection, rows: Iterable[Mapping[str, Any]]) -> dict[str, _StoredCompany]:
    """Return the stored company by requested id; it may be another of the same website."""
    requested = list(rows)
    keys = [row["website_key"] for row in requested if row["website_key"]]
    query = select(companies.c.id, companies.c.website_key, companies.c.status).where(
        or_(companies.c.id.in_([row["id"] for row in requested]), companies.c.website_key.in_(keys))
    )
    stored_rows: Sequence[RowMapping] = connection.execute(query).mappings().all()
    pending = CompanyStatus.PENDING.value
    by_id = {row["id"]: _StoredCompany(row["id"], row["website_key"], row["status"] == pending) for row in stored_rows}
    by_key = {stored.website_key: stored for stored in by_id.values() if stored.website_key}
    return {
        row["id"]: by_id[row["id"]] if row["id"] in by_id else by_key[row["website_key"]]
        for row in requested
        if row["id"] in by_id or row["website_key"] in by_key
    }


def _row(work: ListingWork, company_id: str, now: datetime) -> dict[str, Any]:
    is_own = _is_own_company(work, company_id)
    website = website_of(work) if is_own else None
    name = stated_company(work.listing.company) if is_own else None
    return {
        "id": company_id,
        "name": clean_company_name(name) if name else None,
        "website": website,
        "website_key": None if website is None else website_key(website),
        "status": CompanyStatus.PENDING.value,
        "quality": {"missing": list(UNANALYSED)},
        "discovered_by": f"listing:{work.id}",
        "tracking_id": work.task.tracking_id,
        "created_at": now,
        "updated_at": now,
    }


def _is_own_company(work: ListingWork, company_id: str) -> bool:
    """Return whether the listing's name and website are those of its assigned company.

    A company's board may list a partner's jobs, whose name and site are not the company's.
    """
    name = stated_company(work.listing.company)
    slug = company_slug(name) if name else company_id
    return f"{slug}-".startswith(f"{company_id}-") or f"{company_id}-".startswith(f"{slug}-")


def spawn_analyses(
    connection: Connection,
    works: Sequence[ListingWork],
    identified: IdentifiedCompanies,
    *,
    now: datetime,
    policy: Work,
) -> dict[str, int | Refusal]:
    """Spawn an analysis for each unanalysed company whose website is known and that has none.

    Return by company id the task, or why there is none. The task is a child of the listing's own
    task: the spawn guard refuses what its lineage has seen, so that a thin company, its board and
    its jobs do not run in circles.
    """
    first = {identified.ids[work.id]: work for work in reversed(works) if _is_unanalysed(work, identified)}
    under_way = _under_way(connection, first.keys() - identified.made)
    made: dict[str, int | Refusal] = {}
    for company_id, work in sorted(first.items()):
        if company_id in under_way:
            continue
        website = website_of(work) or ""
        child = NewTask(
            kind=COMPANY,
            dedupe_key=company_id,
            not_before=now,
            shard=shard_of(host_of(website)),
            url=website,
            payload={"company_id": company_id},
        )
        made[company_id] = spawn(connection, work.task, child, now=now, policy=policy)
    return made


def _is_unanalysed(work: ListingWork, identified: IdentifiedCompanies) -> bool:
    """Return whether the listing names the website of its company, which has no analysis.

    A board may list the jobs of others: their sites are not its company's.
    """
    company_id, website = identified.ids.get(work.id), website_of(work)
    if company_id is None or company_id not in identified.unanalysed or website is None:
        return False
    key = identified.unanalysed[company_id]
    return _is_own_company(work, company_id) if key is None else key == website_key(website)


def _under_way(connection: Connection, company_ids: Collection[str]) -> set[str]:
    """Return those of these companies that have an active analysis task."""
    if not company_ids:
        return set()
    is_theirs = tasks.c.dedupe_key.in_(list(company_ids))
    query = select(tasks.c.dedupe_key).where(ACTIVE, tasks.c.kind == COMPANY, is_theirs)
    return set(connection.execute(query).scalars())


log = logging.getLogger(__name__)

WAITS_FOR_COMPANY = "company_sparse"
STATUSES = {
    ListingDecision.MATCHED: TaskStatus.SUCCESS,
    ListingDecision.FILTERED: TaskStatus.FILTERED,
    ListingDecision.SKIPPED: TaskStatus.SKIPPED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingsPersisted:
    """The counts of a flush, and when its retries are due."""

    counts: MatchCounts = field(default_factory=MatchCounts)
    again_at: Sequence[datetime] = ()

    def __add__(self, other: ListingsPersisted) -> ListingsPersisted:
        """Return the sum of both."""
        return ListingsPersisted(counts=self.counts + other.counts, again_at=[*self.again_at, *other.again_at])


def write_results(ctx: RunContext, rules: Rules, results: Sequence[Result]) -> ListingsPersisted:
    """Write every result whose claim still holds.

    If one result cannot be written, the transaction fails: then each is written on its own, so that
    only the faulty one fails.
    """
    if not results:
        return ListingsPersisted()
    try:
        return _commit(ctx, rules, results)
    except SQLAlchemyError as error:
        if isinstance(classify(error), Fatal):
            raise
        log.warning("batch write failed listings=%d; writing one by one", len(results), exc_info=True)
    written = ListingsPersisted()
    for result in results:
        written += _commit_alone(ctx, rules, result)
    return written


def _commit_alone(ctx: RunContext, rules: Rules, result: Result) -> ListingsPersisted:
    try:
        return _commit(ctx, rules, [result])
    except SQLAlchemyError as error:
        if not isinstance(result, Evaluated) or isinstance(classify(error), Fatal):
            raise
        message = f"the decision on listing {result.work.id} could not be written: {error}"
        failure = Permanent(message[:2_000], code="not_written")
        stack = traceback.format_exc(limit=-20)
        bare = replace(result.work, scraped={})
        return _commit(ctx, rules, [NotEvaluated(work=bare, error=failure, stack=stack)])


def _commit(ctx: RunContext, rules: Rules, results: Sequence[Result]) -> ListingsPersisted:
    def write(connection: Connection) -> ListingsPersisted:
        now = ctx.store.clock.now(connection)
        return _Flush(connection, ctx, rules, now=now).write(results)

    return ctx.store.write(write)


class _Flush:
    """One transaction that writes results."""

    def __init__(self, connection: Connection, ctx: RunContext, rules: Rules, *, now: datetime) -> None:
        self._connection = connection
        self._ctx = ctx
        self._rules = rules
        self._now = now
        self._moves: list[Move] = []
        self._dead_letters: list[DeadLetterEntry] = []
        self._again_at: list[datetime] = []
        self._waiting = 0

    def write(self, results: Sequence[Result]) -> ListingsPersisted:
        held_ids = claims.held(self._connection, [(result.task.id, result.task.fence) for result in results])
        held = [result for result in results if result.task.id in held_ids]
        rows = self._locked([_listing_id(result) for result in held])
        gone = [result.task for result in held if isinstance(result, ListingGone)]
        self._moves += [_skipped(result.task, result.why) for result in held if isinstance(result, ListingGone)]
        current: list[Evaluated | NotEvaluated] = []
        pages = {int(result.task.payload["listing_id"]): result.why for result in held if _is_page_gone(result)}
        withdrawn = write_gone(self._connection, self._rules, pages, now=self._now)
        for result in held:
            if isinstance(result, ListingGone):
                continue
            if self._is_current(result.work, rows.get(result.work.id), gone):
                current.append(result)
        identified = identify_companies(self._connection, [result.work for result in current], now=self._now)
        evaluated = [result.work for result in current if isinstance(result, Evaluated)]
        counts = self._write_evaluated(evaluated, identified, rows)
        counts += self._write_others([result for result in current if isinstance(result, NotEvaluated)], identified)
        works = [result.work for result in current]
        policy = self._ctx.settings.work
        spawn_analyses(self._connection, works, identified, now=self._now, policy=policy)
        add_dead_letters(self._connection, self._dead_letters, now=self._now)
        claims.apply(self._connection, self._moves, now=self._now)
        counts += MatchCounts(
            skipped=len(gone),
            withdrawn=withdrawn,
            failed=len(self._dead_letters),
            retried=len(self._again_at),
            waiting=self._waiting,
            scraped=sum(bool(work.scraped) for work in works),
            companies=len(identified.made),
            lost=len(results) - len(held),
        )
        return ListingsPersisted(counts=counts, again_at=self._again_at)

    def _locked(self, ids: Sequence[int]) -> dict[int, Row[tuple[int, str, str, str | None]]]:
        """Lock the listings before writing, in one order, to avoid deadlocks; return them by id.

        The lock on all listings also excludes a board that writes some of them step by step.
        """
        if not ids:
            return {}
        lock_listings(self._connection)
        columns = (job_listings.c[name] for name in ("id", "content_hash", "status", "decision"))
        query = select(*columns).where(job_listings.c.id.in_(ids)).order_by(job_listings.c.id)
        return {row.id: row for row in self._connection.execute(query.with_for_update())}

    def _is_current(
        self, work: ListingWork, row: Row[tuple[int, str, str, str | None]] | None, gone: list[Task]
    ) -> bool:
        """Return whether the listing is unchanged; else skip or release its task."""
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

    def _write_evaluated(
        self,
        works: Sequence[ListingWork],
        identified: IdentifiedCompanies,
        rows: Mapping[int, Row[tuple[int, str, str, str | None]]],
    ) -> MatchCounts:
        decisions_by_id = {work.id: decision_of(work.state) for work in works}
        works = write_scraped(self._connection, works)
        write_decisions(self._connection, self._rules, works, identified.ids, now=self._now)
        before = {id_ for id_ in decisions_by_id if rows[id_].decision == ListingDecision.MATCHED.value}
        new, withdrawn, notified = write_matches(
            self._connection, self._rules, works, identified.ids, before=before, now=self._now, run_id=self._ctx.run_id
        )
        for work in works:
            move = finished(work.task, status=STATUSES[decisions_by_id[work.id]])
            self._moves.append(replace(move, stage="SAVE", state=None, error=_skip_reason(work)))
        decisions = list(decisions_by_id.values())
        return MatchCounts(
            matched=decisions.count(ListingDecision.MATCHED),
            filtered=decisions.count(ListingDecision.FILTERED),
            skipped=decisions.count(ListingDecision.SKIPPED),
            new_matches=new,
            withdrawn=withdrawn,
            told=notified,
        )

    def _write_others(self, others: Sequence[NotEvaluated], identified: IdentifiedCompanies) -> MatchCounts:
        works = write_scraped(self._connection, [result.work for result in others])
        write_progress(self._connection, works, identified.ids)
        for result in others:
            self._decide(result)
        failed_ids = {entry.task.id for entry in self._dead_letters}
        given_up = [work for work in works if work.task.id in failed_ids]
        write_failures(self._connection, self._rules, given_up)
        return MatchCounts()

    def _decide(self, result: NotEvaluated) -> None:
        """Retry, release or dead-letter the task; its progress is stored in its state."""
        task = replace(result.task, stage=_stage(result), state=_state(result))
        policy, random = self._ctx.settings.work, self._ctx.random
        match after_failure(task, result.error, now=self._now, policy=policy, random=random):
            case Retry(not_before):
                self._again_at.append(not_before)
                self._moves.append(retried(task, result.error, not_before=not_before))
            case ReleaseTask(not_before):
                self._waiting += 1
                # `released` clears the stage of a task without attempts; it is needed to resume.
                move = released(task, result.error, not_before=not_before)
                self._moves.append(replace(move, stage=task.stage))
            case DeadLetterTask():
                error = _with_cure(result)
                self._dead_letters.append(DeadLetterEntry(task=task, error=error, stack=result.stack))
                self._moves.append(failed(task, error))


def _listing_id(result: Result) -> int:
    return int(result.task.payload.get("listing_id", 0)) if isinstance(result, ListingGone) else result.work.id


def _stage(result: NotEvaluated) -> str:
    from ingestion_pipeline.companies.matching.stages import next_stage

    return next_stage(result.work.state).value


def _state(result: NotEvaluated) -> dict[str, object]:
    state: dict[str, object] = {"has_data": result.work.state.has_data}
    waits = result.work.company_waits + (result.error.code == WAITS_FOR_COMPANY)
    return state | ({"company_waits": waits} if waits else {})


def _skip_reason(work: ListingWork) -> str | None:
    """Return why the listing did not become a match, for its task's row."""
    state = work.state
    if state.stop is not None:
        return state.stop.reason
    if state.filtered is not None and not state.filtered.passed:
        return "; ".join(item.reason for item in state.filtered.items)[:2_000]
    if state.match is not None and not state.match.is_match:
        return f"below {state.match.threshold}: {state.match.reason}"[:2_000]
    return None


def _with_cure(result: NotEvaluated) -> WorkError:
    tries = f"after {result.task.attempts} attempts" if result.task.attempts > 1 else "at once"
    where = result.work.listing.url or f"listing {result.work.id}"
    message = (
        f"failed {tries}: {result.error}. Check {where} and fix the cause, then"
        " `ingest dead-letters replay ID` evaluates it again"
    )
    return Permanent(message, code=result.error.code)


def _is_page_gone(result: Result) -> TypeGuard[ListingGone]:
    return isinstance(result, ListingGone) and result.is_page_gone


def _skipped(task: Task, why: str) -> Move:
    move = finished(task, status=TaskStatus.SKIPPED)
    return replace(move, error_code="listing_gone", error=why[:2_000])
