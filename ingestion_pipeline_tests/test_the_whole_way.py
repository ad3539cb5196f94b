"""From a source file to rows: through Dagster in process, then by the commands a reader types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline_tests.orchestration.dev import make_dagster_home, make_desk, variables
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
from ingestion_pipeline_tests.processes import Child, Typed, type_line

PATIENCE_SECONDS = 180


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
    return make_desk(tmp_path)


@pytest.fixture
def dagster_home(tmp_path: Path) -> Path:
    return make_dagster_home(tmp_path)


def job(name: str, *arguments: str, desk: Path, environment: dict[str, str]) -> Typed:
    """The line that the README gives for a job."""
    line = ["dagster", "job", "execute", "-m", "ingestion_pipeline", "-j", name, *arguments]
    return Child(type_line, str(desk), line, environment).result(within_seconds=PATIENCE_SECONDS)


def test_one_source_file_becomes_rows(house: House, site: DemoSite) -> None:
    (house.sources / "mine.yaml").write_text(a_file([an_entry()]))

    with dg.DagsterInstance.ephemeral() as instance:
        [request] = tick_sensor("new_sources", instance).run_requests
        result = run_job(request.job_name, instance, tags=request.tags)
        seen = instance.get_materialized_partitions(dg.AssetKey("chapters"))
        keys = instance.get_dynamic_partitions("series_sources")

    assert result.success
    assert told(result)[LIGHTHOUSE]["new"] == 10
    assert seen == {LIGHTHOUSE} == set(keys)
    assert house.chapters_of(LIGHTHOUSE) == 10
    [series] = house.rows("series")
    assert (series["id"], series["latest_chapter"]) == ("lighthouse", 22)
    assert house.rows("outbox") == []  # the first sync is silent


@pytest.mark.slow
def test_a_job_runs_without_a_dagster_home_and_leaves_nothing_behind(house: House, site: DemoSite, desk: Path) -> None:
    house.add_demo(LIGHTHOUSE)

    done = job("poll_hot", desk=desk, environment=variables(house))

    assert done.code == 0, done.errors
    assert house.chapters_of(LIGHTHOUSE) == 10
    assert sorted(path.name for path in desk.iterdir()) == ["dagster.yaml", "workspace.yaml"]


@pytest.mark.slow
def test_jobs_with_a_dagster_home_are_remembered_and_pickle_nothing(
    house: House, site: DemoSite, desk: Path, dagster_home: Path
) -> None:
    """Dagster's own default pickles whatever passes between two steps."""
    house.add_demo(LIGHTHOUSE)

    done = job("poll_hot", desk=desk, environment=variables(house, DAGSTER_HOME=str(dagster_home)))

    assert done.code == 0, done.errors
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        assert [run.job_name for run in instance.get_runs()] == ["poll_hot"]
        assert instance.get_materialized_partitions(dg.AssetKey("chapters")) == {LIGHTHOUSE}
    written = [path for path in dagster_home.rglob("*") if path.is_file()]
    assert [path for path in written if path.read_bytes()[:1] == b"\x80"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("ingest_series", "--tags", json.dumps({"dagster/partition": SALT})), 0, ""),
        (("ingest_series", "--tags", json.dumps({"dagster/partition": BROKEN})), 1, BROKEN),
        (("ingest_series",), 1, "dagster/partition"),
        (("paint_the_house",), 2, "paint_the_house"),
    ],
    ids=["one source", "a failing source", "no source", "an unknown job"],
)
def test_a_job_of_one_source_says_by_its_exit_code_how_it_went(
    house: House, site: DemoSite, desk: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    house.add_demo(SALT, BROKEN)

    done = job(*arguments, desk=desk, environment=variables(house))

    assert done.code == code, done.errors
    assert message in done.out + done.errors
    assert house.chapters_of(SALT) == (12 if code == 0 else 0)
