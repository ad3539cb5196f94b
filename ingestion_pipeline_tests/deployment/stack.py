"""Production on one machine: PostgreSQL, Redis, a site, and the processes of `deploy/systemd`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline_tests.deployment.units import DEPLOY, PROGRAMS, ROOT, command_of, example
from ingestion_pipeline_tests.fakes import closed_port
from ingestion_pipeline_tests.postgres import PostgresServer, start_server

HERE = str(Path(sys.executable).parent) + "/"
PATIENCE_SECONDS = 300  # everything starts at once, on a machine that may be busy


def session_of(pid: int) -> list[int]:
    """The processes of the session that are there; those that have ended and wait are not."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit():
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(stat[3]) == pid and stat[0] != "Z":
                    found.append(int(folder.name))
    return found


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
        """kill -9, the children too."""
        while alive := session_of(self.process.pid):
            for pid in alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        self.process.wait(10)
        self._log.close()

    def stop(self, number: int, *, within_seconds: float) -> int:
        """The exit code after the signal that its unit would send."""
        self.process.send_signal(number)
        try:
            return self.process.wait(within_seconds)
        finally:
            self.kill()


class Stack:
    """What runs, by name; `worker-1` is an instance of the worker's unit."""

    def __init__(self, folder: Path, postgres: PostgresServer, changes: Mapping[str, str]) -> None:
        self.postgres = postgres
        self.folder = folder
        self.site_log = folder / "site.log"
        self._services: dict[str, Service] = {}
        self.store_url = postgres.url(postgres.create_database())
        home = folder / "home"
        redis = closed_port()
        self.variables = example() | {
            "PATH": HERE + ":" + os.environ["PATH"],
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
        """Redis answers, and both databases have their schemas.

        As docs/operating.md says it: of several that find its database empty, Dagster breaks off.
        """
        self.run("redis", _redis(self._redis_port))
        self.type("ingest", "init")
        self.type("dagster", "instance", "migrate")

    @property
    def home(self) -> Path:
        return Path(self.variables["INGESTION_HOME"])

    def type(self, program: str, *arguments: str) -> str:
        """What a command says that an operator types beside it."""
        command = [HERE + program, *arguments]
        done = subprocess.run(command, cwd=self.folder, env=self.variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, name: str, command: list[str]) -> None:
        assert name not in self._services, name
        self._services[name] = Service(command, self.folder, self.variables)

    def start(self, *names: str, **changes: str) -> None:
        """The processes by the commands of their units."""
        self.variables |= changes
        for name in names:
            role, _, instance = name.partition("-")
            command = command_of(role, self.variables, instance=instance)
            assert command[0].startswith(PROGRAMS)
            self.run(name, [command[0].replace(PROGRAMS, HERE), *command[1:]])

    def start_site(self, *, seconds: float) -> None:
        module = "ingestion_pipeline_tests.deployment.site"
        words = [sys.executable, "-m", module, str(self.home), str(self.site_log), str(seconds)]
        self.run("site", words)
        self.wait((self.home / "demo" / "site.json").exists)

    def kill(self, *names: str) -> None:
        for name in names:
            self._services.pop(name).kill()

    def stop(self, name: str, number: int = signal.SIGTERM, *, within_seconds: float = 60) -> int:
        return self._services.pop(name).stop(number, within_seconds=within_seconds)

    def end(self) -> None:
        """Nothing of it is left, however the test went."""
        self.kill(*reversed(self._services))

    def ended(self) -> list[str]:
        """Those that have ended by themselves, which nobody asked them to."""
        return [name for name, one in self._services.items() if one.process.poll() is not None]

    @contextmanager
    def store(self) -> Iterator[Store]:
        with closing(open_store(self.store_url)) as store:
            yield store

    def asked(self) -> list[dict[str, Any]]:
        """What the site was asked, in its order."""
        if not self.site_log.exists():
            return []
        lines = self.site_log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait(self, is_so: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> float:
        """How long it took until it was so; a process that ends meanwhile is an error."""
        began = time.monotonic()
        while not is_so():
            assert not self.ended(), self.ended()
            assert time.monotonic() < began + seconds, "it never came to that"
            time.sleep(0.2)
        return time.monotonic() - began

    def ask(self, query: str) -> dict[str, Any]:
        """The UI's API."""
        port = self.variables["DAGSTER_WEBSERVER_PORT"]
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/graphql",
            data=json.dumps({"query": query}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["data"]

    def answers(self) -> bool:
        try:
            return bool(self.ask("{ version }")["version"])
        except OSError:
            return False

    def runs(self, *statuses: str) -> list[dict[str, Any]]:
        """Runs in these states, as the UI lists them."""
        wanted = ", ".join(statuses)
        query = "{ runsOrError(filter: {statuses: [%s]}, limit: 500) { ... on Runs { results %s } } }"
        fields = "{ runId status jobName tags { key value } }"
        return self.ask(query % (wanted, fields))["runsOrError"]["results"]


def _redis(port: int) -> list[str]:
    program = shutil.which("redis-server")
    assert program is not None
    return [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", "."]


@contextmanager
def a_stack(folder: Path, **changes: str) -> Iterator[Stack]:
    """PostgreSQL and Redis run, with empty databases; all of it is gone afterwards."""
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
