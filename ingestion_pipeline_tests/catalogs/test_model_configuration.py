"""Changes of the model configuration and the records that a model has read."""

from collections.abc import Iterator

import pytest

from ingestion_pipeline.catalogs.reruns import rerun
from ingestion_pipeline.demo.model_server import ScriptedModel
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, datasets, extractions, pages
from ingestion_pipeline_tests.catalog_extractions import LINKS, a_catalog, read_pages
from ingestion_pipeline_tests.catalogs.course_pages import (
    School,
    answer_from_page,
    course_html,
    garden_text,
    garden_title,
    spring_layout,
)
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import FAST_SETTINGS, a_run_context, add_sources, rows
from ingestion_pipeline_tests.reading.llm.model_questions import settings_with_model


@pytest.fixture
def school(store: Store, ctx: RunContext, web: FakeWeb) -> Iterator[School]:
    """Serve two pages that only a model can read: too few to learn selectors from."""
    add_sources(store, a_catalog())
    with ScriptedModel(answer_from_page) as model:
        school = School(ctx, web, model)
        school.serve_courses(spring_layout, 1, 2)
        yield school


def published_codes(store: Store) -> list[str]:
    """Return the codes of the courses in the published dataset."""
    published = [row.id for row in rows(store, datasets) if row.status == "published"]
    items = [row for row in rows(store, data_items) if row.dataset_id == max(published)]
    return sorted(row.data["course_id"] for row in items)


@pytest.mark.slow
def test_model_records_of_an_unchanged_page_are_kept_when_no_model_is_configured(school: School) -> None:
    school.crawl_with_model()
    school.web.routes |= {"/c/101": f"<html><body><h1>Courses</h1>{course_html(101)}</body></html>"}
    links = "".join(f'<li><a href="/c/{number}">{number}</a></li>' for number in (1, 2, 101))
    school.web.routes["/"] = f"<html><body><h1>Catalogue</h1><ul>{links}</ul></body></html>"

    school.crawl_without_model()

    assert not school.without_model.settings.has_model
    assert published_codes(school.store) == ["GRD/1", "GRD/2", "MATH 101"]
    assert school.rows(extractions)[-1].status == "COMPLETE"
    by_model = [row for row in school.rows(pages)[-3:] if row.extraction_method == "cheap_model"]
    assert [row.carried_from is not None for row in by_model] == [True, True]
    assert school.crawl_with_model() == 0  # the same model would answer the same


@pytest.mark.slow
def test_model_records_of_another_configuration_are_not_carried_over(school: School) -> None:
    school.crawl_with_model()
    add_sources(school.store, a_catalog(config={"recipe": dict(LINKS), "entity": "course"}))

    school.crawl_without_model()

    last = [row for row in school.rows(pages) if row.extraction_id == 2 and row.url[-1] in "12"]
    assert [(row.carried_from, row.failure["code"]) for row in last] == [(None, "no_model")] * 2
    assert published_codes(school.store) == ["GRD/1", "GRD/2"]


@pytest.mark.slow
def test_a_changed_page_that_needs_a_model_waits_until_there_is_one(school: School) -> None:
    school.crawl_with_model()
    school.serve_courses(spring_layout, 1, 3)
    school.web.routes["/c/1"] = spring_layout(1).replace("Our garden school", "Our fern school")

    school.crawl_without_model()

    waiting = {row.url[-1]: row.failure["code"] for row in school.rows(pages) if row.failure}
    assert waiting["1"] == "no_model"
    assert school.rows(extractions)[-1].status == "IN_PROGRESS"
    assert published_codes(school.store) == ["GRD/1", "GRD/2"]

    school.crawl_with_model()
    assert "GRD/1" in published_codes(school.store)
    assert school.rows(extractions)[-1].status == "COMPLETE"


@pytest.mark.slow
def test_rules_that_find_part_of_the_model_records_do_not_replace_them(school: School) -> None:
    both = f'<p>2 courses</p>{course_html(101)}<div class="lead">{garden_text(7)}</div><h4>{garden_title(7)}</h4>'
    school.web.routes["/c/2"] = f"<html><body><h1>Courses</h1>{both}<p>GRD/7</p></body></html>"
    school.crawl_with_model()
    before = published_codes(school.store)
    school.web.routes["/c/2"] = f"<html><body><h1>Lessons</h1>{both}<p>GRD/7</p></body></html>"

    school.crawl_without_model()

    assert "GRD/7" in before
    assert published_codes(school.store) == before
    assert school.rows(extractions)[-1].status == "IN_PROGRESS"


@pytest.mark.slow
def test_a_rerun_without_a_model_waits_and_keeps_the_published_records(school: School) -> None:
    school.crawl_with_model()
    with school.store.begin() as connection:
        rerun(connection, 1, actor="ann", now=school.store.clock.now(connection))

    read_pages(school.without_model)

    last = [row for row in school.rows(pages) if row.extraction_id == 2 and row.failure]
    assert [row.failure["code"] for row in last] == ["no_model", "no_model"]
    assert published_codes(school.store) == ["GRD/1", "GRD/2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "expected_requests"),
    [("", 0), ("INGESTION_MODEL_CHEAP", 2), ("INGESTION_MODEL_STRONG", 2)],
    ids=["the same models", "another cheap model", "another strong model"],
)
def test_an_unchanged_page_is_read_again_only_by_other_models(
    school: School, variable: str, expected_requests: int
) -> None:
    assert school.crawl_with_model() == 2
    fast = {f"INGESTION_{name.upper().replace('.', '__')}": text for name, text in FAST_SETTINGS.items()}
    other = {variable: "strong" if variable.endswith("CHEAP") else "cheap"} if variable else {}
    settings = settings_with_model(school.model.base_url, school.without_model.settings, **fast, **other)
    school.ctx = a_run_context(school.store, settings)

    school.crawl_with_model()

    carried = [row.carried_from is not None for row in school.rows(pages)[-2:]]
    assert carried == [not expected_requests] * 2
    assert published_codes(school.store) == ["GRD/1", "GRD/2"]
