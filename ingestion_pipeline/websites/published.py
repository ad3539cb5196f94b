"""What websites publish: their tables, and the contracts of their three assets."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Table, select

from ingestion_pipeline.engine.published import (
    ADDRESS,
    Contract,
    ContractRule,
    PublishedTable,
    Written,
    newest_of,
    one_of,
)
from ingestion_pipeline.store.tables import businesses, website_analyses, website_answers, website_rankings
from ingestion_pipeline.websites.states import AnalysisStatus


def _of_analysis(table: Table) -> PublishedTable:
    return PublishedTable(
        table=table,
        source_id=website_analyses.c.source_id,
        rows=table.outerjoin(website_analyses, website_analyses.c.id == table.c.analysis_id),
        origin=(website_analyses.c.source_id, website_analyses.c.config_version),
        meanings={
            "source_id": "the website that was analysed; null: the analysis was deleted",
            "config_version": "version of the source's configuration, counted from 1; null: the analysis was"
            " deleted, or is older than versions",
        },
    )


def _written_analyses(source_ids: Sequence[str], run_id: str) -> Written:  # noqa: ARG001 - one row for each source
    return website_analyses, [website_analyses.c.id.in_(newest_of(website_analyses, source_ids))]


def _written_rankings(source_ids: Sequence[str], run_id: str) -> Written:  # noqa: ARG001 - one row for each source
    newest = newest_of(website_analyses, source_ids)
    business = select(website_analyses.c.business_id).where(website_analyses.c.id.in_(newest))
    return website_rankings, [
        website_rankings.c.business_id.in_(business),
        website_rankings.c.analysis_id.in_(newest),
    ]


_ANALYSES = PublishedTable(table=website_analyses, source_id=website_analyses.c.source_id)
_RANKINGS = _of_analysis(website_rankings)
TABLES = (
    PublishedTable(table=businesses, without=frozenset({"url_key"})),
    _ANALYSES,
    _RANKINGS,
    _of_analysis(website_answers),
)
_AGAIN = "analyse the website again: materialize its partition"
_PERCENT = ContractRule(requirement="0 to 100", cure=_AGAIN, between=(0, 100))
CONTRACTS = (
    Contract(
        asset="website_info",
        table=_ANALYSES,
        rules={"url": [ADDRESS], "status": [one_of(*AnalysisStatus)]},
        written=_written_analyses,
    ),
    Contract(
        asset="website_prompts",
        table=_ANALYSES,
        rules={"progress_percent": [_PERCENT]},
        written=_written_analyses,
    ),
    Contract(
        asset="website_analysis",
        table=_RANKINGS,
        rules={"visibility": [ContractRule(requirement="0 to 1", cure=_AGAIN, between=(0, 1))], "score": [_PERCENT]},
        written=_written_rankings,
    ),
)
