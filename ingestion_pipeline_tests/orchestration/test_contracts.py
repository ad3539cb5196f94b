"""Contracts in the catalogue, and as checks."""

from dataclasses import replace

import dagster as dg
import pytest
from sqlalchemy import insert, update

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.definitions import defs
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.exports.contracts import CONTRACTS
from ingestion_pipeline.orchestration.checks import NAME, changed_contracts, written_contracts
from ingestion_pipeline.registry import kind_specs
from ingestion_pipeline.store.tables import chapter_sources, chapters, ingestions, pages, series, sources
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.exports.datasets import COLLEGE, a_course, a_dataset
from ingestion_pipeline_tests.orchestration.installation import Installation
from ingestion_pipeline_tests.polling_runs import add_sources


@pytest.mark.parametrize("asset", CONTRACTS)
def test_every_asset_shows_the_columns_of_its_contract(asset: str) -> None:
    spec = defs.resolve_asset_graph().get(dg.AssetKey(asset))
    columns = spec.metadata["dagster/column_schema"].columns

    assert [column.name for column in columns] == [column.name for column in CONTRACTS[asset].columns()]


def test_every_polled_asset_has_a_contract_and_rows_that_name_the_run() -> None:
    polled = {spec.asset.name if spec.asset else None for spec in kind_specs().values() if spec.polled is not None}

    assert polled <= {asset for asset, contract in CONTRACTS.items() if contract.written is not None}


def test_a_broken_contract_is_reported_once_with_its_severity(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    with open_run_context(installation.environment) as ctx:
        add_sources(ctx.store, a_definition())
        with ctx.store.begin() as connection:
            connection.execute(update(sources).values(url="ftp://a.test/"))
        evaluations = {
            evaluation.asset_key.to_user_string(): evaluation for evaluation in changed_contracts(instance, ctx)
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


def test_a_poll_checks_only_its_own_rows_against_the_contract(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    with installation.open() as ctx:
        add_sources(ctx.store, a_definition())
        a_chapter(ctx, 1, "https://a.test/1", run="first")
        a_chapter(ctx, 2, "ftp://a.test/2", run="second")
        a_chapter(ctx, 3, "https://a.test/3", run="third")

        assert evaluate_as_run(instance, ctx, "first") == [True]
        assert evaluate_as_run(instance, ctx, "first") == []  # reported, and nothing was written since
        assert evaluate_as_run(instance, ctx, "second") == [False]
        assert evaluate_as_run(instance, ctx, "third") == []  # right, but others' rows are broken
        with ctx.store.begin() as connection:
            connection.execute(update(chapter_sources).values(url="https://a.test/"))
        mended = [evaluation for evaluation in changed_contracts(instance, ctx) if evaluation.passed]

    assert "chapters" in {evaluation.asset_key.to_user_string() for evaluation in mended}


def test_a_crawl_checks_the_items_of_its_run_before_they_are_published(
    installation: Installation, instance: dg.DagsterInstance
) -> None:
    invalid_course = a_course("CS 102", course_credits_max="three")
    with installation.open() as ctx:
        a_dataset(ctx.store, [a_course(), invalid_course], status="building")
        with ctx.store.begin() as connection:
            connection.execute(update(pages).values(run_id="mine"))
        evaluations = {
            run: list(written_contracts(instance, replace(ctx, run_id=run), {"datasets": [COLLEGE]}))
            for run in ("mine", "another")
        }

    [mine], [another] = evaluations["mine"], evaluations["another"]
    assert (mine.asset_key, mine.check_name) == (dg.AssetKey("datasets"), NAME)
    assert (mine.passed, another.passed) == (False, True)
    assert "course_credits_max must be of its field's kind, not 'three'" in str(mine.metadata)
