"""The jobs do what their names say: in process, on the demo site, on an instance that forgets."""

import gc
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import dagster as dg
import pytest

from ingestion_pipeline.demo.content import mutate, read_state, write_state
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.orchestration import assets
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.orchestration.installation import (
    BROKEN,
    FLAKY,
    LIGHTHOUSE,
    SALT,
    Installation,
    check_results,
    failure_message,
    materialized,
    run_job,
)

NUMBERS = ["polled", "changed", "new", "updated", "withdrawn", "total", "latest_chapter"]


@pytest.mark.slow
def test_a_poll_logs_one_materialization_with_numbers_per_changed_source(
    installation: Installation, site: DemoSite, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(LIGHTHOUSE, "series:lighthouse-mangadex")

    result = run_job("poll_hot", instance)

    events = materialized(result)
    assert events.keys() == {LIGHTHOUSE, "series:lighthouse-mangadex"}
    assert [events[LIGHTHOUSE][name] for name in NUMBERS] == [1, 1, 10, 0, 0, 10, 22.0]
    assert events[LIGHTHOUSE]["outcome"] == "first sync: 10 new"
    assert events[LIGHTHOUSE]["url"] == "http://feeds.demo.test/lighthouse.xml"
    assert r"Bread \& Brine |" in events[LIGHTHOUSE]["newest"]
    assert "delay_minutes" not in events[LIGHTHOUSE]  # unknown for a backlog
    assert {"change_confidence", "checked_when"} <= events[LIGHTHOUSE].keys()


@pytest.mark.slow
def test_an_unchanged_poll_writes_no_event(
    installation: Installation, site: DemoSite, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(LIGHTHOUSE)
    run_job("poll_hot", instance)
    installation.make_due(LIGHTHOUSE)

    second = run_job("poll_hot", instance)

    assert second.success
    assert site.requests["feeds.demo.test", "/lighthouse.xml"] == 2
    assert (materialized(second), check_results(second)) == ({}, {})


@pytest.mark.slow
def test_a_run_leaves_no_objects_that_the_garbage_collector_never_visits(
    installation: Installation, site: DemoSite, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(LIGHTHOUSE)
    before = gc.get_freeze_count()

    run_job("poll_hot", instance)

    assert gc.get_freeze_count() <= before


@pytest.mark.slow
def test_a_new_chapter_is_an_event_that_counts_it(
    installation: Installation, site: DemoSite, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(LIGHTHOUSE)
    run_job("poll_hot", instance)
    write_state(installation.home, mutate(read_state(installation.home)))
    installation.make_due(LIGHTHOUSE)

    events = materialized(run_job("poll_hot", instance))

    assert [events[LIGHTHOUSE][name] for name in NUMBERS] == [1, 1, 1, 0, 0, 11, 23.0]


@pytest.mark.slow
def test_a_poll_run_has_its_counts_as_metadata(
    installation: Installation, site: DemoSite, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(LIGHTHOUSE, BROKEN)

    result = run_job("poll_hot", instance)

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


@pytest.mark.slow
def test_a_job_polls_only_its_own_tier(
    installation: Installation, site: DemoSite, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(LIGHTHOUSE, SALT)

    events = materialized(run_job("poll_warm", instance))

    assert events.keys() == {SALT}
    assert installation.source(LIGHTHOUSE).last_checked_at is None


@pytest.mark.slow
def test_a_run_of_one_shard_leaves_the_other_alone(
    installation: Installation, site: DemoSite, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(LIGHTHOUSE)
    other = 1 - installation.source(LIGHTHOUSE).shard % 2

    tags = {"ingestion/tier": "hot", "ingestion/shard": f"hot:{other}"}
    result = run_job("poll_hot", instance, tags=tags)

    assert result.success
    assert installation.source(LIGHTHOUSE).last_checked_at is None


@pytest.mark.slow
def test_a_failing_source_does_not_fail_the_run(
    installation: Installation, site: DemoSite, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(LIGHTHOUSE, BROKEN)

    result = run_job("poll_hot", instance)

    assert result.success
    assert materialized(result).keys() == {LIGHTHOUSE}
    assert installation.source(BROKEN).failure_count == 1


@pytest.mark.slow
def test_a_run_fails_when_every_source_fails_and_says_where_to_look(
    installation: Installation, site: DemoSite, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(BROKEN)

    failure = failure_message(run_job("poll_hot", instance))

    assert "all 1 polled sources failed; `ingest dead-letters list` shows why" in failure


@pytest.mark.slow
def test_a_run_with_nothing_to_do_succeeds(installation: Installation, instance: dg.DagsterInstance) -> None:
    assert run_job("poll_cold", instance).success


@pytest.mark.slow
def test_an_overloaded_site_is_retried_within_the_run(
    installation: Installation, site: DemoSite, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(FLAKY)

    result = run_job("poll_hot", instance)

    assert site.requests["flaky.demo.test", "/orchard.xml"] == 3
    assert materialized(result)[FLAKY]["total"] == 8


@pytest.mark.slow
def test_two_concurrent_runs_poll_no_source_twice(installation: Installation, site: DemoSite) -> None:
    """Two daemons on one database are not excluded by Dagster: the claim is the guard."""
    installation.add_demo(LIGHTHOUSE, "series:lighthouse-mangadex")

    def poll(_: int) -> bool:
        with dg.DagsterInstance.ephemeral() as instance:
            return run_job("poll_hot", instance).success

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(poll, range(2))) == [True, True]

    assert site.requests["feeds.demo.test", "/lighthouse.xml"] == 1


@pytest.mark.slow
def test_events_beyond_the_limit_of_a_run_are_written_by_the_next(
    installation: Installation, site: DemoSite, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "REPORTED_EVENTS", 2)
    installation.add_demo(LIGHTHOUSE, "series:lighthouse-mangadex", FLAKY)

    first, second, third = [materialized(run_job("poll_hot", instance)).keys() for _ in range(3)]

    assert len(first) == 2
    assert first | second == {LIGHTHOUSE, "series:lighthouse-mangadex", FLAKY}
    assert not first & second
    assert not third


@pytest.mark.slow
def test_a_finished_run_holds_no_lease(
    installation: Installation, site: DemoSite, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(LIGHTHOUSE, BROKEN)

    result = run_job("poll_hot", instance)

    [run] = installation.rows("runs")
    assert (run["run_id"], run["job"]) == (result.run_id, "poll_hot")
    assert run["ended_at"] is not None
    assert {task["status"] for task in installation.rows("tasks")} == {"PENDING"}
    assert {host["lease_owner"] for host in installation.rows("hosts")} == {None}


GOOD = {"id": "series:tides", "kind": "series", "url": "http://feeds.demo.test/lighthouse.xml", "platform": "rss"}


def add_source_config(**values: Any) -> dict[str, Any]:
    return {"ops": {"register": {"config": values}}}


@pytest.mark.slow
def test_add_source_lists_every_mistake_and_adds_nothing(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    invalid = {"id": "Tides, the", "kind": "serial", "url": "ftp://a.test", "tier": "tepid"}

    failure = failure_message(run_job("add_source", instance, config=add_source_config(**invalid)))

    assert "the source was not added" in failure
    assert all(f"{field}: " in failure for field in ("id", "kind", "url", "tier"))
    assert installation.rows("sources") == []
    assert instance.get_dynamic_partitions("sources") == []


@pytest.mark.slow
def test_add_source_with_the_launchpads_default_config_is_refused(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    failure = failure_message(run_job("add_source", instance))

    assert "id: 'series:NAME' is no id" in failure
    assert "url: URL 'https://' has no usable host" in failure
    assert installation.rows("sources") == []


@pytest.mark.slow
def test_add_source_names_the_problems_found_by_the_platform(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    wrong = GOOD | {"platform": "mangadex", "config": {"limit": -5}}

    failure = failure_message(run_job("add_source", instance, config=add_source_config(**wrong)))

    assert "config: " in failure
    assert installation.rows("sources") == []


@pytest.mark.slow
def test_a_corrected_add_source_creates_a_row_partitions_and_a_due_poll(
    installation: Installation, site: DemoSite, instance: dg.DagsterInstance
) -> None:
    result = run_job("add_source", instance, config=add_source_config(**GOOD, tier="hot"))

    assert materialized(result)["series:tides"]["tier"] == "hot (pinned)"  # declared: nothing is upstream
    assert installation.source("series:tides").platform == "rss"
    assert installation.poll_task("series:tides")["status"] == "PENDING"
    assert instance.get_dynamic_partitions("sources") == ["series:tides"]
    assert instance.get_dynamic_partitions("series_sources") == ["series:tides"]
    assert materialized(run_job("poll_hot", instance)).keys() == {"series:tides"}


@pytest.mark.slow
def test_add_source_refuses_an_id_that_is_taken_and_names_the_cure(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    installation.add(a_definition(id="series:tides", url="https://a.test/other"))

    failure = failure_message(run_job("add_source", instance, config=add_source_config(**GOOD)))

    assert "`ingest sources update`" in failure
    assert installation.source("series:tides").url == "https://a.test/other"


@pytest.mark.slow
def test_maintain_sweeps_and_evaluates_every_check(installation: Installation, instance: dg.DagsterInstance) -> None:
    first, second = run_job("maintain", instance), run_job("maintain", instance)

    names = {"no_gaps", "not_empty_after_full", "sources_fresh", "files_readable", "all_delivered"}
    names |= {"share_of_failures", "no_empty_shells", "no_drop_against_history"}
    names |= {"extractions_complete", "no_records_missing", "not_quarantined", "values_proved"}
    names |= {"no_drop", "no_lost_fields", "boards_fresh", "enough_data", "companies_fresh"}
    names |= {"not_all_filtered", "profile_readable", "information_sure", "providers_answer"}
    names |= {"asked_without_the_name", "no_visibility_drop", "contract"}
    assert first.success
    assert check_results(first) == dict.fromkeys(names, True)
    assert check_results(second) == {"contract": True}  # of `source_health`, which it refreshed


@pytest.mark.slow
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
