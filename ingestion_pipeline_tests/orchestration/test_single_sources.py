"""Manual runs of a single source: `ingest_series` and the assets, by partition keys."""

from collections.abc import Sequence
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import DATA_VERSION_TAG, CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from ingestion_pipeline.definitions import defs
from ingestion_pipeline.demo.content import break_site, read_state, write_state
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.engine.system_spec import AssetEvent
from ingestion_pipeline.orchestration.automation import run_failures
from ingestion_pipeline.orchestration.mount import set_names
from ingestion_pipeline.orchestration.runs import PARENTS, QUIET, asset_event
from ingestion_pipeline.orchestration.runs import run_job as run_command_job
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.sources.registry import disable
from ingestion_pipeline_tests.orchestration.installation import (
    BROKEN,
    LIGHTHOUSE,
    PARTITION,
    SALT,
    Installation,
    an_entry,
    check_results,
    failure_message,
    materialized,
    observed,
    run_job,
    source_file,
)

pytestmark = pytest.mark.slow  # a Dagster run takes 0.2 seconds and more

RANGE = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")


REPOSITORY_GRAPH = defs.get_repository_def().asset_graph


def materialize(asset: str, instance: dg.DagsterInstance, *, tags: dict[str, str]) -> dg.ExecuteInProcessResult:
    """As the button does it: the asset and its checks."""
    return asset_job(asset).execute_in_process(instance=instance, tags=tags, run_config=QUIET, raise_on_error=False)


def asset_job(asset: str) -> dg.JobDefinition:
    job = defs.get_repository_def().get_implicit_job_def_for_assets([dg.AssetKey(asset)])
    assert job is not None
    return job.get_subset(asset_selection={dg.AssetKey(asset)})


def unevaluated_checks(asset: str, instance: dg.DagsterInstance) -> set[dg.AssetCheckKey]:
    """Return the asset's checks that no run evaluated, or that the last run only planned."""
    keys = REPOSITORY_GRAPH.get_check_keys_for_assets({dg.AssetKey(asset)})
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(list(keys))
    planned = {key for key, record in latest.items() if record.status is AssetCheckExecutionRecordStatus.PLANNED}
    return planned | (set(keys) - set(latest))


def add_partition(key: str, instance: dg.DagsterInstance) -> None:
    for name in {name for kind in Kind for name in set_names(kind)}:
        instance.add_dynamic_partitions(name, [key])


def add_parents(asset: str, key: str, instance: dg.DagsterInstance, *, version: str) -> None:
    """Materialize each parent, as a step does it: with a data version of its own."""
    for parent in PARENTS[asset]:
        tags = {DATA_VERSION_TAG: version}
        instance.report_runless_asset_event(dg.AssetMaterialization(parent, partition=key, tags=tags))


def stale_causes(asset: str, partition: str | None, instance: dg.DagsterInstance) -> Sequence[Any]:
    """Return why the UI shows the asset as unsynced."""
    resolver = CachingStaleStatusResolver(instance, REPOSITORY_GRAPH, LoadingContextForTest(instance))
    return resolver.get_stale_causes(dg.AssetKey(asset), partition)


def test_a_single_source_is_polled_although_it_is_not_due(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(LIGHTHOUSE, SALT)
    installation.run_job("ingest_series", tags={PARTITION: LIGHTHOUSE})

    again = installation.run_job("ingest_series", tags={PARTITION: LIGHTHOUSE})

    assert materialized(again).keys() == {LIGHTHOUSE}
    assert materialized(again)[LIGHTHOUSE]["outcome"] == "unchanged"
    assert site.requests["feeds.demo.test", "/lighthouse.xml"] == 2
    assert installation.source(SALT).last_checked_at is None


def test_a_single_source_registers_its_key_on_an_empty_instance(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(LIGHTHOUSE)

    assert installation.run_job("ingest_series", tags={PARTITION: LIGHTHOUSE}).success

    assert installation.instance.get_dynamic_partitions("series_sources") == [LIGHTHOUSE]
    assert installation.instance.get_dynamic_partitions("sources") == [LIGHTHOUSE]


def test_a_single_source_run_materializes_only_that_source(installation: Installation, site: DemoSite) -> None:
    """On a temporary instance it reported the changes of every source, which were then never reported again."""
    installation.add_demo(LIGHTHOUSE, SALT)
    installation.run_job("poll_hot")
    installation.set_source(LIGHTHOUSE, reported_at=None)

    with dg.DagsterInstance.ephemeral() as terminal:
        alone = materialized(run_job("ingest_series", terminal, tags={PARTITION: SALT}))

    assert alone.keys() == {SALT}
    assert materialized(installation.run_job("poll_hot")).keys() == {LIGHTHOUSE}


def test_checks_are_never_older_than_their_materialization(installation: Installation, site: DemoSite) -> None:
    """The UI shows an older one as not evaluated."""
    installation.add_demo(LIGHTHOUSE)

    first = installation.run_job("ingest_series", tags={PARTITION: LIGHTHOUSE})
    second = installation.run_job("ingest_series", tags={PARTITION: LIGHTHOUSE})

    assert check_results(first) == {"not_empty_after_full": True, "sources_fresh": True, "contract": True}
    assert check_results(second) == check_results(first)


@pytest.mark.parametrize("kind", ["series", "job_board", "company", "website", "catalog"])
def test_a_bad_single_source_is_refused_with_the_cure(installation: Installation, kind: str) -> None:
    without = failure_message(installation.run_job(f"ingest_{kind}"))
    unknown = failure_message(installation.run_job(f"ingest_{kind}", tags={PARTITION: f"{kind}:nobody"}))

    assert f"""--tags '{{"dagster/partition": "{kind}:..."}}'""" in without
    assert "`ingest sources list` shows all" in unknown
    assert not any(installation.instance.get_dynamic_partitions(name) for name in set_names(Kind(kind)))


def test_a_disabled_single_source_is_refused_with_the_actor_and_the_cure(
    installation: Installation, site: DemoSite
) -> None:
    installation.add_demo(LIGHTHOUSE)
    with installation.open() as ctx, ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        disable(connection, LIGHTHOUSE, actor="cli:ada", reason="too loud", now=now)

    failure = failure_message(installation.run_job("ingest_series", tags={PARTITION: LIGHTHOUSE}))

    assert "cli:ada: too loud" in failure
    assert "`ingest sources enable ID`" in failure
    assert not site.requests


def test_a_failing_single_source_fails_its_run_with_the_reason(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(BROKEN)

    result = installation.run_job("ingest_series", tags={PARTITION: BROKEN})

    assert f"{BROKEN}: failed: " in failure_message(result)
    assert materialized(result) == {}


def test_a_single_source_claimed_by_another_run_says_so_instead_of_its_old_outcome(
    installation: Installation, site: DemoSite
) -> None:
    """It said "no source succeeded. series:...: first sync: 10 new"."""
    installation.add_demo(LIGHTHOUSE)
    installation.run_job("ingest_series", tags={PARTITION: LIGHTHOUSE})
    with installation.open() as ctx:
        from ingestion_pipeline.tasks.claims import ClaimFilter, Worker

        other = Worker(ctx.store, lease_seconds=60)
        assert other.claim(ClaimFilter(kind="poll", source_ids=[LIGHTHOUSE]), limit=1)

    failure = failure_message(installation.run_job("ingest_series", tags={PARTITION: LIGHTHOUSE}))

    assert "another run has it" in failure
    assert "first sync" not in failure


def test_a_feed_that_was_always_empty_is_not_shown_as_materialized(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(SALT)
    write_state(installation.home, break_site(read_state(installation.home)))

    result = installation.run_job("ingest_series", tags={PARTITION: SALT})

    assert materialized(result, "chapters") == {}
    assert set(observed(result, "chapters")) == {SALT}


def test_a_range_gives_one_event_per_key(installation: Installation, site: DemoSite) -> None:
    keys = [LIGHTHOUSE, SALT, "series:salt-feed"]
    installation.add_demo(*keys)
    installation.instance.add_dynamic_partitions("series_sources", keys)

    result = installation.run_job("ingest_series", tags=dict(zip(RANGE, keys[::2], strict=True)))

    assert result.success
    assert materialized(result).keys() == set(keys)


def test_a_range_with_a_failing_source_materializes_the_others(installation: Installation, site: DemoSite) -> None:
    keys = [LIGHTHOUSE, BROKEN]
    installation.add_demo(*keys)
    installation.instance.add_dynamic_partitions("series_sources", keys)

    result = installation.run_job("ingest_series", tags=dict(zip(RANGE, keys, strict=True)))

    assert result.success
    assert materialized(result).keys() == {LIGHTHOUSE}


def test_sources_checks_the_declaration_and_does_not_poll(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(LIGHTHOUSE)

    result = materialize("sources", installation.instance, tags={PARTITION: LIGHTHOUSE})

    assert result.success
    metadata = materialized(result)[LIGHTHOUSE]
    due_at = installation.source(LIGHTHOUSE).next_check_at
    assert due_at is not None
    assert metadata.pop("next_check") == due_at.timestamp()
    assert str(metadata.pop("dagster/uri")).endswith("ingestion.db#sources")
    assert metadata == {
        "url": "http://feeds.demo.test/lighthouse.xml",
        "platform": "rss",
        "tier": "hot (pinned)",
        "state": "active",
        "declared_in": "sources.yaml",
        "problems": 0,
        "records": 0,
        "failures_in_a_row": 0,
        "dagster/partition_row_count": 1,
    }
    assert check_results(result) == {"files_readable": True, "contract": True}
    assert not site.requests


def test_sources_refreshes_the_row_from_its_file(installation: Installation) -> None:
    file = installation.sources / "mine.yaml"
    file.write_text(source_file([an_entry(name="Old")]))
    with installation.open() as ctx:
        from ingestion_pipeline.registry import check_definition
        from ingestion_pipeline.sources.files import import_files

        import_files(ctx.store, installation.sources, check=check_definition)
    file.write_text(source_file([an_entry(name="New")]))

    assert materialize("sources", installation.instance, tags={PARTITION: LIGHTHOUSE}).success

    assert installation.source(LIGHTHOUSE).name == "New"


def test_sources_reports_the_problem_of_the_file_and_its_line(installation: Installation) -> None:
    installation.add_demo(LIGHTHOUSE)
    installation.set_source(LIGHTHOUSE, origin="mine.yaml")
    (installation.sources / "mine.yaml").write_text(source_file([an_entry(tier="tepid")]))

    failure = failure_message(materialize("sources", installation.instance, tags={PARTITION: LIGHTHOUSE}))

    assert "mine.yaml:6: tier: 'tepid' is no tier" in failure


@pytest.mark.parametrize("tags", [{}, {PARTITION: "series:nobody"}], ids=["no key", "unknown"])
def test_sources_adds_no_partition_for_a_misspelled_id(installation: Installation, tags: dict[str, str]) -> None:
    """The key was registered first, and stayed as a partition that no source belongs to."""
    failure = failure_message(materialize("sources", installation.instance, tags=tags))

    assert "`ingest sources list` shows all" in failure or "name it with --tags" in failure
    assert installation.instance.get_dynamic_partitions("sources") == []


def test_a_failed_materialization_leaves_every_check_with_a_result(installation: Installation, site: DemoSite) -> None:
    """Dagster shows a planned check without one as failed to execute."""
    installation.add_demo(BROKEN)

    failed = materialize("chapters", installation.instance, tags={PARTITION: BROKEN})

    assert not failed.success
    assert unevaluated_checks("chapters", installation.instance) == set()


@pytest.mark.parametrize("asset", ["pages", "website_analysis", "job_matches"])
def test_a_run_that_fails_at_once_leaves_every_check_with_a_result(installation: Installation, asset: str) -> None:
    failed = materialize(asset, installation.instance, tags={PARTITION: "catalog:nobody"})

    assert not failed.success
    assert unevaluated_checks(asset, installation.instance) == set()


def test_the_checks_of_a_killed_run_are_evaluated_by_the_sensor(installation: Installation) -> None:
    instance = installation.instance
    run = instance.create_run_for_job(asset_job("chapters"), asset_selection=frozenset({dg.AssetKey("chapters")}))
    planned = unevaluated_checks("chapters", instance)
    event = instance.report_run_failed(run)
    context = dg.build_run_status_sensor_context(
        sensor_name="run_failures", dagster_instance=instance, dagster_run=run, dagster_event=event
    ).for_run_failure()

    with installation.open() as ctx:
        run_failures(context, run_context=ctx)

    assert planned
    assert unevaluated_checks("chapters", instance) == set()


def test_a_source_polled_after_its_declaration_is_in_sync_with_it(installation: Installation, site: DemoSite) -> None:
    """The UI showed "Unsynced" whenever the row of a source was refreshed after its chapters."""
    installation.add_demo(LIGHTHOUSE)
    installation.run_job("ingest_series", tags={PARTITION: LIGHTHOUSE})
    materialize("sources", installation.instance, tags={PARTITION: LIGHTHOUSE})

    assert stale_causes("chapters", LIGHTHOUSE, installation.instance) == []


@pytest.mark.parametrize("asset", ["notices", "source_health"])
def test_an_asset_of_all_sources_is_in_sync_with_newer_parents(installation: Installation, asset: str) -> None:
    add_partition("key", installation.instance)
    add_parents(asset, "key", installation.instance, version="1")
    assert materialize(asset, installation.instance, tags={}).success

    add_parents(asset, "key", installation.instance, version="2")

    assert stale_causes(asset, None, installation.instance) == []


@pytest.mark.parametrize("asset", sorted(PARENTS.keys() - {"notices", "source_health"}))
def test_the_event_of_an_asset_is_in_sync_with_newer_parents(installation: Installation, asset: str) -> None:
    instance = installation.instance
    add_partition("key", instance)
    add_parents(asset, "key", instance, version="1")
    instance.report_runless_asset_event(asset_event(AssetEvent(asset=asset, partition="key", metadata={})))

    add_parents(asset, "key", instance, version="2")

    assert stale_causes(asset, "key", instance) == []


def test_a_run_of_a_command_is_listed_with_the_jobs_of_the_code_location(installation: Installation) -> None:
    with dg.instance_for_test() as instance:
        has_succeeded, _ = run_command_job(defs, "poll_hot")
        [run] = instance.get_runs(dg.RunsFilter(tags={".dagster/repository": "__repository__@ingestion_pipeline"}))

    assert (has_succeeded, run.job_name) == (True, "poll_hot")
    assert run.remote_job_origin is not None  # Timeline lists by it
    assert run.remote_job_origin.location_name == "ingestion_pipeline"
