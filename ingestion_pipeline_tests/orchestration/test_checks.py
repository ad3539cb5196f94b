"""Checks fail and pass by what polls find, and are reported when they change, not at each poll."""

import dagster as dg
import pytest

from ingestion_pipeline.demo.content import break_site, read_state, repair, write_state
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.orchestration.checks import CHECKS, severity
from ingestion_pipeline_tests.orchestration.installation import (
    BROKEN,
    LIGHTHOUSE,
    SALT,
    Installation,
    an_entry,
    check_results,
    materialized,
    run_job,
    source_file,
)

BY_POLLS = [*("not_empty_after_full", "sources_fresh"), *("no_drop", "no_lost_fields", "boards_fresh")]


def last_check_description(instance: dg.DagsterInstance, asset: str, name: str) -> str:
    """Return the description of the check's latest evaluation."""
    key = dg.AssetCheckKey(dg.AssetKey(asset), name)
    record = instance.get_latest_asset_check_evaluation_record(key)
    assert record is not None
    assert record.event is not None
    assert record.event.dagster_event is not None
    return str(record.event.dagster_event.asset_check_evaluation_data.metadata["details"].value)


@pytest.mark.slow
def test_an_empty_feed_fails_its_check_and_a_full_one_passes_again(
    installation: Installation, site: DemoSite, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(SALT)
    results: list[dict[str, bool]] = []

    for change in (None, break_site, None, repair, None):
        if change is not None:
            write_state(installation.home, change(read_state(installation.home)))
        installation.make_due(SALT)
        results.append(check_results(run_job("poll_warm", instance)))

    assert results == [
        dict.fromkeys([*BY_POLLS, "contract"], True),
        {"not_empty_after_full": False},
        {},
        {"not_empty_after_full": True},
        {},
    ]


def test_a_quarantine_is_an_error_and_every_other_finding_a_warning() -> None:
    errors = {check.name for check in CHECKS.values() if severity(check) is dg.AssetCheckSeverity.ERROR}

    assert errors == {"not_empty_after_full", "no_drop", "no_lost_fields", "not_quarantined"}


@pytest.mark.slow
def test_a_quarantined_feed_names_its_source_and_deletes_nothing(
    installation: Installation, site: DemoSite, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(SALT)
    run_job("poll_warm", instance)
    write_state(installation.home, break_site(read_state(installation.home)))
    installation.make_due(SALT)

    result = run_job("poll_warm", instance)

    assert result.success
    assert materialized(result) == {}
    assert installation.chapters_of(SALT) == 12
    description = last_check_description(instance, "chapters", "not_empty_after_full")
    assert description.startswith(f"{SALT}: quarantined: lists nothing, 12 chapters are known")


@pytest.mark.slow
def test_a_source_that_never_succeeds_is_not_fresh(
    installation: Installation, site: DemoSite, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(BROKEN, LIGHTHOUSE)
    with installation.open() as ctx:
        from datetime import timedelta

        installation.set_source(BROKEN, created_at=ctx.store.now() - timedelta(hours=1))

    result = run_job("poll_hot", instance)

    assert check_results(result)["sources_fresh"] is False
    assert last_check_description(instance, "chapters", "sources_fresh").startswith(f"{BROKEN}: never succeeded")


@pytest.mark.slow
def test_a_bad_source_file_fails_its_check_until_it_is_corrected(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    file = installation.sources / "mine.yaml"
    file.write_text(source_file([an_entry(tier="tepid")]))

    red = check_results(run_job("maintain", instance))
    description = last_check_description(instance, "sources", "files_readable")
    file.write_text(source_file([an_entry()]))
    green = check_results(run_job("maintain", instance))

    assert red["files_readable"] is False
    assert description.startswith("mine.yaml:6: tier: 'tepid' is no tier")
    assert green == {"files_readable": True, "contract": True}  # that of `source_health`


@pytest.mark.slow
def test_a_gap_in_the_numbers_is_reported_by_maintenance(
    installation: Installation, site: DemoSite, instance: dg.DagsterInstance
) -> None:
    installation.add_demo(LIGHTHOUSE)
    run_job("poll_hot", instance)
    with installation.open() as ctx, ctx.store.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE chapter_sources SET available = 0 WHERE chapter_id = (SELECT id FROM chapters WHERE key = '20')"
        )

    result = check_results(run_job("maintain", instance))

    assert result["no_gaps"] is False
    assert last_check_description(instance, "chapters", "no_gaps") == "lighthouse: missing: 20"
