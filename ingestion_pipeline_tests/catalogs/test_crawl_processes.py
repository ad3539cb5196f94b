"""A catalogue crawled by several processes, some of which die, and by one that must stay small."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import data_items, dead_letters, extractions, pages, snapshots, tasks
from ingestion_pipeline_tests.catalogs.courses import dataset_rows, given_courses, names
from ingestion_pipeline_tests.crawlers import (
    LINKS,
    SHOP,
    a_catalog,
    a_page,
    begin,
    crawl_job,
    fetch_pages,
    read_job,
    statuses,
    weight_of_a_crawl,
)
from ingestion_pipeline_tests.fakes import FakeWeb, redirect
from ingestion_pipeline_tests.pollers import Job, given_sources, rows, slowly, wait_until
from ingestion_pipeline_tests.processes import Child

pytestmark = pytest.mark.slow
SHORT_LEASES = {"work__lease_seconds": "2", "hosts__lease_seconds": "2"}
ON_POSTGRES = pytest.mark.parametrize("database", [pytest.param("postgres", marks=pytest.mark.postgres)])


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """By the real clock, as all the processes have it."""
    with closing(open_store(database_url)) as store:
        yield store


def a_job(url: str, folder: Path, web: FakeWeb, **changes: str) -> Job:
    return Job(url=url, home=folder / "home", port=web.port, changes=SHORT_LEASES | changes)


def test_a_crawl_that_is_killed_in_the_middle_goes_on_and_doubles_nothing(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    web.routes |= {"/": a_page(*(f"/c/{n}" for n in range(40)))}
    web.routes |= {f"/c/{n}": slowly(f"<p>course {n}</p>".encode(), 0.02) for n in range(40)}
    given_sources(store, a_catalog())
    job = a_job(database_url, tmp_path, web)

    victim = Child(crawl_job, job, [SHOP])
    wait_until(lambda: len(web.requests) > 15, seconds=60)
    victim.kill()
    Child(crawl_job, job, [SHOP]).result()

    assert statuses(store) == {"SUCCESS": 1, "EXTRACTED_NO_DATA": 40}
    found = Counter(row.key for row in rows(store, pages))
    assert set(found.values()) == {1}
    kept = Counter(row.url for row in rows(store, snapshots))
    assert set(kept.values()) == {1}
    assert {row.status for row in rows(store, tasks) if row.kind == "fetch_page"} == {"SUCCESS"}
    assert [row.status for row in rows(store, extractions)] == ["COMPLETE"]
    assert rows(store, dead_letters) == []


@ON_POSTGRES
def test_four_processes_keep_three_hosts_at_their_pace(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    names = ["a", "b", "c"]
    for name in names:
        web.routes |= {f"{name}.test/": a_page(*(f"/c/{n}" for n in range(5)))}
        web.routes |= {f"{name}.test/c/{n}": a_page() for n in range(4)}
        web.routes |= {f"{name}.test/c/4": redirect("/moved"), f"{name}.test/moved": a_page()}
    catalogs = [a_catalog(name=name, url=f"http://{name}.test/") for name in names]
    given_sources(store, *catalogs)
    job = a_job(database_url, tmp_path, web, crawl__delay_seconds="0.4")

    children = [Child(crawl_job, job, [one.id for one in catalogs]) for _ in range(4)]
    got = [child.result() for child in children]

    assert sum(got) == 18
    asked = [*web.requests, *web.robots_requests]
    for name in names:
        times = sorted(one.at for one in asked if one.host == f"{name}.test")
        assert len(times) == 8  # robots.txt, the root, five pages, and where one of them moved
        assert min(after - before for before, after in pairwise(times)) >= 0.39


def weight(folder: Path, web: FakeWeb, count: int) -> int:
    """What a process of its own weighs that crawls so many tiny pages, in kilobytes."""
    home = folder / str(count)
    home.mkdir(mode=0o700)
    url = f"sqlite:///{home / 'ingestion.db'}"
    lists = [f"/list/{n}" for n in range(count // 100)]
    web.routes |= {"/": a_page(*lists)}
    for n, path in enumerate(lists):
        web.routes |= {path: a_page(*(f"/c/{m}" for m in range(n * 100, n * 100 + 100)))}
    web.routes |= {f"/c/{n}": b"<p>tiny</p>" for n in range(count)}
    recipe = {"page_type": "CATEGORY_LINKS", "link_pattern": "/list/", "links": LINKS}
    with closing(open_store(url)) as store:
        given_sources(store, a_catalog(recipe))
        weighed = Child(weight_of_a_crawl, Job(url=url, home=home, port=web.port, changes={}))
        kilobytes = weighed.result()
        assert statuses(store) == {"SUCCESS": 1 + len(lists), "EXTRACTED_NO_DATA": count}
    return kilobytes


@pytest.mark.soak
def test_memory_is_flat_in_the_size_of_the_frontier(tmp_path: Path, web: FakeWeb) -> None:
    small, large = (weight(tmp_path, web, count) for count in (300, 3_000))

    assert large <= small * 1.2, f"{small:,} KB at 300 pages, {large:,} at 3,000"


def test_a_reading_that_is_killed_in_the_middle_goes_on_to_the_same_dataset(
    store: Store, web: FakeWeb, database_url: str, tmp_path: Path
) -> None:
    numbers = range(100, 160)
    given_courses(web, *numbers)
    given_sources(store, a_catalog())
    job = a_job(database_url, tmp_path, web, extraction__batch_size="10")
    with replace(job, changes={}).ctx() as ctx:  # a lease of two seconds may end a slow fetch
        begin(ctx, web)
        fetch_pages(ctx, web)
    assert statuses(store) == {"SUCCESS": 1, "DOWNLOADED": len(numbers)}

    victim = Child(read_job, job)
    wait_until(lambda: len(rows(store, data_items)) > 5, seconds=60)
    victim.kill()
    others = [Child(read_job, job), Child(read_job, job)]
    found = sum(child.result() for child in others)

    assert found < len(numbers)
    assert names(store) == [f"MATH {number}" for number in numbers]
    assert statuses(store) == {"SUCCESS": 61}
    assert [one["version"] for one in dataset_rows(store)] == [1]
    assert {row.status for row in rows(store, tasks) if row.kind == "extract_page"} == {"SUCCESS"}
    assert rows(store, dead_letters) == []
