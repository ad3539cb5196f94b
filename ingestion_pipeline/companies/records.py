"""Records of companies, and the states of companies, listings and their tasks.

A record is created with what identifies the company and completed by its analysis. One website is one company,
whatever its name and source of discovery; a company with a website has a source of kind `company`, so that it is
a partition and is analysed again.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Strict
from sqlalchemy import Connection, RowMapping, select, update

from ingestion_pipeline.companies.job_listing import company_slug
from ingestion_pipeline.companies.platforms import PLATFORMS
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.declarations import FileModel, Weight, expect, model_of, validated
from ingestion_pipeline.sources.lookup import list_sources, sources_by_id
from ingestion_pipeline.sources.poll_tasks import POLL
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.source import IGNORE_ROBOTS, Definition, Kind, Source, Tier, shard_of
from ingestion_pipeline.store.statements import insert_into
from ingestion_pipeline.store.tables import ACTIVE, companies, sources, tasks
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask, TaskStatus
from ingestion_pipeline.urls import BadUrl, canonical_url, host_of

# Kinds of tasks. SCRAPE_SOURCE is the permanent `poll` task of a board: its key is the source's id,
# and the one that a discovery makes is the discovery's child.
COMPANY = "company"
SOURCE_DISCOVERY = "source_discovery"
SCRAPE = "scrape"
JOB = "job"
JOB_MATCH = "job_match"  # kind of notice: a listing matches the profile


class CompanyStatus(StrEnum):
    """The progress of a company's record."""

    PENDING = "pending"
    ANALYZING = "analyzing"
    ACTIVE = "active"
    FAILED = "failed"


class Completeness(StrEnum):
    """How complete the data of a company or a listing is."""

    THIN = "thin"
    MINIMAL = "minimal"
    GOOD = "good"


class ListingStatus(StrEnum):
    """Whether a board still lists it."""

    OPEN = "open"
    CLOSED = "closed"


class ListingDecision(StrEnum):
    """The result of a listing's evaluation; null before it."""

    FILTERED = "filtered"
    SKIPPED = "skipped"
    MATCHED = "matched"


class Priority(StrEnum):
    """The priority of a match."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Confidence(StrEnum):
    """The confidence that a board can be parsed: by pattern and probe, by pattern, by neither."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


def job_task(
    listing_id: int,
    url: str | None,
    source_id: str,
    *,
    now: datetime,
    board_url: str | None = None,
    is_first_sync: bool = False,
    is_unreported: bool = False,
    tracking_id: str | None = None,
) -> NewTask:
    """Return the listing's evaluation task, keyed by the listing's own URL, else by its id."""
    address = _address(url) or (board_url and f"{canonical_url(board_url)}#listing-{listing_id}")
    return NewTask(
        kind=JOB,
        dedupe_key=_address(url) or f"listing:{listing_id}",
        not_before=now,
        shard=shard_of(host_of(address)) if address else 0,
        source_id=source_id,
        url=address,
        payload={"listing_id": listing_id, "is_first_sync": is_first_sync}
        | ({"is_unreported": True} if is_unreported else {}),
        tracking_id=tracking_id,
    )


def _address(url: str | None) -> str | None:
    try:
        return canonical_url(url) if url else None
    except BadUrl:
        return None


PLATFORM = "page"  # the platform of websites
MAX_ID = 100  # characters; `company:` and a suffix must fit in the width of a source's id


def website_key(website: str) -> str:
    """Return a key that ignores a website's scheme, `www.` and trailing slash; raise BadUrl for a bad URL."""
    _, _, address = canonical_url(website).partition("://")
    return sha256(address.removeprefix("www.").rstrip("/").encode()).hexdigest()


def company_id_of(source: Source) -> str:
    """Return the company of a source of kind `company`."""
    return source.company_id or source.id.partition(":")[2]


def proposed_id(name: str | None, website: str | None) -> str:
    """Return the id of a new company from its name, else from its website; raise ValueError without both."""
    if name:
        return company_slug(name)[:MAX_ID]
    host = (urlsplit(website or "").hostname or "").removeprefix("www.")
    if not host:
        raise ValueError("a company needs a name or a website")
    return company_slug(host.partition(".")[0] if host.count(".") == 1 else host)[:MAX_ID]


def ensure_company(
    connection: Connection,
    *,
    name: str | None,
    website: str | None,
    discovered_by: str,
    tracking_id: str,
    now: datetime,
    company_id: str | None = None,
) -> str:
    """Ensure that the company, found by its website first, has a record with what is stated; return its id."""
    key = _key_or_none(website)
    existing = _by_website(connection, key)
    if existing is not None:
        _complete(connection, existing, name=name, website=None, key=None, now=now)
        return existing["id"]
    new_id = company_id or proposed_id(name, website)
    row = company(connection, new_id)
    if row is not None and (key is None or row["website_key"] in {None, key}):
        _complete(connection, row, name=name, website=website, key=key, now=now)
        return new_id
    if row is not None:  # another company of that name
        new_id = f"{new_id[:MAX_ID]}-{(key or '')[:8]}"
    made = insert_into(connection, companies).values(
        id=new_id,
        name=name,
        website=website if key else None,
        website_key=key,
        status=CompanyStatus.PENDING.value,
        quality={},
        discovered_by=discovered_by,
        tracking_id=tracking_id,
        created_at=now,
        updated_at=now,
    )
    connection.execute(made.on_conflict_do_nothing())
    # Another process may have inserted the company first, under another name.
    first = _by_website(connection, key)
    return first["id"] if first is not None else new_id


def _complete(
    connection: Connection, row: RowMapping, *, name: str | None, website: str | None, key: str | None, now: datetime
) -> None:
    """Fill the record's missing values; existing values stay."""
    stated = {"name": name, "website": website if key else None, "website_key": key}
    news = {column: value for column, value in stated.items() if value and row[column] is None}
    if news:
        connection.execute(update(companies).where(companies.c.id == row["id"]).values(**news, updated_at=now))


def company(connection: Connection, company_id: str) -> RowMapping | None:
    """Return the company's record; None if there is none."""
    query = select(companies).where(companies.c.id == company_id)
    return connection.execute(query).mappings().one_or_none()


def _by_website(connection: Connection, key: str | None) -> RowMapping | None:
    if key is None:
        return None
    query = select(companies).where(companies.c.website_key == key)
    return connection.execute(query).mappings().one_or_none()


def _key_or_none(website: str | None) -> str | None:
    try:
        return website_key(website) if website else None
    except BadUrl:
        return None


def ensure_source(connection: Connection, company_id: str, *, now: datetime, settings: Settings) -> Source | None:
    """Return the company's source of kind `company`, created if needed; None without a website.

    An existing source for the same website is used, whatever its id. A new one is first checked at
    its tier's interval, not now: the caller analyses the company.
    """
    row = company(connection, company_id)
    if row is None or row["website"] is None:
        return None
    source = _existing_source(connection, row)
    if source is None:
        source = _new_source(connection, row, now=now, settings=settings)
    if row["source_id"] != source.id:
        connection.execute(update(companies).where(companies.c.id == company_id).values(source_id=source.id))
    return source


def _existing_source(connection: Connection, row: RowMapping) -> Source | None:
    if row["source_id"] is not None and (
        existing := sources_by_id(connection, [row["source_id"]]).get(row["source_id"])
    ):
        return existing
    host = host_of(str(row["website"])).removeprefix("www.")
    hosts = sources.c.host.in_([host, f"www.{host}"])
    on_host = list_sources(connection, hosts, kind=Kind.COMPANY)
    return next((source for source in on_host if _key_or_none(source.url) == row["website_key"]), None)


def _new_source(connection: Connection, row: RowMapping, *, now: datetime, settings: Settings) -> Source:
    source_id = f"company:{row['id']}"
    if sources_by_id(connection, [source_id]):  # taken by another website
        source_id = f"{source_id}-{row['website_key'][:8]}"
    definition = Definition(
        id=source_id, kind=Kind.COMPANY, url=row["website"], name=row["name"], platform=PLATFORM, company=row["id"]
    )
    register(connection, [definition], now=now)
    later = now + timedelta(seconds=settings.interval_seconds(Kind.COMPANY.value, Tier.WARM.value))
    connection.execute(update(sources).where(sources.c.id == source_id).values(next_check_at=later))
    connection.execute(
        update(tasks).where(tasks.c.kind == POLL, tasks.c.source_id == source_id).values(not_before=later)
    )
    return sources_by_id(connection, [source_id])[source_id]


def analysis_task(
    company_id: str,
    website: str,
    *,
    now: datetime,
    source: Source | None = None,
    payload: Mapping[str, Any] | None = None,
) -> NewTask:
    """Return the COMPANY task of a company: one is active at a time."""
    return NewTask(
        kind=COMPANY,
        dedupe_key=company_id,
        not_before=now,
        url=canonical_url(website),
        source_id=source.id if source else None,
        shard=source.shard if source else 0,
        payload={"company_id": company_id, **(payload or {})},
    )


BOARDS = "boards"  # config key: the config of the company's boards by platform


class BadCompanyConfig(ValueError):
    """A company's config that cannot work; the message names the key and the fix."""


def start_analyses(
    connection: Connection, sources: Sequence[Source], *, now: datetime, is_asked: bool = False
) -> dict[str, str]:
    """Enqueue an analysis of each company, if asked for however well it is known; return a message per source."""
    messages: dict[str, str] = {}
    for source in sorted(sources, key=lambda source: source.id):  # one lock order for all callers
        company_id = ensure_company(
            connection,
            company_id=company_id_of(source),
            name=source.name,
            website=source.url,
            discovered_by=source.id,
            tracking_id=source.tracking_id,
            now=now,
        )
        is_unowned = (companies.c.id == company_id) & companies.c.source_id.is_(None)
        connection.execute(update(companies).where(is_unowned).values(source_id=source.id))
        payload = {"is_asked": True} if is_asked else {}
        task = analysis_task(company_id, source.url, now=now, source=source, payload=payload)
        made = insert_tasks(connection, [task], now=now)
        if not made and is_asked:
            _ask(connection, company_id)
        messages[source.id] = (
            f"analysis {made[0]} of {company_id} started" if made else f"an analysis of {company_id} is already active"
        )
    return messages


def _ask(connection: Connection, company_id: str) -> None:
    """Mark the pending analysis as requested by a person, so that it runs in any case."""
    waiting = (ACTIVE, tasks.c.kind == COMPANY, tasks.c.dedupe_key == company_id)
    is_pending = tasks.c.status == TaskStatus.PENDING.value
    query = select(tasks.c.id, tasks.c.payload).where(*waiting, is_pending).with_for_update()
    for id_, payload in connection.execute(query).all():
        updated: dict[str, Any] = {**(payload or {}), "is_asked": True}
        connection.execute(tasks.update().where(tasks.c.id == id_).values(payload=updated))


class _BoardsConfig(FileModel):
    unknown_key: ClassVar[str] = f"{BOARDS}: {{key}} is no platform"
    not_a_mapping: ClassVar[str] = f"{BOARDS} must be a mapping of platforms to their config"


def _board(name: str) -> Any:  # noqa: ANN401 - an annotation
    return Annotated[dict[str, Any], expect(f"{BOARDS}.{name} must be a mapping, such as api_base: https://")]


_boards = model_of(_BoardsConfig, {name: _board(name) for name in PLATFORMS})


class _CompanyConfig(FileModel):
    unknown_key: ClassVar[str] = "{key} means nothing here"

    boards: Annotated[Any, AfterValidator(_boards.model_validate)] = None
    ignore_robots: Annotated[bool, Strict(), expect(f"{IGNORE_ROBOTS} must be true or false, not {{value}}")] = False
    weight: Weight = 1.0


def check_config(config: Mapping[str, Any]) -> None:
    """Raise `BadCompanyConfig` with all mistakes."""
    if bad := validated(_CompanyConfig, config)[1]:
        raise BadCompanyConfig("; ".join(problem.message for problem in bad))


def board_config(source: Source, platform: str) -> dict[str, Any]:
    """Return the company's config for its boards on the platform."""
    boards: Mapping[str, Mapping[str, Any]] = source.config.get(BOARDS) or {}
    return dict(boards.get(platform) or {})
