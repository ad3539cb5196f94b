# ruff: noqa: S608 - the SQL is put together from names of ours
"""The changes of published items, which are recorded when another version of a dataset is published.

Each version stores all its items again, so a change of rows would tell nothing: an item is known by its source and its
natural key, and what it says are its proven fields, as exports and views show them. The table that a change names is
the type of the item.
"""

from datetime import datetime

from sqlalchemy import Connection, bindparam, select, text

from ingestion_pipeline.catalogs.states import DatasetStatus
from ingestion_pipeline.store.changes import Cause, item_row_key
from ingestion_pipeline.store.tables import datasets, extractions
from ingestion_pipeline.store.types import UtcDateTime


def record_published(connection: Connection, dataset_id: int, *, now: datetime, is_decided: bool) -> None:
    """Record in what the items of the dataset, which was published just now, differ from those before.

    An item that another body states was changed by its source; one that the same body states, by the model if another
    one has read it, else by the reader. If it `is_decided` by an operator that this version is shown, he changed all.
    """
    query = select(datasets, extractions.c.kind.label("obtained_by"))
    joined = query.join(extractions, extractions.c.id == datasets.c.extraction_id)
    new = connection.execute(joined.where(datasets.c.id == dataset_id)).one()
    base = connection.execute(
        select(datasets.c.id)
        .where(
            datasets.c.source_id == new.source_id,
            datasets.c.status == DatasetStatus.PUBLISHED.value,
            datasets.c.version < new.version,
        )
        .order_by(datasets.c.version.desc())
        .limit(1)
    ).scalar_one_or_none()
    forced = Cause.OPERATOR if is_decided else Cause.FIRST_SYNC if base is None else None
    otherwise = Cause.READER_CHANGED if new.obtained_by == "rerun" else Cause.SOURCE_CHANGED
    statement = text(_RECORD[connection.dialect.name]).bindparams(bindparam("now", now, UtcDateTime()))
    connection.execute(
        statement,
        {
            "base": base or 0,
            "new": dataset_id,
            "source": new.source_id,
            "prefix": item_row_key(new.source_id, ""),
            "forced": "" if forced is None else forced.value,
            "otherwise": otherwise.value,
        },
    )


def _statement(*, each: str, object_of: str, json: str, differs: str) -> str:
    def items(dataset: str) -> str:
        return f"""
    SELECT i.entity_type, i.item_key, i.snapshot_id, i.model, p.run_id, COALESCE((
        SELECT {object_of}(f.key, {json}(i.data -> f.key)) FROM {each}(i.data) AS f
        WHERE i.grounding -> f.key ->> 'status' IN ('exact', 'fuzzy', 'value', 'source')
          AND i.data ->> f.key IS NOT NULL
    ), {json}('{{}}')) AS stated
    FROM data_items AS i JOIN pages AS p ON p.id = i.page_id
    WHERE i.dataset_id = :{dataset} AND NOT i.is_flagged AND NOT i.is_repeat"""

    def differing(side: str) -> str:
        return f"""COALESCE((
        SELECT {object_of}(k.key, {json}({side}.stated -> k.key))
        FROM (SELECT f.key FROM {each}(o.stated) AS f UNION SELECT f.key FROM {each}(n.stated) AS f) AS k
        WHERE o.stated -> k.key {differs} n.stated -> k.key
    ), {json}('{{}}'))"""

    return f"""
WITH old AS ({items("base")}
), new AS ({items("new")}
), pairs AS (
    SELECT
        COALESCE(n.entity_type, o.entity_type) AS entity_type, COALESCE(n.item_key, o.item_key) AS item_key,
        CASE WHEN o.item_key IS NULL THEN 'insert' WHEN n.item_key IS NULL THEN 'delete' ELSE 'update' END AS op,
        CASE WHEN n.item_key IS NULL THEN o.stated WHEN o.item_key IS NOT NULL THEN {differing("o")} END AS before,
        CASE WHEN o.item_key IS NULL THEN n.stated WHEN n.item_key IS NOT NULL THEN {differing("n")} END AS after,
        CASE
            WHEN :forced <> '' THEN :forced
            WHEN o.item_key IS NULL OR n.item_key IS NULL THEN :otherwise
            WHEN o.snapshot_id {differs} n.snapshot_id THEN '{Cause.SOURCE_CHANGED}'
            WHEN o.model {differs} n.model THEN '{Cause.MODEL_CHANGED}'
            ELSE '{Cause.READER_CHANGED}'
        END AS cause,
        COALESCE(n.snapshot_id, o.snapshot_id) AS snapshot_id, n.run_id
    FROM new AS n FULL JOIN old AS o ON o.item_key = n.item_key AND o.entity_type = n.entity_type
)
INSERT INTO changes (table_name, row_key, source_id, op, before, after, cause, snapshot_id, run_id, occurred_at)
SELECT entity_type, :prefix || item_key, :source, op, before, after, cause, snapshot_id, run_id, :now
FROM pairs WHERE op <> 'update' OR after <> {json}('{{}}')"""


_RECORD = {
    "postgresql": _statement(
        each="jsonb_each", object_of="jsonb_object_agg", json="to_jsonb", differs="IS DISTINCT FROM"
    ).replace("to_jsonb('{}')", "'{}'::jsonb".replace(":", "\\:")),
    "sqlite": _statement(each="json_each", object_of="json_group_object", json="json", differs="IS NOT"),
}
