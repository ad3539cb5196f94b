"""Schema revisions: bring a database to this program's schema, safely when many processes start."""

from collections.abc import Sequence
from importlib.resources import files

from sqlalchemy import Connection, Engine, Table, inspect, text
from sqlalchemy.schema import SetColumnComment

HEAD = "0100"  # the newest file in migrations/versions, checked by a test
VERSION_1 = {f"{number:04}" for number in range(1, 24)}  # never released; not migrated from
LOCK = 0x1A6E57  # any number; it only has to be the same in every process


class SchemaMismatch(RuntimeError):
    """The database is at another schema than this program; the message says what to do."""


def ensure(engine: Engine, *, may_migrate: bool) -> None:
    """Bring the database to `HEAD`, or raise `SchemaMismatch` with the reason."""
    with engine.connect().execution_options(read_only=True) as connection:
        revision = current(connection)
    if revision == HEAD:
        return
    with engine.begin() as connection:
        _lock(connection)
        revision = current(connection)  # another process may have been first
        if revision == HEAD:
            return
        if revision in VERSION_1:
            raise SchemaMismatch(
                f"the database has the schema of version 1 (revision {revision}), which this"
                " version does not read: export what you need with version 1 (`ingest export`),"
                " then set INGESTION_HOME or INGESTION_DATABASE_URL to a new, empty place"
            )
        if revision is not None and revision not in known_revisions():
            raise SchemaMismatch(
                f"the database is at schema {revision!r}, which this program (schema {HEAD}) does"
                " not know: it was written by a newer version; upgrade ingestion_pipeline"
            )
        if revision is not None and not may_migrate:
            raise SchemaMismatch(
                f"the database is at schema {revision}, this program needs {HEAD}:"
                " back it up, stop the daemon, and run `ingest init`"
            )
        migrate(connection)


def create_missing(engine: Engine, tables: Sequence[Table]) -> None:
    """Create those of these tables that the database does not have; our migrations do not know them."""
    with engine.connect().execution_options(read_only=True) as connection:
        existing = set(inspect(connection).get_table_names())
    if all(table.name in existing for table in tables):
        return
    with engine.begin() as connection:
        _lock(connection)
        for table in tables:
            table.create(connection, checkfirst=True)


def current(connection: Connection) -> str | None:
    """Return the schema revision of the database; None for an empty one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def known_revisions() -> set[str]:
    """Return every revision this program can migrate from."""
    names = (entry.name for entry in (files("ingestion_pipeline.store") / "migrations" / "versions").iterdir())
    return {name.split("_")[0] for name in names if name[:1].isdigit()}


def migrate(connection: Connection, target: str = "head") -> None:
    """Run the migrations inside the caller's transaction."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "ingestion_pipeline.store:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, target)
    if connection.dialect.name == "postgresql":
        _write_comments(connection)


def _write_comments(connection: Connection) -> None:
    """Write the comments of today's columns; the revisions create columns without."""
    from ingestion_pipeline.store.tables import metadata

    existing = {
        table: {column["name"] for column in inspect(connection).get_columns(table)} for table in metadata.tables
    }
    for name, table in metadata.tables.items():
        for column in table.columns:
            if column.name in existing[name]:
                connection.execute(SetColumnComment(column))


def _lock(connection: Connection) -> None:
    # SQLite's writing transaction is the lock already.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
