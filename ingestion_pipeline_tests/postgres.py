"""A real PostgreSQL for the tests: started from the system's binaries, gone when they end."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import metadata

SUPERUSER = "postgres"
OPTIONS = "-c listen_addresses='' -c max_connections=200 -c log_min_messages=fatal"
HASTY = "-c fsync=off -c shared_buffers=64MB -c autovacuum=off"  # for tests; nobody measures these

SHAPE = """
SELECT string_agg(name, ',' ORDER BY name) FROM (
  SELECT relname AS name FROM pg_class WHERE relnamespace = 'public'::regnamespace
  UNION ALL SELECT tgname FROM pg_trigger WHERE NOT tgisinternal
) AS named
"""

# A test fills a few of them: to truncate all took twice as long.
NOT_EMPTY = " UNION ALL ".join(
    f"SELECT '{table.name}' WHERE EXISTS (SELECT 1 FROM {table.name})" for table in metadata.sorted_tables
)
FROM_ONE_AGAIN = """
SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, 1, false)
FROM pg_sequences WHERE last_value IS NOT NULL
"""


class PostgresServer:
    """One server on a unix socket; every test gets a database of its own."""

    def __init__(self, binaries: Path, *, durable: bool = False) -> None:
        self._binaries = binaries
        self._options = OPTIONS if durable else f"{OPTIONS} {HASTY}"
        self._spare: list[str] = []
        self._desks: dict[str, Connection] = {}
        self._shape: str | None = None
        # A unix socket's path has at most 107 bytes, hence not pytest's own folder.
        self.folder = Path(tempfile.mkdtemp(prefix="ipt-pg-", dir="/tmp"))

    def start(self) -> None:
        """The server answers afterwards."""
        if os.getuid() == 0:
            shutil.chown(self.folder, SUPERUSER, SUPERUSER)
        data = str(self.folder / "data")
        self._run("initdb", "-D", data, "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start_again()

    def start_again(self) -> None:
        """The server answers afterwards, with what it had stored."""
        options = f"-k {self.folder} {self._options}"
        log = str(self.folder / "log")
        data = str(self.folder / "data")
        self._run("pg_ctl", "-D", data, "-l", log, "-w", "-o", options, "start")

    def crash(self) -> None:
        """kill -9 of the server; its children notice, and end."""
        os.kill(self.pid, signal.SIGKILL)
        data, deadline = self.folder / "data", time.monotonic() + 20
        while _is_at_work_in(data):
            if time.monotonic() > deadline:
                raise TimeoutError("the server's children outlive it")
            time.sleep(0.05)
        # It counts as running as long as nobody has taken note of its death.
        (self.folder / "data" / "postmaster.pid").unlink()
        (self.folder / ".s.PGSQL.5432.lock").unlink()

    @property
    def pid(self) -> int:
        """The process whose children serve the connections."""
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def stop(self) -> None:
        """The server and its folder are gone afterwards."""
        for name in [*self._desks]:
            self._leave(name)
        data = self.folder / "data"
        if (data / "postmaster.pid").exists():
            self._run("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str) -> str:
        """The SQLAlchemy URL of one of its databases."""
        return f"postgresql+psycopg2://{SUPERUSER}@/{database}?host={self.folder}"

    def create_database(self, template: str = "template0") -> str:
        """The name of a fresh database, equal to the template."""
        name = f"t{uuid4().hex}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def lend(self, template: str) -> str:
        """The name of a database equal to the template, which `take_back` takes back."""
        if not self._spare:
            self._spare.append(self.create_database(template))
            self._shape = self._shape or self._emptied(self._spare[0])
        return self._spare.pop()

    def take_back(self, name: str) -> None:
        """Emptied it is lent again: faster than another copy. One that was changed is dropped."""
        if self._emptied(name) == self._shape:
            self._spare.append(name)
        else:
            self.drop_database(name)

    def _emptied(self, name: str) -> str | None:
        """Every row is gone; which tables, indexes and triggers there are; None if it is locked.

        By a connection that stays: a new one costs the server more than all that it is asked here.
        """
        try:
            if name not in self._desks:
                self._desks[name] = create_engine(self.url(name), poolclass=NullPool).connect()
            with self._desks[name].begin():
                return _emptied_by(self._desks[name])
        except DBAPIError:
            self._leave(name)
            return None

    def _leave(self, name: str) -> None:
        if desk := self._desks.pop(name, None):
            desk.invalidate()
            desk.close()

    def drop_database(self, name: str) -> None:
        """The database is gone, whoever is still connected."""
        self._leave(name)
        self._execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _execute(self, statement: str) -> None:
        engine = create_engine(self.url("postgres"), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(statement))

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            drop = f"--reuid={SUPERUSER} --regid={SUPERUSER} --clear-groups".split()
            command = ["setpriv", *drop, *command]
        done = subprocess.run(
            command,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # a pipe would be kept open by the server
            stderr=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            log = self.folder / "log"
            detail = (done.stderr or b"").decode() + (log.read_text() if log.exists() else "")
            raise RuntimeError(f"{program} ended with {done.returncode}: {detail}")


def _emptied_by(connection: Connection) -> str | None:
    connection.execute(text("SET LOCAL lock_timeout = '2s'"))
    if full := list(connection.execute(text(NOT_EMPTY)).scalars()):
        connection.execute(text(f"TRUNCATE {', '.join(full)} CASCADE"))
    connection.execute(text(FROM_ONE_AGAIN))
    return connection.execute(text(SHAPE)).scalar_one()


def _is_at_work_in(data: Path) -> bool:
    """Whether any process of a server works in its folder."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "cwd").readlink() == data:
                return True
    return False


def find_binaries() -> Path | None:
    """The folder of `initdb` and `pg_ctl`, the newest version first."""
    on_path = shutil.which("initdb")
    versions = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda file: float(file.parent.parent.name), reverse=True
    )
    result = [Path(on_path).resolve()] if on_path else versions
    return result[0].parent if result else None


def start_server(*, durable: bool = False) -> PostgresServer:
    """A started server; without PostgreSQL the test is skipped, and in CI it fails."""
    binaries = find_binaries()
    if binaries is None:
        reason = "there is no PostgreSQL (initdb) on this machine; `make system` installs it"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    server = PostgresServer(binaries, durable=durable)
    try:
        server.start()
    except BaseException:
        server.stop()
        raise
    return server


def wait_until_blocked(store: Store) -> None:
    """Until some transaction waits for a lock; asked anew each time, since the answer is kept."""
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with store.read() as connection:
            if connection.execute(waiting).scalar_one():
                return
        time.sleep(0.01)
    raise TimeoutError("nobody came to wait")
