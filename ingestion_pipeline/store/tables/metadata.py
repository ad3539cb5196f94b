"""Metadata of all tables: the naming of constraints, and the comments of columns that mean the same everywhere."""

from collections.abc import Mapping

from sqlalchemy import MetaData

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


_UNKNOWN_POLL = "null: written before lineage was recorded, or the poll was deleted"

SHARED_COMMENTS: Mapping[str, str] = {
    "id": "number of the row, given once and never again; what `ingest explain` takes",
    "source_id": "the source that it comes from, which is the partition",
    "created_at": "when the row was first written, UTC",
    "updated_at": "when the row last changed, UTC",
    "modified_at": "when a statement last wrote the row, UTC, by the database's own clock: the"
    " cursor of incremental exports; null: not since that is recorded",
    "tracking_id": "UUID that the work behind it has in logs and tasks",
    "config_version": "which version of the source's configuration it was read by, counted from 1;"
    " null: started before versions were recorded",
    "ingestion_id": f"the poll that last wrote what it says (`ingestions`); {_UNKNOWN_POLL}",
    "snapshot_ids": f"snapshots of the bodies that it was read from, as JSON; {_UNKNOWN_POLL}",
    "run_id": "the Dagster run that wrote it; null: a command did, or it is older than lineage",
    "fetched_at": f"when the body that states it was fetched, UTC; {_UNKNOWN_POLL}",
    "url": "absolute address of what the row is about; null: the source gives none",
    "failure": "why the work on it failed, for people; null: it did not",
    "quality": "what is missing or thin in what was read, as JSON by field",
    "evidence": "proof by field, as JSON: page, method, status, start and end of the span; null:"
    " nothing was read from a page",
    "language": "language as BCP 47 has it; null: not stated",
    "industry": "line of business in words, as its site has it; null: not stated",
    "status": "the state that the row is in",
    "company_id": "the company it belongs to (`companies.id`); null: not known yet",
}


def comment_shared_columns() -> None:
    """Give every column without a comment of its own the shared one; a column without either is a KeyError."""
    for table in metadata.tables.values():
        for column in table.columns:
            column.comment = column.comment or SHARED_COMMENTS[column.name]
