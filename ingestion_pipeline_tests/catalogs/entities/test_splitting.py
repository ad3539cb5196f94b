"""Long pages with several records: where they are split, and that none is lost or cut unseen."""

from __future__ import annotations

import re

import pytest

from ingestion_pipeline.catalogs.extraction import entity_type
from ingestion_pipeline.catalogs.extraction.model_methods import MAX_CONCURRENT_QUESTIONS
from ingestion_pipeline.catalogs.extraction.prompts import LONG_TOKENS, next_part, parts_of, tokens_of
from ingestion_pipeline.catalogs.extraction.rules.counting import announced_count, is_expected_count
from ingestion_pipeline.demo.model_server import Fail, ModelRequest, Reply, Say, ScriptedModel, in_turn
from ingestion_pipeline.reading.html.cleaning import cleaned_text, visible_tree
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks.errors import Permanent, Resource
from ingestion_pipeline_tests.catalogs.entities.climbing import COURSE, a_page, answer, climb, climb_with, codes, values
from ingestion_pipeline_tests.reading.models.asking import leading_to

FILLER = "It takes a whole season, and much patience, rain and good shoes. " * 6
SHOWN = re.compile(r"The life of plant (\d+)\nRef G-(\d+)\. (About plant \d+ .*)")


@pytest.fixture
def database() -> str:
    return "sqlite"


def plants(count: int, *, tag: str = "h3") -> str:
    return "".join(
        f"<{tag}>The life of plant {n}</{tag}><p>Ref G-{n}. About plant {n} in a year. {FILLER}</p>"
        for n in range(1, count + 1)
    )


def gardener(asked: ModelRequest) -> Reply:
    """A model that reads what it is shown, and that alone."""
    return answer(
        *(
            {"course_id": f"G-{n}", "course_name": f"The life of plant {n}", "course_description": d}
            for n, _, d in SHOWN.findall(asked.text)
        )
    )


def parts(html: str, announced: int | None) -> list[tuple[str, int | None]]:
    text = cleaned_text(html)
    found = parts_of(COURSE, text, visible_tree(html), announced=announced)
    return [(text[one.start : one.end], one.expected) for one in found]


def test_a_short_page_is_one_part() -> None:
    assert [expected for _, expected in parts(plants(2), 2)] == [2]


def test_a_long_page_is_split_at_its_repeated_headings_and_what_stands_before_is_left_out() -> None:
    found = parts(f"<p>Our garden has 24 courses for you.</p>{plants(24)}", 24)

    assert sum(expected or 0 for _, expected in found) == 24
    assert len(found) > 3
    assert all(text.startswith("The life of plant") for text, _ in found)
    assert all(text.count("Ref G-") == expected for text, expected in found)
    assert max(tokens_of(text) for text, _ in found) <= LONG_TOKENS
    assert "Our garden" not in found[0][0]


def test_course_codes_show_where_to_split_though_nothing_is_announced() -> None:
    lines = "".join(f"<p>BIO {n} Plants part {n}</p><p>{FILLER}</p>" for n in range(100, 115))

    found = parts(lines, None)

    assert sum(expected or 0 for _, expected in found) == 15
    assert all(text.startswith("BIO ") for text, _ in found)


@pytest.mark.parametrize(("headings", "announced"), [(12, 15), (4, 5)])
def test_headings_that_are_not_as_many_as_announced_are_not_believed(headings: int, announced: int) -> None:
    assert parts(plants(headings) + f"<p>{FILLER * 8}</p>", announced) == []


def test_a_part_by_size_ends_with_a_line() -> None:
    text = "\n".join(f"Line {n} of the page, with some words." for n in range(500))

    part = next_part(text, 0)

    assert text[part.start : part.end].endswith("\n")
    assert tokens_of(text[part.start : part.end]) <= LONG_TOKENS


@pytest.mark.parametrize(
    ("found", "expected", "is_right"),
    [(5, 5, True), (4, 5, False), (38, 42, True), (37, 42, False), (46, 42, True), (0, 1, False)],
)
def test_few_are_counted_exactly_and_many_nearly(found: int, expected: int, is_right: bool) -> None:
    assert is_expected_count(found, expected) is is_right


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
def test_a_page_announces_how_many_it_has(html: str, count: int | None) -> None:
    found = announced_count(COURSE, cleaned_text(html), html, "https://a.test/")

    assert found == count


def test_every_record_of_a_long_page_is_read_once_and_in_order(store: Store, settings: Settings) -> None:
    page = a_page(f"<p>24 courses</p>{plants(24)}")

    reading, asked = climb_with(store, settings, page, gardener)

    assert values(reading, "course_id") == [f"G-{n}" for n in range(1, 25)]
    assert len(asked) > 3
    assert reading.problems == ()
    assert not any(record.is_flagged for record in reading.records)


def test_without_headings_a_long_page_is_split_by_size_and_no_record_is_cut(store: Store, settings: Settings) -> None:
    page = a_page(f"<p>24 courses</p>{plants(24, tag='div')}")

    reading, asked = climb_with(store, settings, page, gardener)

    assert values(reading, "course_id") == [f"G-{n}" for n in range(1, 25)]
    described = values(reading, "course_description")
    assert all(text.endswith("good shoes.") for text in described)
    assert len(asked) > 3
    assert reading.problems == ()


@pytest.mark.parametrize("tag", ["h2", "div"])
def test_an_answer_that_is_cut_off_is_asked_for_in_halves_and_nothing_is_lost(
    store: Store, settings: Settings, tag: str
) -> None:
    def short_of_breath(asked: ModelRequest) -> Reply:
        said = gardener(asked)
        is_much = len(SHOWN.findall(asked.text)) > 2
        return Say(text="{", is_cut=True) if is_much else said

    page = a_page(f"<p>24 courses</p>{plants(24, tag=tag)}")
    reading, asked = climb_with(store, settings, page, short_of_breath)

    assert values(reading, "course_id") == [f"G-{n}" for n in range(1, 25)]
    assert all(text.endswith("good shoes.") for text in values(reading, "course_description"))
    assert reading.problems == ()
    assert {one.model for one in asked} == {"cheap"}


def test_a_model_that_is_cut_off_whatever_it_is_shown_is_asked_so_often_and_no_more(
    store: Store, settings: Settings
) -> None:
    lines = "".join(f"<p>Line {n} of a page about plants and their life.</p>" for n in range(60))
    page = a_page(lines)
    assert LONG_TOKENS * 0.8 < tokens_of(page.text) <= LONG_TOKENS
    with ScriptedModel(lambda _: Say(text="{", is_cut=True)) as model:
        leading = leading_to(model.base_url, settings)
        with pytest.raises(Permanent, match="no usable answer"):
            climb(store, leading, page)

    # The whole, a half, a quarter, and an eighth of it, which the strong model is asked about, too.
    assert [one.model for one in model.requests] == ["cheap"] * 4 + ["strong"]


def test_a_model_that_leaves_records_out_is_found_out_and_the_strong_one_asked(
    store: Store, settings: Settings
) -> None:
    def lazy(asked: ModelRequest) -> Reply:
        said = gardener(asked)
        return said if asked.model == "strong" else answer()

    page = a_page(f"<p>24 courses</p>{plants(24)}")
    reading, asked = climb_with(store, settings, page, lazy)

    assert len(reading.records) == 24
    assert {str(one.method) for one in reading.records} == {"strong_model"}
    assert {one.model for one in asked} == {"cheap", "strong"}


def test_what_no_model_finds_is_a_problem_of_the_page(store: Store, settings: Settings) -> None:
    def blind(asked: ModelRequest) -> Reply:
        found = [one for one in SHOWN.findall(asked.text) if one[0] not in {"3", "4", "5"}]
        return answer(
            *(
                {"course_id": f"G-{n}", "course_name": f"The life of plant {n}", "course_description": d}
                for n, _, d in found
            )
        )

    page = a_page(f"<p>24 courses</p>{plants(24)}")
    reading, _ = climb_with(store, settings, page, blind)

    assert len(reading.records) == 21
    assert set(codes(reading)) == {"count_mismatch"}
    assert any("announces 24" in one.message for one in reading.problems)


def test_after_a_failure_no_further_part_is_asked_about(store: Store, settings: Settings) -> None:
    page = a_page(f"<p>40 courses</p>{plants(40)}")
    with ScriptedModel(in_turn(Fail(status=401, message="no such key"))) as model:
        leading = leading_to(model.base_url, settings)
        with pytest.raises(Resource):
            climb(store, leading, page)

    assert 1 <= len(model.requests) <= MAX_CONCURRENT_QUESTIONS


def test_a_long_page_about_one_programme_is_not_split() -> None:
    sections = "".join(f"<h2>{name}</h2><p>{FILLER * 5}</p>" for name in ("About", "Work"))
    html = f"<h1>Botany programme</h1>{sections}"
    text = cleaned_text(html)

    found = parts_of(entity_type("learning_program"), text, visible_tree(html), announced=None)

    assert tokens_of(text) > LONG_TOKENS
    assert [(one.start, one.end) for one in found] == [(0, len(text))]
