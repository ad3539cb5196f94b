"""The jobs: polls, maintenance, new sources, replays and exports."""

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import dagster as dg
import pytest
from sqlalchemy import insert, select

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.demo.content import mutate, read_state, write_state
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.orchestration import assets
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log, dead_letters, tasks
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.exports.datasets import a_course, a_dataset
from ingestion_pipeline_tests.orchestration.installation import (
    BROKEN,
    FLAKY,
    LIGHTHOUSE,
    SALT,
    Installation,
    an_entry,
    check_results,
    failure_message,
    materialized,
    run_job,
    source_file,
)
from ingestion_pipeline_tests.polling_runs import add_sources

pytestmark = pytest.mark.slow  # a Dagster run takes 0.2 seconds and more

NUMBERS = ["polled", "changed", "new", "updated", "withdrawn", "total", "latest_chapter"]


def test_a_poll_logs_one_materialization_with_numbers_per_changed_source(
    installation: Installation, site: DemoSite
) -> None:
    installation.add_demo(LIGHTHOUSE, "series:lighthouse-mangadex")

    result = installation.run_job("poll_hot")

    events = materialized(result)
    assert events.keys() == {LIGHTHOUSE, "series:lighthouse-mangadex"}
    assert [events[LIGHTHOUSE][name] for name in NUMBERS] == [1, 1, 10, 0, 0, 10, 22.0]
    assert events[LIGHTHOUSE]["outcome"] == "first sync: 10 new"
    assert events[LIGHTHOUSE]["url"] == "http://feeds.demo.test/lighthouse.xml"
    assert r"Bread \& Brine |" in events[LIGHTHOUSE]["newest"]
    assert "delay_minutes" not in events[LIGHTHOUSE]  # unknown for a backlog
    assert {"change_confidence", "checked_when"} <= events[LIGHTHOUSE].keys()


def test_an_unchanged_poll_writes_no_event(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(LIGHTHOUSE)
    installation.run_job("poll_hot")
    installation.make_due(LIGHTHOUSE)

    second = installation.run_job("poll_hot")

    assert second.success
    assert site.requests["feeds.demo.test", "/lighthouse.xml"] == 2
    assert (materialized(second), check_results(second)) == ({}, {})


def test_a_run_leaves_no_objects_that_the_garbage_collector_never_visits(
    installation: Installation, site: DemoSite
) -> None:
    installation.add_demo(LIGHTHOUSE)
    before = gc.get_freeze_count()

    installation.run_job("poll_hot")

    assert gc.get_freeze_count() <= before


def test_a_new_chapter_is_an_event_that_counts_it(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(LIGHTHOUSE)
    installation.run_job("poll_hot")
    write_state(installation.home, mutate(read_state(installation.home)))
    installation.make_due(LIGHTHOUSE)

    events = materialized(installation.run_job("poll_hot"))

    assert [events[LIGHTHOUSE][name] for name in NUMBERS] == [1, 1, 1, 0, 0, 11, 23.0]


def test_a_poll_run_has_its_counts_as_metadata(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(LIGHTHOUSE, BROKEN)

    result = installation.run_job("poll_hot")

    [output] = [
        event.step_output_data
        for event in result.all_events
        if event.event_type == dg.DagsterEventType.STEP_OUTPUT and event.step_key == "report"
    ]
    assert {name: value.value for name, value in output.metadata.items()} == {
        "polled": 2,
        "new": 10,
        "changed": 1,
        "unchanged": 0,
        "started": 0,
        "retried": 0,
        "given_back": 0,
        "failed": 1,
        "skipped": 0,
        "lost": 0,
        "requests": 4,  # robots.txt of each host comes first
    }


def test_a_job_polls_only_its_own_tier(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(LIGHTHOUSE, SALT)

    events = materialized(installation.run_job("poll_warm"))

    assert events.keys() == {SALT}
    assert installation.source(LIGHTHOUSE).last_checked_at is None


def test_a_run_of_one_shard_leaves_the_other_alone(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(LIGHTHOUSE)
    other = 1 - installation.source(LIGHTHOUSE).shard % 2

    tags = {"ingestion/tier": "hot", "ingestion/shard": f"hot:{other}"}
    result = installation.run_job("poll_hot", tags=tags)

    assert result.success
    assert installation.source(LIGHTHOUSE).last_checked_at is None


def test_a_failing_source_does_not_fail_the_run(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(LIGHTHOUSE, BROKEN)

    result = installation.run_job("poll_hot")

    assert result.success
    assert materialized(result).keys() == {LIGHTHOUSE}
    assert installation.source(BROKEN).failure_count == 1


def test_a_run_fails_when_every_source_fails_and_says_where_to_look(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(BROKEN)

    failure = failure_message(installation.run_job("poll_hot"))

    assert "all 1 polled sources failed; `ingest dead-letters list` shows why" in failure


@pytest.mark.parametrize("job", ["poll_cold", "crawl_catalogs"])
def test_a_run_with_nothing_to_do_succeeds(installation: Installation, job: str) -> None:
    assert installation.run_job(job).success


def test_two_concurrent_runs_poll_no_source_twice(installation: Installation, site: DemoSite) -> None:
    """Two daemons on one database are not excluded by Dagster: the claim is the guard."""
    installation.add_demo(LIGHTHOUSE, "series:lighthouse-mangadex")

    def poll(_: int) -> bool:
        with dg.DagsterInstance.ephemeral() as instance:
            return run_job("poll_hot", instance).success

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(poll, range(2))) == [True, True]

    assert site.requests["feeds.demo.test", "/lighthouse.xml"] == 1


def test_events_beyond_the_limit_of_a_run_are_written_by_the_next(
    installation: Installation, site: DemoSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "REPORTED_EVENTS", 2)
    installation.add_demo(LIGHTHOUSE, "series:lighthouse-mangadex", FLAKY)

    first, second, third = [materialized(installation.run_job("poll_hot")).keys() for _ in range(3)]

    assert len(first) == 2
    assert first | second == {LIGHTHOUSE, "series:lighthouse-mangadex", FLAKY}
    assert not first & second
    assert not third


def test_a_finished_run_holds_no_lease(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(LIGHTHOUSE, BROKEN)

    result = installation.run_job("poll_hot")

    [run] = installation.rows("runs")
    assert (run["run_id"], run["job"]) == (result.run_id, "poll_hot")
    assert run["ended_at"] is not None
    assert {task["status"] for task in installation.rows("tasks")} == {"PENDING"}
    assert {host["lease_owner"] for host in installation.rows("hosts")} == {None}


GOOD = {"id": "series:tides", "kind": "series", "url": "http://feeds.demo.test/lighthouse.xml", "platform": "rss"}


def add_source_config(**values: Any) -> dict[str, Any]:
    return {"ops": {"register": {"config": values}}}


def test_add_source_lists_every_mistake_and_adds_nothing(installation: Installation) -> None:
    invalid = {"id": "Tides, the", "kind": "serial", "url": "ftp://a.test", "tier": "tepid"}

    failure = failure_message(installation.run_job("add_source", config=add_source_config(**invalid)))

    assert "the source was not added" in failure
    assert all(f"{field}: " in failure for field in ("id", "kind", "url", "tier"))
    assert installation.rows("sources") == []
    assert installation.instance.get_dynamic_partitions("sources") == []


def test_add_source_with_the_launchpads_default_config_is_refused(installation: Installation) -> None:
    failure = failure_message(installation.run_job("add_source"))

    assert "id: 'series:NAME' is no id" in failure
    assert "url: URL 'https://' has no usable host" in failure
    assert installation.rows("sources") == []


def test_add_source_names_the_problems_found_by_the_platform(installation: Installation) -> None:
    wrong = GOOD | {"platform": "mangadex", "config": {"limit": -5}}

    failure = failure_message(installation.run_job("add_source", config=add_source_config(**wrong)))

    assert "config: " in failure
    assert installation.rows("sources") == []


def test_a_corrected_add_source_creates_a_row_partitions_and_a_due_poll(
    installation: Installation, site: DemoSite
) -> None:
    result = installation.run_job("add_source", config=add_source_config(**GOOD, tier="hot"))

    assert materialized(result)["series:tides"]["tier"] == "hot (pinned)"  # declared: nothing is upstream
    assert installation.source("series:tides").platform == "rss"
    assert installation.poll_task("series:tides")["status"] == "PENDING"
    assert installation.instance.get_dynamic_partitions("sources") == ["series:tides"]
    assert installation.instance.get_dynamic_partitions("series_sources") == ["series:tides"]
    assert materialized(installation.run_job("poll_hot")).keys() == {"series:tides"}


def test_add_source_refuses_an_id_that_is_taken_and_names_the_cure(installation: Installation) -> None:
    installation.add(a_definition(id="series:tides", url="https://a.test/other"))

    failure = failure_message(installation.run_job("add_source", config=add_source_config(**GOOD)))

    assert "`ingest sources update`" in failure
    assert installation.source("series:tides").url == "https://a.test/other"


def test_maintain_sweeps_and_evaluates_every_check(installation: Installation) -> None:
    first, second = installation.run_job("maintain"), installation.run_job("maintain")

    names = {"no_gaps", "not_empty_after_full", "sources_fresh", "files_readable", "all_delivered"}
    names |= {"share_of_failures", "no_empty_shells", "no_drop_against_history"}
    names |= {"extractions_complete", "no_records_missing", "not_quarantined", "values_proved", "golden_sets_read"}
    names |= {"no_drop", "no_lost_fields", "boards_fresh", "enough_data", "companies_fresh"}
    names |= {"not_all_filtered", "profile_readable", "information_sure", "providers_answer"}
    names |= {"asked_without_the_name", "no_visibility_drop", "contract"}
    assert first.success
    assert check_results(first) == dict.fromkeys(names, True)
    assert check_results(second) == {"contract": True}  # of `source_health`, which it refreshed


def test_two_concurrent_runs_report_no_change_twice(installation: Installation, site: DemoSite) -> None:
    """Each reported every unreported change, also those of the other's sources."""
    installation.add_demo(LIGHTHOUSE, SALT)
    begin = Barrier(2)

    def poll(name: str) -> list[str]:
        with dg.DagsterInstance.ephemeral() as instance:
            begin.wait(10)
            return list(materialized(run_job(name, instance)))

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(poll, ["poll_hot", "poll_warm"])

    assert sorted(first + second) == [LIGHTHOUSE, SALT]


def a_dead_letter(installation: Installation, error_class: str = "transient") -> int:
    with installation.open() as ctx:
        add_sources(ctx.store, a_definition())
        with ctx.store.begin() as connection:
            statement = insert(dead_letters).values(
                task_id=connection.execute(select(tasks.c.id)).scalar_one(),
                task_kind="poll",
                source_id="series:solo",
                payload={},
                error_class=error_class,
                error_code="timeout",
                error="timed out",
                attempts=3,
                tracking_id="t",
                failed_at=ctx.store.clock.now(connection),
            )
            return connection.execute(statement.returning(dead_letters.c.id)).scalar_one()


def replay(installation: Installation, **config: object) -> dg.ExecuteInProcessResult:
    run_config = {"ops": {"replay": {"config": {"actor": "ann", **config}}}}
    return installation.run_job("replay_dead_letters", config=run_config)


def numbers(result: dg.ExecuteInProcessResult) -> dict[str, object]:
    [event] = [event for event in result.all_events if event.is_successful_output]
    metadata = event.step_output_data.metadata
    return {name: value.value for name, value in metadata.items() if name != "dead_letters"}


def audited_actions(installation: Installation) -> list[str]:
    with installation.open() as ctx, ctx.store.read() as connection:
        query = select(audit_log.c.actor).where(audit_log.c.action == "dead_letter.replay")
        return list(connection.execute(query).scalars())


def test_a_dry_run_reports_and_the_real_run_replays_once(installation: Installation) -> None:
    a_dead_letter(installation)

    tried = replay(installation, error_class="transient", dry_run=True)
    assert (numbers(tried), audited_actions(installation)) == ({"to_replay": 1, "left_open": 0}, [])

    result = replay(installation, error_class="transient")
    assert (numbers(result), audited_actions(installation)) == ({"replayed": 1, "left_open": 0}, ["ann"])
    assert numbers(replay(installation, source="series:solo")) == {"replayed": 0, "left_open": 0}


def test_a_bad_launchpad_config_is_reported_and_nothing_is_replayed(installation: Installation) -> None:
    dead_letter_id = a_dead_letter(installation)

    wrong = [{}, {"ids": [dead_letter_id], "source": "series:solo"}, {"ids": [99]}, {"error_class": "odd"}]
    failure = [failure_message(replay(installation, **config)) for config in wrong]

    select = "select dead letters"
    cures = [select, select, "no dead letter 99", "is none of transient"]
    assert all(cure in message for cure, message in zip(cures, failure, strict=True)), failure
    assert audited_actions(installation) == []


@pytest.fixture
def rows(installation: Installation) -> Iterator[Store]:
    with open_run_context(installation.environment) as ctx:
        yield ctx.store


def run(installation: Installation, **config: Any) -> dg.ExecuteInProcessResult:
    return installation.run_job(
        "export_datasets", config={"ops": {"write_datasets": {"config": config}}} if config else None
    )


def metadata(result: dg.ExecuteInProcessResult) -> Any:
    (output,) = [event for event in result.all_events if event.is_successful_output]
    return output.step_output_data.metadata


def test_the_export_job_succeeds_without_configuration_and_published_data(installation: Installation) -> None:
    result = run(installation)

    assert result.success
    assert metadata(result)["files"].value == 0
    assert list((installation.home / "exports").iterdir()) == []


def test_every_published_dataset_is_a_file_that_the_metadata_names(installation: Installation, rows: Store) -> None:
    a_dataset(rows, [a_course("CS 1"), a_course("CS 2")], source_id="catalog:a")
    a_dataset(rows, [a_course("CS 1")], source_id="catalog:b")

    result = metadata(run(installation, names=["data_items"]))

    assert (result["files"].value, result["rows"].value) == (2, 3)
    paths = [record.data["path"] for record in result["written"].records]
    folder = installation.home / "exports"
    assert paths == [str(folder / f"course.catalog~{name}.parquet") for name in "ab"]
    assert {str(path) for path in folder.iterdir()} == set(paths)


def test_format_sources_and_evidence_are_launchpad_options(installation: Installation, rows: Store) -> None:
    a_dataset(rows, [a_course()], source_id="catalog:a")
    a_dataset(rows, [a_course()], source_id="catalog:b")

    assert run(installation, format="csv", sources=["catalog:b"], evidence=True).success

    (file,) = (installation.home / "exports").iterdir()
    assert file.name == "course.catalog~b.evidence.csv"
    assert "course_id__evidence" in file.read_text().splitlines()[0]


def test_by_default_every_table_with_rows_and_every_dataset_is_a_file(installation: Installation, rows: Store) -> None:
    a_dataset(rows, [a_course()], source_id="catalog:a")

    assert run(installation, format="jsonl").success

    files = {path.name for path in (installation.home / "exports").iterdir()}
    tables = {f"{name}.jsonl" for name in ("sources", "extractions", "pages", "datasets")}
    assert files == {*tables, "course.catalog~a.jsonl"}


def test_an_incremental_export_writes_only_changes_to_new_files(installation: Installation, rows: Store) -> None:
    a_dataset(rows, [a_course()], source_id="catalog:a")
    config = {"names": ["sources", "course"], "since_last": True}
    first = metadata(run(installation, **config))
    quiet = metadata(run(installation, **config))
    a_dataset(rows, [a_course()], source_id="catalog:b")
    third = metadata(run(installation, **config))

    assert [values["rows"].value for values in (first, quiet, third)] == [2, 0, 2]
    assert len(list((installation.home / "exports").iterdir())) == 4


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"format": "xlsx"}, "there is no format 'xlsx'; there are: csv, jsonl, parquet"),
        ({"sources": ["catalog:no"]}, "there is no source 'catalog:no'"),
    ],
)
def test_a_mistake_fails_with_its_cure(installation: Installation, config: dict[str, Any], message: str) -> None:
    result = run(installation, **config)

    assert not result.success
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    assert message in str(failed.step_failure_data)


def test_a_poll_without_a_daemon_imports_the_source_files_first(installation: Installation, site: DemoSite) -> None:
    """A scheduled `dagster job execute` on an empty home polled nothing, and succeeded."""
    (installation.sources / "mine.yaml").write_text(source_file([an_entry(LIGHTHOUSE)]))

    polled = installation.run_job("poll_hot")

    assert materialized(polled).keys() == {LIGHTHOUSE}
