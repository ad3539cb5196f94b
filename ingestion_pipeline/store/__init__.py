"""The database: tables, engine, transactions, clock and migrations for SQLite and PostgreSQL.

Other packages write statements with these tables; what rows mean does not belong here.
"""

from ingestion_pipeline.store.database import Clock, DatabaseClock, FixedClock, SchemaMismatch, Store, open_store

__all__ = ["Clock", "DatabaseClock", "FixedClock", "SchemaMismatch", "Store", "open_store"]
