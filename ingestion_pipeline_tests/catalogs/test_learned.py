"""A catalogue that a model has read is read by rules from then on; on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from ingestion_pipeline.catalogs.crawling.runs import crawl_until_done
from ingestion_pipeline.catalogs.extraction import Selectors, entity_type
from ingestion_pipeline.catalogs.extraction.cost import catalog_facts
from ingestion_pipeline.catalogs.extraction.page_reader import PipelineReader
from ingestion_pipeline.catalogs.learning import learned_selectors as learned
from ingestion_pipeline.catalogs.learning.learned_selectors import (
    LearnedSelectors,
    SelectorScope,
    SelectorUses,
    is_outdated,
)
from ingestion_pipeline.demo.model_server import ModelRequest, Reply, ScriptedModel
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.reading.llm import ModelClient
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, learned_selectors, pages
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.catalogs.entities.climbing import answer
from ingestion_pipeline_tests.crawlers import SHOP, a_catalog, conclude
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import FAST, a_fetcher, a_run_context, given_sources, rows
from ingestion_pipeline_tests.reading.models.asking import leading_to

COURSE = entity_type("course")
Layout = Callable[[int], str]


def title(number: int) -> str:
    return f"The quiet life of {'ferns' if number % 3 else 'mosses'}, part {number}"


def story(number: int) -> str:
    return f"Participants learn how those of wall {number} grow, and why on its north side."


def in_spring(number: int) -> str:
    """No code in front, no credits: rules make nothing of it, a model does."""
    return (
        f'<html><body><h1>Our garden school</h1><div class="lead">{story(number)}</div>'
        f'<h4 class="name">{title(number)}</h4><p>Under <em class="ref">GRD/{number}</em></p>'
        "</body></html>"
    )


def in_autumn(number: int) -> str:
    return (
        f'<html><body><h1>Our garden school</h1><section class="text">{story(number)}</section>'
        f"<dl><dt>Filed under</dt><dd>GRD/{number}</dd><dt>Called</dt><dd>{title(number)}</dd></dl>"
        "</body></html>"
    )


def knows(asked: ModelRequest) -> Reply:
    """A model that can read: it finds the course whose number is on the page."""
    found = [number for number in range(1, 40) if story(number) in asked.text]
    records = [
        {"course_id": f"GRD/{one}", "course_name": title(one), "course_description": story(one)} for one in found
    ]
    return answer(*records)


class School:
    """The garden school, its web, and a model that may be asked about it."""

    def __init__(self, store: Store, ctx: RunContext, web: FakeWeb, model: ScriptedModel) -> None:
        fast = {f"INGESTION_{name.upper().replace('.', '__')}": one for name, one in FAST.items()}
        self.store, self.web, self.model = store, web, model
        self.ctx = a_run_context(store, leading_to(model.base_url, ctx.settings, **fast))

    def teaches(self, layout: Layout, *numbers: int) -> None:
        links = "".join(f'<li><a href="/c/{number}">{number}</a></li>' for number in numbers)
        self.web.routes["/"] = f"<html><body><h1>Catalogue</h1><ul>{links}</ul></body></html>"
        self.web.routes |= {f"/c/{number}": layout(number) for number in numbers}

    def crawl(self) -> int:
        """An extraction to its end; how often the model was asked."""
        before = len(self.model.requests)
        asyncio.run(self._crawl())
        conclude(self.ctx)
        return len(self.model.requests) - before

    async def _crawl(self) -> None:
        async with (
            ModelClient(self.store, self.ctx.settings) as client,
            a_fetcher(self.ctx.settings, self.web.port) as fetcher,
        ):
            reader = PipelineReader(self.ctx.settings, self.store.now, client)
            await crawl_until_done(self.ctx, [SHOP], fetcher, reader=reader)

    @property
    def rungs(self) -> list[str | None]:
        """Of the pages of the last extraction, its root apart."""
        last = max(row.extraction_id for row in rows(self.store, pages))
        its = [row for row in rows(self.store, pages) if row.extraction_id == last]
        return [row.rung for row in its if row.url != "http://a.test/"]

    @property
    def kept(self) -> list[Any]:
        return rows(self.store, learned_selectors)


@pytest.fixture
def school(store: Store, ctx: RunContext, web: FakeWeb) -> Iterator[School]:
    given_sources(store, a_catalog())
    with ScriptedModel(knows) as model:
        yield School(store, ctx, web, model)


def test_pages_of_a_layout_that_a_model_has_read_cost_no_call(school: School) -> None:
    school.teaches(in_spring, 1, 2, 3, 4)
    assert school.crawl() == 4
    assert school.rungs == ["cheap_model"] * 4

    school.teaches(in_spring, 1, 2, 3, 4, 5, 6, 7)

    assert school.crawl() == 0
    assert sorted(school.rungs[-3:], key=str) == ["selectors"] * 3
    newest = max(row.dataset_id for row in rows(school.store, data_items))
    its = [row for row in rows(school.store, data_items) if row.dataset_id == newest]
    assert {row.data["course_name"] for row in its} == {title(number) for number in range(1, 8)}
    assert all(row.data["course_description"] == story(int(row.data["course_id"][4:])) for row in its)
    [row] = school.kept
    assert (row.source_id, row.entity_type, row.learned_from) == (SHOP, "course", 4)
    assert (row.confirmed, row.failed) == (3, 0)
    with school.store.read() as connection:
        source = sources_by_id(connection, [SHOP])[SHOP]
        facts = catalog_facts(connection, source, school.ctx.settings)
    said = "course: 3 selectors from 4 pages, 3 pages read by them, 0 not"
    assert facts["learned_selectors"] == said


def test_what_was_learned_is_no_reason_to_read_an_unchanged_page_again(school: School) -> None:
    school.teaches(in_spring, 1, 2, 3)
    school.crawl()
    items = rows(school.store, data_items)

    assert school.crawl() == 0
    assert len(school.kept) == 1
    assert rows(school.store, data_items) == items
    assert all(row.carried_from for row in rows(school.store, pages)[-3:])


def test_after_a_change_of_layout_a_model_reads_and_selectors_are_learned_anew(school: School) -> None:
    school.teaches(in_spring, 1, 2, 3, 4)
    school.crawl()
    [before] = school.kept

    school.teaches(in_autumn, 1, 2, 3, 4)
    assert school.crawl() == 4
    [after] = school.kept
    assert after.selectors != before.selectors
    assert after.selectors["course_description"] == "section.text"

    school.teaches(in_autumn, 1, 2, 3, 4, 5, 6)
    assert school.crawl() == 0
    assert [row.confirmed for row in school.kept] == [2]


def test_a_single_page_of_another_layout_is_left_to_the_model(school: School) -> None:
    school.teaches(in_spring, 1, 2, 3)
    school.crawl()
    school.teaches(in_spring, 1, 2, 3, 5, 6)
    school.web.routes["/c/6"] = in_autumn(6)

    assert school.crawl() == 1

    assert [(row.confirmed, row.failed) for row in school.kept] == [(1, 1)]


def test_given_selectors_are_never_replaced_by_learned_ones(store: Store, ctx: RunContext, web: FakeWeb) -> None:
    selectors = dict.fromkeys(COURSE.required, "h6")
    config = {"recipe": a_catalog().config["recipe"], "selectors": selectors}
    given_sources(store, a_catalog(config=config))
    with ScriptedModel(knows) as model:
        school = School(store, ctx, web, model)
        school.teaches(in_spring, 1, 2, 3, 4)

        assert school.crawl() == 4
        assert school.kept == []


REFUSAL = {
    "sqlite": (
        "CREATE TRIGGER refusal BEFORE INSERT ON learned_selectors BEGIN SELECT RAISE(ABORT, 'refused'); END",
        "DROP TRIGGER refusal",
    ),
    "postgresql": (
        "ALTER TABLE learned_selectors ADD CONSTRAINT refusal CHECK (learned_from < 0)",
        "ALTER TABLE learned_selectors DROP CONSTRAINT refusal",
    ),
}


@pytest.fixture
def refusal(store: Store) -> Iterator[None]:
    """The database takes no row of what was learned."""
    begin, end = REFUSAL[store.engine.dialect.name]
    with store.begin() as connection:
        connection.execute(text(begin))
    yield
    with store.begin() as connection:
        connection.execute(text(end))


@pytest.mark.usefixtures("refusal")
def test_what_cannot_be_kept_fails_no_run(school: School, caplog: pytest.LogCaptureFixture) -> None:
    school.teaches(in_spring, 1, 2, 3)

    assert school.crawl() == 3
    assert (len(rows(school.store, data_items)), school.kept) == (3, [])
    assert "selector learning failed source=catalog:shop" in caplog.text


@pytest.mark.parametrize(
    ("confirmed", "failed", "in_row", "worn"),
    [(0, 2, 2, False), (100, 3, 3, True), (12, 3, 1, False), (11, 3, 1, True), (5, 2, 1, False), (0, 0, 0, False)],
)
def test_what_fails_in_a_row_or_too_often_is_worn(*, confirmed: int, failed: int, in_row: int, worn: bool) -> None:
    assert is_outdated(confirmed=confirmed, failed=failed, in_row=in_row) is worn


@pytest.fixture
def subject(store: Store) -> SelectorScope:
    given_sources(store, a_catalog())
    return SelectorScope(source_id=SHOP, entity_type="course")


def keep(store: Store, subject: SelectorScope, css: str = "b", *, minutes: int = 0) -> LearnedSelectors:
    fields = tuple((name, css) for name in COURSE.required)
    now = NOON + timedelta(minutes=minutes)
    with store.begin() as connection:
        return learned.save_learned(
            connection, subject, COURSE, Selectors(record=None, fields=fields), learned_from=3, now=now
        )


def use(store: Store, subject: SelectorScope, kept: LearnedSelectors, outcomes: Sequence[bool]) -> bool:
    with store.begin() as connection:
        uses = SelectorUses(scope=subject, learned=kept, outcomes=outcomes)
        return learned.record_uses(connection, uses, now=NOON)


def counts(store: Store) -> list[tuple[int, int, int]]:
    found = rows(store, learned_selectors)
    return [(row.confirmed, row.failed, row.failed_in_row) for row in found]


def test_failures_in_a_row_are_counted_across_flushes(store: Store, subject: SelectorScope) -> None:
    kept = keep(store, subject)

    assert use(store, subject, kept, [True, False, False])
    assert counts(store) == [(1, 2, 2)]
    assert use(store, subject, kept, [*[True] * 20, False])
    assert counts(store) == [(21, 3, 1)]
    assert use(store, subject, kept, [False])
    assert not use(store, subject, kept, [False])
    assert counts(store) == []


def test_what_became_of_old_selectors_is_not_counted_against_new_ones(store: Store, subject: SelectorScope) -> None:
    old = keep(store, subject)
    new = keep(store, subject, "i", minutes=5)

    assert not use(store, subject, old, [False, False, False])
    assert counts(store) == [(0, 0, 0)]
    assert use(store, subject, new, [True])


def test_selectors_of_another_schema_are_not_used(store: Store, subject: SelectorScope) -> None:
    kept = keep(store, subject)

    assert kept.for_kind(COURSE) is not None
    assert kept.for_kind(COURSE.model_copy(update={"about": "another"})) is None
