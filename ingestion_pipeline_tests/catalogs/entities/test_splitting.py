"""Long pages with several records: where they are split, and that no record is lost or cut."""

import re

import pytest

from ingestion_pipeline.catalogs.extraction.entity_type import entity_type
from ingestion_pipeline.catalogs.extraction.model_methods import (
    LONG_TOKENS,
    MAX_CONCURRENT_QUESTIONS,
    next_part,
    parts_of,
    tokens_of,
)
from ingestion_pipeline.catalogs.extraction.record import announced_count, is_expected_count
from ingestion_pipeline.demo.model_server import Fail, ModelRequest, Reply, Say, ScriptedModel, in_turn
from ingestion_pipeline.reading.html.cleaning import cleaned_text, visible_tree
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks.errors import Permanent, Resource
from ingestion_pipeline_tests.catalogs.entities.page_readings import (
    COURSE,
    field_values,
    model_answer,
    page_content,
    problem_codes,
    read_with_client,
    read_with_model,
)
from ingestion_pipeline_tests.reading.llm.model_questions import settings_with_model

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


@pytest.mark.parametrize(
    ("html", "count"),
    [
        ("<p>42 courses</p>", 42),
        ("<p>There are 1,204 courses in all.</p>", 1204),
        ("<p>Showing 21-40 of 1,204 courses</p>", 20),
        ("<p>RESULTS 1 TO 20 OF 42 COURSES</p>", 20),
        ("<p>42</p><p>Courses</p>", 42),
        ("<p>Choose 3 courses from the list</p>", None),
        ("<p>12 courses in art, 15 courses in music</p>", None),
        ("<p>42 courses</p><a rel=next href=/p2>Next</a>", None),
        ("<p>COURSES 101 and 102</p>", None),
    ],
)
def test_the_announced_number_of_records_is_read(html: str, count: int | None) -> None:
    announced = announced_count(COURSE, cleaned_text(html), html, "https://a.test/")

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
