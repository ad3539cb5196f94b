"""The component: sources in YAML, mounted twice in a project."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import dagster as dg
import pytest
import yaml
from sqlalchemy import select

from ingestion_pipeline import WebSources
from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.orchestration.runs import QUIET
from ingestion_pipeline.store.tables import job_listings, sources
from ingestion_pipeline_tests.fakes import FakeWeb, Reply

ROOT = Path(__file__).parents[2]


def a_board(name: str, web: FakeWeb) -> dict[str, object]:
    config = {"items": "jobs", "fields": {"external_id": "id", "title": "title", "url": "url"}, "company": name}
    url = web.url(f"/{name}")
    return {
        "id": f"job_board:{name}",
        "kind": "job_board",
        "url": url,
        "platform": "json",
        "tier": "hot",
        "config": config,
    }


def add_component(project: Path, name: str, **attributes: object) -> Path:
    folder = project / "acme" / "defs" / name
    folder.mkdir(parents=True)
    component = {"type": "ingestion_pipeline.WebSources", "attributes": {"name": name, "home": name, **attributes}}
    (folder / "defs.yaml").write_text(yaml.safe_dump(component))
    return folder


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWeb]:
    def jobs(title: str) -> Reply:
        return Reply(json.dumps({"jobs": [{"id": "1", "title": title, "url": "https://a.test/1"}]}).encode())

    with FakeWeb({"/north": jobs("Miller"), "/south": jobs("Baker"), "/robots.txt": 404}) as running:
        monkeypatch.setenv("INGESTION_ALLOW_HOSTS", running.host_port)
        monkeypatch.setenv("INGESTION_HOSTS__DELAY_SECONDS", "0")
        yield running


@pytest.fixture
def project(tmp_path: Path, web: FakeWeb, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dg project with two components: one with its sources inline, one with a folder of source files."""
    (tmp_path / "pyproject.toml").write_text(
        dedent("""
        [tool.dg]
        directory_type = "project"
        [tool.dg.project]
        root_module = "acme"
        """)
    )
    add_component(tmp_path, "north", sources=[a_board("north", web)], group="web", owners=["team:data"])
    folder = add_component(tmp_path, "south", sources="files", key_prefix=["raw", "south"])
    (folder / "files").mkdir()
    (folder / "files" / "boards.yaml").write_text(yaml.safe_dump({"sources": [a_board("south", web)]}))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Parameter `execution_type`")  # Dagster's own, where it copies checks
def test_a_project_that_mounts_the_component_twice_polls_both(project: Path) -> None:
    definitions = dg.load_from_defs_folder(path_within_project=project)
    location = definitions.get_repository_def()

    with dg.DagsterInstance.ephemeral() as instance:
        for name in ("north", "south"):
            job = location.get_job(f"{name}_poll_hot")
            assert job.execute_in_process(instance=instance, run_config=QUIET).success
        reported = {key.to_user_string() for key in instance.all_asset_keys()}

    assert {"north/job_listings", "raw/south/job_listings"} <= reported
    assert [titles(project / name) for name in ("north", "south")] == [["Miller"], ["Baker"]]
    north = [spec for spec in definitions.resolve_all_asset_specs() if spec.key.path[0] == "north"]
    assert {(spec.group_name, *spec.owners) for spec in north} == {("web", "team:data")}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Parameter `execution_type`")  # Dagster's own, where it copies checks
def test_a_component_that_shadows_another_reads_its_snapshots(project: Path, web: FakeWeb) -> None:
    add_component(project, "pull_request", sources=[a_board("north", web)], shadow_of="north")
    location = dg.load_from_defs_folder(path_within_project=project).get_repository_def()

    with dg.DagsterInstance.ephemeral() as instance:
        for name in ("north", "pull_request"):
            job = location.get_job(f"{name}_poll_hot")
            assert job.execute_in_process(instance=instance, run_config=QUIET).success

    assert titles(project / "pull_request") == ["Miller"]
    assert [request.path for request in web.requests if request.path == "/north"] == ["/north"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Parameter `execution_type`")  # Dagster's own, where it copies checks
def test_assets_of_a_component_are_translated_and_its_exports_and_objectives_taken(project: Path, web: FakeWeb) -> None:
    board = a_board("north", web) | {"max_delay": "2h"}
    folder = add_component(project, "west", sources=[board])
    (folder / "exports.yaml").write_text("exports: [{id: jobs, export: job_listings, format: csv}]")
    file = folder / "defs.yaml"
    [processing] = [block for block in blocks_of(ROOT / "docs" / "mounting.md") if "post_processing" in block]
    changes = yaml.safe_load(json.dumps(processing).replace("raw/north", "west"))
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | changes))
    definitions = dg.load_from_defs_folder(path_within_project=project)

    with dg.DagsterInstance.ephemeral() as instance:
        location = definitions.get_repository_def()
        assert location.get_job("west_poll_hot").execute_in_process(instance=instance, run_config=QUIET).success

    [translated] = [spec for spec in definitions.resolve_all_asset_specs() if spec.key.path == ["west", "job_listings"]]
    assert (translated.group_name, *translated.owners, translated.tags["domain"]) == (
        "hiring",
        "jane@example.com",
        "jobs",
    )
    assert dg.AssetKey(["west", "jobs"]) in location.asset_graph.get_all_asset_keys()
    with open_run_context({"INGESTION_HOME": str(project / "west")}) as ctx, ctx.store.read() as connection:
        assert connection.execute(select(sources.c.max_delay_seconds)).scalars().all() == [7_200]


def blocks_of(page: Path) -> list[dict[str, Any]]:
    """Return the YAML of the page."""
    return [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.S | re.M)]


def titles(home: Path) -> list[str]:
    with open_run_context({"INGESTION_HOME": str(home)}) as ctx, ctx.store.read() as connection:
        return [row.title for row in connection.execute(job_listings.select())]


def test_a_mistake_in_the_attributes_is_named_with_the_file(project: Path) -> None:
    add_component(project, "west", sources=[], colour="red")

    with pytest.raises(Exception, match="west") as failed:
        dg.load_from_defs_folder(path_within_project=project).get_repository_def()

    assert failed.value.__cause__ is not None
    assert "colour" in str(failed.value.__cause__)
    assert "defs.yaml" in str(failed.value.__cause__)


@pytest.mark.slow
def test_dg_lists_the_component() -> None:
    dg_command = Path(sys.executable).with_name("dg")
    command = [dg_command, "list", "components", "--json"]

    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "ingestion_pipeline.WebSources" in done.stdout


def test_every_attribute_is_described() -> None:
    properties = WebSources.model().model_json_schema()["properties"]

    assert {name for name, attribute in properties.items() if not attribute.get("description")} == set()


@pytest.mark.slow
def test_dg_scaffolds_a_component_that_loads(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dg_command = Path(sys.executable).with_name("dg")
    (project / "acme" / "__init__.py").touch()
    (project / "acme" / "defs" / "__init__.py").touch()
    load = "defs = dg.load_from_defs_folder(path_within_project=Path(__file__))"
    (project / "acme" / "definitions.py").write_text(f"from pathlib import Path\nimport dagster as dg\n{load}\n")
    monkeypatch.setenv("PYTHONPATH", f"{project}{os.pathsep}{os.environ.get('PYTHONPATH', ROOT)}")

    for command in ("scaffold defs ingestion_pipeline.WebSources east", "check yaml", "list defs --json"):
        done = subprocess.run([dg_command, *command.split()], check=False, cwd=project, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + done.stdout

    listed = json.loads(done.stdout)
    assert "east_poll_hot" in {job["name"] for job in listed["jobs"]}
