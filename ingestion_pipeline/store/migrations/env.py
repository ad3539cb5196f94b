"""Runs migrations on the connection that `store.database` hands over, in its transaction."""

from alembic import context

from ingestion_pipeline.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=connection.dialect.name == "sqlite")
context.run_migrations()
