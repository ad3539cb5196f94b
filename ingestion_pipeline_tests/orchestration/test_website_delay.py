"""Delays under a running daemon: a website from its row or file to its ranking, a catalogue from its last page on."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from ingestion_pipeline.demo.model_server import demo_providers, provider_settings
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.websites.analysis_reports import latest_reports
from ingestion_pipeline.websites.states import AnalysisStatus
from ingestion_pipeline_tests.orchestration.dagster_dev import (
    Dev,
    becomes_true,
    make_dagster_home,
    make_working_directory,
    process_environment,
)
from ingestion_pipeline_tests.orchestration.installation import Installation
from ingestion_pipeline_tests.websites.website_runs import a_website

MOST_SECONDS = 15
LINE = 'sources: [{id: "website:radwerft", kind: website, url: "http://radwerft.demo.test/"}]\n'
CATALOG_LINE = 'sources: [{id: "catalog:meadow", kind: catalog, url: "http://meadow.demo.test/programme"}]\n'


@pytest.fixture
def dev(installation: Installation, site: DemoSite, tmp_path: Path) -> Iterator[Dev]:
    """A daemon whose sensors tick, and two providers that answer at once."""
    with demo_providers(installation.home) as providers:
        more = {"INGESTION_MODELS__BACKOFF_BASE_SECONDS": "0.02", **provider_settings(providers)}
        more["DAGSTER_HOME"] = str(make_dagster_home(tmp_path))
        running = Dev(make_working_directory(tmp_path), process_environment(installation, **more))
        try:
            assert becomes_true(120, running.is_up)
            assert becomes_true(120, lambda: has_ticked(running))
            yield running
        finally:
            running.stop()
            running.kill()


def has_ticked(dev: Dev) -> bool:
    ticks = '{ instigationStateOrError(instigationSelector: {name: "new_sources", repositoryName: '
    ticks += '"__repository__", repositoryLocationName: "ingestion_pipeline"}) {'
    answer = dev.graphql(ticks + " ... on InstigationState { ticks(limit: 1) { status } } } }")
    return bool(answer["instigationStateOrError"].get("ticks"))


def seconds_until_complete(installation: Installation, source_id: str, began: float) -> float:
    def is_complete() -> bool:
        with installation.open() as ctx, ctx.store.read() as connection:
            report = latest_reports(connection, [source_id]).get(source_id)
        return report is not None and report.status is AnalysisStatus.COMPLETED

    assert becomes_true(120, is_complete)
    return time.monotonic() - began


@pytest.mark.soak
@pytest.mark.usefixtures("dev")
def test_a_website_is_analysed_within_fifteen_seconds_of_being_added(installation: Installation) -> None:
    began = time.monotonic()
    installation.add(a_website("saltmarsh", url="http://saltmarsh.demo.test/"))
    by_row = seconds_until_complete(installation, "website:saltmarsh", began)
    time.sleep(10)  # until that run has ended: the next one has to be started, too
    began = time.monotonic()
    (installation.sources / "mine.yaml").write_text(LINE)
    by_line = seconds_until_complete(installation, "website:radwerft", began)

    assert max(by_row, by_line) < MOST_SECONDS, f"{by_row:.1f} s by a row, {by_line:.1f} by a line"


@pytest.mark.soak
@pytest.mark.usefixtures("dev")
def test_a_catalogue_of_a_new_file_is_published_within_a_minute_of_its_last_page(installation: Installation) -> None:
    def is_published() -> bool:
        return any(row["status"] == "published" for row in installation.rows("datasets"))

    (installation.sources / "mine.yaml").write_text(CATALOG_LINE)

    assert becomes_true(300, is_published)
    last_page = max(row["fetched_at"] for row in installation.rows("snapshots"))
    [dataset] = installation.rows("datasets")
    assert dataset["published_at"] - last_page < timedelta(minutes=1)
