"""Courses of catalogues whose layout no rule names: with codes and without, amid menus, filters, news and footers."""

from collections.abc import Iterable

import pytest

from ingestion_pipeline_tests.catalogs.catalogue_layouts import (
    SCORED_ONLY,
    SCORED_ONLY_WITHOUT_CODES,
    WITH_CODES,
    WITHOUT_CODES,
    Layout,
    LayoutScore,
    course_texts,
)
from ingestion_pipeline_tests.catalogs.course_pages import read_courses
from ingestion_pipeline_tests.samples import sample


def scored(*groups: tuple[Iterable[Layout], bool]) -> LayoutScore:
    score = LayoutScore()
    texts = course_texts(sample("courses/acalog/rpi_catalog_250.json"))
    for layouts, has_codes in groups:
        for layout in layouts:
            score.add(layout, texts, has_codes=has_codes)
    return score


def assert_nearly_all_are_read(score: LayoutScore) -> None:
    assert score.recall >= 0.95
    assert score.precision >= 0.95
    assert score.described >= 0.85 * score.expected


@pytest.mark.parametrize("layout", WITH_CODES.values(), ids=lambda layout: layout.__name__)
def test_courses_with_codes_are_read_in_layouts_that_no_rule_names(layout: Layout) -> None:
    assert_nearly_all_are_read(scored(([layout], True)))


@pytest.mark.parametrize("layout", WITHOUT_CODES.values(), ids=lambda layout: layout.__name__)
def test_courses_without_codes_have_their_titles_for_keys(layout: Layout) -> None:
    assert_nearly_all_are_read(scored(([layout], False)))


def test_layouts_that_nobody_saw_while_writing_the_rules_are_read_as_well() -> None:
    assert_nearly_all_are_read(scored((SCORED_ONLY.values(), True), (SCORED_ONLY_WITHOUT_CODES.values(), False)))


COURSE_PAGE = """<title>Pottery</title><nav><a href=/>Home</a></nav><h1>Pottery for beginners</h1>
<p><b>Duration:</b> 10 weeks</p><p><b>Location:</b> Main campus</p>
<p>You learn to throw, trim and glaze pots on the wheel, and take home what you made.</p>"""


def test_a_page_about_one_course_without_a_code_has_its_title_for_a_key() -> None:
    assert read_courses(COURSE_PAGE) == []  # its address does not say that it is about a course

    [found] = read_courses(COURSE_PAGE, url="https://c.example/evening-classes/pottery")

    assert (found["course_id"], found["course_name"]) == ("Pottery for beginners", "Pottery for beginners")
    assert found["course_description"].startswith("You learn to throw")


def article(title: str, text: str) -> str:
    return f"<div class='post'><h3>{title}</h3><p>{text}</p></div>"


def test_a_list_of_news_is_no_catalogue() -> None:
    posts = "".join(
        article(title, "The city council met on Monday evening and took a decision about it after some hours.")
        for title in ("A bridge for the river", "A park for the north", "A tram to the harbour", "Rain all week")
    )

    assert read_courses(f"<html><head><title>City news</title></head><body><h1>News</h1>{posts}</body></html>") == []


def test_office_365_in_a_footer_is_no_course() -> None:
    body = "".join(
        f"<h3>BIO {number} Life {number}</h3><p>This course is about life, and how it came to be what it is.</p>"
        for number in range(101, 105)
    )
    footer = "<div class='bottom'><p>Office 365 | Moodle | Email</p><p>All of it is free while you study with us.</p>"

    found = read_courses(f"<body><div><h1>Courses</h1>{body}</div>{footer}</div></body>")

    assert [course["course_id"] for course in found] == ["BIO 101", "BIO 102", "BIO 103", "BIO 104"]
