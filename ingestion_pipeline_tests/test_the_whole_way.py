"""From a source file to rows: through Dagster in process, then by the commands a reader types."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline_tests.fakes import closed_port
from ingestion_pipeline_tests.orchestration.house import (
    BROKEN,
    LIGHTHOUSE,
    SALT,
    House,
    a_file,
    an_entry,
    run_job,
    tick_sensor,
    told,
)

ROOT = Path(__file__).parents[1]
PATIENCE_SECONDS = 90


@pytest.fixture
def house(tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    """The house that the environment names."""
    made = House.build(tmp_path, sqlite_template)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def site(house: House) -> Iterator[DemoSite]:
    with DemoSite(house.home) as running:
        yield running


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A working directory as the repository is one: limits and workspace, and nothing else."""
    folder = tmp_path / "desk"
    folder.mkdir()
    for name in ("dagster.yaml", "workspace.yaml"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture
def dagster_home(tmp_path: Path) -> Path:
    folder = tmp_path / "dagster"
    folder.mkdir()
    (folder / "dagster.yaml").symlink_to(ROOT / "dagster.yaml")
    return folder


def variables(house: House, **more: str) -> dict[str, str]:
    """What a command of this test is started with."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | house.environment | more


def dagster(
    *arguments: str, desk: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess:
    command = [str(Path(sys.executable).with_name("dagster")), *arguments]
    return subprocess.run(
        command, cwd=desk, env=environment, capture_output=True, text=True, check=False, timeout=90
    )


def job(name: str, *arguments: str, **more: Any) -> subprocess.CompletedProcess:
    """The line that the README gives for a job."""
    line = ("job", "execute", "-m", "ingestion_pipeline", "-j", name)
    return dagster(*line, *arguments, **more)


def test_one_source_file_becomes_rows(house: House, site: DemoSite) -> None:
    (house.sources / "mine.yaml").write_text(a_file([an_entry()]))

    with dg.DagsterInstance.ephemeral() as instance:
        [request] = tick_sensor("new_sources", instance).run_requests
        result = run_job(request.job_name, instance, tags=request.tags)
        seen = instance.get_materialized_partitions(dg.AssetKey("chapters"))
        keys = instance.get_dynamic_partitions("series_sources")

    assert result.success
    assert told(result)[LIGHTHOUSE]["new_chapters"] == 10
    assert seen == {LIGHTHOUSE} == set(keys)
    assert house.chapters_of(LIGHTHOUSE) == 10
    [series] = house.rows("series")
    assert (series["id"], series["latest_chapter"]) == ("lighthouse", 22)
    assert house.rows("outbox") == []  # the first sync is silent


@pytest.mark.slow
def test_a_job_runs_without_a_dagster_home_and_leaves_nothing_behind(
    house: House, site: DemoSite, desk: Path
) -> None:
    house.add_demo(LIGHTHOUSE)

    done = job("poll_hot", desk=desk, environment=variables(house))

    assert done.returncode == 0, done.stderr
    assert house.chapters_of(LIGHTHOUSE) == 10
    assert sorted(path.name for path in desk.iterdir()) == ["dagster.yaml", "workspace.yaml"]


@pytest.mark.slow
def test_jobs_with_a_dagster_home_are_remembered_and_pickle_nothing(
    house: House, site: DemoSite, desk: Path, dagster_home: Path
) -> None:
    """Dagster's own default pickles whatever passes between two steps."""
    house.add_demo(LIGHTHOUSE)

    done = job("poll_hot", desk=desk, environment=variables(house, DAGSTER_HOME=str(dagster_home)))

    assert done.returncode == 0, done.stderr
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        assert [run.job_name for run in instance.get_runs()] == ["poll_hot"]
        assert instance.get_materialized_partitions(dg.AssetKey("chapters")) == {LIGHTHOUSE}
    written = [path for path in dagster_home.rglob("*") if path.is_file()]
    assert [path for path in written if path.read_bytes()[:1] == b"\x80"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("ingest_series", "--tags", json.dumps({"dagster/partition": SALT})), 0, ""),
        (("ingest_series", "--tags", json.dumps({"dagster/partition": BROKEN})), 1, BROKEN),
        (("ingest_series",), 1, "dagster/partition"),
        (("paint_the_house",), 2, "paint_the_house"),
    ],
    ids=["one source", "a failing source", "no source", "an unknown job"],
)
def test_a_job_of_one_source_says_by_its_exit_code_how_it_went(
    house: House, site: DemoSite, desk: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    house.add_demo(SALT, BROKEN)

    done = job(*arguments, desk=desk, environment=variables(house))

    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
    assert house.chapters_of(SALT) == (12 if code == 0 else 0)


class Dev:
    """A running `dagster dev`, asked by GraphQL as its own pages do."""

    def __init__(self, desk: Path, environment: dict[str, str]) -> None:
        self.port = closed_port()
        command = [str(Path(sys.executable).with_name("dagster")), "dev", "-h", "127.0.0.1"]
        self._log = (desk / "dev.log").open("w+")
        self.process = subprocess.Popen(
            [*command, "-p", str(self.port)],
            cwd=desk,
            env=environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def ask(self, query: str) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            data=json.dumps({"query": query}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["data"]

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def stop(self) -> int:
        """SIGTERM, as a service manager sends it; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def family(self) -> list[str]:
        """The processes of its session that are still there."""
        found: list[str] = []
        for folder in Path("/proc").iterdir():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                if folder.name.isdigit() and int(stat[3]) == self.process.pid and stat[0] != "Z":
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found

    def end(self) -> None:
        """Nothing of it is left, however the test went."""
        if self.family():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        self._log.close()


def within(seconds: float, is_so: Callable[[], bool]) -> bool:
    """Whether it became so in time; a real daemon has a clock of its own."""
    give_up_at = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.5)
    return True


EVERYTHING = """{
  assetNodes { assetKey { path } }
  repositoriesOrError { ... on RepositoryConnection { nodes {
    schedules { name scheduleState { status } }
    sensors { name sensorState { status } }
  } } }
}"""
PARTITIONS = """{
  assetNodeOrError(assetKey: {path: ["chapters"]}) {
    ... on AssetNode { partitionKeysByDimension { partitionKeys } }
  }
}"""


@pytest.mark.slow
def test_a_running_dagster_takes_up_a_new_source_without_a_restart(
    house: House, site: DemoSite, desk: Path, dagster_home: Path
) -> None:
    dev = Dev(desk, variables(house, DAGSTER_HOME=str(dagster_home)))
    try:
        assert within(60, dev.answers), (desk / "dev.log").read_text()
        seen = dev.ask(EVERYTHING)
        [code] = seen["repositoriesOrError"]["nodes"]
        assert {node["assetKey"]["path"][0] for node in seen["assetNodes"]} == {
            "sources",
            "chapters",
        }
        assert {(one["name"], one["scheduleState"]["status"]) for one in code["schedules"]} == {
            (name, "RUNNING")
            for name in ("hot_polling", "warm_polling", "cold_polling", "maintenance")
        }
        assert {(one["name"], one["sensorState"]["status"]) for one in code["sensors"]} == {
            (name, "RUNNING")
            for name in ("new_sources", "pending_work", "stale_runs", "run_failures")
        }

        (house.sources / "mine.yaml").write_text(a_file([an_entry()]))

        is_polled = within(PATIENCE_SECONDS, lambda: house.chapters_of(LIGHTHOUSE) == 10)
        assert is_polled, (desk / "dev.log").read_text()
        [keys] = dev.ask(PARTITIONS)["assetNodeOrError"]["partitionKeysByDimension"]
        assert keys["partitionKeys"] == [LIGHTHOUSE]

        dev.stop()
        assert within(10, lambda: dev.family() == []), dev.family()
    finally:
        dev.end()
