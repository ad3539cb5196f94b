"""A catalogue crawled by several processes, some of which die, and by one that must stay small."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import dead_letters, extractions, pages, snapshots, tasks
from ingestion_pipeline_tests.crawlers import (
    LINKS,
    SHOP,
    a_catalog,
    a_page,
    crawl_all,
    crawl_job,
    statuses,
)
from ingestion_pipeline_tests.fakes import Asked, FakeWeb
from ingestion_pipeline_tests.pollers import (
    Job,
    a_shop,
    given_sources,
    rows,
    settings_of,
    slowly,
    wait_until,
)
from ingestion_pipeline_tests.processes import Child

pytestmark = pytest.mark.slow
SHORT_LEASES = {"work__lease_seconds": "2", "hosts__lease_seconds": "2"}
ON_POSTGRES = pytest.mark.parametrize(
    "database", [pytest.param("postgres", marks=pytest.mark.postgres)]
)


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

    assert statuses(store) == {"SUCCESS": 1, "DOWNLOADED": 40}
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
        web.routes |= {f"{name}.test/c/{n}": a_page() for n in range(5)}
    catalogs = [a_catalog(name=name, url=f"http://{name}.test/") for name in names]
    given_sources(store, *catalogs)
    job = a_job(database_url, tmp_path, web, crawl__delay_seconds="0.4")

    children = [Child(crawl_job, job, [one.id for one in catalogs]) for _ in range(4)]
    got = [child.result() for child in children]

    assert sum(got) == 18
    asked = [*web.requests, *web.robots_requests]
    for name in names:
        times = sorted(one.at for one in asked if one.host == f"{name}.test")
        assert len(times) == 7
        assert min(after - before for before, after in pairwise(times)) >= 0.39


class Forgetful(list[Asked]):
    """A server that remembers every request would be measured with the crawl."""

    def append(self, one: Asked) -> None:
        """It is forgotten."""


def peak_of_a_crawl(folder: Path, web: FakeWeb, count: int) -> int:
    """The most bytes that Python held during a crawl of so many tiny pages."""
    url = f"sqlite:///{folder / str(count) / 'ingestion.db'}"
    (folder / str(count)).mkdir(mode=0o700)
    lists = [f"/list/{n}" for n in range(count // 100)]
    web.routes |= {"/": a_page(*lists)}
    for n, path in enumerate(lists):
        web.routes |= {path: a_page(*(f"/c/{m}" for m in range(n * 100, n * 100 + 100)))}
    web.routes |= {f"/c/{n}": b"<p>tiny</p>" for n in range(count)}
    web.requests = Forgetful()
    recipe = {"page_type": "CATEGORY_LINKS", "link_pattern": "/list/", "links": LINKS}
    with closing(open_store(url)) as store:
        shop = a_shop(store, settings_of(folder / str(count), url))
        given_sources(store, a_catalog(recipe))
        tracemalloc.start()
        crawl_all(shop, web.port)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert statuses(store) == {"SUCCESS": 1 + len(lists), "DOWNLOADED": count}
    return peak


@pytest.mark.soak
@pytest.mark.parametrize(("few", "many"), [(300, 3_000), (2_000, 20_000)])
def test_memory_is_flat_in_the_size_of_the_frontier(
    tmp_path: Path, web: FakeWeb, few: int, many: int
) -> None:
    small, large = (peak_of_a_crawl(tmp_path, web, count) for count in (few, many))

    assert large <= small * 1.2, f"{small:,} bytes at {few} pages, {large:,} at {many}"
