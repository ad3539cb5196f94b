"""Lineage of the items of datasets: the page, the extraction and the evidence of each field."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, RowMapping

from ingestion_pipeline.engine.lineage import (
    ExplainedTable,
    Field,
    Hop,
    Lineage,
    RowOrigin,
    body_of_snapshot,
    hops_of,
    place_facts,
    row_of,
    snapshot_row,
    text_of_snapshot,
)
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.reading.evidence.grounding import PROVED
from ingestion_pipeline.reading.evidence.locating import QUOTED, FoundPlace, locate
from ingestion_pipeline.store import tables


def _item(connection: Connection, content: ContentStore, row: RowMapping) -> Lineage | None:
    page = row_of(connection, tables.pages, row["page_id"])
    extraction = row_of(connection, tables.extractions, page["extraction_id"]) if page else None
    dataset = row_of(connection, tables.datasets, row["dataset_id"])
    if page is None or extraction is None or dataset is None:
        return None
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
        row=f"data_items:{row['id']}",
        facts=facts,
        fields=_item_fields(connection, content, row, snapshot_id),
        hops=hops_of(connection, content, origin, snapshot_id),
    )


def _page_hop(page: RowMapping, extraction: RowMapping, row: RowMapping) -> Hop:
    facts = {"id": page["id"], "url": page["url"], "extraction": extraction["id"]}
    facts |= {"read_at": page["read_at"], "carried_from": page["carried_from"]}
    read = "unchanged, and taken over" if page["carried_from"] else "read"
    return Hop(name="page", is_known=True, message=f"{read} by {row['extraction_method']}", facts=facts)


def _item_fields(
    connection: Connection, content: ContentStore, row: RowMapping, snapshot_id: int | None
) -> list[Field]:
    snapshot = snapshot_row(connection, snapshot_id)
    text = text_of_snapshot(content, snapshot)
    body = body_of_snapshot(content, snapshot)
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
        return Field(name=name, value=value, place={"evidence": status, **place_facts(place_found)})
    return Field(name=name, value=value, why=f"evidence: {status}")


EXPLAINED = (ExplainedTable(table=tables.data_items, explain=_item),)
