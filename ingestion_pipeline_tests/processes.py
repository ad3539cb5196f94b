"""Real processes for the tests of kills, races and clocks: small workers that can be killed anywhere."""

import io
import multiprocessing
import os
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, insert, select, text

from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import ACTIVE, outbox, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter, LostClaim, Worker
from ingestion_pipeline.tasks.task import Task, finished

# Nothing is inherited from the tests' process, as between real runs. The modules that all of them
# need are imported once, by a server process that each of them is forked from.
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(
    [
        "ingestion_pipeline_tests.processes",
        "ingestion_pipeline_tests.catalog_extractions",
        "ingestion_pipeline_tests.polling_runs",
        "ingestion_pipeline.bootstrap",
        "ingestion_pipeline.definitions",
        "dagster._cli",
        "sqlalchemy.dialects.postgresql.psycopg2",
        "alembic.command",
        "aiohttp",
        "httpx",
        "openai",
    ]
)
PATIENCE_SECONDS = 120
POLLS = ClaimFilter(kind="poll")


class Child:
    """A process that runs one function and returns its result or traceback by a pipe."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._pipe, child_end = FORKSERVER.Pipe()
        environment = dict(os.environ)
        self._process = FORKSERVER.Process(
            target=_send_result, args=(child_end, environment, function, arguments), daemon=True
        )
        self._process.start()
        child_end.close()

    def result(self, *, within_seconds: float = PATIENCE_SECONDS) -> Any:
        """Return the function's result; raise if it failed."""
        if not self._pipe.poll(within_seconds):
            self.kill()
            raise TimeoutError("the child sent no result")
        kind, value = self._pipe.recv()
        self._process.join(PATIENCE_SECONDS)
        self._pipe.close()
        if kind == "failed":
            raise AssertionError(f"in the child:\n{value}")
        return value

    def wait_until_stopped(self) -> None:
        """Return when the function has called `stop_here`."""
        while not self._is_stopped():
            if self._pipe.poll(0.005):
                raise AssertionError(f"the child ended instead: {self.result()}")

    def _is_stopped(self) -> bool:
        state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "T"

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def interrupt(self) -> None:
        """Send SIGTERM, as a service manager does."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        self._process.kill()
        self.wait()

    def wait(self) -> int | None:
        """Return the exit code, negative for a signal."""
        self._process.join(PATIENCE_SECONDS)
        self._pipe.close()
        return self._process.exitcode

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process.pid is not None
        return self._process.pid


def _send_result(
    pipe: Pipe, environment: dict[str, str], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    try:
        pipe.send(("done", function(*arguments)))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))


@dataclass(frozen=True)
class CommandOutput:
    """Exit code and output of a command."""

    code: int
    out: str
    errors: str


def stop_here() -> None:
    """Stop this process until its parent resumes or kills it."""
    os.kill(os.getpid(), signal.SIGSTOP)


def run_command(folder: str, line: list[str], variables: Mapping[str, str] | None = None) -> CommandOutput:
    """Run a command of `ingest` or `dagster` in the folder, in this fork of a process that has both
    loaded, since loading them takes longer than most commands do.
    """
    os.environ.update(variables or {})
    os.chdir(folder)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        os.dup2(out.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        code = _exit_code(line)
        sys.stdout.flush()
        sys.stderr.flush()
        out.seek(0)
        errors.seek(0)
        return CommandOutput(code, out.read().decode(), errors.read().decode())


def _exit_code(line: list[str]) -> int:
    program, *arguments = line
    sys.argv = line
    try:
        _program(Path(program).name)(arguments, prog_name=program)
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return 0


def _program(name: str) -> Callable[..., object]:
    if name == "ingest":
        from ingestion_pipeline.cli import main

        return main
    from dagster._cli import create_dagster_cli

    return create_dagster_cli()


def run_without_a_reader(home: str, lines: list[list[str]]) -> list[tuple[int, str]]:
    """Run commands of `ingest` whose output nobody reads; return exit code and stderr of each."""
    from ingestion_pipeline.cli import main

    os.environ["INGESTION_HOME"] = home
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)
    outcomes: list[tuple[int, str]] = []
    for line in lines:
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = stderr = io.StringIO()
        try:
            main(line, prog_name="ingest")
        except SystemExit as exit_:
            outcomes.append((exit_.code if isinstance(exit_.code, int) else 1, stderr.getvalue()))
    return outcomes


def open_together(url: str, barrier: Barrier) -> int:
    """Open the database at the same moment as the others; return its number of tasks."""
    barrier.wait(PATIENCE_SECONDS)
    store = open_store(url)
    try:
        with store.read() as connection:
            return connection.execute(select(func.count()).select_from(tasks)).scalar_one()
    finally:
        store.close()


def open_and_close(url: str) -> None:
    open_store(url).close()


def finish_tasks(store: Store, finished_tasks: list[Task]) -> None:
    """Write completion and effects in one transaction; an existing effect is an error."""
    with store.begin() as connection:
        now = store.clock.now(connection)
        claims.apply(connection, [finished(task) for task in finished_tasks], now=now)
        _write_effects(connection, finished_tasks, now)


def _write_effects(connection: Connection, finished_tasks: list[Task], now: datetime) -> None:
    rows = [
        {"subject_kind": "done", "subject_id": task.dedupe_key, "payload": {}, "created_at": now}
        for task in finished_tasks
    ]
    connection.execute(insert(outbox), rows)


def work_until_done(url: str, lease_seconds: float) -> int:
    """Claim and finish until no active task is left; return how many were finished."""
    store = open_store(url)
    worker = Worker(store, lease_seconds=lease_seconds)
    count, deadline = 0, time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if claimed := worker.claim(POLLS, limit=10):
            with suppress(LostClaim):  # it waited for the file for longer than its lease
                finish_tasks(store, claimed)
                count += len(claimed)
        elif _active(store) == 0:
            break
        else:
            time.sleep(0.02)
    store.close()
    return count


def _active(store: Store) -> int:
    with store.read() as connection:
        query = select(func.count()).select_from(tasks).where(ACTIVE)
        return connection.execute(query).scalar_one()


def stop_inside_a_transaction(url: str) -> None:
    """Claim, write effects and completion, and stop before the commit."""
    store = open_store(url)
    claimed = Worker(store, lease_seconds=1).claim(POLLS, limit=10)
    with store.begin() as connection:
        now = store.clock.now(connection)
        claims.apply(connection, [finished(task) for task in claimed], now=now)
        _write_effects(connection, claimed, now)
        stop_here()


def claim_with_a_wrong_clock(url: str, days_off: int, lease_seconds: float) -> list[int]:
    """Return the ids that a worker claims whose own clock is days off."""
    import time_machine

    with time_machine.travel(datetime.now(UTC) + timedelta(days=days_off)):
        store = open_store(url)
        claimed = Worker(store, lease_seconds=lease_seconds).claim(POLLS, limit=10)
        store.close()
    return [task.id for task in claimed]


def stop_outside_a_transaction(child: Child, store: Store) -> None:
    """Send SIGSTOP while the child holds no lock: waiting for its locks is not what is tested."""
    while True:
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(0.05)  # the signal takes effect at the next scheduling
        if is_no_write_open(store):
            return
        child.resume()
        time.sleep(0.02)


def is_no_write_open(store: Store) -> bool:
    if store.engine.dialect.name == "sqlite":
        with closing(sqlite3.connect(str(store.engine.url.database), timeout=0)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
        return True
    others = "datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'"
    with store.read() as connection:
        query = text(f"SELECT count(*) FROM pg_stat_activity WHERE {others}")
        return connection.execute(query).scalar_one() == 0
