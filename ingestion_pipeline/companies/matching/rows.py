"""SQL that writes decisions, matches and notices: one statement each for any number of rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    Integer,
    String,
    Text,
    func,
    literal,
    null,
    select,
    true,
    update,
)

from ingestion_pipeline.companies.boards.posting import content_hash, quality_of
from ingestion_pipeline.companies.matching.stages import Rules, decision_of
from ingestion_pipeline.companies.matching.tasks import NOT_SCRAPED, ListingWork, flagged
from ingestion_pipeline.companies.names import fingerprint
from ingestion_pipeline.companies.states import ListingDecision
from ingestion_pipeline.notices.message import JOB_MATCH, write_notices
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import job_listings, job_matches
from ingestion_pipeline.store.types import Id, Json, UtcDateTime

SNAPSHOT = "detail_snapshot_id"
NEW, WITHDRAWN = "new", "withdrawn"

_DECISION = {
    "id": Id,
    "company_id": String(120),
    "decision": String(10),
    "rules_hash": String(64),
    "filter_result": Json,
    "match_result": Json,
}
_SCRAPED = {
    "company_name": Text(),
    "company_website": Text(),
    "location": Text(),
    "remote": String(10),
    "employment_type": Text(),
    "description": Text(),
    "salary": Json,
    "posted_at": UtcDateTime(),
    "valid_until": UtcDateTime(),
    SNAPSHOT: Id,
}
SCRAPED_COLUMNS = tuple(_SCRAPED)
_KEYS = {"id": Id, "fingerprint": String(64), "content_hash": String(64), "quality": Json}
_MATCH = {
    "listing_id": Id,
    "source_id": String(120),
    "company_id": String(120),
    "score": Integer(),
    "base_score": Integer(),
    "rank_score": Float(),
    "priority": String(10),
    "method": String(10),
    "model": Text(),
    "adjustments": Json,
    "skills_matched": Json,
    "skills_missing": Json,
    "reason": Text(),
    "grounding": Json,
    "rules_hash": String(64),
}


def write_decisions(
    connection: Connection, rules: Rules, works: Sequence[ListingWork], company_ids: Mapping[int, str], *, now: datetime
) -> None:
    """Write how each listing was evaluated, and by which rules."""
    _flag_unread(connection, works)
    if not works:
        return
    rows = [
        (
            work.id,
            company_ids.get(work.id, work.company_id),
            decision_of(work.state).value,
            rules.rules_hash(work.content_hash),
            _filter_result(work),
            None if work.state.match is None else work.state.match.as_dict(),
        )
        for work in works
    ]
    updates = row_source(connection, _DECISION, rows, "given")
    values = {name: updates.c[name] for name in _DECISION if name != "id"}
    statement = update(job_listings).where(job_listings.c.id == updates.c.id)
    connection.execute(statement.values(values | {"evaluated_at": now}))


def _filter_result(work: ListingWork) -> dict[str, Any] | None:
    """Return the filter's result with its moment: later profiles evaluate as of then."""
    state, moment = work.state, work.at.isoformat()
    if state.stop is not None:
        items = [{"category": "stop", "name": state.stop.name, "reason": state.stop.reason}]
        stopped = {"passed": False, "rejected_by": state.stop.name, "items": items}
        return {**stopped, "at": moment}
    return None if state.filtered is None else state.filtered.as_dict() | {"at": moment}


def write_progress(connection: Connection, works: Sequence[ListingWork], company_ids: Mapping[int, str]) -> None:
    """Store what was found about listings without a decision, so that it is found once."""
    _flag_unread(connection, works)
    named = [(work.id, company_ids[work.id]) for work in works if work.id in company_ids]
    if named:
        updates = row_source(connection, {"id": Id, "company_id": String(120)}, named, "given")
        statement = update(job_listings).where(job_listings.c.id == updates.c.id)
        connection.execute(statement.values(company_id=updates.c.company_id))


def write_failures(connection: Connection, rules: Rules, works: Sequence[ListingWork]) -> None:
    """Flag listings whose task failed for good: their data is incomplete.

    One that other rules have evaluated is not requeued for these rules: it waits for an operator.
    """
    _flag(connection, [work for work in works if not work.state.has_data])
    is_evaluated = job_listings.c.id.in_([work.id for work in works]) & (job_listings.c.rules_hash.is_not(None))
    if works:
        connection.execute(update(job_listings).where(is_evaluated).values(rules_hash=_judged_as_now(rules)))


def write_gone(connection: Connection, rules: Rules, why: Mapping[int, str], *, now: datetime) -> int:
    """Skip listings whose own pages are gone and withdraw their matches; return the number."""
    if not why:
        return 0
    rows = [(id_, _gone(reason, now=now)) for id_, reason in sorted(why.items())]
    updates = row_source(connection, {"id": Id, "filter_result": Json}, rows, "given")
    connection.execute(
        update(job_listings)
        .where(job_listings.c.id == updates.c.id)
        .values(
            decision=ListingDecision.SKIPPED.value,
            rules_hash=_judged_as_now(rules),
            filter_result=updates.c.filter_result,
            match_result=null(),
            evaluated_at=now,
        )
    )
    return withdraw(connection, why.keys(), now=now)


def _gone(why: str, *, now: datetime) -> dict[str, Any]:
    items = [{"category": "page", "name": "gone", "reason": why}]
    return {"passed": False, "rejected_by": "page gone", "items": items, "at": now.isoformat()}


def _judged_as_now(rules: Rules) -> ColumnElement[str]:
    """Return `Rules.rules_hash` of each row's content as SQL."""
    own = rules.rules_hash("")
    length = len(rules.rules_hash("0" * 64)) - len(own)
    return literal(own).concat(func.substr(job_listings.c.content_hash, 1, length))


def write_scraped(connection: Connection, works: Sequence[ListingWork]) -> list[ListingWork]:
    """Fill columns that the list left out from the listing's own page; existing values stay.

    Return the updated works: content, keys and quality of a listing change together.
    """
    scraped = [work for work in works if work.scraped]
    if scraped:
        columns = {"id": Id, **_SCRAPED}
        rows = [(work.id, *(work.scraped.get(name) for name in _SCRAPED)) for work in scraped]
        updates = row_source(connection, columns, rows, "given")
        values = {name: func.coalesce(job_listings.c[name], updates.c[name]) for name in _SCRAPED}
        statement = update(job_listings).where(job_listings.c.id == updates.c.id)
        connection.execute(statement.values(values))
    changed = _write_keys(connection, [work.id for work in scraped])
    return [replace(work, **changed[work.id]) if work.id in changed else work for work in works]


def _write_keys(connection: Connection, ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Recompute keys and quality of the listings; return hash and quality by id."""
    changed: dict[int, dict[str, Any]] = {}
    if not ids:
        return changed
    rows: list[tuple[Any, ...]] = []
    query = select(job_listings).where(job_listings.c.id.in_(ids)).order_by(job_listings.c.id)
    for row in map(dict[str, Any], connection.execute(query).mappings()):
        words = fingerprint(row["title"], row["company_name"], row["description"])
        quality = {**row["quality"], **quality_of(row)}
        changed[row["id"]] = {"content_hash": content_hash(row), "quality": quality}
        rows.append((row["id"], words, content_hash(row), quality))
    updates = row_source(connection, _KEYS, rows, "given")
    values = {name: updates.c[name] for name in _KEYS if name != "id"}
    connection.execute(update(job_listings).where(job_listings.c.id == updates.c.id).values(values))
    return changed


def _flag_unread(connection: Connection, works: Sequence[ListingWork]) -> None:
    unread = [work for work in works if work.state.has_data and not work.listing.has_text]
    _flag(connection, [work for work in unread if work.listing.url])


def _flag(connection: Connection, works: Sequence[ListingWork]) -> None:
    rows = [(work.id, flagged(work.quality, NOT_SCRAPED)) for work in works]
    changed = [row for row, work in zip(rows, works, strict=True) if row[1] != work.quality]
    if changed:
        updates = row_source(connection, {"id": Id, "quality": Json}, changed, "given")
        statement = update(job_listings).where(job_listings.c.id == updates.c.id)
        connection.execute(statement.values(quality=updates.c.quality))


def write_matches(
    connection: Connection,
    rules: Rules,
    works: Sequence[ListingWork],
    company_ids: Mapping[int, str],
    *,
    before: Set[int],
    now: datetime,
    run_id: str | None = None,
) -> tuple[int, int, int]:
    """Insert, update and withdraw matches; return how many are new, withdrawn and notified.

    `before` are the listings that were matches until now. A match is new by its insert. It is
    notified once in its life, and not at all if it came with its board's first sync, unless another
    board lists it later.
    """
    fitting = [work for work in works if decision_of(work.state) is ListingDecision.MATCHED]
    made: set[int] = set()
    if fitting:
        made = _insert(connection, rules, fitting, company_ids, now=now, run_id=run_id)
        existing = [work for work in fitting if work.id not in made]
        _update(connection, rules, existing, company_ids, now=now, run_id=run_id)
    withdrawn_ids = before - {work.id for work in fitting}
    new = [work for work in fitting if work.id in made or work.is_unreported]
    notified = [work for work in new if not work.is_first_sync]
    payloads = {str(work.id): notice_payload(work) for work in notified}
    return (
        len(made),
        withdraw(connection, withdrawn_ids, now=now) if withdrawn_ids else 0,
        write_notices(connection, JOB_MATCH, payloads, now=now),
    )


def _rows(rules: Rules, works: Sequence[ListingWork], company_ids: Mapping[int, str]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for work in works:
        if (match := work.state.match) is None:
            continue
        fields = match.as_dict()
        rows.append(
            (
                work.id,
                work.source_id,
                company_ids.get(work.id, work.company_id),
                *(fields[name] for name in ("score", "base_score", "rank_score")),
                *(fields[name] for name in ("priority", "method", "model")),
                *(fields[name] for name in ("adjustments", "skills_matched", "skills_missing")),
                match.reason,
                dict(match.grounding),
                rules.rules_hash(work.content_hash),
            )
        )
    return rows


def _insert(
    connection: Connection,
    rules: Rules,
    works: Sequence[ListingWork],
    company_ids: Mapping[int, str],
    *,
    now: datetime,
    run_id: str | None,
) -> set[int]:
    match_rows = row_source(connection, _MATCH, _rows(rules, works, company_ids), "given")
    extra = {"status": NEW, "run_id": run_id, "created_at": now, "updated_at": now}
    constant = [literal(value, job_matches.c[name].type) for name, value in extra.items()]
    values = [*match_rows.c, *constant]
    statement = (
        insert_into(connection, job_matches)
        .from_select([*_MATCH, *extra], select(*values).where(true()))
        .on_conflict_do_nothing(index_elements=["listing_id"])
        .returning(job_matches.c.listing_id)
    )
    return set(connection.execute(statement).scalars())


def _update(
    connection: Connection,
    rules: Rules,
    works: Sequence[ListingWork],
    company_ids: Mapping[int, str],
    *,
    now: datetime,
    run_id: str | None,
) -> None:
    """Update existing matches, including withdrawn ones that match again."""
    if not works:
        return
    match_rows = row_source(connection, _MATCH, _rows(rules, works, company_ids), "given")
    values = {name: match_rows.c[name] for name in _MATCH if name != "listing_id"}
    statement = update(job_matches).where(job_matches.c.listing_id == match_rows.c.listing_id)
    written = {"status": NEW, "run_id": run_id, "updated_at": now}
    connection.execute(statement.values(values | written))


def withdraw(connection: Connection, listing_ids: Collection[int], *, now: datetime) -> int:
    """Withdraw the matches of these listings; return how many were withdrawn."""
    statement = update(job_matches).where(
        job_matches.c.listing_id.in_(list(listing_ids)), job_matches.c.status != WITHDRAWN
    )
    return connection.execute(statement.values(status=WITHDRAWN, updated_at=now)).rowcount


def notice_payload(work: ListingWork) -> dict[str, Any]:
    """Return the content of a match's notice."""
    listing, match = work.listing, work.state.match
    if match is None:
        raise ValueError(f"listing {work.id} was not scored")
    company = f" at {listing.company}" if listing.company else ""
    where = f" ({', '.join(listing.locations[:3])})" if listing.locations else ""
    lines = [match.reason, *([listing.url] if listing.url else [])]
    return {
        "source_id": work.source_id,
        "title": f"{listing.title}{company}{where}: {match.score}, {match.priority.value}"[:300],
        "text": "\n".join(lines)[:2_000],
        "listing_id": work.id,
        "url": listing.url,
        "company": listing.company,
        "score": match.score,
        "priority": match.priority.value,
        "reason": match.reason,
        "method": match.base.method,
    }
