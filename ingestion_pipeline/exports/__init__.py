"""Rows out: CSV, JSON lines and Parquet files, pandas frames, the query of a dataset.

Rows enter as statements over the tables and leave in batches, in a fixed order, as files that are
whole or not there. What a row means, and whether it may be published, is not decided here.
"""

from ingestion_pipeline.exports.frames import frame

__all__ = ["frame"]
