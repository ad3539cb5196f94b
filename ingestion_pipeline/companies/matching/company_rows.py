"""The companies of listings: known at once by identifiers alone, filled when they are analysed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, or_, select

from ingestion_pipeline.companies.matching.work import ListingWork
from ingestion_pipeline.companies.names import clean_company_name, company_slug, stated_company
from ingestion_pipeline.companies.records import website_key
from ingestion_pipeline.companies.states import COMPANY, CompanyStatus
from ingestion_pipeline.settings import Work
from ingestion_pipeline.sources.source import shard_of
from ingestion_pipeline.store.insert import insert_into
from ingestion_pipeline.store.tables import ACTIVE, companies, tasks
from ingestion_pipeline.urls import BadUrl, canonical_url, checked_url, host_of
from ingestion_pipeline.work.queue import spawn
from ingestion_pipeline.work.spawn_guard import Refusal
from ingestion_pipeline.work.task import NewTask

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
