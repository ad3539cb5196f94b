"""The database of a process: engine, clock, schema revisions, prepared statements, and the two kinds of transaction.

The time is the database's on PostgreSQL, the process's on SQLite, and fixed in tests. A schema is brought up to this
program's safely when many processes start at once.
"""

import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from hashlib import blake2b
from importlib.resources import files
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from sqlalchemy import Connection, Dialect, Engine, Executable, Table, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import DisconnectionError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, QueuePool
from sqlalchemy.schema import SetColumnComment
from sqlalchemy.types import DateTime
from sqlalchemy.util import LRUCache

from ingestion_pipeline.store.changes import OriginState, add_functions, create_triggers, forget_origins
from ingestion_pipeline.store.history import create_history_views
from ingestion_pipeline.store.types import UtcText, json_value


class Clock(Protocol):
    """The time by which leases, due dates and histories are decided."""

    def now(self, connection: Connection) -> datetime:
        """Return the present moment in UTC, never ahead of the database."""
        ...

    def latest(self, connection: Connection) -> datetime:
        """Return the present moment or slightly later, so that it is not too early for others."""
        ...


RESYNC_SECONDS = 1.0  # until then the monotonic clock advances the database's time


class DatabaseClock:
    """The database's clock, so that workers whose clocks differ agree; SQLite has the process's."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._answer: tuple[datetime, float] | None = None
        self._round_trip = timedelta()

    def now(self, connection: Connection) -> datetime:
        """Return the present moment in UTC; on PostgreSQL it advances inside a transaction too."""
        if connection.dialect.name != "postgresql":
            return datetime.now(UTC)
        if self._answer is not None:
            answered, answered_at = self._answer
            passed = self._monotonic() - answered_at
            if passed < RESYNC_SECONDS:
                return answered + timedelta(seconds=passed)
        asked_at = self._monotonic()
        answered = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one().astimezone(UTC)
        answered_at = self._monotonic()  # after the answer: never ahead of the database
        self._answer, self._round_trip = ((answered, answered_at), timedelta(seconds=answered_at - asked_at))
        return answered

    def latest(self, connection: Connection) -> datetime:
        """Return `now` plus the whole round trip, so that it is never behind the database."""
        return self.now(connection) + self._round_trip


def system_clock() -> datetime:
    """Return the present moment by the process's clock, where no database is available."""
    return datetime.now(UTC)


class SteadyClock:
    """A clock that advances from a database time by the monotonic clock, without queries."""

    def __init__(self, at: datetime, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._at = at
        self._monotonic = monotonic
        self._started = monotonic()

    def now(self) -> datetime:
        """Return the present moment, in UTC."""
        return self._at + timedelta(seconds=self._monotonic() - self._started)


class FixedClock:
    """A clock that stands still until it is set, for tests and simulations."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def now(self, connection: Connection) -> datetime:  # noqa: ARG002 - the Clock protocol
        """Return the moment it was set to."""
        return self.at

    def latest(self, connection: Connection) -> datetime:  # noqa: ARG002 - the Clock protocol
        """Return the moment it was set to: there is no delay."""
        return self.at

    def advance(self, **units: float) -> datetime:
        """Move on by a timedelta's units; the new moment."""
        self.at += timedelta(**units)
        return self.at


HEAD = "0100"  # the newest file in migrations/versions, checked by a test
VERSION_1 = {f"{number:04}" for number in range(1, 24)}  # never released; not migrated from
LOCK = 0x1A6E57  # any number; it only has to be the same in every process


class SchemaMismatch(RuntimeError):
    """The database is at another schema than this program; the message says what to do."""


def ensure_schema(engine: Engine, *, may_migrate: bool) -> None:
    """Bring the database to `HEAD`, or raise `SchemaMismatch` with the reason."""
    with engine.connect().execution_options(read_only=True) as connection:
        revision = current_revision(connection)
    if revision == HEAD:
        return
    with engine.begin() as connection:
        _lock(connection)
        revision = current_revision(connection)  # another process may have been first
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
        migrate_schema(connection)


def create_missing_tables(engine: Engine, tables: Sequence[Table]) -> None:
    """Create those of these tables that the database does not have; our migrations do not know them."""
    with engine.connect().execution_options(read_only=True) as connection:
        existing = set(inspect(connection).get_table_names())
    if all(table.name in existing for table in tables):
        return
    with engine.begin() as connection:
        _lock(connection)
        for table in tables:
            if table.name not in existing and not inspect(connection).has_table(table.name):
                table.create(connection)
                create_triggers(connection, [table])
                create_history_views(connection, [table])


def current_revision(connection: Connection) -> str | None:
    """Return the schema revision of the database; None for an empty one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def known_revisions() -> set[str]:
    """Return every revision this program can migrate from."""
    names = (entry.name for entry in (files("ingestion_pipeline.store") / "migrations" / "versions").iterdir())
    return {name.split("_")[0] for name in names if name[:1].isdigit()}


def migrate_schema(connection: Connection, target: str = "head") -> None:
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


KEPT_STATEMENTS = 2000  # both databases together; the program has a few hundred of each


class CompiledOnce:
    """A cache for the option `compiled_cache` that many engines share.

    SQLAlchemy's keys begin with the dialect, an object that each engine has of its own; here its
    kind takes that place: database, driver and the server's version, which may decide the text.
    """

    def __init__(self) -> None:
        self._kept: LRUCache[tuple[Any, ...], Any] = LRUCache(KEPT_STATEMENTS)

    def get(self, key: tuple[Any, ...]) -> Any:  # noqa: ANN401 - SQLAlchemy's types are private
        """Return what was compiled for an equal statement, or None."""
        return self._kept.get(_of_any_engine(key))

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:  # noqa: ANN401
        self._kept[_of_any_engine(key)] = compiled


def _of_any_engine(key: tuple[Any, ...]) -> tuple[Any, ...]:
    dialect: Dialect = key[0]
    return (dialect.name, dialect.driver, dialect.server_version_info, *key[1:])


COMPILED = CompiledOnce()


S = TypeVar("S", bound=Executable)

_OPTION = "prepared"
_PREPARED = "prepared_statements"
_PARAMETER = re.compile(r"%\((\w+)\)s|%%")


def prepared(statement: S) -> S:
    """Mark the statement to be planned once per connection; its text must not depend on values."""
    return statement.execution_options(**{_OPTION: True})


def _execute_prepared(
    connection: Connection,
    cursor: Any,  # noqa: ANN401
    statement: str,
    parameters: Any,  # noqa: ANN401
    context: Any,  # noqa: ANN401
    executemany: bool,  # noqa: ARG001, FBT001 - SQLAlchemy's hook
) -> tuple[str, Any]:
    if context is None or _OPTION not in context.execution_options:
        return statement, parameters
    name, prepare, execute = _as_prepared(statement)
    prepared_names = connection.info.setdefault(_PREPARED, set())  # as long as the connection to the server
    if name not in prepared_names:
        cursor.execute(prepare)  # outlives a transaction that is rolled back
        prepared_names.add(name)
    return execute, parameters


@lru_cache(maxsize=256)
def _as_prepared(statement: str) -> tuple[str, str, str]:
    """Return its name, the text that prepares it, and the text that runs it."""
    name = f"ingestion_{blake2b(statement.encode(), digest_size=12).hexdigest()}"
    places: dict[str, str] = {}

    def place(match: re.Match[str]) -> str:
        parameter = match[1]
        return places.setdefault(parameter, f"${len(places) + 1}") if parameter else "%"

    text = _PARAMETER.sub(place, statement)
    arguments = ", ".join(f"%({parameter})s" for parameter in places)
    return name, f"PREPARE {name} AS {text}", f"EXECUTE {name} ({arguments})"


# A writer waits this long for another one; far above the longest transaction that was measured.
SQLITE_BUSY_SECONDS = 60
ENDED_FOR_OTHERS = {"40001", "40P01"}  # a serialization that failed, a deadlock
ENDED_AT_MOST = 2  # times, before it is raised
IDLE_SECONDS = 1.0  # a connection that was idle for longer may have been closed meanwhile

log = logging.getLogger(__name__)
T = TypeVar("T")


class TruncatedDatabase(ValueError):
    """The database file exists and is empty; the message says what to do."""


class Store:
    """The open database: `begin` to write, `read` to read, `now` for the time."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine = engine
        self.clock = clock

    @contextmanager
    def begin(self) -> Generator[Connection]:
        """Open a writing transaction; on SQLite it holds the write lock."""
        with self.engine.begin() as connection:
            yield connection

    def write(self, act: Callable[[Connection], T]) -> T:
        """Run `act` in a writing transaction, again if the database aborted it for another's sake.

        Of two transactions that wait for each other the database aborts one. That
        the lock order forbids it (`locking`) does not help a task that it would cost an attempt.
        """
        for _ in range(ENDED_AT_MOST):
            try:
                with self.begin() as connection:
                    return act(connection)
            except OperationalError as error:
                if getattr(error.orig, "pgcode", None) not in ENDED_FOR_OTHERS:
                    raise
                log.warning("transaction aborted by the database; retrying", exc_info=True)
        with self.begin() as connection:
            return act(connection)

    @contextmanager
    def read(self) -> Generator[Connection]:
        """Open a reading transaction, which never waits for a writer."""
        with self.engine.connect().execution_options(read_only=True) as connection:
            yield connection

    def now(self) -> datetime:
        """Return the clock's time."""
        with self.read() as connection:
            return self.clock.now(connection)

    def close(self) -> None:
        """Give every connection back."""
        self.engine.dispose()


def open_store(url: str, *, clock: Clock | None = None, migrate: bool = False) -> Store:
    """Open the database at `url` and bring it to this program's schema.

    An empty database is created, an older SQLite migrates itself; an older PostgreSQL is refused
    with the command that migrates it, unless `migrate` is that command.
    """
    engine = _create_engine(url)
    store = Store(engine, clock or DatabaseClock())
    try:
        ensure_schema(engine, may_migrate=migrate or engine.dialect.name == "sqlite")
    except BaseException:
        store.close()
        raise
    return store


def open_read_only(url: str) -> Store:
    """Open the database of another installation: its schema stays as it is, and every write is refused."""
    engine = _create_engine(url)
    is_sqlite = engine.dialect.name == "sqlite"
    event.listen(engine, "connect", _refuse_writes_sqlite if is_sqlite else _refuse_writes_postgresql)
    return Store(engine, DatabaseClock())


def _refuse_writes_sqlite(connection: sqlite3.Connection, _: Any) -> None:  # noqa: ANN401
    connection.execute("PRAGMA query_only = ON")


def _refuse_writes_postgresql(connection: Any, _: Any) -> None:  # noqa: ANN401
    connection.set_session(readonly=True)


def schema_revision(url: str) -> str | None:
    """Return the schema revision of the database, None if empty; nothing is changed."""
    engine = create_engine(url, hide_parameters=True, poolclass=NullPool)
    if engine.dialect.name == "sqlite":
        _refuse_truncated(engine.url.database or "")
    with engine.connect() as connection:
        return current_revision(connection)


def _create_engine(url: str) -> Engine:
    parsed = make_url(url)
    create = partial(
        create_engine,
        parsed,
        hide_parameters=True,  # an error is stored and logged; a row may hold a secret
        pool_size=5,
        pool_use_lifo=True,  # each keeps pages in memory, and statements: few are warm, not all
        json_deserializer=json_value,
        execution_options={"compiled_cache": COMPILED},
    )
    if parsed.get_backend_name() != "sqlite":
        engine = create(max_overflow=10)
        event.listen(engine, "connect", _plan_to_the_end)
        event.listen(engine, "checkin", _remember_use)
        event.listen(engine, "checkout", _ping_if_idle)
        event.listen(engine, "before_cursor_execute", _execute_prepared, retval=True)
        return engine
    _prepare_file(parsed.database)
    arguments = {"timeout": SQLITE_BUSY_SECONDS, "check_same_thread": False, "factory": _CountingConnection}
    engine = create(poolclass=QueuePool, max_overflow=20, connect_args=arguments)
    # A bare `now` inside case() or coalesce() is written as its column would write it.
    engine.dialect.colspecs = {**engine.dialect.colspecs, DateTime: UtcText}
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _plan_to_the_end(connection: Any, _: object) -> None:  # noqa: ANN401
    """Plan streamed queries for all rows; PostgreSQL would plan for the first tenth.

    Of tables without statistics it then walked through all polls for each source: the health of
    10,000 sources just imported took 14 s instead of 0.5 s.
    """
    connection.autocommit = True  # in a transaction a rollback would take it back
    with connection.cursor() as cursor:
        cursor.execute("SET cursor_tuple_fraction = 1")
    connection.autocommit = False


def _remember_use(_: object, record: ConnectionPoolEntry) -> None:
    record.info["used_at"] = time.monotonic()


def _ping_if_idle(connection: Any, record: ConnectionPoolEntry, _: object) -> None:  # noqa: ANN401
    """Check that the server still knows the connection; only after idling: it is a round trip."""
    used_at = record.info.get("used_at")
    if used_at is None or time.monotonic() - used_at < IDLE_SECONDS:
        return
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        connection.rollback()
    except (connection.OperationalError, connection.InterfaceError) as error:
        raise DisconnectionError("the database has closed the connection") from error


class _CountingCursor(sqlite3.Cursor):
    """A cursor that counts the rows changed by a WITH statement; the driver's says -1."""

    @property
    def rowcount(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        counted: int = super().rowcount
        if counted >= 0 or self.description is not None:
            return counted
        return int(self.connection.execute("SELECT changes()").fetchone()[0])


class _CountingConnection(sqlite3.Connection):
    origins: OriginState

    def cursor(self, factory: Any = _CountingCursor) -> Any:  # noqa: ANN401
        return super().cursor(factory)


def _prepare_file(database: str | None) -> None:
    """Create the file so that only its owner can read it."""
    if not database or database == ":memory:":
        raise ValueError("an in-memory SQLite cannot be shared by runs; name a file")
    folder = os.path.dirname(os.path.abspath(database))  # noqa: PTH100, PTH120 - keeps links
    os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
    # Only a file that is not there yet: to close a second handle of a database that this process
    # has open would drop its locks (POSIX), and another process would tidy its log away.
    if not os.path.exists(database):  # noqa: PTH110
        _create_file(database)
    _refuse_truncated(database)


def _create_file(database: str) -> None:
    """Create an empty database unless another process is quicker; the file is renamed when it is complete."""
    temporary = f"{database}.{uuid4().hex}.new"
    _write_empty_database(temporary)
    try:
        os.link(temporary, database)  # a rename would replace what another process has made
    except FileExistsError:
        pass
    except OSError:  # a file system that gives a file but one name
        with suppress(FileExistsError):
            _write_empty_database(database)
    finally:
        os.unlink(temporary)  # noqa: PTH108


def _write_empty_database(path: str) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("PRAGMA user_version = 1")  # else there would be no page to write
        content = connection.serialize()
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _refuse_truncated(database: str) -> None:
    if os.path.exists(database) and os.path.getsize(database) == 0:  # noqa: PTH110, PTH202
        raise TruncatedDatabase(
            f"{database} is there and has 0 bytes, which no database of ours has: it was emptied,"
            " or something else created it. Restore it from a backup; to start over, remove it"
            " together with the files beside it that end in -wal and -shm"
        )


def _set_up_sqlite(connection: _CountingConnection, _: Any) -> None:  # noqa: ANN401
    add_functions(connection)
    # The driver must not open transactions of its own: `_begin_sqlite` says which kind.
    connection.isolation_level = None
    cursor = connection.cursor()
    _switch_to_wal(cursor)
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA wal_autocheckpoint = 1000")
    cursor.close()


def _switch_to_wal(cursor: sqlite3.Cursor) -> None:
    # Where several processes are the first, SQLite refuses all but one at once, without waiting.
    give_up_at = time.monotonic() + SQLITE_BUSY_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
            time.sleep(0.02)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    read_only = connection.get_execution_options().get("read_only", False)
    forget_origins(connection)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
