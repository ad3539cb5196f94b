"""What listings came to, in one fenced transaction: companies, verdicts, matches, notices, tasks.

A result counts only if its claim still holds and the listing still says what was judged; one that
was changed meanwhile is judged again. The number of statements does not grow with the listings.
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
    write_failures,
    write_gone,
    write_matches,
    write_progress,
    write_scraped,
    write_verdicts,
)
from ingestion_pipeline.companies.matching.stages import Rules, verdict_of
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
from ingestion_pipeline.companies.states import (
    COMPANY,
    CompanyStatus,
    ListingDecision,
    ListingStatus,
)
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
from ingestion_pipeline.tasks.task import (
    Move,
    NewTask,
    Task,
    TaskStatus,
    failed,
    finished,
    released,
    retried,
)
from ingestion_pipeline.urls import BadUrl, canonical_url, checked_url, host_of

UNANALYSED = ("about", "culture", "mission", "size", "headquarters", "industry", "founded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identified:
    """Which company each listing is of, by the listing's id, and which of them are new.

    `unanalysed` are those of which little is known, the new ones among them, each with the key of
    its website if that is known.
    """

    ids: Mapping[int, str]
    made: frozenset[str]
    unanalysed: Mapping[str, str | None] = field(default_factory=dict[str, str | None])


def company_id_of(work: ListingWork) -> str | None:
    """As its board's source names the company, else by the name on the listing; None if neither."""
    if work.company_id or work.source_company_id:
        return work.company_id or work.source_company_id
    name = stated_company(work.listing.company)
    return company_slug(name) if name else None


def website_of(work: ListingWork) -> str | None:
    """The company's own site as the listing states it, if it is one that may be visited."""
    stated = work.scraped.get("company_website") or work.company_website
    try:
        return None if stated is None else canonical_url(checked_url(stated))
    except BadUrl:
        return None


def identify(connection: Connection, works: Sequence[ListingWork], *, now: datetime) -> Identified:
    """Every company that a listing names has a row, also if two workers come at the same time."""
    wanted = {work.id: company_id for work in works if (company_id := company_id_of(work))}
    rows = {
        wanted[work.id]: _row(work, wanted[work.id], now) for work in works if work.id in wanted
    }
    if not rows:
        return Identified(ids={}, made=frozenset())
    known = _known(connection, rows.values())
    unknown = [row for id_, row in sorted(rows.items()) if id_ not in known]
    made: set[str] = set()
    if unknown:
        statement = insert_into(connection, companies).values(unknown).on_conflict_do_nothing()
        made = set(connection.execute(statement.returning(companies.c.id)).scalars())
        if len(made) < len(unknown):
            known |= _known(connection, [row for row in unknown if row["id"] not in made])
    ids = {id_: known[name].id if name in known else name for id_, name in wanted.items()}
    pending = {one.id: one.website_key for one in known.values() if one.is_unanalysed}
    pending |= {name: rows[name]["website_key"] for name in made}
    return Identified(ids=ids, made=frozenset(made), unanalysed=pending)


@dataclass(frozen=True, slots=True)
class _StoredCompany:
    id: str
    website_key: str | None
    is_unanalysed: bool


def _known(connection: Connection, rows: Iterable[Mapping[str, Any]]) -> dict[str, _StoredCompany]:
    """By the wanted id the one that stands, which may be another of the same website."""
    given = list(rows)
    keys = [row["website_key"] for row in given if row["website_key"]]
    query = select(companies.c.id, companies.c.website_key, companies.c.status).where(
        or_(companies.c.id.in_([row["id"] for row in given]), companies.c.website_key.in_(keys))
    )
    found: Sequence[RowMapping] = connection.execute(query).mappings().all()
    pending = CompanyStatus.PENDING.value
    by_id = {
        row["id"]: _StoredCompany(row["id"], row["website_key"], row["status"] == pending)
        for row in found
    }
    by_key = {one.website_key: one for one in by_id.values() if one.website_key}
    return {
        row["id"]: by_id[row["id"]] if row["id"] in by_id else by_key[row["website_key"]]
        for row in given
        if row["id"] in by_id or row["website_key"] in by_key
    }


def _row(work: ListingWork, company_id: str, now: datetime) -> dict[str, Any]:
    speaks = _speaks_for(work, company_id)
    website = website_of(work) if speaks else None
    name = stated_company(work.listing.company) if speaks else None
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


def _speaks_for(work: ListingWork, company_id: str) -> bool:
    """Return whether name and website of the listing are those of the company it is filed under.

    A company's board may list a partner's jobs, whose name and site are not the company's.
    """
    name = stated_company(work.listing.company)
    slug = company_slug(name) if name else company_id
    return f"{slug}-".startswith(f"{company_id}-") or f"{company_id}-".startswith(f"{slug}-")


def spawn_analyses(
    connection: Connection,
    works: Sequence[ListingWork],
    found: Identified,
    *,
    now: datetime,
    policy: Work,
) -> dict[str, int | Refusal]:
    """A company that nobody has analysed is to be, if its website is known, unless it is under way.

    By id the task, or why there is none. It is a child of the listing's own task: what its lineage
    has seen is not begun again, so a thin company, its board and its jobs do not run in circles.
    """
    first = {found.ids[work.id]: work for work in reversed(works) if _is_unanalysed(work, found)}
    under_way = _under_way(connection, first.keys() - found.made)
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


def _is_unanalysed(work: ListingWork, found: Identified) -> bool:
    """Whether the listing leads to the site of its company, of which nobody knows anything.

    A board may list the jobs of others: their sites are not its company's.
    """
    company_id, website = found.ids.get(work.id), website_of(work)
    if company_id is None or company_id not in found.unanalysed or website is None:
        return False
    key = found.unanalysed[company_id]
    return _speaks_for(work, company_id) if key is None else key == website_key(website)


def _under_way(connection: Connection, company_ids: Collection[str]) -> set[str]:
    """Those of these that somebody analyses, or is about to."""
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
    from ingestion_pipeline.companies.matching.stages import next_stage

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
