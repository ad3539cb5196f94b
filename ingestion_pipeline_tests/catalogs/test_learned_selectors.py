"""A catalog that a model has read is read by learned selectors from then on."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest
from sqlalchemy import text

from ingestion_pipeline.catalogs.extraction import source_selectors as learned
from ingestion_pipeline.catalogs.extraction.entity_type import entity_type
from ingestion_pipeline.catalogs.extraction.source_selectors import (
    LearnedSelectors,
    Selectors,
    SelectorScope,
    SelectorUses,
    is_outdated,
)
from ingestion_pipeline.catalogs.reruns import catalog_facts
from ingestion_pipeline.demo.model_server import ScriptedModel
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, learned_selectors, pages
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.catalog_extractions import CATALOG_ID, a_catalog
from ingestion_pipeline_tests.catalogs.course_pages import (
    School,
    answer_from_page,
    autumn_layout,
    garden_text,
    garden_title,
    spring_layout,
)
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import add_sources, rows

COURSE = entity_type("course")


@pytest.fixture
def school(store: Store, ctx: RunContext, web: FakeWeb) -> Iterator[School]:
    add_sources(store, a_catalog())
    with ScriptedModel(answer_from_page) as model:
        yield School(ctx, web, model)


@pytest.mark.slow
def test_pages_of_a_layout_that_a_model_has_read_cost_no_call(school: School) -> None:
    school.serve_courses(spring_layout, 1, 2, 3, 4)
    assert school.crawl_with_model() == 4
    assert school.extraction_methods == ["cheap_model"] * 4

    school.serve_courses(spring_layout, 1, 2, 3, 4, 5, 6, 7)

    assert school.crawl_with_model() == 0
    assert sorted(school.extraction_methods[-3:], key=str) == ["selectors"] * 3
    newest = max(row.dataset_id for row in school.rows(data_items))
    newest_items = [row for row in school.rows(data_items) if row.dataset_id == newest]
    assert {row.data["course_name"] for row in newest_items} == {garden_title(number) for number in range(1, 8)}
    assert all(row.data["course_description"] == garden_text(int(row.data["course_id"][4:])) for row in newest_items)
    [row] = school.selector_rows
    assert (row.source_id, row.entity_type, row.learned_from) == (CATALOG_ID, "course", 4)
    assert (row.confirmed, row.failed) == (3, 0)
    with school.store.read() as connection:
        source = sources_by_id(connection, [CATALOG_ID])[CATALOG_ID]
        facts = catalog_facts(connection, source, school.ctx.settings)
    expected = "course: 3 selectors from 4 pages, 3 pages read by them, 0 not"
    assert facts["learned_selectors"] == expected


@pytest.mark.slow
def test_learned_selectors_do_not_cause_unchanged_pages_to_be_read_again(school: School) -> None:
    school.serve_courses(spring_layout, 1, 2, 3)
    school.crawl_with_model()
    items = school.rows(data_items)

    assert school.crawl_with_model() == 0
    assert len(school.selector_rows) == 1
    assert school.rows(data_items) == items
    assert all(row.carried_from for row in school.rows(pages)[-3:])


@pytest.mark.slow
def test_selectors_are_learned_again_after_a_change_of_layout(school: School) -> None:
    school.serve_courses(spring_layout, 1, 2, 3, 4)
    school.crawl_with_model()
    [before] = school.selector_rows

    school.serve_courses(autumn_layout, 1, 2, 3, 4)
    assert school.crawl_with_model() == 4
    [after] = school.selector_rows
    assert after.selectors != before.selectors
    assert after.selectors["course_description"] == "section.text"

    school.serve_courses(autumn_layout, 1, 2, 3, 4, 5, 6)
    assert school.crawl_with_model() == 0
    assert [row.confirmed for row in school.selector_rows] == [2]


@pytest.mark.slow
def test_a_single_page_of_another_layout_is_read_by_the_model(school: School) -> None:
    school.serve_courses(spring_layout, 1, 2, 3)
    school.crawl_with_model()
    school.serve_courses(spring_layout, 1, 2, 3, 5, 6)
    school.web.routes["/c/6"] = autumn_layout(6)

    assert school.crawl_with_model() == 1

    assert [(row.confirmed, row.failed) for row in school.selector_rows] == [(1, 1)]


@pytest.mark.slow
def test_configured_selectors_are_never_replaced_by_learned_ones(store: Store, ctx: RunContext, web: FakeWeb) -> None:
    selectors = dict.fromkeys(COURSE.required, "h6")
    config = {"recipe": a_catalog().config["recipe"], "selectors": selectors}
    add_sources(store, a_catalog(config=config))
    with ScriptedModel(answer_from_page) as model:
        school = School(ctx, web, model)
        school.serve_courses(spring_layout, 1, 2, 3, 4)

        assert school.crawl_with_model() == 4
        assert school.selector_rows == []


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
    """Let the database refuse every row of learned selectors."""
    begin, end = REFUSAL[store.engine.dialect.name]
    with store.begin() as connection:
        connection.execute(text(begin))
    yield
    with store.begin() as connection:
        connection.execute(text(end))


@pytest.mark.slow
@pytest.mark.usefixtures("refusal")
def test_selectors_that_cannot_be_saved_fail_no_run(school: School, caplog: pytest.LogCaptureFixture) -> None:
    school.serve_courses(spring_layout, 1, 2, 3)

    assert school.crawl_with_model() == 3
    assert (len(school.rows(data_items)), school.selector_rows) == (3, [])
    assert "selector learning failed source=catalog:shop" in caplog.text


@pytest.mark.parametrize(
    ("confirmed", "failed", "in_row", "outdated"),
    [(0, 2, 2, False), (100, 3, 3, True), (12, 3, 1, False), (11, 3, 1, True), (5, 2, 1, False), (0, 0, 0, False)],
)
def test_selectors_that_fail_in_a_row_or_too_often_are_outdated(
    *, confirmed: int, failed: int, in_row: int, outdated: bool
) -> None:
    assert is_outdated(confirmed=confirmed, failed=failed, in_row=in_row) is outdated


@pytest.fixture
def subject(store: Store) -> SelectorScope:
    add_sources(store, a_catalog())
    return SelectorScope(source_id=CATALOG_ID, entity_type="course")


def save_selectors(store: Store, subject: SelectorScope, css: str = "b", *, minutes: int = 0) -> LearnedSelectors:
    fields = tuple((name, css) for name in COURSE.required)
    now = NOON + timedelta(minutes=minutes)
    with store.begin() as connection:
        return learned.save_learned(
            connection, subject, COURSE, Selectors(record=None, fields=fields), learned_from=3, now=now
        )


def record_uses(store: Store, subject: SelectorScope, selectors: LearnedSelectors, outcomes: Sequence[bool]) -> bool:
    with store.begin() as connection:
        uses = SelectorUses(scope=subject, learned=selectors, outcomes=outcomes)
        return learned.record_uses(connection, uses, now=NOON)


def use_counts(store: Store) -> list[tuple[int, int, int]]:
    selector_rows = rows(store, learned_selectors)
    return [(row.confirmed, row.failed, row.failed_in_row) for row in selector_rows]


def test_failures_in_a_row_are_counted_across_flushes(store: Store, subject: SelectorScope) -> None:
    selectors = save_selectors(store, subject)

    assert record_uses(store, subject, selectors, [True, False, False])
    assert use_counts(store) == [(1, 2, 2)]
    assert record_uses(store, subject, selectors, [*[True] * 20, False])
    assert use_counts(store) == [(21, 3, 1)]
    assert record_uses(store, subject, selectors, [False])
    assert not record_uses(store, subject, selectors, [False])
    assert use_counts(store) == []


def test_uses_of_old_selectors_are_not_counted_for_new_ones(store: Store, subject: SelectorScope) -> None:
    old = save_selectors(store, subject)
    new = save_selectors(store, subject, "i", minutes=5)

    assert not record_uses(store, subject, old, [False, False, False])
    assert use_counts(store) == [(0, 0, 0)]
    assert record_uses(store, subject, new, [True])


def test_selectors_of_another_schema_are_not_used(store: Store, subject: SelectorScope) -> None:
    selectors = save_selectors(store, subject)

    assert selectors.for_kind(COURSE) is not None
    assert selectors.for_kind(COURSE.model_copy(update={"about": "another"})) is None
