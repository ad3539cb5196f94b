"""The databases that are measured: a SQLite file, and a PostgreSQL that is started for it."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figure import Meter
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline_tests.postgres import PostgresServer, find_binaries


@dataclass(frozen=True, kw_only=True)
class Database:
    """A fresh database, and the meter that sees its server's CPU too."""

    name: str
    url: str
    store: Store
    meter: Meter
    folder: Path  # for whoever needs files beside it
    another: Callable[[str], str]  # the URL of a further, empty one


@contextmanager
def sqlite() -> Iterator[Database]:
    """A file of its own, as the engine opens it: WAL, synchronous = NORMAL."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'bench.db'}"
        with closing(open_store(url)) as store:
            yield Database(
                name="SQLite",
                url=url,
                store=store,
                meter=Meter(),
                folder=Path(folder),
                another=lambda name: f"sqlite:///{Path(folder) / name}.db",
            )


@contextmanager
def postgresql() -> Iterator[Database | None]:
    """A server of its own with every durability setting as it comes; None without PostgreSQL."""
    binaries = find_binaries()
    if binaries is None:
        yield None
        return
    server = PostgresServer(binaries, durable=True)
    try:
        server.start()
        url = server.url(server.create_database())
        with tempfile.TemporaryDirectory() as folder, closing(open_store(url)) as store:
            yield Database(
                name="PostgreSQL",
                url=url,
                store=store,
                meter=Meter(server.pid),
                folder=Path(folder),
                another=lambda _: server.url(server.create_database()),
            )
    finally:
        server.stop()
