"""The rows that one run wrote, with the columns that their contract has rules for: few, and cheap.

Each is found by its source's index; no statement walks through what other runs have written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, FromClause, Select, Table, func, select
from sqlalchemy.sql.elements import ColumnElement

from ingestion_pipeline.exports.contracts import Contract
from ingestion_pipeline.exports.tables import PUBLISHED
from ingestion_pipeline.store.tables import (
    chapter_sources,
    companies,
    extractions,
    ingestions,
    job_listings,
    job_matches,
    listing_sources,
    pages,
    website_analyses,
    website_rankings,
)

AT_ONCE = 1_000  # rows that are in memory
IDS_AT_ONCE = 500  # sources of one statement

_Ids = Sequence[str]
Written = tuple[FromClause, Sequence[ColumnElement[bool]]]  # from where, and which


def written_rows(
    connection: Connection, contract: Contract, source_ids: _Ids, *, run_id: str | None
) -> Iterator[Mapping[str, Any]]:
    """What the run has written of these sources; nothing of an asset whose rows name no run."""
    written = WRITTEN.get(contract.asset)
    if written is None or run_id is None:
        return
    columns = [_column(PUBLISHED[contract.export].table, name) for name in contract.all_rules()]
    for start in range(0, len(source_ids), IDS_AT_ONCE):
        rows, those = written(source_ids[start : start + IDS_AT_ONCE], run_id)
        query = select(*columns).select_from(rows).where(*those)
        found = connection.execute(query.execution_options(yield_per=AT_ONCE))
        for some in found.mappings().partitions():
            yield from map(dict, some)


def _column(table: Table, name: str) -> ColumnElement[Any]:
    return table.c[name]


def _by_poll(ids: _Ids, run_id: str) -> Select[int]:
    polls = select(ingestions.c.id)
    return polls.where(ingestions.c.source_id.in_(ids), ingestions.c.run_id == run_id)


def _chapters(ids: _Ids, run_id: str) -> Written:
    is_written = chapter_sources.c.ingestion_id.in_(_by_poll(ids, run_id))
    return chapter_sources, [chapter_sources.c.source_id.in_(ids), is_written]


def _listings(ids: _Ids, run_id: str) -> Written:
    listed = select(listing_sources.c.listing_id).where(listing_sources.c.source_id.in_(ids))
    is_written = job_listings.c.ingestion_id.in_(_by_poll(ids, run_id))
    return job_listings, [job_listings.c.id.in_(listed), is_written]


def _matches(ids: _Ids, run_id: str) -> Written:
    return job_matches, [job_matches.c.source_id.in_(ids), job_matches.c.run_id == run_id]


def _companies(ids: _Ids, run_id: str) -> Written:  # noqa: ARG001 - one row for each source
    return companies, [companies.c.source_id.in_(ids)]


def last_of(table: Table, ids: _Ids) -> Select[Any]:
    """The newest row of each of these sources."""
    newest = select(func.max(table.c.id)).where(table.c.source_id.in_(ids))
    return newest.group_by(table.c.source_id)


def _pages(ids: _Ids, run_id: str) -> Written:
    is_of_last = pages.c.extraction_id.in_(last_of(extractions, ids))
    return pages, [is_of_last, pages.c.run_id == run_id]


def _analyses(ids: _Ids, run_id: str) -> Written:  # noqa: ARG001 - one row for each source
    return website_analyses, [website_analyses.c.id.in_(last_of(website_analyses, ids))]


def _rankings(ids: _Ids, run_id: str) -> Written:  # noqa: ARG001 - one row for each source
    business = select(website_analyses.c.business_id).where(
        website_analyses.c.id.in_(last_of(website_analyses, ids))
    )
    is_of_last = website_rankings.c.analysis_id.in_(last_of(website_analyses, ids))
    return website_rankings, [website_rankings.c.business_id.in_(business), is_of_last]


WRITTEN: Mapping[str, Callable[[_Ids, str], Written]] = {
    "chapters": _chapters,
    "job_listings": _listings,
    "job_matches": _matches,
    "companies": _companies,
    "pages": _pages,
    "website_info": _analyses,
    "website_prompts": _analyses,
    "website_analysis": _rankings,
}
