"""Lineage of a row: a chapter, a listing, a match or an item, back to the fetch and the config."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, select

from ingestion_pipeline.companies.matching.listed_job import Text
from ingestion_pipeline.companies.reports import explained
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.reading.evidence.grounding import PROVED
from ingestion_pipeline.reading.evidence.locating import QUOTED, FoundPlace, LocatedBody, body_of, locate
from ingestion_pipeline.store import tables

BEFORE = "written before lineage was recorded; its next change records it"
CLEARED = "deleted by retention"
MISSING = "its body is no longer in the content store"
DAMAGED = "its body in the content store is damaged: the next fetch of the page stores it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A value of the row and where the snapshot states it; without a place, `why` not."""

    name: str
    value: object
    place: Mapping[str, Any] | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A step of the lineage; if it is not known, `said` is the reason."""

    name: str
    is_known: bool
    said: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The lineage of one row, from its values to the configuration it was read by."""

    row: str
    facts: Mapping[str, Any]
    fields: Sequence[Field]
    hops: Sequence[Hop]
    judgement: Mapping[str, Any] | None = None  # of a listing: decision, filter, score


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrigin:
    """The origin that the row's own table records, before any of it is looked up."""

    source_id: str
    snapshot_ids: Sequence[int]
    run_id: str | None = None
    config_version: int | None = None
    is_kept: bool = False  # whether the row was written since lineage is recorded
    steps: Sequence[Hop] = ()
    fetched_at: datetime | None = None  # base of relative dates such as "yesterday"


def row_of(connection: Connection, table: Table, row_id: int) -> RowMapping | None:
    """Return the row with that id."""
    return connection.execute(select(table).where(table.c.id == row_id)).mappings().one_or_none()


def snapshot_row(connection: Connection, snapshot_id: int | None) -> RowMapping | None:
    """Return the row of the snapshot, if there is one."""
    return None if snapshot_id is None else row_of(connection, tables.snapshots, snapshot_id)


def origin_by_poll(connection: Connection, source_id: str, ingestion_id: int | None) -> RowOrigin:
    """Return the origin of a row that a poll wrote."""
    poll = None if ingestion_id is None else row_of(connection, tables.ingestions, ingestion_id)
    if poll is None:
        reason = BEFORE if ingestion_id is None else CLEARED
        hop = Hop(name="poll", is_known=False, said=reason)
        return RowOrigin(source_id=source_id, snapshot_ids=_newest_snapshots(connection, source_id), steps=[hop])
    facts = {"ingestion": poll["id"], "parser_version": poll["parser_version"], "at": poll["ingested_at"]}
    hop = Hop(name="poll", is_known=True, said=poll["outcome"], facts=facts)
    return RowOrigin(
        source_id=source_id,
        snapshot_ids=poll["snapshots"],
        run_id=poll["run_id"],
        config_version=poll["config_version"],
        is_kept=True,
        steps=[hop],
        fetched_at=poll["fetched_at"],
    )


def _newest_snapshots(connection: Connection, source_id: str) -> list[int]:
    """Return the last snapshots of a row whose poll is not known: they may still state it."""
    query = (
        select(tables.snapshots.c.id)
        .where(tables.snapshots.c.source_id == source_id, tables.snapshots.c.failure.is_(None))
        .order_by(tables.snapshots.c.fetched_at.desc(), tables.snapshots.c.id.desc())
        .limit(5)
    )
    return list(connection.execute(query).scalars())


def hops_of(connection: Connection, content: ContentStore, origin: RowOrigin, snapshot_id: int | None) -> list[Hop]:
    """Return the hops from the snapshot to the configuration."""
    row = snapshot_row(connection, snapshot_id)
    return [
        *origin.steps,
        _snapshot(content, origin, row),
        _fetch(row),
        _run(connection, origin),
        _configuration(connection, origin),
    ]


def _snapshot(content: ContentStore, origin: RowOrigin, row: RowMapping | None) -> Hop:
    if row is None:
        reason = CLEARED if origin.snapshot_ids else BEFORE
        return Hop(name="snapshot", is_known=False, said=reason)
    facts = {"id": row["id"], "url": row["url"], "content_hash": row["content_hash"]}
    facts |= {"bytes": row["size_bytes"], "type": row["content_type"]}
    return _stored_hop("snapshot", content, row, facts)


def detail_hop(content: ContentStore, row: RowMapping | None) -> Hop:
    """Return the hop of the record's own page, which was read besides the list."""
    if row is None:
        return Hop(name="detail page", is_known=False, said=CLEARED)
    facts = {"id": row["id"], "url": row["url"], "at": row["fetched_at"], "run": row["run_id"]}
    return _stored_hop("detail page", content, row, facts)


def _stored_hop(name: str, content: ContentStore, row: RowMapping, facts: Mapping[str, Any]) -> Hop:
    """Return the hop of a snapshot, with whether its body is stored and intact."""
    body_hash = row["body_hash"]
    if body_hash and content.find(body_hash) is not None:
        return Hop(name=name, is_known=True, said=f"snapshot {row['id']}", facts=facts)
    is_damaged = bool(body_hash) and content.has(body_hash)
    return Hop(name=name, is_known=False, said=DAMAGED if is_damaged else MISSING, facts=facts)


def _fetch(row: RowMapping | None) -> Hop:
    if row is None:
        return Hop(name="fetch", is_known=False, said="not known without its snapshot")
    facts = {"at": row["fetched_at"], "status": row["status_code"], "url": row["final_url"]}
    facts |= {"etag": row["etag"], "run": row["run_id"]}
    how = "shown by a browser" if row["rendered_at"] else "by HTTP"
    return Hop(name="fetch", is_known=True, said=f"last {how}", facts=facts)


def _run(connection: Connection, origin: RowOrigin) -> Hop:
    if origin.run_id is None:
        details = "written by a command, not by a Dagster run" if origin.is_kept else BEFORE
        return Hop(name="run", is_known=origin.is_kept, said=details)
    query = select(tables.runs).where(tables.runs.c.run_id == origin.run_id)
    row = connection.execute(query).mappings().one_or_none()
    facts: dict[str, Any] = {"id": origin.run_id}
    if row is None:
        details = "Dagster may know it; its heartbeat was deleted"
        return Hop(name="run", is_known=True, said=details, facts=facts)
    facts |= {"job": row["job"], "started": row["started_at"], "ended": row["ended_at"]}
    return Hop(name="run", is_known=True, said=f"a run of {row['job']}", facts=facts)


def _configuration(connection: Connection, origin: RowOrigin) -> Hop:
    versions = tables.source_versions
    current = connection.execute(
        select(tables.sources.c.config_version).where(tables.sources.c.id == origin.source_id)
    ).scalar_one_or_none()
    name = "configuration"
    if origin.config_version is None:
        return Hop(name=name, is_known=False, said=f"{BEFORE}; it is at version {current} now")
    query = select(versions).where(
        versions.c.source_id == origin.source_id, versions.c.version == origin.config_version
    )
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        return Hop(name=name, is_known=False, said=f"there is no source {origin.source_id} any more")
    facts = {"source": origin.source_id, **{column: row[column] for column in ("version", "since")}}
    facts |= {column: row[column] for column in ("url", "platform", "config")}
    details = "as it is now" if row["version"] == current else f"it is at version {current} now"
    return Hop(name=name, is_known=True, said=f"version {row['version']}; {details}", facts=facts)


_ROW = re.compile(r"([a-z_]+):([0-9]{1,18})")
_LISTED = {"job_matches": "`ingest matches list`", "job_listings": "`ingest listings list`"}
_DERIVED = "the body words it differently: it was combined or converted"
_NO_DATE = "normalised: no text near the record, read as a date, gives it"
_NOT_FOUND = "the stored body does not state it"
_NO_BODY = "no stored body of it can be read"


class BadRow(ValueError):
    """A name that is not of the form TABLE:ID."""


class UnknownRow(LookupError):
    """A row that does not exist."""


def explain_row(connection: Connection, content: ContentStore, name: str) -> Lineage:
    """Return the lineage of the row that `name` names, such as `chapters:12`.

    Raises BadRow or UnknownRow if there is none; the message lists what exists.
    """
    match = _ROW.fullmatch(name.strip())
    names = ", ".join(f"{table}:ID" for table in EXPLAINED)
    if match is None or match[1] not in EXPLAINED:
        quoted = name if len(name) <= QUOTED else f"{name[:QUOTED]}..."
        raise BadRow(f"{quoted!r} names no row that can be explained; there are: {names}")
    return EXPLAINED[match[1]](connection, content, int(match[2]))


def _explained_row(connection: Connection, table: Table, row_id: int) -> RowMapping:
    row = row_of(connection, table, row_id)
    if row is None:
        raise _missing(table, row_id)
    return row


def _missing(table: Table, row_id: int) -> UnknownRow:
    listed = _LISTED.get(table.name, f"`ingest export {table.name}`")
    return UnknownRow(f"there is no row {table.name}:{row_id}; {listed} shows the ids there are")


def _chapter(connection: Connection, content: ContentStore, row_id: int) -> Lineage:
    row = _explained_row(connection, tables.chapters, row_id)
    links = tables.chapter_sources
    query = select(links.c.id).where(links.c.chapter_id == row_id)
    order = (links.c.available.desc(), links.c.ingestion_id.is_(None), links.c.id)
    link_id = connection.execute(query.order_by(*order).limit(1)).scalar_one_or_none()
    facts = {name: row[name] for name in ("series_id", "key", "number", "title", "published_at")}
    if link_id is None:
        nobody = Hop(name="source", is_known=False, said="no source has it any more")
        return Lineage(row=f"chapters:{row_id}", facts=facts, fields=(), hops=[nobody])
    lineage = _chapter_source(connection, content, link_id)
    return replace(lineage, row=f"chapters:{row_id}", facts={**facts, **lineage.facts})


def _chapter_source(connection: Connection, content: ContentStore, row_id: int) -> Lineage:
    row = _explained_row(connection, tables.chapter_sources, row_id)
    chapter = row_of(connection, tables.chapters, row["chapter_id"])
    releases: Sequence[Mapping[str, Any]] = row["releases"] or [{}]
    first = releases[0]
    values: dict[str, Any] = {
        "number": chapter["number"] if chapter else None,
        "title": first.get("title"),
        "url": row["url"],
        "source_chapter_id": row["source_chapter_id"],
        "language": row["language"],
        "scanlation_group": row["scanlation_group"],
        "published_at": _moment(first.get("published_at")),
    }
    anchors = [anchor for anchor in (row["source_chapter_id"], row["url"], first.get("title")) if anchor]
    origin = origin_by_poll(connection, row["source_id"], row["ingestion_id"])
    facts = {"source_id": row["source_id"], "link": row_id, "available": row["available"]}
    return _values_in_body(connection, content, f"chapter_sources:{row_id}", facts, origin, anchors, values)


def _listing(connection: Connection, content: ContentStore, row_id: int) -> Lineage:
    row = _explained_row(connection, tables.job_listings, row_id)
    links = tables.listing_sources
    query = select(links.c.external_id).where(links.c.listing_id == row_id, links.c.source_id == row["source_id"])
    own = [text for text in connection.execute(query).scalars() if text]
    names = ("title", "url", "location", "department", "employment_type", "posted_at")
    values = {name: row[name] for name in (*names, "company_name", "description")}
    origin = origin_by_poll(connection, row["source_id"], row["ingestion_id"])
    if row["snapshot_id"] is not None:
        origin = replace(origin, snapshot_ids=[row["snapshot_id"]])
    facts = {"source_id": row["source_id"], "status": row["status"], "decision": row["decision"]}
    anchors = [*own, *(text for text in (row["url"], row["title"]) if text)]
    name = f"job_listings:{row_id}"
    lineage = _values_in_body(connection, content, name, facts, origin, anchors, values)
    if row["detail_snapshot_id"] is not None:
        lineage = _with_detail(connection, content, lineage, row["detail_snapshot_id"], anchors)
    return replace(lineage, judgement=dict(explained(connection, row_id)))


def _with_detail(
    connection: Connection, content: ContentStore, lineage: Lineage, snapshot_id: int, anchors: Sequence[str]
) -> Lineage:
    """Return the lineage with values located on the job's own page where the list has none."""
    row = snapshot_row(connection, snapshot_id)
    body = _body(content, row)
    values = {field.name: field.value for field in lineage.fields if field.place is None or field.name == "description"}
    located = locate(body, anchors, values, now=row["fetched_at"]) if row is not None and body is not None else {}
    places = {name: place for name, place in located.items() if place is not None}
    fields = [
        Field(name=field.name, value=field.value, place={**_place_facts(places[field.name]), "snapshot": snapshot_id})
        if field.name in places
        else field
        for field in lineage.fields
    ]
    # After the list's own hops: snapshot and fetch are about the list.
    hops = [*lineage.hops, detail_hop(content, row)]
    return replace(lineage, fields=fields, hops=hops)


def _match(connection: Connection, content: ContentStore, row_id: int) -> Lineage:
    row = _explained_row(connection, tables.job_matches, row_id)
    lineage = _listing(connection, content, row["listing_id"])
    judged = Hop(
        name="judgement",
        is_known=True,
        said=f"{row['score']} of 100 by {row['model'] or row['method']}: {row['reason']}",
        facts={"listing": f"job_listings:{row['listing_id']}", "run": row["run_id"] or BEFORE},
    )
    facts = {name: row[name] for name in ("listing_id", "status", "score", "priority", "method")}
    listing = row_of(connection, tables.job_listings, row["listing_id"])
    text = "" if listing is None else Text.of(listing["title"], listing["description"]).text
    skills = [_skill(name, evidence, text) for name, evidence in dict(row["grounding"] or {}).items()]
    return Lineage(
        row=f"job_matches:{row_id}",
        facts=facts,
        fields=[*skills, *lineage.fields],
        hops=[judged, *lineage.hops],
        judgement=lineage.judgement,
    )


def _skill(name: str, evidence: Mapping[str, Any], text: str) -> Field:
    """Return where the listing's title and description name the skill."""
    quote = text[evidence["start"] : evidence["end"]][:QUOTED]
    return Field(name=f"skill {name}", value=name, place={**evidence, "of": "listing", "quote": quote})


def _item(connection: Connection, content: ContentStore, row_id: int) -> Lineage:
    row = _explained_row(connection, tables.data_items, row_id)
    page = row_of(connection, tables.pages, row["page_id"])
    extraction = row_of(connection, tables.extractions, page["extraction_id"]) if page else None
    dataset = row_of(connection, tables.datasets, row["dataset_id"])
    if page is None or extraction is None or dataset is None:
        raise _missing(tables.data_items, row_id)
    origin = RowOrigin(
        source_id=extraction["source_id"],
        snapshot_ids=[snapshot_id for snapshot_id in [row["snapshot_id"] or page["snapshot_id"]] if snapshot_id],
        run_id=page["run_id"],
        config_version=extraction["config_version"],
        is_kept=extraction["config_version"] is not None,
        steps=[_page_hop(page, extraction, row)],
    )
    facts = {name: row[name] for name in ("entity_type", "item_key", "extraction_method", "model", "confidence")}
    facts |= {"dataset": dataset["id"], "version": dataset["version"], "state": dataset["status"]}
    snapshot_id = origin.snapshot_ids[0] if origin.snapshot_ids else None
    return Lineage(
        row=f"data_items:{row_id}",
        facts=facts,
        fields=_item_fields(connection, content, row, snapshot_id),
        hops=hops_of(connection, content, origin, snapshot_id),
    )


def _page_hop(page: RowMapping, extraction: RowMapping, row: RowMapping) -> Hop:
    facts = {"id": page["id"], "url": page["url"], "extraction": extraction["id"]}
    facts |= {"read_at": page["read_at"], "carried_from": page["carried_from"]}
    read = "unchanged, and taken over" if page["carried_from"] else "read"
    return Hop(name="page", is_known=True, said=f"{read} by {row['extraction_method']}", facts=facts)


def _item_fields(
    connection: Connection, content: ContentStore, row: RowMapping, snapshot_id: int | None
) -> list[Field]:
    snapshot = snapshot_row(connection, snapshot_id)
    text = _text(content, snapshot, "text_hash")
    body = _body(content, snapshot)
    stated = {name: value for name, value in row["data"].items() if value is not None}
    # Only texts identify the record; a number alone may belong to any.
    anchors = [value for value in stated.values() if isinstance(value, str)]
    places = locate(body, anchors, stated) if body is not None else {}
    return [
        _grounded(name, value, row["grounding"].get(name) or {}, text, places.get(name))
        for name, value in stated.items()
    ]


def _grounded(
    name: str, value: object, evidence: Mapping[str, Any], text: str | None, place_found: FoundPlace | None
) -> Field:
    status = str(evidence.get("status", "none"))
    start, end = evidence.get("start"), evidence.get("end")
    if text is not None and start is not None and end is not None and end <= len(text):
        place = {"of": "text", "start": start, "end": end, "quote": text[start:end][:QUOTED]}
        return Field(name=name, value=value, place={"evidence": status, **place})
    if place_found is not None and status in {str(status) for status in PROVED}:
        return Field(name=name, value=value, place={"evidence": status, **_place_facts(place_found)})
    return Field(name=name, value=value, why=f"evidence: {status}")


def _values_in_body(
    connection: Connection,
    content: ContentStore,
    name: str,
    facts: Mapping[str, Any],
    origin: RowOrigin,
    anchors: Sequence[str],
    values: Mapping[str, Any],
) -> Lineage:
    """Return the lineage with the page that states most values, and where it states each."""
    stated = {key: value for key, value in values.items() if value is not None}
    chosen = origin.snapshot_ids[0] if origin.snapshot_ids else None
    places: dict[str, FoundPlace | None] = dict.fromkeys(stated)
    has_body = False
    for snapshot_id in origin.snapshot_ids:  # a list may have pages: the one that states most
        body = _body(content, snapshot_row(connection, snapshot_id))
        has_body = has_body or body is not None
        located = locate(body, anchors, stated, now=origin.fetched_at) if body is not None else {}
        if _count(located) > _count(places):
            chosen, places = snapshot_id, located
        if _count(places) == len(stated):
            break
    fields = [
        _field(key, value, places[key], _why(value, any(places.values())) if has_body else _NO_BODY)
        for key, value in stated.items()
    ]
    hops = hops_of(connection, content, origin, chosen)
    return Lineage(row=name, facts=facts, fields=fields, hops=hops)


def _why(value: object, is_there: bool) -> str:  # noqa: FBT001 - of the record
    if not is_there:
        return _NOT_FOUND
    return _NO_DATE if isinstance(value, datetime) else _DERIVED


def _count(places: Mapping[str, FoundPlace | None]) -> int:
    return sum(place is not None for place in places.values())


def _field(name: str, value: object, place: FoundPlace | None, why: str) -> Field:
    if place is None:
        return Field(name=name, value=value, why=why)
    return Field(name=name, value=value, place=_place_facts(place))


def _place_facts(place: FoundPlace) -> dict[str, Any]:
    return {key: value for key, value in asdict(place).items() if value is not None}


def _body(content: ContentStore, row: RowMapping | None) -> LocatedBody | None:
    stored = content.find(row["body_hash"]) if row and row["body_hash"] else None
    return None if row is None or stored is None else body_of(stored, row["content_type"])


def _text(content: ContentStore, row: RowMapping | None, name: str) -> str | None:
    stored = content.find(row[name]) if row and row[name] else None
    return None if stored is None else stored.decode()


def _moment(text: str | None) -> datetime | None:
    with suppress(ValueError, TypeError):
        return datetime.fromisoformat(text or "")
    return None


EXPLAINED: Mapping[str, Callable[[Connection, ContentStore, int], Lineage]] = {
    "chapters": _chapter,
    "chapter_sources": _chapter_source,
    "job_listings": _listing,
    "job_matches": _match,
    "data_items": _item,
}
