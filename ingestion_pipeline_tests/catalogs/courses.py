"""Pages that state courses as a vendor's layout has them, and what was made of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import update

from ingestion_pipeline.catalogs.extraction.page_reader import PipelineReader
from ingestion_pipeline.catalogs.extraction.page_result import PageContent, PageReading
from ingestion_pipeline.catalogs.extraction.source_config import EntityConfig, load_entity_config
from ingestion_pipeline.catalogs.extraction.tasks import ReadDone, ReadWork, load_claimed_pages
from ingestion_pipeline.catalogs.states import EXTRACT_PAGE
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.reading.llm import Billing, OverBudget
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, datasets
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline_tests.crawlers import SHOP, a_catalog, begin, fetch_pages
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import given_sources, rows


def a_course(number: int, *, about: str = "counting") -> str:
    """One course, in CourseLeaf's layout."""
    return (
        '<div class="courseblock"><p class="courseblocktitle"><strong>'
        f"MATH {number}. Numbers {number}. 3 Credits.</strong></p>"
        f'<p class="courseblockdesc">This course is about {about}, and about {number} ways'
        " to do it well.</p></div>"
    )


def a_course_page(*numbers: int, about: str = "counting") -> str:
    """A page with these courses."""
    courses = "".join(a_course(number, about=about) for number in numbers)
    return f"<html><body><h1>Courses</h1>{courses}</body></html>"


def given_courses(web: FakeWeb, *numbers: int) -> None:
    """A root that links to a page for each course."""
    links = "".join(f'<li><a href="/c/{number}">{number}</a></li>' for number in numbers)
    web.routes |= {"/": f"<html><body><h1>Catalogue</h1><ul>{links}</ul></body></html>"}
    web.routes |= {f"/c/{number}": a_course_page(number) for number in numbers}


def names(store: Store) -> list[str]:
    """The codes of all items, in order."""
    return sorted(row.data["course_id"] for row in rows(store, data_items))


def publish(store: Store, status: str = "published") -> None:
    """What completion does with a dataset that passed its gates."""
    with store.begin() as connection:
        connection.execute(update(datasets).values(status=status))


def dataset_rows(store: Store) -> list[Mapping[str, Any]]:
    return [dict(row._mapping) for row in rows(store, datasets)]


@dataclass
class ScriptedReader:
    """Reads as the rules do, after what a test has to say to each page."""

    ctx: RunContext
    says: dict[str, list[Exception | OverBudget]] = field(default_factory=dict)
    explored: dict[str, tuple[str, ...]] = field(default_factory=dict)
    read_paths: list[str] = field(default_factory=list)

    async def read(self, config: EntityConfig, page: PageContent, billing: Billing) -> PageReading | OverBudget:
        path = page.url.removeprefix("http://a.test")
        self.read_paths.append(path)
        if self.says.get(path):
            said = self.says[path].pop(0)
            if isinstance(said, OverBudget):
                return said
            raise said
        rules = PipelineReader(self.ctx.settings, self.ctx.store.now)
        reading = await rules.read(config, page, billing)
        assert isinstance(reading, PageReading)
        return PageReading(records=reading.records, method=reading.method, explored=self.explored.get(path, ()))


def downloaded(ctx: RunContext, web: FakeWeb, *numbers: int) -> None:
    """A catalogue of these courses is fetched, and nothing is read."""
    given_courses(web, *numbers)
    given_sources(ctx.store, a_catalog())
    begin(ctx, web)
    fetch_pages(ctx, web)


def claimed_works(ctx: RunContext, worker: Worker) -> list[ReadWork]:
    found = worker.claim(ClaimFilter(kind=EXTRACT_PAGE, frontier_of=SHOP), limit=10)
    with ctx.store.begin() as connection:
        opened = load_claimed_pages(connection, found, now=ctx.store.clock.now(connection))
    return [one for one in opened if isinstance(one, ReadWork)]


def read_by_rules(ctx: RunContext, work: ReadWork) -> ReadDone:
    reader = ScriptedReader(ctx)
    billing = Billing(call_site="test")
    config = load_entity_config({}, ctx.settings)
    reading = asyncio.run(reader.read(config, work.content(ctx.content), billing))
    assert isinstance(reading, PageReading)
    return ReadDone(work=work, config=config, reading=reading)
