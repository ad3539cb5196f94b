"""Course pages: generated ones to crawl, saved ones with their expected courses, and a school only a model can read."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import update

from ingestion_pipeline.catalogs.extraction.entity_type import entity_type
from ingestion_pipeline.catalogs.extraction.page_extraction import ExtractionHandler
from ingestion_pipeline.catalogs.extraction.pipeline import PipelineReader, read_records
from ingestion_pipeline.catalogs.extraction.record import ExtractionResult, PageContent
from ingestion_pipeline.catalogs.extraction.source_selectors import EntityConfig, load_entity_config
from ingestion_pipeline.catalogs.extraction.tasks import ReadCounts, ReadDone, ReadWork, load_claimed_pages
from ingestion_pipeline.catalogs.states import EXTRACT_PAGE
from ingestion_pipeline.demo.model_server import ModelRequest, Reply, ScriptedModel
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import Completed
from ingestion_pipeline.engine.worker_loop import OutcomeWriter
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.llm import Billing, ModelClient, OverBudget
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.tables import data_items, datasets, learned_selectors, pages
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline_tests.catalog_extractions import (
    CATALOG_ID,
    EVERYTHING,
    LiveCatalog,
    a_catalog,
    complete_extractions,
    crawl_all,
    crawl_until_done,
    fetch_pages,
    poll_catalogs,
)
from ingestion_pipeline_tests.catalogs.entities.page_readings import model_answer
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import FAST_SETTINGS, a_fetcher, a_run_context, add_sources, rows
from ingestion_pipeline_tests.reading.llm.model_questions import settings_with_model


def course_html(number: int, *, about: str = "counting") -> str:
    """Return one course in CourseLeaf's layout."""
    return (
        '<div class="courseblock"><p class="courseblocktitle"><strong>'
        f"MATH {number}. Numbers {number}. 3 Credits.</strong></p>"
        f'<p class="courseblockdesc">This course is about {about}, and about {number} ways'
        " to do it well.</p></div>"
    )


def course_page(*numbers: int, about: str = "counting") -> str:
    courses = "".join(course_html(number, about=about) for number in numbers)
    return f"<html><body><h1>Courses</h1>{courses}</body></html>"


def serve_courses(web: FakeWeb, *numbers: int) -> None:
    """Serve a root page and a page for each course."""
    links = "".join(f'<li><a href="/c/{number}">{number}</a></li>' for number in numbers)
    web.routes |= {"/": f"<html><body><h1>Catalogue</h1><ul>{links}</ul></body></html>"}
    web.routes |= {f"/c/{number}": course_page(number) for number in numbers}


def crawl_courses(live: LiveCatalog, *numbers: int) -> None:
    """Crawl a catalog of these courses once."""
    serve_courses(live.web, *numbers)
    live.register()
    live.crawl_all()


def course_codes(store: Store) -> list[str]:
    """Return the codes of all items, sorted."""
    return sorted(row.data["course_id"] for row in rows(store, data_items))


def set_dataset_status(store: Store, status: str = "published") -> None:
    """Set the status of every dataset, as completion does after the gates."""
    with store.begin() as connection:
        connection.execute(update(datasets).values(status=status))


def dataset_rows(store: Store) -> list[Mapping[str, Any]]:
    return [dict(row._mapping) for row in rows(store, datasets)]


@dataclass
class ScriptedReader:
    """Reads by rules, after raising or returning what a test queued for the page."""

    ctx: RunContext
    failures: dict[str, list[Exception | OverBudget]] = field(default_factory=dict)
    explored: dict[str, tuple[str, ...]] = field(default_factory=dict)
    read_paths: list[str] = field(default_factory=list)

    async def read(self, config: EntityConfig, page: PageContent, billing: Billing) -> ExtractionResult | OverBudget:
        path = page.url.removeprefix("http://a.test")
        self.read_paths.append(path)
        if self.failures.get(path):
            failure = self.failures[path].pop(0)
            if isinstance(failure, OverBudget):
                return failure
            raise failure
        rules = PipelineReader(self.ctx.settings, self.ctx.store.now)
        reading = await rules.read(config, page, billing)
        assert isinstance(reading, ExtractionResult)
        return ExtractionResult(records=reading.records, method=reading.method, explored=self.explored.get(path, ()))


def download_courses(ctx: RunContext, web: FakeWeb, *numbers: int) -> None:
    """Fetch a catalog of these courses; nothing is read."""
    serve_courses(web, *numbers)
    add_sources(ctx.store, a_catalog())
    poll_catalogs(ctx, web)
    fetch_pages(ctx, web)


def claim_page_reads(ctx: RunContext, worker: Worker) -> list[ReadWork]:
    claimed_tasks = worker.claim(ClaimFilter(kind=EXTRACT_PAGE, frontier_of=CATALOG_ID), limit=10)
    with ctx.store.begin() as connection:
        loaded = load_claimed_pages(connection, claimed_tasks, now=ctx.store.clock.now(connection))
    return [work for work in loaded if isinstance(work, ReadWork)]


def read_by_rules(ctx: RunContext, work: ReadWork) -> ReadDone:
    reader = ScriptedReader(ctx)
    billing = Billing(call_site="test")
    config = load_entity_config({}, ctx.settings)
    reading = asyncio.run(reader.read(config, work.content(ctx.content), billing))
    assert isinstance(reading, ExtractionResult)
    return ReadDone(work=work, config=config, reading=reading)


def write_readings(ctx: RunContext, readings: Sequence[ReadDone]) -> tuple[ReadCounts, set[int]]:
    """Write what was read as a run does; return the counts, and the extractions that have ended."""
    clock = SteadyClock(ctx.store.now())
    handler = ExtractionHandler(ctx, ScriptedReader(ctx), EVERYTHING, clock=clock)
    writer = OutcomeWriter(ctx, handler)
    writer.write([Completed(task=reading.work.task, item=reading.work, value=reading) for reading in readings])
    return ReadCounts.of(writer.counts), handler.ended


def expected(name: str) -> Any:
    return yaml.safe_load((Path(__file__).parent / "expected" / f"{name}.yaml").read_text())


def expected_cases(name: str) -> list[Any]:
    """Return a table's cases as parameters of a test, in the order of their fields; `id` names a case."""
    return [pytest.param(*(case[key] for key in case if key != "id"), id=case.get("id")) for case in expected(name)]


SAVED_PAGES = Path(__file__).parent.parent / "fixtures" / "pages" / "catalogs"
PAGE_NAMES = sorted(path.name.removesuffix(".expected.json") for path in SAVED_PAGES.glob("*.expected.json"))
PAGES_WITHOUT_COURSES = [name for name in PAGE_NAMES if name.startswith("none_")]
PAGES_WITH_COURSES = [name for name in PAGE_NAMES if name not in PAGES_WITHOUT_COURSES]
LAYOUTS = SAVED_PAGES.parent / "layouts"  # `built`: seen while the rules were written; `held`: held back from them
SCORED_FIELDS = ("course_name", "course_description", "course_credits_min", "course_credits_max")


@dataclass(frozen=True)
class Score:
    """How many of the courses are right in code, title, credits and description."""

    right: int
    total: int
    invented: int
    misses: Sequence[str]

    @property
    def share(self) -> float:
        return self.right / self.total if self.total else 1.0


def saved_body(name: str) -> str:
    path = SAVED_PAGES / f"{name}.html"
    return (path if path.exists() else path.with_suffix(".json")).read_text()


def expected_courses(name: str) -> list[dict[str, Any]]:
    return json.loads((SAVED_PAGES / f"{name}.expected.json").read_text())["records"]


def layout_pages(half: str) -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """Return body and expected courses of each page in one half of the layouts, by name."""
    suffix = ".expected.json"
    return {
        path.name.removesuffix(suffix): (
            path.with_name(path.name.replace(suffix, ".html")).read_text(),
            json.loads(path.read_text())["records"],
        )
        for path in sorted((LAYOUTS / half).glob(f"*{suffix}"))
    }


def read_courses(text: str, *, url: str | None = None) -> list[dict[str, Any]]:
    return [record.as_dict() for record in read_records(entity_type("course"), Document(text, url=url)).records]


def score_page(text: str, expected: Sequence[Mapping[str, Any]]) -> Score:
    actual: dict[str, dict[str, Any]] = {}
    for course in read_courses(text):
        actual.setdefault(course["course_id"], course)
    misses = [
        course["course_id"]
        for course in expected
        if any(actual.get(course["course_id"], {}).get(name, "missing") != course[name] for name in SCORED_FIELDS)
    ]
    invented = set(actual) - {course["course_id"] for course in expected}
    return Score(len(expected) - len(misses), len(expected), len(invented), misses)


Layout = Callable[[int], str]


def garden_title(number: int) -> str:
    return f"The quiet life of {'ferns' if number % 3 else 'mosses'}, part {number}"


def garden_text(number: int) -> str:
    return f"Participants learn how those of wall {number} grow, and why on its north side."


def spring_layout(number: int) -> str:
    """Return a page without a leading code or credits: rules find no course in it, a model does."""
    return (
        f'<html><body><h1>Our garden school</h1><div class="lead">{garden_text(number)}</div>'
        f'<h4 class="name">{garden_title(number)}</h4><p>Under <em class="ref">GRD/{number}</em></p>'
        "</body></html>"
    )


def autumn_layout(number: int) -> str:
    return (
        f'<html><body><h1>Our garden school</h1><section class="text">{garden_text(number)}</section>'
        f"<dl><dt>Filed under</dt><dd>GRD/{number}</dd><dt>Called</dt><dd>{garden_title(number)}</dd></dl>"
        "</body></html>"
    )


def answer_from_page(request: ModelRequest) -> Reply:
    """Answer as a model that finds the garden courses on the page."""
    numbers = [number for number in range(1, 40) if garden_text(number) in request.text]
    records = [
        {"course_id": f"GRD/{number}", "course_name": garden_title(number), "course_description": garden_text(number)}
        for number in numbers
    ]
    return model_answer(*records)


class School(LiveCatalog):
    """A garden school whose pages need a model: its web, the model, and crawls of it with and without the model."""

    def __init__(self, without_model: RunContext, web: FakeWeb, model: ScriptedModel) -> None:
        self.model, self.without_model = model, without_model
        super().__init__(without_model, web)
        self.configure_model()

    def configure_model(self, **changes: str) -> None:
        fast = {f"INGESTION_{name.upper().replace('.', '__')}": value for name, value in FAST_SETTINGS.items()}
        settings = settings_with_model(self.model.base_url, self.without_model.settings, **fast, **changes)
        self.ctx = a_run_context(self.store, settings)

    def serve_courses(self, layout: Layout, *numbers: int) -> None:
        links = "".join(f'<li><a href="/c/{number}">{number}</a></li>' for number in numbers)
        self.web.routes["/"] = f"<html><body><h1>Catalogue</h1><ul>{links}</ul></body></html>"
        self.web.routes |= {f"/c/{number}": layout(number) for number in numbers}

    def crawl_without_model(self) -> None:
        crawl_all(self.without_model, self.web.port)

    def crawl_with_model(self) -> int:
        """Run an extraction to its end; return the number of model requests."""
        before = len(self.model.requests)
        asyncio.run(self._crawl())
        complete_extractions(self.ctx)
        return len(self.model.requests) - before

    async def _crawl(self) -> None:
        async with (
            ModelClient(self.store, self.ctx.settings) as client,
            a_fetcher(self.ctx.settings, self.web.port) as fetcher,
        ):
            reader = PipelineReader(self.ctx.settings, self.store.now, client)
            await crawl_until_done(self.ctx, [CATALOG_ID], fetcher, reader=reader)

    @property
    def extraction_methods(self) -> list[str | None]:
        """Return the methods by which the detail pages of the last extraction were read."""
        last = max(row.extraction_id for row in self.rows(pages))
        last_pages = [row for row in self.rows(pages) if row.extraction_id == last]
        return [row.extraction_method for row in last_pages if row.url != "http://a.test/"]

    @property
    def selector_rows(self) -> list[Any]:
        return self.rows(learned_selectors)
