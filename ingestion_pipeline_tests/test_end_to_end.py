"""From a source file to rows: through Dagster in process, then by the commands a reader types."""

import json
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline_tests.orchestration.dagster_dev import (
    make_dagster_home,
    make_working_directory,
    process_environment,
)
from ingestion_pipeline_tests.orchestration.installation import (
    BROKEN,
    LIGHTHOUSE,
    SALT,
    Installation,
    an_entry,
    materialized,
    run_job,
    source_file,
    tick_sensor,
)
from ingestion_pipeline_tests.processes import Child, CommandOutput, run_command

PATIENCE_SECONDS = 180


@pytest.fixture
def installation(tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """The installation that the environment names."""
    installation = Installation.build(tmp_path, sqlite_template)
    for name, value in installation.environment.items():
        monkeypatch.setenv(name, value)
    return installation


@pytest.fixture
def site(installation: Installation) -> Iterator[DemoSite]:
    with DemoSite(installation.home) as demo_site:
        yield demo_site


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    return make_working_directory(tmp_path)


@pytest.fixture
def dagster_home(tmp_path: Path) -> Path:
    return make_dagster_home(tmp_path)


def job(name: str, *arguments: str, workdir: Path, environment: dict[str, str]) -> CommandOutput:
    """The line that the README gives for a job."""
    line = ["dagster", "job", "execute", "-m", "ingestion_pipeline", "-j", name, *arguments]
    return Child(run_command, str(workdir), line, environment).result(within_seconds=PATIENCE_SECONDS)


@pytest.mark.slow
def test_one_source_file_becomes_rows(installation: Installation, site: DemoSite) -> None:
    (installation.sources / "mine.yaml").write_text(source_file([an_entry()]))

    with dg.DagsterInstance.ephemeral() as instance:
        [request] = tick_sensor("new_sources", instance).run_requests
        result = run_job(request.job_name, instance, tags=request.tags)
        partitions = instance.get_materialized_partitions(dg.AssetKey("chapters"))
        keys = instance.get_dynamic_partitions("series_sources")

    assert result.success
    assert materialized(result)[LIGHTHOUSE]["new"] == 10
    assert partitions == {LIGHTHOUSE} == set(keys)
    assert installation.chapters_of(LIGHTHOUSE) == 10
    [series] = installation.rows("series")
    assert (series["id"], series["latest_chapter"]) == ("lighthouse", 22)
    assert installation.rows("outbox") == []  # the first sync is silent


@pytest.mark.slow
def test_a_job_without_a_dagster_home_leaves_nothing_behind(
    installation: Installation, site: DemoSite, workdir: Path
) -> None:
    installation.add_demo(LIGHTHOUSE)

    process = job("poll_hot", workdir=workdir, environment=process_environment(installation))

    assert process.code == 0, process.errors
    assert installation.chapters_of(LIGHTHOUSE) == 10
    assert sorted(path.name for path in workdir.iterdir()) == ["dagster.yaml", "workspace.yaml"]


@pytest.mark.slow
def test_jobs_with_a_dagster_home_are_recorded_and_pickle_nothing(
    installation: Installation, site: DemoSite, workdir: Path, dagster_home: Path
) -> None:
    """Dagster's own default pickles whatever passes between two steps."""
    installation.add_demo(LIGHTHOUSE)

    process = job(
        "poll_hot", workdir=workdir, environment=process_environment(installation, DAGSTER_HOME=str(dagster_home))
    )

    assert process.code == 0, process.errors
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        assert [run.job_name for run in instance.get_runs()] == ["poll_hot"]
        assert instance.get_materialized_partitions(dg.AssetKey("chapters")) == {LIGHTHOUSE}
    files = [path for path in dagster_home.rglob("*") if path.is_file()]
    assert [path for path in files if path.read_bytes()[:1] == b"\x80"] == []


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
def test_a_job_of_one_source_reports_its_result_by_exit_code(
    installation: Installation, site: DemoSite, workdir: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    installation.add_demo(SALT, BROKEN)

    process = job(*arguments, workdir=workdir, environment=process_environment(installation))

    assert process.code == code, process.errors
    assert message in process.out + process.errors
    assert installation.chapters_of(SALT) == (12 if code == 0 else 0)
