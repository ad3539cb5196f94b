"""Catalogs crawled by several processes at once; and the memory of a crawl."""

from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline_tests.catalog_extractions import (
    LINKS,
    a_catalog,
    crawl_job,
    crawl_memory_kilobytes,
    link_page,
    page_statuses,
)
from ingestion_pipeline_tests.fakes import FakeWeb, redirect
from ingestion_pipeline_tests.polling_runs import WorkerJob, add_sources
from ingestion_pipeline_tests.processes import Child

pytestmark = [pytest.mark.slow, pytest.mark.both_databases, pytest.mark.real_time]
SHORT_LEASES = {"work__lease_seconds": "2", "hosts__lease_seconds": "2"}
ON_POSTGRES = pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)])


def worker_job(url: str, folder: Path, web: FakeWeb, **changes: str) -> WorkerJob:
    return WorkerJob(url=url, home=folder / "home", port=web.port, changes=SHORT_LEASES | changes)


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
