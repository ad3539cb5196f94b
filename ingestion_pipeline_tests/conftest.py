"""What every test may ask for: settings, time, and a fresh store on each of the two databases."""

import gc
import ipaddress
import os
import shutil
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.store import FixedClock, Store, open_store
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import a_run_context, fast_settings
from ingestion_pipeline_tests.postgres import PostgresServer, start_server

# Not by the clock: an example that takes 200 ms on a busy machine says nothing about our code.
hypothesis_settings.register_profile("any machine", deadline=None)
hypothesis_settings.load_profile("any machine")

PRIVATE_VARIABLES = ("INGESTION_", "OPENAI_", "DAGSTER_HOME")


TESTS = Path(__file__).parent
# A minute and more each, of four processes on two cores.
LONGEST = (
    "orchestration/test_ui.py",
    "test_readme.py",
    "cli/test_demo.py",
    "test_kill_loops.py",
    "test_killed_workers.py",
    "tasks/test_races.py",
    "test_end_to_end.py",
)


def pytest_configure() -> None:
    """Ctrl-C is heard by what the tests start, however they themselves were started.

    What a shell puts into the background ignores it, and so do its children; Dagster does to TERM
    whatever is done to Ctrl-C, so that nothing could be told to stop.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Of several processes each loads a part of the tests before it collects them all.

    In a new checkout pytest rewrites every file, and keeps what it wrote for whoever comes later:
    one process does it for the others. (The collector waits until nothing more is loaded.)
    """
    gc.disable()
    about = getattr(session.config, "workerinput", None)
    if about is not None:
        number, count = int(about["workerid"].removeprefix("gw")), about["workercount"]
        for file in sorted(TESTS.rglob("test_*.py"))[number::count]:
            parts = file.relative_to(TESTS.parent).with_suffix("").parts
            with suppress(Exception):  # the collection reports it
                import_module(".".join(parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The long forms run only when they are asked for: `-m soak`; the longest files come first.

    Of several processes, the one that begins such a file last would have the others wait for it.
    """
    if "soak" not in str(config.getoption("-m")):
        items[:] = [item for item in items if item.get_closest_marker("soak") is None]
    slow = Counter(item.path for item in items if item.get_closest_marker("slow") is not None)
    first = {TESTS / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (first.get(item.path, len(LONGEST)), -slow[item.path]))


def pytest_collection_finish() -> None:
    """What every module holds by now stays to the end: the collector need not look at it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on the variables of whoever runs it, but for the samples it may read."""
    for name in os.environ:
        if name.startswith(PRIVATE_VARIABLES) and name != "INGESTION_SAMPLES":
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to anything but loopback or a unix socket is an error of the test."""
    for name in ("connect", "connect_ex"):
        real = getattr(socket.socket, name)

        def guarded(self: socket.socket, address: Any, *, real: Any = real) -> Any:
            _refuse_strangers(self, address)
            return real(self, address)

        monkeypatch.setattr(socket.socket, name, guarded)


def _refuse_strangers(sock: socket.socket, address: Any) -> None:
    if sock.family == socket.AF_UNIX or address[0] == "localhost":
        return
    try:
        is_ours = ipaddress.ip_address(address[0]).is_loopback
    except ValueError:
        is_ours = False
    if not is_ours:
        raise RuntimeError(f"tests talk to loopback alone, and this one wants {address!r}")


@pytest.fixture
def now() -> datetime:
    return datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def clock(now: datetime) -> FixedClock:
    """Stands at `now` until it is told to advance."""
    return FixedClock(now)


@pytest.fixture
def random() -> Random:
    return Random(7)


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    """Return the database that a test runs on: SQLite, and PostgreSQL as well if it is marked `both_databases`."""
    return getattr(request, "param", "sqlite")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests that are marked `both_databases` on both, unless they choose one themselves."""
    chosen = [mark for mark in metafunc.definition.iter_markers("parametrize") if "database" in mark.args[0]]
    is_marked = metafunc.definition.get_closest_marker("both_databases") is not None
    if is_marked and "database" in metafunc.fixturenames and not chosen:
        databases = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
        metafunc.parametrize("database", databases, indirect=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    server = start_server()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """The name of a migrated database that every other one is copied from."""
    name = postgres_server.create_database()
    open_store(postgres_server.url(name)).close()
    return name


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file that every other one is copied from."""
    file = tmp_path_factory.mktemp("template") / "ingestion.db"
    open_store(f"sqlite:///{file}").close()
    return file


@pytest.fixture
def database_url(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh, migrated database."""
    if database == "sqlite":
        file = tmp_path / "home" / "ingestion.db"
        file.parent.mkdir(mode=0o700)
        shutil.copy(request.getfixturevalue("sqlite_template"), file)
        yield f"sqlite:///{file}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = server.lend(request.getfixturevalue("postgres_template"))
    yield server.url(name)
    server.take_back(name)


@pytest.fixture
def empty_database_url(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a database that nobody has opened yet; on SQLite not even a file."""
    if database == "sqlite":
        yield f"sqlite:///{tmp_path / 'home' / 'ingestion.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


@pytest.fixture
def store(request: pytest.FixtureRequest, database_url: str, clock: FixedClock) -> Iterator[Store]:
    """A fresh, migrated store whose time is `clock`, or the real time if the test is marked `real_time`."""
    is_real = request.node.get_closest_marker("real_time") is not None
    opened = open_store(database_url, clock=None if is_real else clock)
    yield opened
    opened.close()


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    """All defaults, with a home of its own and the database of `store`."""
    home = str(tmp_path / "home")
    return load_settings({"INGESTION_HOME": home, "INGESTION_DATABASE_URL": database_url})


@pytest.fixture
def web() -> Iterator[FakeWeb]:
    """A web on loopback without a page."""
    with FakeWeb() as web:
        yield web


@pytest.fixture
def ctx(store: Store, database_url: str, tmp_path: Path) -> RunContext:
    """A run context that polls a web on loopback without spacing."""
    return a_run_context(store, fast_settings(tmp_path / "home", database_url))
