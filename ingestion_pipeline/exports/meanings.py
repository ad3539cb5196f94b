"""What every exported column means: its content, unit, and when it is null.

The comment of a table's column says it for that column; those here are of columns that an export computes.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingestion_pipeline.store.tables import metadata
from ingestion_pipeline.store.tables.metadata import SHARED_COMMENTS

COMPUTED: Mapping[str, Mapping[str, str]] = {
    "source_health": {
        "id": "the source that the row is about (`sources.id`)",
        "kind": "what it lists: catalog, website, company, job_board or series",
        "tier": "how often it is checked",
        "status": "whether it is polled; open: its breaker is",
        "health": "its health in one word; the worst comes first",
        "health_reason": "reason of the health, for people",
        "why": "why it was or was not polled, for people",
        "last_outcome": "outcome of its last poll, for people; null: never polled",
        "last_checked_at": "when a poll of it last ended, UTC; null: never",
        "last_success_at": "when a poll of it last succeeded, UTC; null: never",
        "next_check_at": "when it is polled next, UTC; null: it is not",
        "failure_count": "failed polls in a row; 0 after a success",
        "record_count": "records that its last complete listing had",
        "error_class": "class of the last poll's error; null: it had none",
        "breaker": "open while it is paused after five failures, else closed",
        "failures": "open dead letters as JSON: how many of each class of error",
        "coverage": "as JSON: how much was obtained of what exists; null: not countable",
        "changes_per_day": "changes a day that are expected, by which its next check is decided; null: nothing"
        " is estimated of its kind",
        "change_confidence": "how sure that is, 0 to 1; 0: only the usual rate of its platform; null: nothing"
        " is estimated of its kind",
        "cost_30d_usd": "US dollars that models cost for it in 30 days",
    },
    "chapters": {
        "source_id": "of the sources that have it, the one that had it first; null: no source has the chapter",
    },
    "data_items": {
        "row_type": "whether the row is an item or the framework that items belong to",
        "grounded_percent": "how many of a hundred stated fields are proved; null: none is stated",
        "grounded_fields": "names of the fields that a text or the source proves",
        "ungrounded_fields": "names of the fields that nothing proves; they are blank",
        "dataset_version": "which of its source's datasets that is, counted from 1",
        "dataset_status": "state of that dataset; published, unless another was requested",
        "item_id": "number of the item: what `ingest explain data_items:ID` takes",
        "page_url": "absolute address of the page that states it",
        "fetched_at": "when that body was fetched, UTC; null: never visited",
        "read_at": "when the item was read from it, UTC",
        "run_id": "the Dagster run that read it; null: a command did, or it is older than lineage",
    },
    "job_matches": {
        "snapshot_id": "body of the list that states the job; null: the list has several pages, or it is older"
        " than lineage",
        "listing_run_id": "the Dagster run that wrote the listing; null: a command did, or it is older than lineage",
    },
    "website_rankings": {
        "source_id": "the website that was analysed; null: the analysis was deleted",
        "config_version": "version of the source's configuration, counted from 1; null: the analysis was"
        " deleted, or is older than versions",
    },
    "website_answers": {
        "source_id": "the website that was analysed; null: the analysis was deleted",
        "config_version": "version of the source's configuration, counted from 1; null: the analysis was"
        " deleted, or is older than versions",
    },
}


def meaning(export: str, column: str) -> str:
    """Return what the column of that export means; raise LookupError if nothing describes it."""
    text = COMPUTED.get(export, {}).get(column) or _comment(export, column) or SHARED_COMMENTS.get(column)
    if text is None:
        raise LookupError(f"no meaning of {export}.{column}: add a comment to its column, or here")
    return text


def _comment(export: str, column: str) -> str | None:
    table = metadata.tables.get(export)
    return table.columns[column].comment if table is not None and column in table.columns else None
