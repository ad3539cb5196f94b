"""Rows as a pandas frame, for a notebook: the same columns as a file, with pandas' own types.

Nothing is loaded before a frame is asked for: the import costs nothing.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas  # pyright: ignore[reportMissingTypeStubs] - it has its types inside

    from ingestion_pipeline.exports.names import ExportRequest
    from ingestion_pipeline.store import Store


def frame(
    name: str,
    *,
    source: str | None = None,
    version: int | None = None,
    dataset: int | None = None,
    evidence: bool = False,
    with_flagged: bool = False,
) -> pandas.DataFrame:
    """What `ingest export NAME` writes, from the database that the environment names.

    Numbers are exact decimals, flags and whole numbers know missing values, times are UTC, what is
    JSON is its text.

    Raises:
        LookupError: there is no such name, source or version, or none of its items are published;
            the message says what there is.
    """
    from ingestion_pipeline.catalogs.entities.declared import entity_folder
    from ingestion_pipeline.exports.names import ExportRequest
    from ingestion_pipeline.settings import load_settings
    from ingestion_pipeline.store import open_store

    settings = load_settings()
    wanted = ExportRequest(
        entities=entity_folder(settings),
        name=name,
        source_id=source,
        version=version,
        dataset_id=dataset,
        evidence=evidence,
        with_flagged=with_flagged,
    )
    wanted.check()  # before a database is opened
    with closing(open_store(settings.store_url)) as store:
        return frame_of(store, wanted)


def frame_of(store: Store, wanted: ExportRequest) -> pandas.DataFrame:
    """The same from an open store."""
    from ingestion_pipeline.exports.arrow import to_frame
    from ingestion_pipeline.exports.exporting import reading

    with reading(store, wanted) as (columns, _, batches):
        return to_frame(columns, batches)
