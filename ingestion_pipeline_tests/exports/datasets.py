"""Datasets written straight into the tables, as extraction stores them, and lineages of rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from sqlalchemy import Connection, insert, select

from ingestion_pipeline.engine.lineage import Lineage
from ingestion_pipeline.exports.explaining import EXPLAINED, explain_row
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.sources.registry import add
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.store import Store, tables
from ingestion_pipeline_tests.builders import NOON, a_definition

COLLEGE = "catalog:college"
URL = "https://college.test/courses/"
PROOF = {"status": "exact", "start": 3, "end": 9}
ABSENT = {"status": "absent", "start": None, "end": None}

Item = Mapping[str, Any]


def a_course(course_id: str = "CS 101", **changes: Any) -> Item:
    """Return a course with every field grounded, unless `grounding` or `is_flagged` is passed."""
    data = {"course_id": course_id, "course_name": "Introduction", "course_description": "What it is about."}
    own = {"grounding", "is_flagged", "is_repeat", "item_key"}
    data |= {name: value for name, value in changes.items() if name not in own}
    return an_item(data, **{name: value for name, value in changes.items() if name in own})


def an_item(data: Mapping[str, Any], **changes: Any) -> Item:
    """Return an item with every stated field grounded, unless `grounding` is passed."""
    grounding = {name: PROOF for name, value in data.items() if value is not None}
    return {
        "data": dict(data),
        "grounding": {**grounding, **changes.pop("grounding", {})},
        "is_flagged": False,
        "is_repeat": False,
        "item_key": "|".join(str(value) for value in data.values()).casefold(),
        **changes,
    }


def a_dataset(
    store: Store,
    items: Sequence[Item] = (),
    *,
    source_id: str = COLLEGE,
    version: int = 1,
    status: str = "published",
    kind: str = "course",
    page_url: str = "https://college.test/courses/1",
    entities: Path | None = None,
) -> int:
    """Add a version of a catalogue's dataset, all its items on one page fetched at noon; return its id."""
    with store.begin() as connection:
        definition = a_definition(id=source_id, kind=Kind.CATALOG, url=URL, platform="catalog", series=None)
        if version == 1:
            add(connection, definition, actor="test", now=NOON)

        def written(table: Any, **values: Any) -> int:
            row = insert(table).values(**values).returning(table.c.id)
            return int(connection.execute(row).scalar_one())

        extraction = written(
            tables.extractions,
            source_id=source_id,
            status="COMPLETE",
            recipe={},
            tracking_id="t",
            entity_type=kind,
            created_at=NOON,
            updated_at=NOON,
        )
        step = written(
            tables.crawl_steps,
            extraction_id=extraction,
            kind="FETCH_ROOT",
            key="root",
            page_type="DETAIL",
            created_at=NOON,
        )
        snapshot = written(
            tables.snapshots,
            url=page_url,
            content_hash=f"{source_id}{version}",
            size_bytes=1,
            status_code=200,
            fetched_at=NOON,
        )
        page = written(
            tables.pages,
            extraction_id=extraction,
            step_id=step,
            url=page_url,
            key=page_url,
            host="college.test",
            status="SUCCESS",
            page_type="DETAIL",
            snapshot_id=snapshot,
            read_at=NOON,
            created_at=NOON,
        )
        dataset = written(
            tables.datasets,
            source_id=source_id,
            extraction_id=extraction,
            version=version,
            entity_type=kind,
            reader_hash="r",
            status=status,
            created_at=NOON,
        )
        rows = [
            {
                "dataset_id": dataset,
                "page_id": page,
                "snapshot_id": snapshot,
                "entity_type": kind,
                "position": position,
                "extraction_method": "layout",
                "confidence": 0.9,
                "created_at": NOON,
                **item,
                "item_key": f"{item['item_key']}#{position}",
            }
            for position, item in enumerate(items)
        ]
        if rows:
            connection.execute(insert(tables.data_items), rows)
    return dataset


HOPS = ["snapshot", "fetch", "run", "configuration"]


def sample_lineages(connection: Connection, content: ContentStore) -> dict[str, list[Lineage]]:
    """Return the lineages of ten rows of each table, the same ones every time."""
    random = Random(8)
    lineages: dict[str, list[Lineage]] = {}
    for name in EXPLAINED:
        table = getattr(tables, name)
        ids = list(connection.execute(select(table.c.id).order_by(table.c.id)).scalars())
        sample = random.sample(ids, min(10, len(ids)))
        lineages[name] = [explain_row(connection, content, f"{name}:{id_}") for id_ in sample]
    return lineages


def lineage_gaps(chain: Lineage) -> list[str]:
    """Return the gaps of a lineage: unknown hops, and fields without a span."""
    hops = {hop.name: hop for hop in chain.hops}
    missing = [name for name in HOPS if name not in hops or not hops[name].is_known]
    unseen = [field.name for field in chain.fields if field.place is None]
    return [f"{chain.row}: {name}" for name in [*missing, *unseen, *([] if chain.fields else "?")]]
