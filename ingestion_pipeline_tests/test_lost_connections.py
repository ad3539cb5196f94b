"""The database connection is cut at every COMMIT of a poll in turn: still one effect."""

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import pytest
from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import (
    batch_items,
    chapter_sources,
    chapters,
    dead_letters,
    ingestions,
    outbox,
    source_versions,
    sources,
    tasks,
)
from ingestion_pipeline.tasks.errors import WorkError
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import (
    RunningClock,
    a_feed,
    a_run_context,
    add_sources,
    fast_settings,
    poll,
    rows,
    source_row,
)
from ingestion_pipeline_tests.postgres import PostgresServer

SOCKET = ".s.PGSQL.5432"
COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"  # as libpq writes the statement


class CuttingProxy:
    """Passes everything on, but for one COMMIT: the `cut_at`th since the last `arm`.

    With `arrives` the server has done it when the line is cut, and the client does not know.
    """

    def __init__(self, server: Path) -> None:
        self._server = str(server / SOCKET)
        # A unix socket's path has at most 107 bytes, hence not pytest's own folder.
        self.folder = Path(tempfile.mkdtemp(prefix="ipt-cut-", dir="/tmp"))
        self.commits = 0
        self.cuts = 0
        self._cut_at = 0
        self._arrives = True
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def arm(self, cut_at: int, *, arrives: bool) -> None:
        self.commits = self.cuts = 0
        self._cut_at, self._arrives = cut_at, arrives

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        (self.folder / SOCKET).unlink(missing_ok=True)
        self.folder.rmdir()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        path = str(self.folder / SOCKET)
        server = await asyncio.start_unix_server(self._connected, path)
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._server)
        answers = asyncio.create_task(self._pass_on(server_reader, writer))
        try:
            await self._ask(reader, server_writer, server_reader, answers)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            answers.cancel()
            server_writer.close()
            writer.close()

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        answers: asyncio.Task[None],
    ) -> None:
        while data := await reader.read(65_536):
            if data == COMMIT and self._is_the_one():
                if self._arrives:
                    answers.cancel()
                    await asyncio.gather(answers, return_exceptions=True)
                    server_writer.write(data)
                    await server_reader.read(65_536)  # CommandComplete: it is done
                return
            server_writer.write(data)
            await server_writer.drain()

    def _is_the_one(self) -> bool:
        self.commits += 1
        is_it = self.commits == self._cut_at
        self.cuts += is_it
        return is_it

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()


pytestmark = [pytest.mark.postgres, pytest.mark.both_databases]
MOST_COMMITS = 40  # of one poll; far more than it makes


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[CuttingProxy]:
    with CuttingProxy(postgres_server.folder) as proxy:
        yield proxy


def a_run_context_at(url: str, clock: RunningClock, home: Path) -> RunContext:
    return a_run_context(open_store(url, clock=clock), fast_settings(home, url))


def poll_with_cut(ctx: RunContext, web: FakeWeb) -> None:
    """Run a poll, which may fail only because its database connection is lost."""
    with suppress(SQLAlchemyError, WorkError), closing(ctx.store):
        poll(ctx, web)


def poll_until_done(ctx: RunContext, web: FakeWeb, clock: RunningClock) -> None:
    """Runs that come when the claims of the first have expired."""
    for _ in range(3):
        clock.advance(minutes=10)
        if source_row(ctx.store).last_success_at is None:
            poll(ctx, web)


def delete_all_rows(store: Store) -> None:
    with store.begin() as connection:
        for table in (outbox, chapter_sources, chapters, ingestions, tasks, source_versions, sources):
            connection.execute(table.delete())


@pytest.mark.parametrize("arrives", [True, False], ids=["done", "not-done"])
@pytest.mark.parametrize("database", ["postgres"])
def test_a_commit_whose_answer_is_lost_has_one_effect(
    database_url: str, proxy: CuttingProxy, tmp_path: Path, *, arrives: bool
) -> None:
    clock = RunningClock(datetime(2026, 3, 1, tzinfo=UTC))
    through = database_url.rpartition("host=")[0] + f"host={proxy.folder}"
    with FakeWeb({"/feed": a_feed(7)}) as web:
        ctx = a_run_context_at(database_url, clock, tmp_path / "home")
        cuts = 0
        for cut_at in range(1, MOST_COMMITS):
            add_sources(ctx.store, a_definition(url="http://a.test/feed"))
            with ctx.store.begin() as connection:
                connection.execute(update(sources).values(synced_at=NOON))
            proxy.arm(cut_at, arrives=arrives)
            poll_with_cut(a_run_context_at(through, clock, tmp_path / "home"), web)
            if not proxy.cuts:  # a whole poll has fewer commits
                break
            cuts += 1
            poll_until_done(ctx, web, clock)

            counts = {table.name: len(rows(ctx.store, table)) for table in (chapters, outbox)}
            assert counts == {"chapters": 1, "outbox": 1}, f"cut at commit {cut_at}"
            assert source_row(ctx.store).last_success_at is not None
            assert rows(ctx.store, dead_letters) == rows(ctx.store, batch_items) == []
            delete_all_rows(ctx.store)
        ctx.store.close()
    assert 3 <= cuts < MOST_COMMITS - 1
