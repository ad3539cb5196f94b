"""Lineage of listings and matches, with the job's own page and the evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from ingestion_pipeline.companies.matching.listed_job import Text
from ingestion_pipeline.engine.lineage import (
    BEFORE,
    ExplainedTable,
    Field,
    Hop,
    Lineage,
    body_of_snapshot,
    detail_hop,
    origin_by_poll,
    place_facts,
    row_of,
    snapshot_row,
    values_in_body,
)
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.reading.evidence.locating import QUOTED, locate
from ingestion_pipeline.store import tables

_EVALUATION = ("decision", "evaluated_at", "filter_result", "match_result", "quality")


def _listing(connection: Connection, content: ContentStore, row: RowMapping) -> Lineage:
    links = tables.listing_sources
    query = select(links.c.external_id).where(links.c.listing_id == row["id"], links.c.source_id == row["source_id"])
    own = [text for text in connection.execute(query).scalars() if text]
    names = ("title", "url", "location", "department", "employment_type", "posted_at")
    values = {name: row[name] for name in (*names, "company_name", "description")}
    origin = origin_by_poll(connection, row["source_id"], row["ingestion_id"])
    if row["snapshot_id"] is not None:
        origin = replace(origin, snapshot_ids=[row["snapshot_id"]])
    facts = {"source_id": row["source_id"], "status": row["status"], "decision": row["decision"]}
    anchors = [*own, *(text for text in (row["url"], row["title"]) if text)]
    name = f"job_listings:{row['id']}"
    lineage = values_in_body(connection, content, name, facts, origin, anchors, values)
    if row["detail_snapshot_id"] is not None:
        lineage = _with_detail(connection, content, lineage, row["detail_snapshot_id"], anchors)
    return replace(lineage, evaluation={name: row[name] for name in _EVALUATION})


def _with_detail(
    connection: Connection, content: ContentStore, lineage: Lineage, snapshot_id: int, anchors: Sequence[str]
) -> Lineage:
    """Return the lineage with values located on the job's own page where the list has none."""
    row = snapshot_row(connection, snapshot_id)
    body = body_of_snapshot(content, row)
    values = {field.name: field.value for field in lineage.fields if field.place is None or field.name == "description"}
    located = locate(body, anchors, values, now=row["fetched_at"]) if row is not None and body is not None else {}
    places = {name: place for name, place in located.items() if place is not None}
    fields = [
        Field(name=field.name, value=field.value, place={**place_facts(places[field.name]), "snapshot": snapshot_id})
        if field.name in places
        else field
        for field in lineage.fields
    ]
    # After the list's own hops: snapshot and fetch are about the list.
    hops = [*lineage.hops, detail_hop(content, row)]
    return replace(lineage, fields=fields, hops=hops)


def _match(connection: Connection, content: ContentStore, row: RowMapping) -> Lineage | None:
    listing = row_of(connection, tables.job_listings, row["listing_id"])
    if listing is None:
        return None
    lineage = _listing(connection, content, listing)
    evaluated = Hop(
        name="evaluation",
        is_known=True,
        message=f"{row['score']} of 100 by {row['model'] or row['method']}: {row['reason']}",
        facts={"listing": f"job_listings:{row['listing_id']}", "run": row["run_id"] or BEFORE},
    )
    facts = {name: row[name] for name in ("listing_id", "status", "score", "priority", "method")}
    text = Text.of(listing["title"], listing["description"]).text
    skills = [_skill(name, evidence, text) for name, evidence in dict(row["grounding"] or {}).items()]
    return Lineage(
        row=f"job_matches:{row['id']}",
        facts=facts,
        fields=[*skills, *lineage.fields],
        hops=[evaluated, *lineage.hops],
        evaluation=lineage.evaluation,
    )


def _skill(name: str, evidence: Mapping[str, Any], text: str) -> Field:
    """Return where the listing's title and description name the skill."""
    quote = text[evidence["start"] : evidence["end"]][:QUOTED]
    return Field(name=f"skill {name}", value=name, place={**evidence, "of": "listing", "quote": quote})


EXPLAINED = (
    ExplainedTable(table=tables.job_listings, explain=_listing, listed_by="`ingest listings list`"),
    ExplainedTable(table=tables.job_matches, explain=_match, listed_by="`ingest matches list`"),
)
