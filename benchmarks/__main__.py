"""`python -m benchmarks`: every claim on SQLite and on a PostgreSQL started for it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import claims, ingestion
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline_tests.postgres import PostgresServer, find_binaries


@contextmanager
def stores() -> Iterator[list[tuple[str, Store]]]:
    """A fresh store on each database that there is."""
    with tempfile.TemporaryDirectory() as folder:
        found = [("sqlite", open_store(f"sqlite:///{Path(folder) / 'bench.db'}"))]
        server = None
        if (binaries := find_binaries()) is not None:
            server = PostgresServer(binaries)
            server.start()
            found.append(("postgresql", open_store(server.url(server.create_database()))))
        try:
            yield found
        finally:
            for _, store in found:
                store.close()
            if server is not None:
                server.stop()


def main() -> None:
    print(f"{'claim':34} {'database':11} {'ours':>12} {'peer':>12} {'ratio':>7}")
    with stores() as found:
        for database, store in found:
            for module in (claims, ingestion):
                for line in module.measure(store):
                    rates = f"{line.ours:>10,.0f}/s {line.peer:>10,.0f}/s"
                    print(f"{line.claim:34} {database:11} {rates} {line.ratio:>6.1f}x", flush=True)


main()
