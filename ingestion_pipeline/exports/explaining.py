"""Lineage of a row by its name, of any table that a system explains."""

import re
from dataclasses import replace

from sqlalchemy import Connection

from ingestion_pipeline.engine.lineage import BadRow, Lineage, row_of
from ingestion_pipeline.exports.change_history import changes_of_row
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.reading.evidence.locating import QUOTED
from ingestion_pipeline.registry import systems

_ROW = re.compile(r"([a-z_]+):([0-9]{1,18})")
EXPLAINED = {table.table.name: table for system in systems() for table in system.explained}


def explain_row(connection: Connection, content: ContentStore, name: str) -> Lineage:
    """Return the lineage of the row that `name` names, such as `chapters:12`.

    Raises BadRow or UnknownRow if there is none; the message lists what exists.
    """
    match = _ROW.fullmatch(name.strip())
    explained = EXPLAINED.get(match[1]) if match else None
    if match is None or explained is None:
        quoted = name if len(name) <= QUOTED else f"{name[:QUOTED]}..."
        names = ", ".join(f"{table}:ID" for table in EXPLAINED)
        raise BadRow(f"{quoted!r} names no row that can be explained; there are: {names}")
    row = row_of(connection, explained.table, int(match[2]))
    lineage = None if row is None else explained.explain(connection, content, row)
    if lineage is None:
        raise explained.missing(int(match[2]))
    return replace(lineage, history=changes_of_row(connection, match[1], int(match[2])))
