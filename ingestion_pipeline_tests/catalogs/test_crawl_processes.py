"""Catalogs crawled by several processes, some of them killed; and the memory of a crawl."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from ingestion_pipeline.catalogs.recipes.detected_recipes import DETECT
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import (
    data_items,
    dead_letters,
    extractions,
    outbox,
    pages,
    recipes,
    snapshots,
    tasks,
)
from ingestion_pipeline_tests.catalog_extractions import (
    CATALOG_ID,
    LINKS,
    a_catalog,
    crawl_job,
    crawl_memory_kilobytes,
    fetch_pages,
    link_page,
    page_statuses,
    poll_catalogs,
    read_job,
)
from ingestion_pipeline_tests.catalogs.course_pages import course_codes, dataset_rows, serve_courses
from ingestion_pipeline_tests.catalogs.detection.sites import detect_job, numbered
from ingestion_pipeline_tests.fakes import FakeWeb, redirect
from ingestion_pipeline_tests.polling_runs import WorkerJob, add_sources, rows, slow_answer, wait_until
from ingestion_pipeline_tests.processes import Child

pytestmark = [pytest.mark.slow, pytest.mark.both_databases]
SHORT_LEASES = {"work__lease_seconds": "2", "hosts__lease_seconds": "2"}
ON_POSTGRES = pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)])


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """On the real clock, like the processes."""
    with closing(open_store(database_url)) as store:
        yield store


def worker_job(url: str, folder: Path, web: FakeWeb, **changes: str) -> WorkerJob:
    return WorkerJob(url=url, home=folder / "home", port=web.port, changes=SHORT_LEASES | changes)


def test_a_crawl_that_was_killed_resumes_without_duplicates(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    web.routes |= {"/": link_page(*(f"/c/{n}" for n in range(40)))}
    web.routes |= {f"/c/{n}": slow_answer(f"<p>course {n}</p>".encode(), 0.02) for n in range(40)}
    add_sources(store, a_catalog())
    job = worker_job(database_url, tmp_path, web)

    victim = Child(crawl_job, job, [CATALOG_ID])
    wait_until(lambda: len(web.requests) > 15, seconds=60)
    victim.kill()
    Child(crawl_job, job, [CATALOG_ID]).result()

    assert page_statuses(store) == {"SUCCESS": 1, "EXTRACTED_NO_DATA": 40}
    page_counts = Counter(row.key for row in rows(store, pages))
    assert set(page_counts.values()) == {1}
    snapshot_counts = Counter(row.url for row in rows(store, snapshots))
    assert set(snapshot_counts.values()) == {1}
    assert {row.status for row in rows(store, tasks) if row.kind == "fetch_page"} == {"SUCCESS"}
    assert [row.status for row in rows(store, extractions)] == ["COMPLETE"]
    assert rows(store, dead_letters) == []


@ON_POSTGRES
def test_four_processes_respect_the_delays_of_three_hosts(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    names = ["a", "b", "c"]
    for name in names:
        web.routes |= {f"{name}.test/": link_page(*(f"/c/{n}" for n in range(5)))}
        web.routes |= {f"{name}.test/c/{n}": link_page() for n in range(4)}
        web.routes |= {f"{name}.test/c/4": redirect("/moved"), f"{name}.test/moved": link_page()}
    catalogs = [a_catalog(name=name, url=f"http://{name}.test/") for name in names]
    add_sources(store, *catalogs)
    job = worker_job(database_url, tmp_path, web, crawl__delay_seconds="0.4")

    children = [Child(crawl_job, job, [catalog.id for catalog in catalogs]) for _ in range(4)]
    fetched_counts = [child.result() for child in children]

    assert sum(fetched_counts) == 18
    requests = [*web.requests, *web.robots_requests]
    for name in names:
        times = sorted(request.at for request in requests if request.host == f"{name}.test")
        assert len(times) == 8  # robots.txt, the root, five pages, and where one of them moved
        assert min(after - before for before, after in pairwise(times)) >= 0.39


def measure_memory(folder: Path, web: FakeWeb, count: int) -> int:
    """Return the peak memory in kilobytes of a process that crawls `count` tiny pages."""
    home = folder / str(count)
    home.mkdir(mode=0o700)
    url = f"sqlite:///{home / 'ingestion.db'}"
    lists = [f"/list/{n}" for n in range(count // 100)]
    web.routes |= {"/": link_page(*lists)}
    for n, path in enumerate(lists):
        web.routes |= {path: link_page(*(f"/c/{m}" for m in range(n * 100, n * 100 + 100)))}
    web.routes |= {f"/c/{n}": b"<p>tiny</p>" for n in range(count)}
    recipe = {"page_type": "CATEGORY_LINKS", "link_pattern": "/list/", "links": LINKS}
    with closing(open_store(url)) as store:
        add_sources(store, a_catalog(recipe))
        child = Child(crawl_memory_kilobytes, WorkerJob(url=url, home=home, port=web.port, changes={}))
        kilobytes = child.result()
        assert page_statuses(store) == {"SUCCESS": 1 + len(lists), "EXTRACTED_NO_DATA": count}
    return kilobytes


@pytest.mark.soak
def test_memory_is_flat_in_the_size_of_the_frontier(tmp_path: Path, web: FakeWeb) -> None:
    small, large = (measure_memory(tmp_path, web, count) for count in (300, 3_000))

    assert large <= small * 1.2, f"{small:,} KB at 300 pages, {large:,} at 3,000"


def test_a_read_that_was_killed_resumes_into_the_same_dataset(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    numbers = range(100, 160)
    serve_courses(web, *numbers)
    add_sources(store, a_catalog())
    job = worker_job(database_url, tmp_path, web, extraction__batch_size="10")
    with replace(job, changes={}).ctx() as ctx:  # a lease of two seconds may end a slow fetch
        poll_catalogs(ctx, web)
        fetch_pages(ctx, web)
    assert page_statuses(store) == {"SUCCESS": 1, "DOWNLOADED": len(numbers)}

    victim = Child(read_job, job)
    wait_until(lambda: len(rows(store, data_items)) > 5, seconds=60)
    victim.kill()
    others = [Child(read_job, job), Child(read_job, job)]
    item_count = sum(child.result() for child in others)

    assert item_count < len(numbers)
    assert course_codes(store) == [f"MATH {number}" for number in numbers]
    assert page_statuses(store) == {"SUCCESS": 61}
    assert [dataset["version"] for dataset in dataset_rows(store)] == [1]
    assert {row.status for row in rows(store, tasks) if row.kind == "extract_page"} == {"SUCCESS"}
    assert rows(store, dead_letters) == []


def test_detections_whose_workers_are_killed_find_each_recipe_once(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    names = [f"c{number}" for number in range(6)]
    for name in names:
        web.routes |= {f"{name}.test{path}": slow_answer(body.encode(), 0.1) for path, body in numbered().items()}
    add_sources(store, *(a_catalog(name=name, url=f"http://{name}.test/courses", config={}) for name in names))
    job = worker_job(database_url, tmp_path, web)
    with replace(job, changes={}).ctx() as ctx:
        poll_catalogs(ctx, web)

    for kills in range(1, 5):
        victim = Child(detect_job, job)
        wait_until(lambda kills=kills: len(web.requests) > 8 * kills, seconds=60)
        victim.kill()
    Child(detect_job, job).result()

    assert {row.status for row in rows(store, recipes)} == {"SUCCESS"}
    assert len(rows(store, recipes)) == len(names)
    assert {row.status for row in rows(store, tasks) if row.kind == DETECT} == {"SUCCESS"}
    assert sorted(row.subject_kind for row in rows(store, outbox)) == ["recipe"] * len(names)
    assert rows(store, dead_letters) == []
