"""The database: tables, engine, transactions, clock and migrations for SQLite and PostgreSQL.

Other packages write statements with these tables; what rows mean does not belong here.
"""

from ingestion_pipeline.store.clock import Clock, DatabaseClock, FixedClock
from ingestion_pipeline.store.engine import Store, open_store
from ingestion_pipeline.store.schema import SchemaMismatch

__all__ = ["Clock", "DatabaseClock", "FixedClock", "SchemaMismatch", "Store", "open_store"]
