"""A real `dagster dev` for the tests: webserver, daemon and code server in one session."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ingestion_pipeline_tests.fakes import closed_port
from ingestion_pipeline_tests.orchestration.house import House

ROOT = Path(__file__).parents[2]


def variables(house: House, **more: str) -> dict[str, str]:
    """What a command of this test is started with."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | house.environment | more


def make_desk(folder: Path) -> Path:
    """A working directory as the repository is one: limits and workspace, and nothing else."""
    desk = folder / "desk"
    desk.mkdir()
    for name in ("dagster.yaml", "workspace.yaml"):
        (desk / name).symlink_to(ROOT / name)
    return desk


def make_dagster_home(folder: Path) -> Path:
    """A DAGSTER_HOME with the limits of the repository."""
    home = folder / "dagster"
    home.mkdir()
    (home / "dagster.yaml").symlink_to(ROOT / "dagster.yaml")
    return home


# Who runs the tests in the background has them ignore INT, and Dagster hears TERM as it hears INT.
HEARING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Dev:
    """A running `dagster dev`, asked by GraphQL as its own pages do."""

    def __init__(self, desk: Path, environment: dict[str, str]) -> None:
        self.port = closed_port()
        dagster = [sys.executable, "-m", "ingestion_pipeline.orchestration.ui", "dev"]
        command = [sys.executable, "-c", HEARING, *dagster, "-h", "127.0.0.1"]
        self._log = (desk / "dev.log").open("w+")
        self.process = subprocess.Popen(
            [*command, "-p", str(self.port)],
            cwd=desk,
            env=environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, query: str) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url}/graphql",
            data=json.dumps({"query": query}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["data"]

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url, timeout=30) as answer:
                return answer.status == 200
        except OSError:
            return False

    def stop(self) -> int:
        """SIGTERM, as a service manager sends it; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(180)

    def family(self) -> dict[int, str]:
        """The processes of its session that are still there, with their command lines."""
        found: dict[int, str] = {}
        for folder in Path("/proc").iterdir():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                if folder.name.isdigit() and int(stat[3]) == self.process.pid and stat[0] != "Z":
                    command = (folder / "cmdline").read_text().replace("\0", " ")
                    found[int(folder.name)] = command
            except OSError:
                continue
        return found

    def end(self) -> None:
        """Nothing of it is left, however the test went."""
        for pid in self.family():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(60)
        self._log.close()


def within(seconds: float, is_so: Callable[[], bool]) -> bool:
    """Whether it became so in time; a real daemon has a clock of its own."""
    give_up_at = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.5)
    return True
