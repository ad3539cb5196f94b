"""Catalogs that need a model: selectors learned from its records, changed configurations, and the predicted cost."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from ingestion_pipeline.catalogs.extraction import source_selectors as learned
from ingestion_pipeline.catalogs.extraction.entity_type import entity_type
from ingestion_pipeline.catalogs.extraction.source_selectors import (
    LearnedSelectors,
    Selectors,
    SelectorScope,
    is_outdated,
)
from ingestion_pipeline.catalogs.reruns import DetailPage, catalog_facts, cost_facts, predict_rerun, rerun, text_sizes
from ingestion_pipeline.demo.model_server import ScriptedModel
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.model_batches import run_model_batches
from ingestion_pipeline.exports.export_request import ExportRequest
from ingestion_pipeline.exports.formats import frame_of
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, datasets, extractions, learned_selectors, pages, snapshots
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.catalog_extractions import (
    CATALOG_ID,
    LINKS,
    LiveCatalog,
    a_catalog,
    link_page,
    read_pages,
)
from ingestion_pipeline_tests.catalogs.course_pages import (
    School,
    answer_from_page,
    autumn_layout,
    course_html,
    course_page,
    garden_text,
    garden_title,
    spring_layout,
)
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.polling_runs import FAST_SETTINGS, a_run_context, add_sources, rows
from ingestion_pipeline_tests.reading.llm.model_questions import settings_with_model

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
    assert after.selectors["course_description"][0] == "section.text"

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
    fields = tuple((name, (css,)) for name in COURSE.required)
    now = NOON + timedelta(minutes=minutes)
    with store.begin() as connection:
        return learned.save_learned(
            connection, subject, COURSE, Selectors(record=None, fields=fields), learned_from=3, now=now
        )


def record_uses(store: Store, subject: SelectorScope, selectors: LearnedSelectors, outcomes: Sequence[bool]) -> bool:
    with store.begin() as connection:
        return learned.record_uses(connection, subject, selectors, outcomes, now=NOON)


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


@pytest.fixture
def small_school(store: Store, ctx: RunContext, web: FakeWeb) -> Iterator[School]:
    """Serve two pages that only a model can read: too few to learn selectors from."""
    add_sources(store, a_catalog())
    with ScriptedModel(answer_from_page) as model:
        small_school = School(ctx, web, model)
        small_school.serve_courses(spring_layout, 1, 2)
        yield small_school


def published_codes(store: Store) -> list[str]:
    """Return the codes of the courses in the published dataset."""
    published = [row.id for row in rows(store, datasets) if row.status == "published"]
    items = [row for row in rows(store, data_items) if row.dataset_id == max(published)]
    return sorted(row.data["course_id"] for row in items)


@pytest.mark.slow
def test_model_records_of_an_unchanged_page_are_kept_when_no_model_is_configured(small_school: School) -> None:
    small_school.crawl_with_model()
    small_school.web.routes |= {"/c/101": f"<html><body><h1>Courses</h1>{course_html(101)}</body></html>"}
    links = "".join(f'<li><a href="/c/{number}">{number}</a></li>' for number in (1, 2, 101))
    small_school.web.routes["/"] = f"<html><body><h1>Catalogue</h1><ul>{links}</ul></body></html>"

    small_school.crawl_without_model()

    assert not small_school.without_model.settings.has_model
    assert published_codes(small_school.store) == ["GRD/1", "GRD/2", "MATH 101"]
    assert small_school.rows(extractions)[-1].status == "COMPLETE"
    by_model = [row for row in small_school.rows(pages)[-3:] if row.extraction_method == "cheap_model"]
    assert [row.carried_from is not None for row in by_model] == [True, True]
    assert small_school.crawl_with_model() == 0  # the same model would answer the same


@pytest.mark.slow
def test_model_records_of_another_configuration_are_not_carried_over(small_school: School) -> None:
    small_school.crawl_with_model()
    add_sources(small_school.store, a_catalog(config={"recipe": dict(LINKS), "entity": "course"}))

    small_school.crawl_without_model()

    last = [row for row in small_school.rows(pages) if row.extraction_id == 2 and row.url[-1] in "12"]
    assert [(row.carried_from, row.failure["code"]) for row in last] == [(None, "no_model")] * 2
    assert published_codes(small_school.store) == ["GRD/1", "GRD/2"]


@pytest.mark.slow
def test_a_changed_page_that_needs_a_model_waits_until_there_is_one(small_school: School) -> None:
    small_school.crawl_with_model()
    small_school.serve_courses(spring_layout, 1, 3)
    small_school.web.routes["/c/1"] = spring_layout(1).replace("Our garden school", "Our fern school")

    small_school.crawl_without_model()

    waiting = {row.url[-1]: row.failure["code"] for row in small_school.rows(pages) if row.failure}
    assert waiting["1"] == "no_model"
    assert small_school.rows(extractions)[-1].status == "IN_PROGRESS"
    assert published_codes(small_school.store) == ["GRD/1", "GRD/2"]

    small_school.crawl_with_model()
    assert "GRD/1" in published_codes(small_school.store)
    assert small_school.rows(extractions)[-1].status == "COMPLETE"


@pytest.mark.slow
def test_rules_that_find_part_of_the_model_records_do_not_replace_them(small_school: School) -> None:
    both = f'<p>2 courses</p>{course_html(101)}<div class="lead">{garden_text(7)}</div><h4>{garden_title(7)}</h4>'
    small_school.web.routes["/c/2"] = f"<html><body><h1>Courses</h1>{both}<p>GRD/7</p></body></html>"
    small_school.crawl_with_model()
    before = published_codes(small_school.store)
    small_school.web.routes["/c/2"] = f"<html><body><h1>Lessons</h1>{both}<p>GRD/7</p></body></html>"

    small_school.crawl_without_model()

    assert "GRD/7" in before
    assert published_codes(small_school.store) == before
    assert small_school.rows(extractions)[-1].status == "IN_PROGRESS"


@pytest.mark.slow
def test_a_rerun_without_a_model_waits_and_keeps_the_published_records(small_school: School) -> None:
    small_school.crawl_with_model()
    with small_school.store.begin() as connection:
        rerun(connection, 1, actor="ann", now=small_school.store.clock.now(connection))

    read_pages(small_school.without_model)

    last = [row for row in small_school.rows(pages) if row.extraction_id == 2 and row.failure]
    assert [row.failure["code"] for row in last] == ["no_model", "no_model"]
    assert published_codes(small_school.store) == ["GRD/1", "GRD/2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "expected_requests"),
    [("", 0), ("INGESTION_MODEL_CHEAP", 2), ("INGESTION_MODEL_STRONG", 2)],
    ids=["the same models", "another cheap model", "another strong model"],
)
def test_an_unchanged_page_is_read_again_only_by_other_models(
    small_school: School, variable: str, expected_requests: int
) -> None:
    assert small_school.crawl_with_model() == 2
    fast = {f"INGESTION_{name.upper().replace('.', '__')}": text for name, text in FAST_SETTINGS.items()}
    other = {variable: "strong" if variable.endswith("CHEAP") else "cheap"} if variable else {}
    settings = settings_with_model(small_school.model.base_url, small_school.without_model.settings, **fast, **other)
    small_school.ctx = a_run_context(small_school.store, settings)

    small_school.crawl_with_model()

    carried = [row.carried_from is not None for row in small_school.rows(pages)[-2:]]
    assert carried == [not expected_requests] * 2
    assert published_codes(small_school.store) == ["GRD/1", "GRD/2"]


@pytest.mark.slow
def test_the_cost_of_the_next_extraction_is_predicted_from_the_last_one(live: LiveCatalog) -> None:
    live.serve({"/": link_page("/c/1", "/c/2"), "/c/1": link_page("/x"), "/c/2": link_page("/y")}, LINKS)
    live.poll()
    live.crawl()
    home = {"INGESTION_HOME": str(live.ctx.settings.home)}

    with live.store.read() as connection:
        source = sources_by_id(connection, [CATALOG_ID])[CATALOG_ID]
        free = cost_facts(connection, source, load_settings(home))
        priced = cost_facts(connection, source, load_settings(home | {"OPENAI_API_KEY": "k"}))

    assert free == {"predicted_cost": "no model is asked: 0 calls, 0 USD, for 2 pages"}
    prediction = str(priced["predicted_cost"])
    assert prediction.startswith("at most 4 calls, ")
    assert "USD, for 2 pages; a page that rules read, or that is unchanged, costs nothing" in prediction


def test_pages_that_wait_for_a_model_are_counted_without_a_model(live: LiveCatalog) -> None:
    live.serve(
        {"/": link_page("/c/1", "/c/2"), "/c/1": link_page("/x"), "/c/2": link_page("/y")},
        LINKS,
        config={"recipe": dict(LINKS), "entity": "credential"},
    )
    live.poll()
    live.crawl()
    bare = load_settings({"INGESTION_HOME": str(live.ctx.settings.home)})

    with live.store.read() as connection:
        source = sources_by_id(connection, [CATALOG_ID])[CATALOG_ID]
        prediction = str(cost_facts(connection, source, bare)["predicted_cost"])
        rerun = predict_rerun(connection, 1, settings=bare, content=live.ctx.content)

    assert prediction.startswith("once there is a model: at most 4 calls, ")
    assert "for 2 pages; no model configured (OPENAI_API_KEY" in prediction
    assert (rerun.pages, rerun.calls) == (2, 4)
    assert rerun.cost_usd is not None
    assert rerun.cost_usd > 0
    assert "no model configured" in rerun.note


def test_text_sizes_are_measured_where_stored_and_else_estimated_by_their_share(tmp_path: Path) -> None:
    content = ContentStore(tmp_path)
    stored = content.put(b"x" * 100)

    pages = [DetailPage(1_000, stored), DetailPage(500, "0" * 64), DetailPage(2_000, None)]

    assert text_sizes(pages, content) == [100, 50, 200]
    assert text_sizes([DetailPage(70, None)], content) == [70]


@pytest.mark.slow
def test_a_rerun_is_predicted_by_the_stored_pages_that_rules_cannot_read(live: LiveCatalog) -> None:
    live.serve({"/": link_page("/c/1", "/c/2"), "/c/1": course_page(101), "/c/2": link_page("/y")}, LINKS)
    live.poll()
    live.crawl()
    model = load_settings({"INGESTION_HOME": str(live.ctx.settings.home), "OPENAI_API_KEY": "k"})

    with live.store.read() as connection:
        prediction = predict_rerun(connection, 1, settings=model, content=live.ctx.content)
        free = predict_rerun(connection, 1, settings=live.ctx.settings, content=live.ctx.content)

    assert (prediction.pages, prediction.calls) == (2, 2)  # of the one page that rules cannot read, two models
    assert prediction.cost_usd is not None
    assert prediction.cost_usd > 0
    assert (free.calls, free.cost_usd, free.note) == (0, 0, "")


@pytest.mark.slow
@pytest.mark.both_databases
def test_first_extractions_and_reruns_ask_in_batches_and_refreshes_at_once(school: School) -> None:
    def run_batches() -> int:
        worker = Worker(school.store, lease_seconds=60)
        return asyncio.run(run_model_batches(school.ctx, worker))["woken"]

    school.configure_model(INGESTION_MODELS__BATCH="auto", INGESTION_MODELS__BATCH_SECONDS="0")
    layouts = {number: (spring_layout, autumn_layout)[number % 2](number) for number in range(1, 6)}
    school.serve_courses(layouts.__getitem__, 1, 2, 3, 4)

    assert school.crawl_with_model() == 0
    assert run_batches() == 4
    assert len(school.model.batches.submitted) == 1
    assert school.crawl_with_model() == 0
    assert school.extraction_methods == ["cheap_model"] * 4

    school.web.routes["/c/5"] = layouts[5].replace("GRD", "MOS")
    school.web.routes["/"] = link_page("/c/5")
    assert school.crawl_with_model() > 0
    assert len(school.model.batches.submitted) == 1


@pytest.mark.both_databases
def test_pages_that_reserve_their_text_are_neither_sent_to_a_model_nor_exported(school: School) -> None:
    school.serve_courses(spring_layout, 1, 2, 3)
    school.web.routes["/c/1"] = spring_layout(1).replace("<html>", '<html><meta name="robots" content="noai">')
    school.web.routes["/c/2"] = Reply(spring_layout(2).encode(), headers={"TDM-Reservation": "1"})

    assert school.crawl_with_model() == 1

    assert garden_text(3) in school.model.requests[0].text
    said = {row.url: row.rights for row in school.rows(snapshots)}
    assert said["http://a.test/c/1"] == {"meta-robots": "noai"}
    assert said["http://a.test/c/2"] == {"tdm-reservation": "1"}
    assert said["http://a.test/c/3"] is None
    school.web.routes["/c/1"] = course_page(1)
    school.web.routes["/c/2"] = course_page(2).replace("<html>", '<html><meta name="robots" content="noai">')
    school.web.routes["/"] = link_page("/c/1", "/c/2")
    school.crawl_with_model()
    exported = [
        frame_of(school.store, ExportRequest(name="course", honours_rights=honours)) for honours in (True, False)
    ]
    assert [sorted(frame["course_name"]) for frame in exported] == [["Numbers 1"], ["Numbers 1", "Numbers 2"]]


def test_the_files_of_a_site_are_read_with_its_robots_txt_and_honoured(school: School) -> None:
    tdm = [{"location": "/c/1", "tdm-reservation": 1}]
    school.web.routes["/.well-known/tdmrep.json"] = json.dumps(tdm)
    school.web.routes["/robots.txt"] = "User-agent: *\nContent-Signal: ai-train=no\nAllow: /\n"
    school.serve_courses(spring_layout, 1, 2)

    assert school.crawl_with_model() == 1

    assert garden_text(2) in school.model.requests[0].text
    said = {row.url: row.rights for row in school.rows(snapshots)}
    assert said["http://a.test/c/1"] == {"content-signal": "ai-train=no", "tdm-reservation": "1"}
    assert said["http://a.test/c/2"] == {"content-signal": "ai-train=no"}
    school.configure_model(INGESTION_RIGHTS__HONOUR="false")
    school.web.routes["/c/1"] = autumn_layout(1)
    assert school.crawl_with_model() == 1
