"""A published version never changes: a retry makes another, and the newest crawl is shown."""

from __future__ import annotations

import pytest

from ingestion_pipeline.catalogs.operations import control
from ingestion_pipeline.catalogs.operations.rerun import rerun
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, datasets, extractions, outbox
from ingestion_pipeline_tests.catalogs.courses import given_courses
from ingestion_pipeline_tests.crawlers import a_catalog, conclude, crawl, crawl_all
from ingestion_pipeline_tests.extracting import Extracting, some
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import given_sources, rows

__all__ = ["some"]


def a_crawl(some: Extracting, *keys: str) -> int:
    """A crawl of two pages, one of which failed; the other states these keys."""
    id_ = some.begin({"/c/1": "SUCCESS", "/c/2": "ERROR"})
    some.read(id_, {"/c/1": keys})
    some.fail(id_, "/c/2", "http_404")
    some.end(id_)
    some.clock.advance(minutes=10)
    return id_


def test_a_retry_leaves_what_is_published_and_makes_the_version_after_it(some: Extracting) -> None:
    id_ = a_crawl(some, "a")
    before = some.rows(data_items)
    [shown] = some.rows(datasets)

    some.act(control.retry, id_)
    some.read(id_, {"/c/2": ["b"]})

    assert some.versions() == {1: ("published", ["a"]), 2: ("building", ["b"])}
    some.end(id_)

    assert some.versions() == {1: ("published", ["a"]), 2: ("published", ["a", "b"])}
    assert some.rows(data_items)[:1] == before
    assert some.rows(datasets)[0] == shown


def test_a_retry_that_came_to_nothing_new_confirms_what_is_published(some: Extracting) -> None:
    id_ = a_crawl(some, "a")

    some.act(control.retry, id_)
    some.fail(id_, "/c/2")
    [ended] = some.end(id_)

    assert ended.dataset is not None
    assert (ended.dataset.version, ended.dataset.is_confirmed) == (1, True)
    assert some.versions() == {1: ("published", ["a"])}


def test_a_retry_that_is_cancelled_leaves_what_is_published(some: Extracting) -> None:
    id_ = a_crawl(some, "a")
    [shown] = some.rows(datasets)

    some.act(control.retry, id_)
    some.read(id_, {"/c/2": ["b"]})
    some.cancel(id_)

    assert some.versions() == {1: ("published", ["a"]), 2: ("incomplete", ["b"])}
    assert some.rows(datasets)[0] == shown
    some.act(control.resume, id_)
    some.end(id_)
    assert some.versions()[2] == ("published", ["a", "b"])


def test_pages_that_a_retry_reads_go_into_a_version_of_their_own(ctx: RunContext, store: Store, web: FakeWeb) -> None:
    """On a real web, by the real readers: what is shown does not change under whoever reads it."""
    given_courses(web, 101, 102)
    web.routes["/c/102"] = 404
    given_sources(store, a_catalog())
    crawl_all(ctx, web.port)
    shown = rows(store, data_items)
    given_courses(web, 101, 102)

    with store.begin() as connection:
        control.retry(connection, 1, actor="ann", now=store.clock.now(connection))
    crawl(ctx, web)
    conclude(ctx)

    assert rows(store, data_items)[: len(shown)] == shown
    versions = {row.id: row.version for row in rows(store, datasets)}
    held = [(versions[row.dataset_id], row.data["course_id"]) for row in rows(store, data_items)]
    assert sorted(held) == [(1, "MATH 101"), (2, "MATH 101"), (2, "MATH 102")]
    assert [row.status for row in rows(store, datasets)] == ["published"] * 2


def test_a_rerun_of_the_newest_crawl_is_shown(some: Extracting) -> None:
    a_crawl(some, "a")
    newest = a_crawl(some, "a", "b")
    made = some.act(rerun, newest)
    some.read(made.extraction_id, {"/c/1": ["x", "y"]})

    some.end(made.extraction_id)

    assert made.newer is None
    assert some.versions()[3] == ("published", ["x", "y"])


def test_a_rerun_of_an_older_crawl_is_held_back_until_somebody_wants_it(some: Extracting) -> None:
    oldest = a_crawl(some, "a")
    a_crawl(some, "a", "b")
    made = some.act(rerun, oldest)
    some.read(made.extraction_id, {"/c/1": ["x", "y"]})

    [ended] = some.end(made.extraction_id)

    assert made.newer == 2
    assert f"`ingest extractions publish {made.extraction_id}`" in made.outlook
    assert ended.dataset is not None
    assert [one["code"] for one in ended.dataset.findings] == ["outdated"]
    assert some.versions()[3] == ("quarantined", ["x", "y"])
    told = some.rows(outbox)[-1].payload["text"]
    assert f"`ingest extractions publish {made.extraction_id}`" in told
    assert some.act(control.publish, made.extraction_id) == 3


def test_a_rerun_of_an_older_crawl_is_shown_if_that_was_asked_for(some: Extracting) -> None:
    oldest = a_crawl(some, "a")
    a_crawl(some, "a", "b")
    made = some.act(rerun, oldest, publish=True)
    some.read(made.extraction_id, {"/c/1": ["x", "y"]})

    some.end(made.extraction_id)

    assert some.versions()[3] == ("published", ["x", "y"])


def test_a_rerun_of_a_rerun_is_as_old_as_the_pages_that_it_reads(some: Extracting) -> None:
    oldest = a_crawl(some, "a")
    first = some.act(rerun, oldest)
    some.read(first.extraction_id, {"/c/1": ["x"]})
    some.end(first.extraction_id)
    some.clock.advance(minutes=1)
    a_crawl(some, "a", "b")

    second = some.act(rerun, first.extraction_id)

    assert second.newer == 3
    assert some.rows(extractions, id=second.extraction_id)[0].rerun_of == first.extraction_id


def test_what_would_not_be_shown_is_not_published(some: Extracting) -> None:
    id_ = a_crawl(some, *(f"a{n}" for n in range(10)))
    held = some.begin({"/c/1": "SUCCESS"})
    some.read(held, {"/c/1": ["a0"]})
    some.end(held)
    some.clock.advance(minutes=1)
    made = some.act(rerun, id_, publish=True)
    some.read(made.extraction_id, {"/c/1": [f"a{n}" for n in range(10)]})
    some.end(made.extraction_id)

    with pytest.raises(control.InvalidState, match=f"`ingest extractions rerun {held} --publish`"):
        some.act(control.publish, held)
