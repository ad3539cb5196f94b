"""Where rows live: one set of tables and statements for SQLite and PostgreSQL.

Rows enter through statements that other rooms write with these tables; rows leave the same way.
The engine, its transactions, the clock and the migrations are here; what rows mean does not belong.
"""

from ingestion_pipeline.store.clock import Clock, DatabaseClock, FixedClock
from ingestion_pipeline.store.engine import Store, open_store
from ingestion_pipeline.store.schema import SchemaMismatch

__all__ = ["Clock", "DatabaseClock", "FixedClock", "SchemaMismatch", "Store", "open_store"]
