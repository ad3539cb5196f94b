"""The way up the ladder: when a model is asked, when not, and what happens where there is none."""

from __future__ import annotations

from decimal import Decimal

import pytest

from ingestion_pipeline.catalogs.extraction import EntityType, ExtractionOverBudget, entity_type
from ingestion_pipeline.demo.model_server import ModelRequest, Reply, Say, Script, ScriptedModel, in_turn
from ingestion_pipeline.reading.llm import Billing
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks.errors import Resource, Transient
from ingestion_pipeline_tests.catalogs.entities.climbing import (
    COURSE,
    MOSSES,
    NOW,
    PROSE,
    URL,
    a_page,
    answer,
    climb,
    climb_with,
    read_alone,
    values,
)
from ingestion_pipeline_tests.catalogs.pages import body
from ingestion_pipeline_tests.reading.models.asking import leading_to, ledger

COMPETENCY = entity_type("competency")


@pytest.mark.parametrize("name", ["courseleaf_titles", "json_ld", "plain_table", "coursedog_api"])
def test_what_rules_read_whole_costs_no_call(store: Store, settings: Settings, name: str) -> None:
    page = a_page(body(name), text=body(name) if name.endswith("_api") else None)

    reading, asked = climb_with(store, settings, page, in_turn(answer()))

    assert reading.records
    assert asked == []
    assert ledger(store) == []
    assert (reading.model, reading.reason) == (None, "")


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    """Only what is about the ledger runs on both."""
    on_both = {"costs", "asked", "budget", "booked"}
    chosen: str = getattr(request, "param", "sqlite")
    assert chosen == "sqlite" or on_both & set(request.node.name.split("_"))
    return chosen


BOTH = pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


@BOTH
def test_the_same_page_is_asked_about_once_and_once_more_after_its_schema_changed(
    store: Store, settings: Settings
) -> None:
    changed = COURSE.model_copy(update={"about": "A course is what a garden teaches."})
    with ScriptedModel(in_turn(answer(MOSSES))) as model:
        leading = leading_to(model.base_url, settings)
        first = climb(store, leading, a_page(PROSE))
        again = climb(store, leading, a_page(PROSE))
        calls = len(model.requests)
        climb(store, leading, a_page(PROSE), kind=EntityType.model_validate(changed.model_dump()))
        climb(store, leading, a_page(PROSE), kind=EntityType.model_validate(changed.model_dump()))

    assert first.records == again.records
    assert (calls, len(model.requests)) == (1, 2)


@BOTH
def test_a_budget_that_is_used_up_stops_the_reading_and_says_whose(store: Store, settings: Settings) -> None:
    with pytest.raises(ExtractionOverBudget) as stopped:
        climb_with(store, settings, a_page(PROSE), in_turn(answer()), INGESTION_MODEL_BUDGET_USD="0.0001")

    assert stopped.value.over.extraction_id == 7
    assert stopped.value.over.limit_usd == Decimal("0.0001")
    assert isinstance(stopped.value, Resource)
    assert ledger(store) == []


def test_every_kind_of_question_has_its_call_site_and_the_page_it_is_for(store: Store, settings: Settings) -> None:
    wrong = answer(MOSSES | {"course_id": "GRD-77"})

    climb_with(store, settings, a_page(PROSE), in_turn(wrong, answer(MOSSES)))

    rows = ledger(store)
    assert [row.call_site for row in rows] == ["extract", "extract.alone"]
    assert {(row.extraction_id, row.page_id, row.source_id) for row in rows} == {(7, 4, "catalog:a")}


def test_without_a_model_rules_have_the_last_word_on_courses(settings: Settings) -> None:
    reading = read_alone(a_page(PROSE), settings)

    assert reading.records == ()
    assert reading.problems == ()
    assert any("no model configured" in note for note in reading.notes)


def test_an_empty_result_page_gives_no_record_and_no_error(settings: Settings) -> None:
    reading = read_alone(a_page(body("none_empty_results")), settings)

    assert (reading.records, reading.problems, reading.method) == ((), (), None)


@pytest.mark.parametrize("name", ["learning_program", "credential"])
def test_without_a_model_a_page_that_rules_cannot_judge_waits_for_one(settings: Settings, name: str) -> None:
    with pytest.raises(Resource, match="no model configured") as waits:
        read_alone(a_page("<p>Come and see us.</p>"), settings, kind=entity_type(name))

    assert waits.value.code == "no_model"
    assert waits.value.until > NOW


def test_a_client_without_a_model_is_as_good_as_none(store: Store, settings: Settings) -> None:
    assert climb(store, settings, a_page(PROSE)).records == ()


def test_an_empty_body_is_fetched_again(settings: Settings) -> None:
    with pytest.raises(Transient):
        read_alone(a_page(" ", text=""), settings)


def test_what_lacks_a_required_field_is_not_among_the_records(settings: Settings) -> None:
    reading = read_alone(a_page(body("banner_listing")), settings)

    assert "ACC 0100" not in values(reading, "course_id")
    assert [problem.code for problem in reading.problems] == ["incomplete"]


def test_two_models_of_the_same_name_are_one_rung(store: Store, settings: Settings) -> None:
    page = a_page("<p>We are closed.</p>")

    _, asked = climb_with(store, settings, page, in_turn(answer()), INGESTION_MODEL_STRONG="cheap")

    assert len(asked) == 1


LIST = (
    "<h2>What our graduates do</h2><p>Prune a rose without harm</p><p>Name forty mosses</p>"
    "<a href=/outcomes/year-2>Second year</a><a href=https://other.test/outcomes>Elsewhere</a>"
)


def presence(*, has_list: bool, heading: str | None) -> Say:
    said = "null" if heading is None else f'"{heading}"'
    return Say(text=f'{{"has_list": {str(has_list).lower()}, "heading": {said}}}')


def on_presence(found: Say, records: Say) -> Script:
    def reply(asked: ModelRequest) -> Reply:
        return found if "has_list" in asked.schema["properties"] else records

    return reply


PRUNING = answer({"text": "Prune a rose without harm"}, kind=COMPETENCY)


@pytest.mark.parametrize(
    ("found", "calls"),
    [
        (presence(has_list=False, heading=None), 1),
        (presence(has_list=True, heading="A heading of its own making"), 1),
        (presence(has_list=True, heading="What our graduates do"), 2),
    ],
)
def test_competencies_are_looked_for_only_under_a_heading_that_the_page_has(
    store: Store, settings: Settings, found: Say, calls: int
) -> None:
    reading, asked = climb_with(store, settings, a_page(LIST), on_presence(found, PRUNING), kind=COMPETENCY)

    assert len(asked) == calls
    assert len(reading.records) == calls - 1
    if calls == 1:
        assert "no list" in reading.notes[-1]


def test_what_a_model_wants_explored_must_stand_on_the_page(store: Store, settings: Settings) -> None:
    proposed = ["/outcomes/year-2", "https://college.test/invented", "https://other.test/outcomes"]
    said = answer({"text": "Name forty mosses"}, kind=COMPETENCY, explore=proposed)
    found = presence(has_list=True, heading="What our graduates do")

    reading, _ = climb_with(store, settings, a_page(LIST), on_presence(found, said), kind=COMPETENCY)

    assert reading.explored == ("https://college.test/outcomes/year-2",)


def test_readings_at_the_same_time_bill_their_own_pages(store: Store, settings: Settings) -> None:
    other = Billing(call_site="extract", source_id="catalog:b", page_id=9, extraction_id=8)

    climb_with(store, settings, a_page(PROSE, url=URL), in_turn(answer(MOSSES)))
    climb_with(store, settings, a_page(PROSE, url=URL), in_turn(answer(MOSSES)), billing=other)

    assert [(row.page_id, row.status) for row in ledger(store)][1][0] == 9
