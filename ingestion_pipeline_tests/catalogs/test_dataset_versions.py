"""A published version never changes: a retry adds another, and the newest crawl is published."""

import pytest

from ingestion_pipeline.catalogs import extraction_control
from ingestion_pipeline.catalogs.reruns import rerun
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, datasets, extractions, outbox
from ingestion_pipeline_tests.catalog_extractions import (
    CatalogHarness,
    a_catalog,
    complete_extractions,
    crawl,
    crawl_all,
)
from ingestion_pipeline_tests.catalogs.course_pages import serve_courses
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import add_sources, rows

pytestmark = pytest.mark.both_databases


def finish_crawl(catalog: CatalogHarness, *keys: str) -> int:
    """Finish a crawl of two pages: one failed, the other has items with these keys."""
    id_ = catalog.start_extraction({"/c/1": "SUCCESS", "/c/2": "ERROR"})
    catalog.add_items(id_, {"/c/1": keys})
    catalog.fail_page(id_, "/c/2", "http_404")
    catalog.finish(id_)
    catalog.clock.advance(minutes=10)
    return id_


def test_a_retry_leaves_the_published_version_and_adds_the_next(catalog: CatalogHarness) -> None:
    id_ = finish_crawl(catalog, "a")
    before = catalog.rows(data_items)
    [published] = catalog.rows(datasets)

    catalog.apply_action(extraction_control.retry, id_)
    catalog.add_items(id_, {"/c/2": ["b"]})

    assert catalog.versions() == {1: ("published", ["a"]), 2: ("building", ["b"])}
    catalog.finish(id_)

    assert catalog.versions() == {1: ("published", ["a"]), 2: ("published", ["a", "b"])}
    assert catalog.rows(data_items)[:1] == before
    assert catalog.rows(datasets)[0] == published


def test_a_retry_without_changes_confirms_the_published_version(catalog: CatalogHarness) -> None:
    id_ = finish_crawl(catalog, "a")

    catalog.apply_action(extraction_control.retry, id_)
    catalog.fail_page(id_, "/c/2")
    [ended] = catalog.finish(id_)

    assert ended.dataset is not None
    assert (ended.dataset.version, ended.dataset.is_confirmed) == (1, True)
    assert catalog.versions() == {1: ("published", ["a"])}


@pytest.mark.slow
def test_a_cancelled_retry_leaves_the_published_version(catalog: CatalogHarness) -> None:
    id_ = finish_crawl(catalog, "a")
    [published] = catalog.rows(datasets)

    catalog.apply_action(extraction_control.retry, id_)
    catalog.add_items(id_, {"/c/2": ["b"]})
    catalog.cancel(id_)

    assert catalog.versions() == {1: ("published", ["a"]), 2: ("incomplete", ["b"])}
    assert catalog.rows(datasets)[0] == published
    catalog.apply_action(extraction_control.resume, id_)
    catalog.finish(id_)
    assert catalog.versions()[2] == ("published", ["a", "b"])


@pytest.mark.slow
def test_pages_read_by_a_retry_go_into_a_new_version(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    """On a loopback web, by the real reader: published rows do not change."""
    serve_courses(web, 101, 102)
    web.routes["/c/102"] = 404
    add_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    published = rows(store, data_items)
    serve_courses(web, 101, 102)

    with store.begin() as connection:
        extraction_control.retry(connection, 1, actor="ann", now=store.clock.now(connection))
    crawl(ctx, web)
    complete_extractions(ctx)

    assert rows(store, data_items)[: len(published)] == published
    versions = {row.id: row.version for row in rows(store, datasets)}
    held = [(versions[row.dataset_id], row.data["course_id"]) for row in rows(store, data_items)]
    assert sorted(held) == [(1, "MATH 101"), (2, "MATH 101"), (2, "MATH 102")]
    assert [row.status for row in rows(store, datasets)] == ["published"] * 2


@pytest.mark.slow
def test_a_rerun_of_the_newest_crawl_is_published(catalog: CatalogHarness) -> None:
    finish_crawl(catalog, "a")
    newest = finish_crawl(catalog, "a", "b")
    new_run = catalog.apply_action(rerun, newest)
    catalog.add_items(new_run.extraction_id, {"/c/1": ["x", "y"]})

    catalog.finish(new_run.extraction_id)

    assert new_run.newer is None
    assert catalog.versions()[3] == ("published", ["x", "y"])


@pytest.mark.slow
def test_a_rerun_of_an_older_crawl_is_quarantined_until_it_is_published(catalog: CatalogHarness) -> None:
    oldest = finish_crawl(catalog, "a")
    finish_crawl(catalog, "a", "b")
    new_run = catalog.apply_action(rerun, oldest)
    catalog.add_items(new_run.extraction_id, {"/c/1": ["x", "y"]})

    [ended] = catalog.finish(new_run.extraction_id)

    assert new_run.newer == 2
    assert f"`ingest extractions publish {new_run.extraction_id}`" in new_run.outlook
    assert ended.dataset is not None
    assert [finding["code"] for finding in ended.dataset.findings] == ["outdated"]
    assert catalog.versions()[3] == ("quarantined", ["x", "y"])
    notice = catalog.rows(outbox)[-1].payload["text"]
    assert f"`ingest extractions publish {new_run.extraction_id}`" in notice
    assert catalog.apply_action(extraction_control.publish, new_run.extraction_id) == 3


@pytest.mark.slow
def test_a_rerun_of_an_older_crawl_is_published_on_request(catalog: CatalogHarness) -> None:
    oldest = finish_crawl(catalog, "a")
    finish_crawl(catalog, "a", "b")
    new_run = catalog.apply_action(rerun, oldest, publish=True)
    catalog.add_items(new_run.extraction_id, {"/c/1": ["x", "y"]})

    catalog.finish(new_run.extraction_id)

    assert catalog.versions()[3] == ("published", ["x", "y"])


@pytest.mark.slow
def test_a_rerun_of_a_rerun_is_as_old_as_the_pages_it_reads(catalog: CatalogHarness) -> None:
    oldest = finish_crawl(catalog, "a")
    first = catalog.apply_action(rerun, oldest)
    catalog.add_items(first.extraction_id, {"/c/1": ["x"]})
    catalog.finish(first.extraction_id)
    catalog.clock.advance(minutes=1)
    finish_crawl(catalog, "a", "b")

    second = catalog.apply_action(rerun, first.extraction_id)

    assert second.newer == 3
    assert catalog.rows(extractions, id=second.extraction_id)[0].rerun_of == first.extraction_id


def test_a_version_older_than_the_published_one_cannot_be_published(catalog: CatalogHarness) -> None:
    id_ = finish_crawl(catalog, *(f"a{n}" for n in range(10)))
    quarantined = catalog.start_extraction({"/c/1": "SUCCESS"})
    catalog.add_items(quarantined, {"/c/1": ["a0"]})
    catalog.finish(quarantined)
    catalog.clock.advance(minutes=1)
    new_run = catalog.apply_action(rerun, id_, publish=True)
    catalog.add_items(new_run.extraction_id, {"/c/1": [f"a{n}" for n in range(10)]})
    catalog.finish(new_run.extraction_id)

    with pytest.raises(extraction_control.InvalidState, match=f"`ingest extractions rerun {quarantined} --publish`"):
        catalog.apply_action(extraction_control.publish, quarantined)
