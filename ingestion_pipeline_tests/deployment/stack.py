"""Production on one machine: PostgreSQL, Redis, a site, and the processes of `deploy/systemd`."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, func, insert, select, update

from ingestion_pipeline.notices import subscriptions
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.source import Follow, Mode, Recipient, Tier
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import (
    batch_items,
    chapter_sources,
    chapters,
    dead_letters,
    notices,
    outbox,
    series,
    sources,
    tasks,
)
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.deployment.deploy_files import DEPLOY, PROGRAMS, ROOT, example_environment, unit_command
from ingestion_pipeline_tests.fakes import closed_port
from ingestion_pipeline_tests.notices.notice_harness import SECRET
from ingestion_pipeline_tests.polling_runs import rows
from ingestion_pipeline_tests.postgres import PostgresServer, start_server

PROGRAM_FOLDER = str(Path(sys.executable).parent) + "/"
PATIENCE_SECONDS = 300  # everything starts at once, on a machine that may be busy


def session_pids(pid: int) -> list[int]:
    """Return the live processes of the session, without zombies."""
    pids: list[int] = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit():
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(stat[3]) == pid and stat[0] != "Z":
                    pids.append(int(folder.name))
    return pids


class Service:
    """A process in a session of its own, with all its children."""

    def __init__(self, command: list[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._log = (folder / f"{Path(command[0]).name}-{time.monotonic_ns()}.log").open("w")
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def kill(self) -> None:
        """Kill the process and its children with SIGKILL."""
        while alive := session_pids(self.process.pid):
            for pid in alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        self.process.wait(10)
        self._log.close()

    def stop(self, number: int, *, within_seconds: float) -> int:
        """Send the signal that its unit would send and return the exit code."""
        self.process.send_signal(number)
        try:
            return self.process.wait(within_seconds)
        finally:
            self.kill()


class Stack:
    """The running services by name; `worker-1` is an instance of the worker's unit."""

    def __init__(self, folder: Path, postgres: PostgresServer, changes: Mapping[str, str]) -> None:
        self.postgres = postgres
        self.folder = folder
        self.site_log = folder / "site.log"
        self._services: dict[str, Service] = {}
        self.store_url = postgres.url(postgres.create_database())
        home = folder / "home"
        redis = closed_port()
        self.variables = example_environment() | {
            "PATH": PROGRAM_FOLDER + ":" + os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": f"{DEPLOY}:{ROOT}",
            "INGESTION_DATABASE_URL": self.store_url,
            "INGESTION_HOME": str(home),
            "INGESTION_SOURCES": str(folder / "sources"),
            "DAGSTER_HOME": str(home / "dagster"),
            "DAGSTER_DATABASE_URL": postgres.url(postgres.create_database()),
            "CELERY_BROKER_URL": f"redis://127.0.0.1:{redis}/0",
            "CELERY_RESULT_BACKEND": f"redis://127.0.0.1:{redis}/1",
            "DAGSTER_CODE_PORT": str(closed_port()),
            "DAGSTER_WEBSERVER_PORT": str(closed_port()),
            **changes,
        }
        (home / "dagster").mkdir(parents=True)
        (folder / "sources").mkdir()
        (home / "dagster" / "dagster.yaml").symlink_to(DEPLOY / "dagster.yaml")
        (folder / "deploy").symlink_to(DEPLOY)
        self._redis_port = redis

    def set_up(self) -> None:
        """Start Redis and create the schemas of both databases.

        As in docs/operating/deployment.md: Dagster fails when several processes find its database empty.
        """
        self.run("redis", _redis(self._redis_port))
        self.run_program("ingest", "init")
        self.run_program("dagster", "instance", "migrate")

    @property
    def home(self) -> Path:
        return Path(self.variables["INGESTION_HOME"])

    def run_program(self, program: str, *arguments: str) -> str:
        """Run an operator's command beside the services and return its stdout."""
        command = [PROGRAM_FOLDER + program, *arguments]
        process = subprocess.run(
            command, cwd=self.folder, env=self.variables, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    def run(self, name: str, command: list[str]) -> None:
        assert name not in self._services, name
        self._services[name] = Service(command, self.folder, self.variables)

    def start(self, *names: str, **changes: str) -> None:
        """Start services by the commands of their units."""
        self.variables |= changes
        for name in names:
            role, _, instance = name.partition("-")
            command = unit_command(role, self.variables, instance=instance)
            assert command[0].startswith(PROGRAMS)
            self.run(name, [command[0].replace(PROGRAMS, PROGRAM_FOLDER), *command[1:]])

    def start_site(self, *, seconds: float) -> None:
        module = "ingestion_pipeline_tests.deployment.feed_site"
        words = [sys.executable, "-m", module, str(self.home), str(self.site_log), str(seconds)]
        self.run("site", words)
        self.wait((self.home / "demo" / "site.json").exists)

    def kill(self, *names: str) -> None:
        for name in names:
            self._services.pop(name).kill()

    def stop(self, name: str, number: int = signal.SIGTERM, *, within_seconds: float = 60) -> int:
        return self._services.pop(name).stop(number, within_seconds=within_seconds)

    def end(self) -> None:
        """Kill every service, however the test ended."""
        self.kill(*reversed(self._services))

    def exited_services(self) -> list[str]:
        """Return the services that exited without being stopped."""
        return [name for name, service in self._services.items() if service.process.poll() is not None]

    @contextmanager
    def store(self) -> Iterator[Store]:
        with closing(open_store(self.store_url)) as store:
            yield store

    def site_requests(self) -> list[dict[str, Any]]:
        """Return the requests to the site, in order."""
        if not self.site_log.exists():
            return []
        lines = self.site_log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait(self, condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> float:
        """Wait for the condition and return the seconds it took; a service that exits meanwhile is an error."""
        began = time.monotonic()
        while not condition():
            assert not self.exited_services(), self.exited_services()
            assert time.monotonic() < began + seconds, "the condition did not become true in time"
            time.sleep(0.2)
        return time.monotonic() - began

    def graphql(self, query: str) -> dict[str, Any]:
        """Query the UI's GraphQL API."""
        port = self.variables["DAGSTER_WEBSERVER_PORT"]
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/graphql",
            data=json.dumps({"query": query}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["data"]

    def is_up(self) -> bool:
        try:
            return bool(self.graphql("{ version }")["version"])
        except OSError:
            return False

    def runs(self, *statuses: str) -> list[dict[str, Any]]:
        """Return the runs in these states, as the UI lists them."""
        status_list = ", ".join(statuses)
        query = "{ runsOrError(filter: {statuses: [%s]}, limit: 500) { ... on Runs { results %s } } }"
        fields = "{ runId status jobName tags { key value } }"
        return self.graphql(query % (status_list, fields))["runsOrError"]["results"]


def _redis(port: int) -> list[str]:
    program = shutil.which("redis-server")
    assert program is not None
    return [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", "."]


@contextmanager
def running_stack(folder: Path, **changes: str) -> Iterator[Stack]:
    """Run PostgreSQL and Redis with empty databases; stop everything afterwards."""
    if shutil.which("redis-server") is None:
        reason = "there is no redis-server on this machine; `make system` installs it"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    postgres = start_server(durable=True)
    stack = None
    try:
        stack = Stack(folder, postgres, changes)
        stack.set_up()
        yield stack
    finally:
        if stack is not None:
            stack.end()
        postgres.stop()


LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
FOLLOWER = "ann"


def add_polled_sources(
    store: Store, count: int, *, hosts: int, per_series: int = 1, first: int = 0, is_followed: bool = False
) -> None:
    """Add sources, numbered from `first`, that were synced long ago; each has one new chapter."""
    numbers = range(first, first + count)
    names = sorted({f"series-{number // per_series}" for number in numbers})
    with store.begin() as connection:
        series_rows = [{"id": name, "title": name, "created_at": LONG_AGO} for name in names]
        connection.execute(insert(series), series_rows)
        if is_followed:
            follow(connection, names)
    definitions = [
        a_definition(
            id=f"series:{number}",
            url=f"http://h{number % hosts}.demo.test/feed/{number}",
            series=f"series-{number // per_series}",
            tier=Tier.HOT,
        )
        for number in numbers
    ]
    with store.begin() as connection:  # one transaction: no poll sees a source that was never synced
        register(connection, definitions, now=store.clock.now(connection))
        connection.execute(update(sources).where(sources.c.synced_at.is_(None)).values(synced_at=LONG_AGO))


def add_follower(store: Store) -> None:
    """Add a recipient without follows."""
    recipient = Recipient(id=FOLLOWER, address="http://hooks.demo.test/ann", mode=Mode.IMMEDIATE)
    with store.begin() as connection:
        subscriptions.add(connection, recipient, actor="test", now=LONG_AGO, secret=SECRET)


def follow(connection: Connection, names: Sequence[str]) -> None:
    """Let the recipient follow these series."""
    for name in names:
        subscriptions.follow(connection, FOLLOWER, Follow(series=name), actor="test", now=LONG_AGO)


def polled_count(store: Store) -> int:
    """Return how many sources have been polled successfully."""
    with store.read() as connection:
        query = select(func.count()).where(sources.c.last_success_at.is_not(None))
        return connection.execute(query.select_from(sources)).scalar_one()


def sent_notices(store: Store) -> int:
    """Return how many notices of chapters have been sent."""
    with store.read() as connection:
        is_sent = (notices.c.status == "sent") & (notices.c.subject_kind == "chapter")
        query = select(func.count()).select_from(notices).where(is_sent)
        return connection.execute(query).scalar_one()


def assert_one_effect_each(store: Store, count: int, *, per_series: int = 1, followers: int = 0) -> None:
    """Assert one poll per source, and one row, outbox row and notice per follower for every chapter."""
    assert polled_count(store) == count
    links = Counter(row.source_id for row in rows(store, chapter_sources))
    assert links == Counter(f"series:{number}" for number in range(count))
    expected = count // per_series
    # Dead runs have outbox rows and notices, too.
    news = [row for row in rows(store, outbox) if row.subject_kind == "chapter"]
    chapter_notices = [row for row in rows(store, notices) if row.subject_kind == "chapter"]
    counts = (len(rows(store, chapters)), len(news), len(chapter_notices))
    assert counts == (expected, expected, expected * followers), counts
    assert {row.status for row in rows(store, tasks) if row.kind == "poll"} == {"PENDING"}
    assert rows(store, dead_letters) == []
    assert rows(store, batch_items) == []


def feed_requests(stack: Stack) -> Counter[str]:
    """Return how often each feed was requested."""
    return Counter(request["path"] for request in stack.site_requests() if request["path"].startswith("/feed/"))


def shortest_request_gap(stack: Stack) -> float:
    """Return the shortest time between two feed requests of one host."""
    times: dict[str, list[float]] = defaultdict(list)
    for request in stack.site_requests():
        if request["path"].startswith("/feed/"):
            times[request["host"]].append(request["at"])
    gaps = [b - a for at in times.values() for a, b in pairwise(at)]
    return min(gaps)


def delivered_messages(stack: Stack) -> Counter[str]:
    """Return how often each message was delivered, by its idempotency key."""
    return Counter(request["message"] for request in stack.site_requests() if request["message"])
