"""Chains of rows, looked at from end to end."""

from __future__ import annotations

from random import Random

from sqlalchemy import Connection, select

from ingestion_pipeline.exports.explaining import EXPLAINED, Lineage, explain_row
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.store import tables

HOPS = ["snapshot", "fetch", "run", "configuration"]


def ten_of_each(connection: Connection, content: ContentStore) -> dict[str, list[Lineage]]:
    """The chains of ten rows of each entity, the same at every time."""
    random = Random(8)
    found: dict[str, list[Lineage]] = {}
    for name in EXPLAINED:
        table = getattr(tables, name)
        ids = list(connection.execute(select(table.c.id).order_by(table.c.id)).scalars())
        some = random.sample(ids, min(10, len(ids)))
        found[name] = [explain_row(connection, content, f"{name}:{one}") for one in some]
    return found


def gaps(chain: Lineage) -> list[str]:
    """What is missing of a chain: hops that are not known, fields that no span is found of."""
    hops = {hop.name: hop for hop in chain.hops}
    missing = [name for name in HOPS if name not in hops or not hops[name].is_known]
    unseen = [one.name for one in chain.fields if one.place is None]
    return [f"{chain.row}: {name}" for name in [*missing, *unseen, *([] if chain.fields else "?")]]
