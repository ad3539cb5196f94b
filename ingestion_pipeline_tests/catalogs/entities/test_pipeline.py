"""The extraction pipeline of a page: when a model is asked, where long pages are split, which links are explored."""

import re
from decimal import Decimal

import pytest

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, entity_type
from ingestion_pipeline.catalogs.extraction.model_methods import (
    LONG_TOKENS,
    MAX_CONCURRENT_QUESTIONS,
    next_part,
    parts_of,
    tokens_of,
)
from ingestion_pipeline.catalogs.extraction.pipeline import explored_links
from ingestion_pipeline.catalogs.extraction.record import (
    ExtractionMethod,
    ExtractionOverBudget,
    Record,
    announced_count,
    is_expected_count,
)
from ingestion_pipeline.demo.model_server import Fail, ModelRequest, Reply, Say, Script, ScriptedModel
from ingestion_pipeline.reading.html.cleaning import cleaned_text, visible_tree
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.llm import Billing
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks.errors import Permanent, Resource, Transient
from ingestion_pipeline_tests.catalogs.course_pages import saved_body
from ingestion_pipeline_tests.catalogs.entities.page_readings import (
    COURSE,
    MOSSES,
    NOW,
    PROSE,
    URL,
    field_values,
    model_answer,
    page_content,
    problem_codes,
    read_with_client,
    read_with_model,
    read_without_model,
)
from ingestion_pipeline_tests.reading.llm.model_questions import in_turn, model_call_rows, settings_with_model
from ingestion_pipeline_tests.reading.tables import table

COMPETENCY = entity_type("competency")


@pytest.mark.parametrize("name", ["courseleaf_titles", "json_ld", "plain_table", "coursedog_api"])
def test_a_page_that_rules_read_completely_costs_no_call(store: Store, settings: Settings, name: str) -> None:
    page = page_content(saved_body(name), text=saved_body(name) if name.endswith("_api") else None)

    reading, requests = read_with_model(store, settings, page, in_turn(model_answer()))

    assert reading.records
    assert requests == []
    assert model_call_rows(store) == []
    assert (reading.model, reading.reason) == (None, "")


@pytest.mark.both_databases
def test_the_same_page_is_requested_once_and_again_after_its_schema_changed(store: Store, settings: Settings) -> None:
    changed = COURSE.model_copy(update={"about": "A course is what a garden teaches."})
    with ScriptedModel(in_turn(model_answer(MOSSES))) as model:
        model_settings = settings_with_model(model.base_url, settings)
        first = read_with_client(store, model_settings, page_content(PROSE))
        again = read_with_client(store, model_settings, page_content(PROSE))
        calls = len(model.requests)
        read_with_client(
            store, model_settings, page_content(PROSE), kind=EntityType.model_validate(changed.model_dump())
        )
        read_with_client(
            store, model_settings, page_content(PROSE), kind=EntityType.model_validate(changed.model_dump())
        )

    assert first.records == again.records
    assert (calls, len(model.requests)) == (1, 2)


@pytest.mark.both_databases
def test_a_used_up_budget_stops_the_read_and_names_the_extraction(store: Store, settings: Settings) -> None:
    with pytest.raises(ExtractionOverBudget) as stopped:
        read_with_model(
            store, settings, page_content(PROSE), in_turn(model_answer()), INGESTION_MODEL_BUDGET_USD="0.0001"
        )

    assert stopped.value.over.extraction_id == 7
    assert stopped.value.over.limit_usd == Decimal("0.0001")
    assert isinstance(stopped.value, Resource)
    assert model_call_rows(store) == []


def test_every_kind_of_request_has_its_call_site_and_page(store: Store, settings: Settings) -> None:
    wrong = model_answer(MOSSES | {"course_id": "GRD-77"})

    read_with_model(store, settings, page_content(PROSE), in_turn(wrong, model_answer(MOSSES)))

    rows = model_call_rows(store)
    assert [row.call_site for row in rows] == ["extract", "extract.alone"]
    assert {(row.extraction_id, row.page_id, row.source_id) for row in rows} == {(7, 4, "catalog:a")}


def test_without_a_model_rules_decide_on_courses(settings: Settings) -> None:
    reading = read_without_model(page_content(PROSE), settings)

    assert reading.records == ()
    assert reading.problems == ()
    assert any("no model configured" in note for note in reading.notes)


def test_an_empty_result_page_gives_no_record_and_no_error(settings: Settings) -> None:
    reading = read_without_model(page_content(saved_body("none_empty_results")), settings)

    assert (reading.records, reading.problems, reading.method) == ((), (), None)


@pytest.mark.parametrize("name", ["learning_program", "credential"])
def test_without_a_model_a_page_that_rules_cannot_decide_waits_for_one(settings: Settings, name: str) -> None:
    with pytest.raises(Resource, match="no model configured") as waits:
        read_without_model(page_content("<p>Come and see us.</p>"), settings, kind=entity_type(name))

    assert waits.value.code == "no_model"
    assert waits.value.until > NOW


def test_a_client_without_a_model_is_like_no_client(store: Store, settings: Settings) -> None:
    assert read_with_client(store, settings, page_content(PROSE)).records == ()


def test_an_empty_body_is_fetched_again(settings: Settings) -> None:
    with pytest.raises(Transient):
        read_without_model(page_content(" ", text=""), settings)


def test_a_course_without_a_required_field_is_not_among_the_records(settings: Settings) -> None:
    reading = read_without_model(page_content(saved_body("banner_listing")), settings)

    assert "ACC 0100" not in field_values(reading, "course_id")
    assert [problem.code for problem in reading.problems] == ["incomplete"]


LIST_PAGE = (
    "<h2>What our graduates do</h2><p>Prune a rose without harm</p><p>Name forty mosses</p>"
    "<a href=/outcomes/year-2>Second year</a><a href=https://other.test/outcomes>Elsewhere</a>"
)


def presence_answer(*, has_list: bool, heading: str | None) -> Say:
    heading_json = "null" if heading is None else f'"{heading}"'
    return Say(text=f'{{"has_list": {str(has_list).lower()}, "heading": {heading_json}}}')


def presence_script(presence: Say, records: Say) -> Script:
    def reply(request: ModelRequest) -> Reply:
        return presence if "has_list" in request.schema["properties"] else records

    return reply


PRUNING = model_answer({"text": "Prune a rose without harm"}, kind=COMPETENCY)


@pytest.mark.parametrize(
    ("presence", "calls"),
    [
        (presence_answer(has_list=False, heading=None), 1),
        (presence_answer(has_list=True, heading="A heading of its own making"), 1),
        (presence_answer(has_list=True, heading="What our graduates do"), 2),
    ],
)
def test_competencies_are_requested_only_under_a_heading_of_the_page(
    store: Store, settings: Settings, presence: Say, calls: int
) -> None:
    reading, requests = read_with_model(
        store, settings, page_content(LIST_PAGE), presence_script(presence, PRUNING), kind=COMPETENCY
    )

    assert len(requests) == calls
    assert len(reading.records) == calls - 1
    if calls == 1:
        assert "no list" in reading.notes[-1]


def test_links_a_model_wants_explored_must_be_on_the_page(store: Store, settings: Settings) -> None:
    proposed = ["/outcomes/year-2", "https://college.test/invented", "https://other.test/outcomes"]
    records = model_answer({"text": "Name forty mosses"}, kind=COMPETENCY, explore=proposed)
    presence = presence_answer(has_list=True, heading="What our graduates do")

    reading, _ = read_with_model(
        store, settings, page_content(LIST_PAGE), presence_script(presence, records), kind=COMPETENCY
    )

    assert reading.explored == ("https://college.test/outcomes/year-2",)


def test_each_read_is_billed_to_its_own_page(store: Store, settings: Settings) -> None:
    other = Billing(call_site="extract", source_id="catalog:b", page_id=9, extraction_id=8)

    read_with_model(store, settings, page_content(PROSE, url=URL), in_turn(model_answer(MOSSES)))
    read_with_model(store, settings, page_content(PROSE, url=URL), in_turn(model_answer(MOSSES)), billing=other)

    assert [(row.page_id, row.status) for row in model_call_rows(store)][1][0] == 9


RECORDS = [Record(entity="competency", fields={}, evidence={}, method=ExtractionMethod.LAYOUT, confidence=1)]
PAGE_URL = "https://college.test/a"


def links_explored(html: str, *, url: str = PAGE_URL, **more: object) -> tuple[str, ...]:
    return explored_links(COMPETENCY, page_content(html, url=url), RECORDS, **more)  # type: ignore[arg-type]


def test_links_are_chosen_by_their_words_and_by_their_address() -> None:
    html = (
        "<a href=/b>Learning outcomes</a><a href=/program-competencies>More</a>"
        "<a href=/fees>Fees</a><a href=/b>Outcomes again</a>"
    )

    assert links_explored(html) == ("https://college.test/b", "https://college.test/program-competencies")


def test_other_hosts_the_page_itself_and_hidden_links_are_not_explored() -> None:
    html = (
        "<a href=https://other.test/outcomes>Outcomes</a><a href=/a#top>Outcomes</a>"
        "<a href=//college.test.evil.test/outcomes>Outcomes</a>"
        "<a href=/trap style='display:none'>Outcomes</a><a href=javascript:x()>Outcomes</a>"
        "<a href=http://college.test:81/outcomes>Outcomes</a>"
    )

    assert links_explored(html) == ()


def test_an_invented_url_is_refused_and_one_on_the_page_is_taken_first() -> None:
    html = "<a href=/outcomes>Outcomes</a><a href=/year-2>Second year</a>"

    links = links_explored(html, proposed=["https://college.test/secret", "https://college.test/year-2"])

    assert links == ("https://college.test/year-2", "https://college.test/outcomes")


def test_a_loop_of_two_pages_leads_to_no_third() -> None:
    there = links_explored("<a href=/b>Outcomes</a>", url="https://college.test/a")
    back = links_explored("<a href=/a>Outcomes</a>", url="https://college.test/b")

    assert (*there, *back) == ("https://college.test/b", "https://college.test/a")


def test_explored_links_are_limited() -> None:
    html = "".join(f"<a href=/outcomes/{n}>Outcomes {n}</a>" for n in range(50))

    assert len(links_explored(html)) == 20


def test_a_page_without_records_and_a_type_that_does_not_explore_have_no_links() -> None:
    page = page_content("<a href=/outcomes>Outcomes</a>", url=PAGE_URL)

    assert explored_links(COMPETENCY, page, []) == ()
    assert explored_links(entity_type("course"), page, RECORDS) == ()


FILLER = "It takes a whole season, and much patience, rain and good shoes. " * 6
PLANT_COURSE = re.compile(r"The life of plant (\d+)\nRef G-(\d+)\. (About plant \d+ .*)")


def plant_courses(count: int, *, tag: str = "h3") -> str:
    return "".join(
        f"<{tag}>The life of plant {n}</{tag}><p>Ref G-{n}. About plant {n} in a year. {FILLER}</p>"
        for n in range(1, count + 1)
    )


def read_shown_plants(request: ModelRequest) -> Reply:
    """Answer with the plants in the prompt, and only those."""
    return model_answer(
        *(
            {"course_id": f"G-{n}", "course_name": f"The life of plant {n}", "course_description": d}
            for n, _, d in PLANT_COURSE.findall(request.text)
        )
    )


def page_parts(html: str, announced: int | None) -> list[tuple[str, int | None]]:
    text = cleaned_text(html)
    split = parts_of(COURSE, text, visible_tree(html), announced=announced)
    return [(text[part.start : part.end], part.expected) for part in split]


def test_a_short_page_is_one_part() -> None:
    assert [expected for _, expected in page_parts(plant_courses(2), 2)] == [2]


def test_a_long_page_is_split_at_its_repeated_headings_without_its_introduction() -> None:
    parts = page_parts(f"<p>Our garden has 24 courses for you.</p>{plant_courses(24)}", 24)

    assert sum(expected or 0 for _, expected in parts) == 24
    assert len(parts) > 3
    assert all(text.startswith("The life of plant") for text, _ in parts)
    assert all(text.count("Ref G-") == expected for text, expected in parts)
    assert max(tokens_of(text) for text, _ in parts) <= LONG_TOKENS
    assert "Our garden" not in parts[0][0]


def test_a_page_is_split_at_course_codes_without_an_announced_count() -> None:
    lines = "".join(f"<p>BIO {n} Plants part {n}</p><p>{FILLER}</p>" for n in range(100, 115))

    parts = page_parts(lines, None)

    assert sum(expected or 0 for _, expected in parts) == 15
    assert all(text.startswith("BIO ") for text, _ in parts)


@pytest.mark.parametrize(("headings", "announced"), [(12, 15), (4, 5)])
def test_headings_that_differ_from_the_announced_count_are_not_used(headings: int, announced: int) -> None:
    assert page_parts(plant_courses(headings) + f"<p>{FILLER * 8}</p>", announced) == []


def test_a_part_by_size_ends_with_a_line() -> None:
    text = "\n".join(f"Line {n} of the page, with some words." for n in range(500))

    part = next_part(text, 0)

    assert text[part.start : part.end].endswith("\n")
    assert tokens_of(text[part.start : part.end]) <= LONG_TOKENS


@pytest.mark.parametrize(
    ("count", "expected", "is_right"),
    [(5, 5, True), (4, 5, False), (38, 42, True), (37, 42, False), (46, 42, True), (0, 1, False)],
)
def test_few_are_counted_exactly_and_many_nearly(count: int, expected: int, is_right: bool) -> None:
    assert is_expected_count(count, expected) is is_right


@pytest.mark.parametrize(("html", "count"), table(__file__, "test_the_announced_number_of_records_is_read"))
def test_the_announced_number_of_records_is_read(html: str, count: int | None) -> None:
    announced = announced_count(COURSE, cleaned_text(html), Document(html, url="https://a.test/"))

    assert announced == count


def test_every_record_of_a_long_page_is_read_once_and_in_order(store: Store, settings: Settings) -> None:
    page = page_content(f"<p>24 courses</p>{plant_courses(24)}")

    reading, requests = read_with_model(store, settings, page, read_shown_plants)

    assert field_values(reading, "course_id") == [f"G-{n}" for n in range(1, 25)]
    assert len(requests) > 3
    assert reading.problems == ()
    assert not any(record.is_flagged for record in reading.records)


def test_without_headings_a_long_page_is_split_by_size_and_no_record_is_cut(store: Store, settings: Settings) -> None:
    page = page_content(f"<p>24 courses</p>{plant_courses(24, tag='div')}")

    reading, requests = read_with_model(store, settings, page, read_shown_plants)

    assert field_values(reading, "course_id") == [f"G-{n}" for n in range(1, 25)]
    described = field_values(reading, "course_description")
    assert all(text.endswith("good shoes.") for text in described)
    assert len(requests) > 3
    assert reading.problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("tag", ["h2", "div"])
def test_a_truncated_answer_is_requested_in_halves_without_loss(store: Store, settings: Settings, tag: str) -> None:
    def truncating_model(request: ModelRequest) -> Reply:
        reply = read_shown_plants(request)
        is_long = len(PLANT_COURSE.findall(request.text)) > 2
        return Say(text="{", is_cut=True) if is_long else reply

    page = page_content(f"<p>24 courses</p>{plant_courses(24, tag=tag)}")
    reading, requests = read_with_model(store, settings, page, truncating_model)

    assert field_values(reading, "course_id") == [f"G-{n}" for n in range(1, 25)]
    assert all(text.endswith("good shoes.") for text in field_values(reading, "course_description"))
    assert reading.problems == ()
    assert {request.model for request in requests} == {"cheap"}


def test_a_model_whose_answers_are_always_truncated_is_requested_a_limited_number_of_times(
    store: Store, settings: Settings
) -> None:
    lines = "".join(f"<p>Line {n} of a page about plants and their life.</p>" for n in range(60))
    page = page_content(lines)
    assert LONG_TOKENS * 0.8 < tokens_of(page.text) <= LONG_TOKENS
    with ScriptedModel(lambda _: Say(text="{", is_cut=True)) as model:
        model_settings = settings_with_model(model.base_url, settings)
        with pytest.raises(Permanent, match="no usable answer"):
            read_with_client(store, model_settings, page)

    # The whole page, a half, a quarter, and an eighth, which the strong model is asked for, too.
    assert [request.model for request in model.requests] == ["cheap"] * 4 + ["strong"]


@pytest.mark.slow
def test_records_left_out_by_the_cheap_model_are_requested_from_the_strong_one(
    store: Store, settings: Settings
) -> None:
    def lazy(request: ModelRequest) -> Reply:
        reply = read_shown_plants(request)
        return reply if request.model == "strong" else model_answer()

    page = page_content(f"<p>24 courses</p>{plant_courses(24)}")
    reading, requests = read_with_model(store, settings, page, lazy)

    assert len(reading.records) == 24
    assert {str(record.method) for record in reading.records} == {"strong_model"}
    assert {request.model for request in requests} == {"cheap", "strong"}


@pytest.mark.slow
def test_records_that_no_model_finds_are_a_problem_of_the_page(store: Store, settings: Settings) -> None:
    def blind(request: ModelRequest) -> Reply:
        plants = [plant for plant in PLANT_COURSE.findall(request.text) if plant[0] not in {"3", "4", "5"}]
        return model_answer(
            *(
                {"course_id": f"G-{n}", "course_name": f"The life of plant {n}", "course_description": d}
                for n, _, d in plants
            )
        )

    page = page_content(f"<p>24 courses</p>{plant_courses(24)}")
    reading, _ = read_with_model(store, settings, page, blind)

    assert len(reading.records) == 21
    assert set(problem_codes(reading)) == {"count_mismatch"}
    assert any("announces 24" in problem.message for problem in reading.problems)


def test_after_a_failure_no_further_part_is_requested(store: Store, settings: Settings) -> None:
    page = page_content(f"<p>40 courses</p>{plant_courses(40)}")
    with ScriptedModel(in_turn(Fail(status=401, message="no such key"))) as model:
        model_settings = settings_with_model(model.base_url, settings)
        with pytest.raises(Resource):
            read_with_client(store, model_settings, page)

    assert 1 <= len(model.requests) <= MAX_CONCURRENT_QUESTIONS


def test_a_long_page_about_one_programme_is_not_split() -> None:
    sections = "".join(f"<h2>{name}</h2><p>{FILLER * 5}</p>" for name in ("About", "Work"))
    html = f"<h1>Botany programme</h1>{sections}"
    text = cleaned_text(html)

    split = parts_of(entity_type("learning_program"), text, visible_tree(html), announced=None)

    assert tokens_of(text) > LONG_TOKENS
    assert [(part.start, part.end) for part in split] == [(0, len(text))]
