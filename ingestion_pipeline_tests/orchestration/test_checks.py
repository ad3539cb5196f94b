"""Checks, contracts and the asset `source_health`: when they are evaluated, and what they report."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
from sqlalchemy import insert, select, update

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.definitions import defs
from ingestion_pipeline.demo.content import break_site, read_state, repair, write_state
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.system_spec import plain
from ingestion_pipeline.exports.contracts import CONTRACTS
from ingestion_pipeline.orchestration.checks import (
    CHECKS,
    NAME,
    breakable,
    changed_contracts,
    severity,
    written_contracts,
)
from ingestion_pipeline.registry import kind_specs
from ingestion_pipeline.store.tables import chapter_sources, chapters, ingestions, outbox, pages, series, sources
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.exports.datasets import COLLEGE, a_course, a_dataset
from ingestion_pipeline_tests.operations.failing_sources import add_healthy_sources, break_sources
from ingestion_pipeline_tests.orchestration.installation import (
    BROKEN,
    LIGHTHOUSE,
    SALT,
    Installation,
    an_entry,
    check_results,
    details,
    materialized,
    source_file,
)
from ingestion_pipeline_tests.polling_runs import add_sources

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
def test_an_empty_feed_fails_its_check_and_a_full_one_passes_again(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(SALT)
    results: list[dict[str, bool]] = []

    for change in (None, break_site, None, repair, None):
        if change is not None:
            write_state(installation.home, change(read_state(installation.home)))
        installation.make_due(SALT)
        results.append(check_results(installation.run_job("poll_warm")))

    assert results == [
        dict.fromkeys([*BY_POLLS, "contract"], True),
        {"not_empty_after_full": False},
        {},
        {"not_empty_after_full": True},
        {},
    ]


def test_a_quarantine_and_a_golden_set_read_worse_are_errors_and_every_other_finding_a_warning() -> None:
    errors = {check.name for check in CHECKS.values() if severity(check) is dg.AssetCheckSeverity.ERROR}

    quarantines = {"not_empty_after_full", "no_drop", "no_lost_fields", "not_quarantined"}
    assert errors == {*quarantines, "golden_sets_read"}


@pytest.mark.slow
def test_a_quarantined_feed_names_its_source_and_deletes_nothing(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(SALT)
    installation.run_job("poll_warm")
    write_state(installation.home, break_site(read_state(installation.home)))
    installation.make_due(SALT)

    result = installation.run_job("poll_warm")

    assert result.success
    assert materialized(result) == {}
    assert installation.chapters_of(SALT) == 12
    description = last_check_description(installation.instance, "chapters", "not_empty_after_full")
    assert description.startswith(f"{SALT}: quarantined: lists nothing, 12 chapters are known")


@pytest.mark.slow
def test_a_source_that_never_succeeds_is_not_fresh(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(BROKEN, LIGHTHOUSE)
    with installation.open() as ctx:
        from datetime import timedelta

        installation.set_source(BROKEN, created_at=ctx.store.now() - timedelta(hours=1))

    result = installation.run_job("poll_hot")

    assert check_results(result)["sources_fresh"] is False
    assert last_check_description(installation.instance, "chapters", "sources_fresh").startswith(
        f"{BROKEN}: never succeeded"
    )


@pytest.mark.slow
def test_a_bad_source_file_fails_its_check_until_it_is_corrected(installation: Installation) -> None:
    file = installation.sources / "mine.yaml"
    file.write_text(source_file([an_entry(tier="tepid")]))

    red = check_results(installation.run_job("maintain"))
    description = last_check_description(installation.instance, "sources", "files_readable")
    file.write_text(source_file([an_entry()]))
    green = check_results(installation.run_job("maintain"))

    assert red["files_readable"] is False
    assert description.startswith("mine.yaml:6: tier: 'tepid' is no tier")
    assert green == {"files_readable": True, "contract": True}  # that of `source_health`


@pytest.mark.slow
def test_a_gap_in_the_numbers_is_reported_by_maintenance(installation: Installation, site: DemoSite) -> None:
    installation.add_demo(LIGHTHOUSE)
    installation.run_job("poll_hot")
    with installation.open() as ctx, ctx.store.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE chapter_sources SET available = 0 WHERE chapter_id = (SELECT id FROM chapters WHERE key = '20')"
        )

    result = check_results(installation.run_job("maintain"))

    assert result["no_gaps"] is False
    assert last_check_description(installation.instance, "chapters", "no_gaps") == "lighthouse: missing: 20"


@pytest.mark.parametrize("asset", CONTRACTS)
def test_every_asset_shows_the_columns_of_its_contract(asset: str) -> None:
    spec = defs.resolve_asset_graph().get(dg.AssetKey(asset))
    columns = spec.metadata["dagster/column_schema"].columns

    contract = CONTRACTS[asset]
    published = [column.name for column in contract.columns() if column.name not in contract.first]
    assert [column.name for column in columns] == [*contract.first, *published]


def test_every_polled_asset_has_a_contract_and_rows_that_name_the_run() -> None:
    polled = {spec.asset.name if spec.asset else None for spec in kind_specs().values() if spec.polled is not None}

    assert polled <= {asset for asset, contract in CONTRACTS.items() if contract.written is not None}


def test_a_broken_contract_is_reported_once_with_its_severity(installation: Installation) -> None:
    with open_run_context(installation.environment) as ctx:
        add_sources(ctx.store, a_definition())
        with ctx.store.begin() as connection:
            connection.execute(update(sources).values(url="ftp://a.test/"))
        evaluations = {
            evaluation.asset_key.to_user_string(): evaluation
            for evaluation in changed_contracts(installation.instance, ctx)
        }

    assert {evaluation.check_name for evaluation in evaluations.values()} == {NAME}
    assert evaluations.keys() == CONTRACTS.keys() - {"source_health"}  # its refresh evaluates it
    assert [name for name, evaluation in evaluations.items() if not evaluation.passed] == ["sources"]
    assert evaluations["sources"].severity is dg.AssetCheckSeverity.WARN
    assert "rows series:solo" in str(evaluations["sources"].metadata["details"].value)


def a_chapter(ctx: RunContext, number: int, url: str, *, run: str) -> None:
    """A chapter as the poll of that run has left it."""
    poll = {"source_id": "series:solo", "config_version": 1, "parser_version": "rss:1", "snapshots": []}
    poll |= {"outcome": "1 new", "tracking_id": "t", "fetched_at": NOON, "ingested_at": NOON}
    with ctx.store.begin() as connection:
        connection.execute(insert(ingestions).values(id=number, run_id=run, **poll))
        if number == 1:
            connection.execute(insert(series).values(id="solo", title="Solo", created_at=NOON))
        row = {"id": number, "series_id": "solo", "key": str(number), "first_detected_at": NOON}
        connection.execute(insert(chapters).values(row))
        link = {"chapter_id": number, "source_id": "series:solo", "releases": [], "url": url}
        link |= {"fingerprint": "f", "detected_at": NOON, "ingestion_id": number}
        connection.execute(insert(chapter_sources).values(link))


def evaluate_as_run(instance: dg.DagsterInstance, ctx: RunContext, run: str) -> list[bool]:
    """Evaluate the contract of `chapters` as this run and store the results in Dagster."""
    of_run = replace(ctx, run_id=run)
    evaluations = list(written_contracts(instance, of_run, {"chapters": ["series:solo"]}))
    for evaluation in evaluations:
        instance.report_runless_asset_event(evaluation)
    return [evaluation.passed for evaluation in evaluations]


def test_a_poll_checks_only_its_own_rows_against_the_contract(installation: Installation) -> None:
    with installation.open() as ctx:
        add_sources(ctx.store, a_definition())
        a_chapter(ctx, 1, "https://a.test/1", run="first")
        a_chapter(ctx, 2, "ftp://a.test/2", run="second")
        a_chapter(ctx, 3, "https://a.test/3", run="third")

        assert evaluate_as_run(installation.instance, ctx, "first") == [True]
        assert evaluate_as_run(installation.instance, ctx, "first") == []  # reported, and nothing was written since
        assert evaluate_as_run(installation.instance, ctx, "second") == [False]
        assert evaluate_as_run(installation.instance, ctx, "third") == []  # right, but others' rows are broken
        with ctx.store.begin() as connection:
            connection.execute(update(chapter_sources).values(url="https://a.test/"))
        mended = [evaluation for evaluation in changed_contracts(installation.instance, ctx) if evaluation.passed]

    assert "chapters" in {evaluation.asset_key.to_user_string() for evaluation in mended}


def test_a_crawl_checks_the_items_of_its_run_before_they_are_published(installation: Installation) -> None:
    invalid_course = a_course("CS 102", course_credits_max="three")
    with installation.open() as ctx:
        a_dataset(ctx.store, [a_course(), invalid_course], status="building")
        with ctx.store.begin() as connection:
            connection.execute(update(pages).values(run_id="mine"))
        evaluations = {
            run: list(written_contracts(installation.instance, replace(ctx, run_id=run), {"datasets": [COLLEGE]}))
            for run in ("mine", "another")
        }

    [mine], [another] = evaluations["mine"], evaluations["another"]
    assert (mine.asset_key, mine.check_name) == (dg.AssetKey("datasets"), NAME)
    assert (mine.passed, another.passed) == (False, True)
    assert "course_credits_max must be of its field's kind, not 'three'" in str(mine.metadata)


KEY = dg.AssetKey("source_health")


def add_failing_sources(installation: Installation, count: int, *, per_failure: int) -> dict[str, list[str]]:
    with installation.open() as ctx, ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        return break_sources(
            connection, add_healthy_sources(connection, count, now=now), per_failure=per_failure, now=now
        )


def latest_metadata(instance: dg.DagsterInstance) -> dict[str, object]:
    event = instance.get_latest_materialization_event(KEY)
    assert event is not None
    assert event.asset_materialization is not None
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


@pytest.mark.slow
def test_maintenance_updates_the_health_of_every_source_and_alerts_once(installation: Installation) -> None:
    add_failing_sources(installation, 60, per_failure=2)

    results = [installation.run_job("maintain") for _ in range(2)]

    assert all(result.success for result in results)
    metadata = latest_metadata(installation.instance)
    expected = {"sources_open": 2, "sources_degraded": 6, "sources_healthy": 50}
    assert {name: metadata[name] for name in expected} == expected
    assert details(metadata)["queue poll"] == 58
    assert metadata["dagster/row_count"] == 60
    assert str(metadata["freshness"]).startswith("![freshness](data:image/png;base64,")
    with installation.open() as ctx, ctx.store.read() as connection:
        kinds = list(connection.execute(select(outbox.c.subject_kind)).scalars())
    assert len(kinds) == 10


@pytest.mark.slow
def test_source_health_is_materialized_manually_and_escapes_text_of_pages(installation: Installation) -> None:
    ids_by_failure = add_failing_sources(installation, 5, per_failure=1)
    with installation.open() as ctx, ctx.store.begin() as connection:
        outcome = {"last_outcome": "failed: <script>x</script> [a](http://evil.test) | **b**"}
        connection.execute(update(sources).values(outcome))

    result = dg.materialize(
        [defs.get_assets_def("source_health")],
        instance=installation.instance,
        resources=dict(defs.resources or {}),
        selection=dg.AssetSelection.assets(KEY),
    )

    assert result.success
    metadata = latest_metadata(installation.instance)
    table = str(metadata["worst"])
    lines = table.splitlines()
    assert lines[2].startswith(f"| {ids_by_failure['down'][0]}".replace(":", r"\:").replace("_", r"\_"))
    assert "**open**" in lines[2]
    assert len({line.count("|") - line.count(r"\|") for line in lines}) == 1
    assert r"\<script\>" in table
    assert re.search(r"(?<!\\)[<\[]", table) is None


@pytest.mark.slow
def test_a_dry_run_materializes_nothing_and_sends_no_alert(installation: Installation) -> None:
    add_failing_sources(installation, 5, per_failure=1)

    config = {"ops": {"sweep": {"config": {"dry_run": True}}}}
    result = installation.run_job("maintain", config=config)

    assert result.success
    [output] = [event for event in result.all_events if event.is_successful_output]
    assert output.step_output_data.metadata["health"].value == 5
    assert installation.instance.get_latest_materialization_event(KEY) is None
    assert installation.rows("outbox") == []
    assert installation.rows("source_health") == []


def test_a_tick_of_the_daemon_is_its_heartbeat(installation: Installation) -> None:
    installation.tick_sensor("stale_runs")

    [pulse] = installation.rows("service_heartbeats")
    assert datetime.now(UTC) - pulse["at"] < timedelta(minutes=1)


def test_a_url_in_the_table_can_wrap_at_its_slashes() -> None:
    cell = breakable(plain("http://lists.demo.test/clockmaker answered 503"))

    longest = max(len(part) for part in re.split("[ \N{ZERO WIDTH SPACE}]", cell))
    assert longest < 25
