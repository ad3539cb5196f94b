"""The definitions in a project of somebody else: beside its own, and twice in one code location."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from sqlalchemy import select

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.definitions import build_definitions
from ingestion_pipeline.orchestration.runs import QUIET
from ingestion_pipeline.sources import Definition, Kind, Tier
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store.tables import job_listings
from ingestion_pipeline_tests.fakes import FakeWeb, Reply

WEB = build_definitions(key_prefix=["web"], job_prefix="web_", resource_key="web")


@dg.asset
def prices() -> None: ...


@dg.asset(deps=[dg.AssetKey(["web", "chapters"])])
def new_chapters() -> None: ...


@dg.asset(ins={"job_listings": dg.AssetIn(dg.AssetKey(["web", "job_listings"]))})
def open_jobs(job_listings: Any) -> dg.MaterializeResult:
    return dg.MaterializeResult(metadata={"titles": list(job_listings["title"])})


@dg.asset(ins={"job_listings": dg.AssetIn(dg.AssetKey(["south", "job_listings"]))}, io_manager_key="mem")
def southern_jobs(job_listings: Any) -> list[str]:
    return list(job_listings["title"])


@dg.asset(name="pages", group_name="mine")
def own_pages() -> None: ...


@dg.job(name="maintain")
def own_maintain() -> None: ...


OWN: dict[str, dg.Definitions] = {
    "a plain asset": dg.Definitions(assets=[prices]),
    "an asset with deps": dg.Definitions(assets=[new_chapters]),
    "an asset that takes our rows": dg.Definitions(assets=[open_jobs]),
    "an own I/O manager": dg.Definitions(assets=[prices], resources={"io_manager": dg.fs_io_manager}),
    "an own executor": dg.Definitions(assets=[prices], executor=dg.multiprocess_executor),
    "an own asset pages": dg.Definitions(assets=[own_pages]),
    "an own job maintain": dg.Definitions(jobs=[own_maintain]),
}


@pytest.mark.parametrize("own", OWN.values(), ids=OWN)
def test_the_definitions_merge_with_those_of_a_project(own: dg.Definitions) -> None:
    merged = dg.Definitions.merge(own, WEB)

    dg.Definitions.validate_loadable(merged)
    repository = merged.get_repository_def()
    assert {"web_maintain", "web_poll_hot"} <= set(repository.job_names)
    assert dg.AssetKey(["web", "pages"]) in repository.asset_graph.get_all_asset_keys()


def test_every_name_of_a_mount_has_its_prefix() -> None:
    repository = WEB.get_repository_def()

    graph = repository.asset_graph
    keys = graph.get_all_asset_keys()
    assert {key.path[0] for key in keys} == {"web"}
    assert {parent.path[0] for key in keys for parent in graph.get(key).parent_keys} == {"web"}
    sets = {getattr(graph.get(key).partitions_def, "name", "web_") for key in keys}
    jobs = {name for name in repository.job_names if not name.startswith("__")}
    ticking = {one.name for one in (*repository.schedule_defs, *repository.sensor_defs)}
    ops = {node.name for job in repository.get_all_jobs() if job.name in jobs for node in job.all_node_defs}
    assert {name for name in sets | jobs | ticking if not name.startswith("web_")} == set()
    assert {name for name in ops if not name.startswith("web_")} == set()


def test_group_and_owners_of_a_mount_replace_those_of_the_assets() -> None:
    mounted = build_definitions(group="web", owners=["team:data"])

    specs = [spec for asset in mounted.assets or () if isinstance(asset, dg.AssetsDefinition) for spec in asset.specs]
    assert {(spec.group_name, *spec.owners) for spec in specs} == {("web", "team:data")}


class Home:
    """A store of its own, with a board of its own."""

    def __init__(self, name: str, folder: Path, template: Path, web: FakeWeb) -> None:
        self.name, self.folder = name, folder / name
        self.folder.mkdir(mode=0o700)
        shutil.copy(template, self.folder / "ingestion.db")
        self.board = f"job_board:{name}"
        config = {"items": "jobs", "fields": {"external_id": "id", "title": "title", "url": "url"}, "company": name}
        definition = Definition(
            id=self.board, kind=Kind.JOB_BOARD, url=web.url(f"/{name}"), platform="json", tier=Tier.HOT, config=config
        )
        with open_run_context(self.environment) as ctx, ctx.store.begin() as connection:
            register(connection, [definition], now=ctx.store.clock.now(connection))

    @property
    def environment(self) -> dict[str, str]:
        return {"INGESTION_HOME": str(self.folder), "INGESTION_SOURCES": str(self.folder / "sources")}

    def definitions(self) -> dg.Definitions:
        return build_definitions(
            key_prefix=[self.name],
            job_prefix=f"{self.name}_",
            resource_key=self.name,
            home=self.folder,
            sources=self.folder / "sources",
        )

    def titles(self) -> list[str]:
        with open_run_context(self.environment) as ctx, ctx.store.read() as connection:
            return list(connection.execute(select(job_listings.c.title)).scalars())


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWeb]:
    def jobs(title: str) -> Reply:
        return Reply(json.dumps({"jobs": [{"id": "1", "title": title, "url": "https://a.test/1"}]}).encode())

    with FakeWeb({"/north": jobs("Miller"), "/south": jobs("Baker"), "/robots.txt": 404}) as running:
        monkeypatch.setenv("INGESTION_ALLOW_HOSTS", running.host_port)
        monkeypatch.setenv("INGESTION_HOSTS__DELAY_SECONDS", "0")
        yield running


@pytest.fixture
def homes(tmp_path: Path, sqlite_template: Path, web: FakeWeb) -> list[Home]:
    return [Home(name, tmp_path, sqlite_template, web) for name in ("north", "south")]


@pytest.fixture
def location(homes: list[Home]) -> dg.RepositoryDefinition:
    own = dg.Definitions(
        assets=[own_pages, southern_jobs],
        jobs=[own_maintain],
        executor=dg.multiprocess_executor,
        resources={"mem": dg.mem_io_manager},
    )
    return dg.Definitions.merge(own, *(home.definitions() for home in homes)).get_repository_def()


def run(location: dg.RepositoryDefinition, job: str, instance: dg.DagsterInstance, **options: Any) -> set[str]:
    """Run the job; return the partitions that it materialized, with their keys."""
    result = location.get_job(job).execute_in_process(instance=instance, run_config=QUIET, **options)
    assert result.success
    return {
        f"{event.asset_key.to_user_string()}|{event.partition}"
        for event in result.all_events
        if event.event_type == dg.DagsterEventType.ASSET_MATERIALIZATION and event.asset_key
    }


@pytest.mark.slow
def test_two_mounts_in_one_location_poll_their_own_stores(homes: list[Home], location: dg.RepositoryDefinition) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        north = run(location, "north_poll_hot", instance)
        south = run(location, "south_ingest_job_board", instance, tags={"dagster/partition": "job_board:south"})

        assert north == {"north/job_listings|job_board:north"}
        assert south == {"south/job_listings|job_board:south"}
        assert [home.titles() for home in homes] == [["Miller"], ["Baker"]]
        assert instance.get_dynamic_partitions("south_job_boards") == ["job_board:south"]
        checked = instance.get_latest_asset_check_evaluation_record(
            dg.AssetCheckKey(dg.AssetKey(["south", "job_listings"]), "contract")
        )
        assert checked is not None
        rows = location.get_implicit_job_def_for_assets([southern_jobs.key])
        assert rows is not None
        taken = rows.get_subset(asset_selection={southern_jobs.key}).execute_in_process(instance=instance)
        assert taken.output_for_node("southern_jobs") == ["Baker"]


@pytest.mark.slow
def test_the_sensor_of_a_mount_requests_its_own_jobs_and_partitions(
    homes: list[Home], location: dg.RepositoryDefinition
) -> None:
    resources = {home.name: location.get_top_level_resources()[home.name] for home in homes}
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(instance=instance, repository_def=location, resources=resources) as context,
    ):
        tick = location.get_sensor_def("south_new_sources").evaluate_tick(context)

    assert [(request.job_name, request.tags["ingestion/shard"][:10]) for request in tick.run_requests or ()] == [
        ("south_poll_hot", "south_hot:")
    ]
    added = {request.partitions_def_name: request.partition_keys for request in tick.dynamic_partitions_requests or ()}
    assert added == {"south_sources": ["job_board:south"], "south_job_boards": ["job_board:south"]}
    assert [event.asset_key.path for event in tick.asset_events] == [["south", "sources"]]


@pytest.mark.slow
def test_maintenance_of_a_mount_leaves_the_runs_of_others_alone(
    homes: list[Home], location: dg.RepositoryDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGESTION_RETENTION__DAGSTER_RUNS_SECONDS", "0")
    with dg.DagsterInstance.ephemeral() as instance:
        for job in ("maintain", "south_poll_hot", "north_poll_cold"):
            run(location, job, instance)

        run(location, "north_maintain", instance)

        left = {record.job_name for record in instance.get_runs()}
    assert left == {"maintain", "south_poll_hot", "north_maintain"}
