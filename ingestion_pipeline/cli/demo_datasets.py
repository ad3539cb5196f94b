"""What a demo run made of its catalogues' pages, told by the tables: a dataset for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ingestion_pipeline.cli.output import Column, say, say_table

if TYPE_CHECKING:
    from sqlalchemy import Connection, Subquery

COLUMNS = (
    Column("dataset"),
    Column("extraction"),
    Column("items", is_number=True),
    Column("flagged", is_number=True),
    Column("pages", is_number=True),
    Column("version", is_number=True),
    Column("state"),
)


def say_datasets(connection: Connection, source_ids: Sequence[str]) -> None:
    """One line per catalogue that was extracted; nothing before the first dataset there is."""
    rows = dataset_rows(connection, source_ids)
    if any(row[-1] != "-" for row in rows):
        say("")
        say_table(COLUMNS, rows)


def dataset_rows(connection: Connection, source_ids: Sequence[str]) -> list[list[object]]:
    """Each source's last extraction, with the dataset that it built or confirmed, if any.

    Pages are those whose records are known: read now, or unchanged since they were.
    """
    from sqlalchemy import select

    from ingestion_pipeline.store.tables import datasets, extractions

    read = _pages_read(source_ids)
    query = (
        select(
            extractions.c.source_id,
            extractions.c.status,
            datasets.c.item_count,
            datasets.c.flagged_count,
            read.c.pages,
            datasets.c.version,
            datasets.c.status.label("state"),
        )
        .join(read, read.c.extraction_id == extractions.c.id)
        .outerjoin(datasets, datasets.c.id == extractions.c.dataset_id)
    )
    found = {row.source_id: row for row in connection.execute(query)}
    return [
        ["-" if value is None else value for value in found[one]]
        for one in source_ids
        if one in found
    ]


def _pages_read(source_ids: Sequence[str]) -> Subquery:
    """The last extraction of each source, with how many of its pages have been read."""
    from sqlalchemy import func, select

    from ingestion_pipeline.store.tables import extractions, pages

    last = (
        select(func.max(extractions.c.id).label("id"))
        .where(extractions.c.source_id.in_(list(source_ids)))
        .group_by(extractions.c.source_id)
        .subquery()
    )
    return (
        select(last.c.id.label("extraction_id"), func.count(pages.c.item_count).label("pages"))
        .outerjoin(pages, pages.c.extraction_id == last.c.id)
        .group_by(last.c.id)
        .subquery()
    )
