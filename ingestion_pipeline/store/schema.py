"""Brings a database to this program's schema, safely when many processes start at once."""

from __future__ import annotations

from importlib.resources import files

from sqlalchemy import Connection, Engine, inspect, text

HEAD = "0023"  # the newest file in migrations/versions; a test compares them
LOCK = 0x1A6E57  # any number; it only has to be the same in every process


class SchemaMismatch(RuntimeError):
    """The database is at another schema than this program; the message says what to do."""


def ensure(engine: Engine, *, may_migrate: bool) -> None:
    """The database is at `HEAD` afterwards, or `SchemaMismatch` says why not."""
    with engine.connect().execution_options(read_only=True) as connection:
        found = current(connection)
    if found == HEAD:
        return
    with engine.begin() as connection:
        _lock(connection)
        found = current(connection)  # another process may have been first
        if found == HEAD:
            return
        if found is not None and found not in known():
            raise SchemaMismatch(
                f"the database is at schema {found!r}, which this program (schema {HEAD}) does not"
                " know: it was written by a newer version; upgrade ingestion_pipeline"
            )
        if found is not None and not may_migrate:
            raise SchemaMismatch(
                f"the database is at schema {found}, this program needs {HEAD}:"
                " back it up, stop the daemon, and run `ingest init`"
            )
        migrate(connection)


def current(connection: Connection) -> str | None:
    """The schema the database is at; None for an empty one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def known() -> set[str]:
    """Every schema this program can migrate from."""
    names = (
        entry.name
        for entry in (files("ingestion_pipeline.store") / "migrations" / "versions").iterdir()
    )
    return {name.split("_")[0] for name in names if name[:1].isdigit()}


def migrate(connection: Connection, target: str = "head") -> None:
    """Run the migrations inside the caller's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "ingestion_pipeline.store:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, target)


def _lock(connection: Connection) -> None:
    # SQLite's writing transaction is the lock already.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
