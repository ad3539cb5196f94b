"""Schema versions: creation, migration and refused databases."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, inspect, select, text
from sqlalchemy.pool import NullPool

import ingestion_pipeline
from ingestion_pipeline.store import SchemaMismatch, Store, database, open_store
from ingestion_pipeline.store.tables import metadata, settings
from ingestion_pipeline_tests import processes
from ingestion_pipeline_tests.processes import FORKSERVER, Child

pytestmark = pytest.mark.both_databases

PACKAGE = Path(ingestion_pipeline.__file__).parent
NEXT_MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{head}"


def upgrade():
    op.create_table("novelties", sa.Column("id", sa.Integer, primary_key=True))
"""
OPEN_SCRIPT = """
import sys
import ingestion_pipeline.store as store
try:
    store.open_store(sys.argv[1], migrate=sys.argv[2:] == ["migrate"]).close()
except store.SchemaMismatch as mismatch:
    sys.exit(str(mismatch))
"""
NextRelease = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def next_release(tmp_path: Path) -> NextRelease:
    """Return a function that opens a database with the next release: one migration ahead."""
    copy = tmp_path / "next" / "ingestion_pipeline"
    copy.mkdir(parents=True)
    (copy / "__init__.py").touch()
    for package in ("settings", "store"):
        shutil.copytree(PACKAGE / package, copy / package)
    module = copy / "store" / "database.py"
    module.write_text(re.sub(r'HEAD = "\w+"', 'HEAD = "9999"', module.read_text()))
    versions = copy / "store" / "migrations" / "versions"
    (versions / "9999_novelties.py").write_text(NEXT_MIGRATION.format(head=database.HEAD))

    def open_with(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", OPEN_SCRIPT, url, *arguments],
            env={**os.environ, "PYTHONPATH": str(copy.parent)},
            cwd=copy.parent,
            capture_output=True,
            text=True,
            check=False,
        )

    return open_with


def version(url: str) -> str | None:
    engine = open_engine(url)
    with engine.connect() as connection:
        return database.current_revision(connection)


def open_engine(url: str) -> Engine:

    return create_engine(url, poolclass=NullPool)


# PostgreSQL normalizes the expression of a computed column.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Computed default on tasks.ended_at cannot be modified")
def test_the_migrations_create_exactly_the_tables_of_the_metadata(store: Store) -> None:
    with store.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_partial_indexes_and_checks_are_in_the_database(store: Store) -> None:
    """Check what alembic does not compare."""
    with store.read() as connection:
        inspector = inspect(connection)
        partial = {
            index["name"]
            for index in inspector.get_indexes("tasks")
            if any(key.endswith("_where") for key in index.get("dialect_options", {}))
        }
        checks = {check["name"] for check in inspector.get_check_constraints("tasks")}

    assert partial == {
        "ix_tasks_due",
        "ix_tasks_ended",
        "ix_tasks_frontier",
        "ix_tasks_source",
        "ix_tasks_spawned",
        "uq_tasks_active",
    }
    assert checks == {"ck_tasks_leased"}


def test_the_head_is_the_newest_migration() -> None:

    config = Config()
    config.set_main_option("script_location", "ingestion_pipeline.store:migrations")
    scripts = ScriptDirectory.from_config(config)

    assert scripts.get_heads() == [database.HEAD]
    assert database.known_revisions() == {script.revision for script in scripts.walk_revisions()}


def test_an_empty_database_is_created_on_first_use(empty_database_url: str) -> None:
    with closing(open_store(empty_database_url)) as store, store.read() as connection:
        assert database.current_revision(connection) == database.HEAD
        assert inspect(connection).has_table("tasks")


def test_opening_again_changes_nothing(database_url: str) -> None:
    with closing(open_store(database_url)) as store, store.begin() as connection:
        connection.execute(
            settings.insert().values(key="a", value="1", value_type="int", description="", updated_at=store.now())
        )

    with closing(open_store(database_url)) as reopened, reopened.read() as connection:
        assert connection.execute(select(settings.c.key)).scalars().all() == ["a"]


@pytest.mark.slow
def test_eight_processes_may_open_an_empty_database_at_once(empty_database_url: str) -> None:
    barrier = FORKSERVER.Barrier(8)
    children = [Child(processes.open_together, empty_database_url, barrier) for _ in range(8)]

    counted = [child.result() for child in children]

    assert counted == [0] * 8
    assert version(empty_database_url) == database.HEAD


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite"])
def test_an_older_sqlite_database_is_migrated_on_opening(database_url: str, next_release: NextRelease) -> None:
    opened = next_release(database_url)

    assert opened.returncode == 0, opened.stderr
    assert version(database_url) == "9999"
    assert inspect(open_engine(database_url)).has_table("novelties")


@pytest.mark.slow
@pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)])
def test_an_older_postgresql_database_is_refused_with_the_command_that_migrates_it(
    database_url: str, next_release: NextRelease
) -> None:
    refused = next_release(database_url)

    assert refused.returncode == 1
    assert f"the database is at schema {database.HEAD}, this program needs 9999" in refused.stderr
    assert "`ingest init`" in refused.stderr
    assert version(database_url) == database.HEAD
    assert next_release(database_url, "migrate").returncode == 0
    assert version(database_url) == "9999"


@pytest.mark.slow
def test_a_newer_database_is_refused_and_unchanged(database_url: str, next_release: NextRelease) -> None:
    next_release(database_url, "migrate")

    for migrate in (False, True):
        with pytest.raises(SchemaMismatch, match="newer version; upgrade ingestion_pipeline"):
            open_store(database_url, migrate=migrate)

    assert version(database_url) == "9999"


def test_a_database_of_another_program_is_refused(empty_database_url: str) -> None:
    """Another program's alembic table names a schema that we do not know."""
    with closing(open_store(empty_database_url)) as store, store.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'f00dcafe'"))

    with pytest.raises(SchemaMismatch, match="f00dcafe"):
        open_store(empty_database_url)


@pytest.mark.parametrize("migrate", [False, True])
def test_a_database_of_version_1_is_refused_with_instructions_and_unchanged(
    empty_database_url: str, migrate: bool
) -> None:
    with closing(open_store(empty_database_url)) as store, store.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0023'"))

    with pytest.raises(SchemaMismatch, match=r"version 1 .*`ingest export`.*INGESTION_HOME"):
        open_store(empty_database_url, migrate=migrate)

    assert version(empty_database_url) == "0023"
