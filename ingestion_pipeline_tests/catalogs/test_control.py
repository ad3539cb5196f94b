"""Operator actions on an extraction: audited, repeatable, refused with the cure; and the dataset versions they make."""

import pytest
from sqlalchemy import delete

from ingestion_pipeline.catalogs import extraction_control
from ingestion_pipeline.catalogs.reruns import predict_rerun, rerun
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import (
    audit_log,
    crawl_steps,
    data_items,
    datasets,
    extractions,
    outbox,
    pages,
    tasks,
)
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
from ingestion_pipeline_tests.statements import recorded_statements

pytestmark = pytest.mark.both_databases

PAGE_STATUSES = {"/c/1": "SUCCESS", "/c/2": "WAITING", "/c/3": "IN_PROGRESS", "/c/4": "DOWNLOADED"}


def test_a_cancelled_extraction_ends_at_once_and_its_workers_lose_their_claims(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction(PAGE_STATUSES)
    catalog.add_task(id_, "/c/2")
    lease = {"lease_owner": "w", "lease_until": catalog.clock.at, "fence": 3}
    busy = catalog.add_task(id_, "/c/3", status="PROCESSING", **lease)

    ended = catalog.cancel(id_)

    assert (ended.status.value, catalog.live_task_paths("fetch_page")) == ("CANCELLED", [])
    assert [row.fence for row in catalog.rows(tasks, id=busy)] == [4]
    [line] = catalog.rows(audit_log, action="extraction.cancelled")
    assert (line.actor, len(catalog.rows(outbox))) == ("ann", 1)
    with pytest.raises(extraction_control.InvalidState, match=f"extraction {id_} is CANCELLED already"):
        catalog.cancel(id_)


def test_a_resumed_extraction_continues_and_resuming_again_changes_nothing(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction(PAGE_STATUSES)
    catalog.add_task(id_, "/c/2", spawn_depth=4, parent_id=1)
    catalog.cancel(id_)

    first = catalog.apply_action(extraction_control.resume, id_)
    second = catalog.apply_action(extraction_control.resume, id_)

    assert (first.fetched, first.read) == (2, 1)
    assert (second.fetched, second.read) == (0, 0)
    assert catalog.live_task_paths("fetch_page") == ["/c/2", "/c/3"]
    assert catalog.live_task_paths("extract_page") == ["/c/4"]
    assert catalog.page_row(id_, "/c/3").status == "WAITING"
    depths = {row.url[-1]: row.spawn_depth for row in catalog.rows(tasks, kind="fetch_page")}
    assert depths == {"2": 4, "3": 1}
    assert len({row.tracking_id for row in catalog.rows(tasks, source_id="catalog:shop")}) == 2
    assert (catalog.status(id_), len(catalog.rows(audit_log, action="extraction.resume"))) == ("IN_PROGRESS", 1)


def test_an_extraction_that_ends_twice_is_notified_twice(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction(PAGE_STATUSES)
    catalog.cancel(id_)
    catalog.apply_action(extraction_control.resume, id_)
    catalog.cancel(id_)

    assert [row.subject_id for row in catalog.rows(outbox)] == [str(id_), f"{id_}:2"]


def test_a_retry_reopens_a_complete_extraction_for_failed_and_empty_pages(catalog: CatalogHarness) -> None:
    paths = {"/c/1": "SUCCESS", "/c/2": "ERROR", "/c/3": "EXTRACTED_NO_DATA", "/c/4": "SUCCESS"}
    id_ = catalog.start_extraction(paths)
    catalog.add_items(id_, {"/c/1": ["a"], "/c/4": ["d"]})
    catalog.finish(id_)

    retried = catalog.apply_action(extraction_control.retry, id_)

    assert (retried.fetched, retried.read, catalog.status(id_)) == (1, 1, "IN_PROGRESS")
    assert (catalog.live_task_paths("fetch_page"), catalog.live_task_paths("extract_page")) == (["/c/2"], ["/c/3"])
    assert [row.status for row in catalog.rows(datasets)] == ["published"]
    with pytest.raises(extraction_control.InvalidState, match="no page that failed or gave no data"):
        catalog.apply_action(extraction_control.retry, id_)


def test_a_resume_fetches_a_failed_root_again(catalog: CatalogHarness) -> None:
    id_ = catalog.start_extraction({}, root="ERROR")
    catalog.check_completion()

    assert catalog.apply_action(extraction_control.resume, id_).fetched == 1
    assert catalog.live_task_paths("fetch_page") == ["/"]


def test_a_rerun_reads_stored_pages_into_a_new_version_and_fetches_nothing(catalog: CatalogHarness) -> None:
    paths = {"/c/1": "SUCCESS", "/c/2": "EXTRACTED_NO_DATA", "/c/3": "ERROR", "/c/4": "SUCCESS"}
    old = catalog.start_extraction(paths)
    catalog.add_items(old, {"/c/1": ["a"], "/c/4": ["d"]})
    catalog.finish(old)

    new_run = catalog.apply_action(rerun, old)
    catalog.add_items(new_run.extraction_id, {"/c/1": ["a", "b"], "/c/2": [], "/c/4": ["d"]})
    catalog.finish(new_run.extraction_id)

    assert new_run.pages == 3
    assert catalog.live_task_paths("fetch_page") == []
    assert catalog.live_task_paths("extract_page") == ["/c/1", "/c/2", "/c/4"]
    [new] = catalog.rows(extractions, id=new_run.extraction_id)
    assert (new.kind, new.rerun_of, new.page_count) == ("rerun", old, 5)
    before, after = (
        {row.url: row.snapshot_id for row in catalog.rows(pages, extraction_id=id_)}
        for id_ in (old, new_run.extraction_id)
    )
    assert before == after
    steps = catalog.rows(crawl_steps, extraction_id=new_run.extraction_id)
    assert [(row.key, row.parent_id) for row in steps] == [("root", None), ("root/links", steps[0].id)]
    versions = [(row.version, row.status, row.item_count) for row in catalog.rows(datasets)]
    assert versions == [(1, "published", 2), (2, "published", 3)]


def test_a_source_has_one_extraction_at_a_time(catalog: CatalogHarness) -> None:
    old = catalog.crawl({"/c/1": ["a"]})
    running = catalog.start_extraction({"/c/1": "WAITING"})

    with pytest.raises(extraction_control.InvalidState, match=f"`ingest extractions cancel {running}`"):
        catalog.apply_action(rerun, old)
    with pytest.raises(extraction_control.UnknownExtraction, match="there is no extraction 99"):
        catalog.apply_action(extraction_control.resume, 99)


@pytest.mark.parametrize(
    ("extraction_method", "has_model", "calls"),
    [("layout", True, 0), ("cheap_model", True, 2), ("cheap_model", False, 0)],
)
def test_a_rerun_is_predicted_by_the_pages_that_rules_could_not_read(
    catalog: CatalogHarness, extraction_method: str, has_model: bool, calls: int
) -> None:
    id_ = catalog.start_extraction({"/c/1": "SUCCESS", "/c/2": "SUCCESS"})
    catalog.add_items(id_, {"/c/1": ["a"], "/c/2": ["b"]})
    catalog.update_row(pages, catalog.page_row(id_, "/c/1").id, extraction_method=extraction_method)
    key = {"openai_base_url": "http://127.0.0.1:1"} if has_model else {}
    settings = catalog.ctx.settings.model_copy(update=key)

    with catalog.ctx.store.read() as connection:
        prediction = predict_rerun(connection, id_, settings=settings, content=catalog.ctx.content)

    assert (prediction.pages, prediction.calls) == (2, calls)
    assert (prediction.cost_usd is not None and prediction.cost_usd > 0) == bool(calls)


@pytest.mark.slow
def test_a_resume_reads_pages_again_whose_items_were_deleted(catalog: CatalogHarness) -> None:
    statuses = {"/c/1": "SUCCESS", "/c/2": "SUCCESS"}
    first = catalog.start_extraction(statuses)
    base = catalog.add_items(first, {"/c/1": ["a"], "/c/2": ["b"]})
    catalog.finish(first)
    catalog.clock.advance(minutes=1)
    second = catalog.start_extraction({**statuses, "/c/3": "WAITING"}, base_dataset_id=base)
    catalog.carry_over(second, first, "/c/1", "/c/2")
    catalog.cancel(second)
    with catalog.ctx.store.begin() as connection:  # as retention does
        connection.execute(delete(data_items).where(data_items.c.dataset_id == base))
        connection.execute(delete(datasets).where(datasets.c.id == base))

    catalog.apply_action(extraction_control.resume, second)

    assert catalog.live_task_paths("extract_page") == ["/c/1", "/c/2"]
    assert catalog.live_task_paths("fetch_page") == ["/c/3"]
    [row] = catalog.rows(extractions, id=second)
    assert row.base_dataset_id is None


@pytest.mark.parametrize(("kind", "fetched"), [("crawl", ["/c/1"]), ("rerun", [])])
def test_a_page_with_lost_content_is_fetched_again_except_in_a_rerun(
    catalog: CatalogHarness, kind: str, fetched: list[str]
) -> None:
    id_ = catalog.start_extraction({"/c/1": "DOWNLOADED", "/c/2": "SUCCESS"}, kind=kind)
    lost = {"class": "permanent", "code": "content_missing", "message": "it is gone"}
    page = catalog.page_row(id_, "/c/1").id
    catalog.update_row(pages, page, status="ERROR", failure=lost, read_started_at=catalog.clock.at)

    catalog.apply_action(extraction_control.retry, id_)

    assert catalog.live_task_paths("fetch_page") == fetched


def test_a_cancelled_task_finds_its_page_by_id_whatever_their_number(catalog: CatalogHarness) -> None:
    """By its key each task was compared with each page; 100,000 of them took over five minutes."""
    id_ = catalog.start_extraction(PAGE_STATUSES)
    catalog.add_task(id_, "/c/2")
    catalog.cancel(id_)
    engine = catalog.ctx.store.engine

    with recorded_statements(engine) as statements:
        catalog.apply_action(extraction_control.resume, id_)

    requeue_updates = [call for call in statements if call[0].startswith("UPDATE tasks") and "max(" in call[0]]
    assert len(requeue_updates) == 2
    if engine.dialect.name == "sqlite":
        with catalog.ctx.store.read() as connection:
            for statement, parameters in requeue_updates:
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
                searches = [str(row) for row in plan if "SEARCH pages" in str(row)]
                assert [search for search in searches if "rowid=?" not in search] == []


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
    dataset = catalog.finished_dataset(id_)

    assert (dataset.version, dataset.is_confirmed) == (1, True)
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
@pytest.mark.parametrize(("number", "request_"), [(1, {}), (0, {"publish": True})], ids=["the newest", "on request"])
def test_a_rerun_of_the_newest_crawl_or_on_request_is_published(
    catalog: CatalogHarness, number: int, request_: dict[str, bool]
) -> None:
    ids = finish_crawl(catalog, "a"), finish_crawl(catalog, "a", "b")
    new_run = catalog.apply_action(rerun, ids[number], **request_)
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

    dataset = catalog.finished_dataset(new_run.extraction_id)

    assert new_run.newer == 2
    assert f"`ingest extractions publish {new_run.extraction_id}`" in new_run.outlook
    assert [finding["code"] for finding in dataset.findings] == ["outdated"]
    assert catalog.versions()[3] == ("quarantined", ["x", "y"])
    notice = catalog.rows(outbox)[-1].payload["text"]
    assert f"`ingest extractions publish {new_run.extraction_id}`" in notice
    assert catalog.apply_action(extraction_control.publish, new_run.extraction_id) == 3


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
    quarantined = catalog.crawl({"/c/1": ["a0"]})
    new_run = catalog.apply_action(rerun, id_, publish=True)
    catalog.add_items(new_run.extraction_id, {"/c/1": [f"a{n}" for n in range(10)]})
    catalog.finish(new_run.extraction_id)

    with pytest.raises(extraction_control.InvalidState, match=f"`ingest extractions rerun {quarantined} --publish`"):
        catalog.apply_action(extraction_control.publish, quarantined)
