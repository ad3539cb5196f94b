"""SQL that writes decisions, matches and notices: one statement each for any number of rows."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, literal, null, select, update

from ingestion_pipeline.companies.boards.listing_rows import columns_of, update_rows, withdraw_matches
from ingestion_pipeline.companies.boards.posting import content_hash, quality_of
from ingestion_pipeline.companies.company_names import fingerprint
from ingestion_pipeline.companies.company_states import ListingDecision
from ingestion_pipeline.companies.matching.scoring import MatchResult
from ingestion_pipeline.companies.matching.tasks import NOT_SCRAPED, ListingWork, Rules, decision_of
from ingestion_pipeline.notices.message import JOB_MATCH, write_notices
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.inserts import NewRows, insert_missing
from ingestion_pipeline.store.tables import job_listings, job_matches

SNAPSHOT = "detail_snapshot_id"
NEW = "new"

_DECISION = ("id", "company_id", "decision", "rules_hash", "filter_result", "match_result")
SCRAPED_COLUMNS = (
    *("company_name", "company_website", "location", "remote", "employment_type", "description", "salary"),
    *("posted_at", "valid_until", SNAPSHOT),
)
_MATCH = (
    *("listing_id", "source_id", "company_id", "score", "base_score", "rank_score", "priority", "method", "model"),
    *("adjustments", "skills_matched", "skills_missing", "reason", "grounding", "rules_hash"),
)


def write_decisions(
    connection: Connection, rules: Rules, works: Sequence[ListingWork], company_ids: Mapping[int, str], *, now: datetime
) -> None:
    """Write how each listing was evaluated, and by which rules."""
    _flag_unread(connection, works)
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
    update_rows(connection, job_listings, _DECISION, rows, {"evaluated_at": now})


def _filter_result(work: ListingWork) -> dict[str, Any] | None:
    """Return the filter's result with its moment: later profiles evaluate as of then."""
    stop, result = work.state.stop, work.state.filtered
    if stop is not None:
        return _rejection(stop.name, "stop", stop.name, stop.reason, at=work.at)
    return None if result is None else result.as_dict() | {"at": work.at.isoformat()}


def write_progress(connection: Connection, works: Sequence[ListingWork], company_ids: Mapping[int, str]) -> None:
    """Store what was found about listings without a decision, so that it is found once."""
    _flag_unread(connection, works)
    named = [(work.id, company_ids[work.id]) for work in works if work.id in company_ids]
    update_rows(connection, job_listings, ("id", "company_id"), named)


def write_failures(connection: Connection, rules: Rules, works: Sequence[ListingWork]) -> None:
    """Flag listings whose task failed for good: their data is incomplete.

    One that other rules have evaluated is not requeued for these rules: it waits for an operator.
    """
    _flag(connection, [work for work in works if not work.state.has_data])
    is_evaluated = job_listings.c.id.in_([work.id for work in works]) & (job_listings.c.rules_hash.is_not(None))
    if works:
        connection.execute(update(job_listings).where(is_evaluated).values(rules_hash=_rules_hash(rules)))


def write_gone(connection: Connection, rules: Rules, why: Mapping[int, str], *, now: datetime) -> int:
    """Skip listings whose own pages are gone and withdraw their matches; return the number."""
    rows = [(id_, _rejection("page gone", "page", "gone", reason, at=now)) for id_, reason in why.items()]
    constants = {
        "decision": ListingDecision.SKIPPED.value,
        "rules_hash": _rules_hash(rules),
        "match_result": null(),
        "evaluated_at": now,
    }
    update_rows(connection, job_listings, ("id", "filter_result"), rows, constants)
    return withdraw_matches(connection, why.keys(), now=now)


def _rejection(rejected_by: str, category: str, name: str, reason: str, *, at: datetime) -> dict[str, Any]:
    items = [{"category": category, "name": name, "reason": reason}]
    return {"passed": False, "rejected_by": rejected_by, "items": items, "at": at.isoformat()}


def _rules_hash(rules: Rules) -> ColumnElement[str]:
    """Return `Rules.rules_hash` of each row's content as SQL."""
    own = rules.rules_hash("")
    length = len(rules.rules_hash("0" * 64)) - len(own)
    return literal(own).concat(func.substr(job_listings.c.content_hash, 1, length))


def write_scraped(connection: Connection, works: Sequence[ListingWork]) -> list[ListingWork]:
    """Fill columns that the list left out; return the works, whose content, keys and quality change together."""
    scraped = [work for work in works if work.scraped]
    if scraped:
        columns = columns_of(job_listings, ("id", *SCRAPED_COLUMNS))
        rows = [(work.id, *(work.scraped.get(name) for name in SCRAPED_COLUMNS)) for work in scraped]
        updates = row_source(connection, columns, rows, "given")
        values = {name: func.coalesce(job_listings.c[name], updates.c[name]) for name in SCRAPED_COLUMNS}
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
    update_rows(connection, job_listings, ("id", "fingerprint", "content_hash", "quality"), rows)
    return changed


def _flag_unread(connection: Connection, works: Sequence[ListingWork]) -> None:
    unread = [work for work in works if work.state.has_data and not work.listing.has_text]
    _flag(connection, [work for work in unread if work.listing.url])


def _flag(connection: Connection, works: Sequence[ListingWork]) -> None:
    rows = [(work.id, {**work.quality, NOT_SCRAPED: True}) for work in works]
    changed = [row for row, work in zip(rows, works, strict=True) if row[1] != work.quality]
    update_rows(connection, job_listings, ("id", "quality"), changed)


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
    rows = {work.id: _match_row(rules, work, company_ids) for work in fitting}
    written = {"status": NEW, "run_id": run_id, "updated_at": now}
    shared = {name: (job_matches.c[name].type, value) for name, value in (written | {"created_at": now}).items()}
    matches = NewRows(
        table=job_matches,
        columns=columns_of(job_matches, _MATCH),
        rows=list(rows.values()),
        identity=("listing_id",),
        shared=shared,
    )
    made = {row.listing_id for row in insert_missing(connection, matches, returning=("listing_id",))}
    # Also those that were withdrawn and match again.
    existing = [row for id_, row in rows.items() if id_ not in made]
    update_rows(connection, job_matches, _MATCH, existing, written)
    withdrawn = withdraw_matches(connection, before - rows.keys(), now=now)
    new = [work for work in fitting if work.id in made or work.is_unreported]
    payloads = {str(work.id): notice_payload(work) for work in new if not work.is_first_sync}
    return len(made), withdrawn, write_notices(connection, JOB_MATCH, payloads, now=now)


def _match_row(rules: Rules, work: ListingWork, company_ids: Mapping[int, str]) -> tuple[Any, ...]:
    match = scored(work)
    fields = match.as_dict() | {
        "listing_id": work.id,
        "source_id": work.source_id,
        "company_id": company_ids.get(work.id, work.company_id),
        "grounding": dict(match.grounding),
        "rules_hash": rules.rules_hash(work.content_hash),
    }
    return tuple(fields[name] for name in _MATCH)


def scored(work: ListingWork) -> MatchResult:
    """Return the score of a listing that has one."""
    if work.state.match is None:
        raise ValueError(f"listing {work.id} was not scored")
    return work.state.match


def notice_payload(work: ListingWork) -> dict[str, Any]:
    """Return the content of a match's notice."""
    listing, match = work.listing, scored(work)
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
