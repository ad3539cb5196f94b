"""Exports: CSV, JSON lines and Parquet files, pandas frames, lineage and contracts.

Rows are read in batches, in a fixed order, and written atomically. What a row means, and whether it
may be published, is decided elsewhere.
Deciding what may be published does not belong here.
"""

from ingestion_pipeline.exports.formats import frame

__all__ = ["frame"]
