"""What catalogues publish: their tables, and the contracts of the assets `pages` and `datasets`."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from ingestion_pipeline.catalogs.states import DatasetStatus, PageStatus
from ingestion_pipeline.engine.published import (
    ADDRESS,
    COUNT,
    Contract,
    ContractRule,
    PublishedTable,
    Written,
    newest_of,
    one_of,
)
from ingestion_pipeline.store.tables import datasets, extractions, pages


def _written_pages(source_ids: Sequence[str], run_id: str) -> Written:
    return pages, [pages.c.extraction_id.in_(newest_of(extractions, source_ids)), pages.c.run_id == run_id]


_PAGES = PublishedTable(
    table=pages,
    source_id=select(extractions.c.source_id).where(extractions.c.id == pages.c.extraction_id).scalar_subquery(),
)
_DATASETS = PublishedTable(table=datasets, source_id=datasets.c.source_id)
TABLES = (
    PublishedTable(table=extractions, without=frozenset({"recipe"}), source_id=extractions.c.source_id),
    _PAGES,
    _DATASETS,
)
CONTRACTS = (
    Contract(
        asset="pages",
        table=_PAGES,
        rules={"url": [ADDRESS], "status": [one_of(*PageStatus)]},
        written=_written_pages,
    ),
    Contract(
        asset="datasets",
        table=_DATASETS,
        rules={
            "version": [ContractRule(requirement="from 1 on", cure="delete the dataset", between=(1, float("inf")))],
            "status": [one_of(*DatasetStatus)],
            "item_count": [COUNT],
        },
    ),
)
