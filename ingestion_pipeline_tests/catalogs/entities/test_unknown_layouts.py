"""Courses of catalogues whose layout no rule names: with codes and without, amid menus, filters, news and footers."""

import json
import random
import re
from collections.abc import Mapping
from functools import cache

import pytest

from ingestion_pipeline_tests.catalogs.catalogue_layouts import (
    CODES,
    SCORED_ONLY,
    SCORED_ONLY_WITHOUT_CODES,
    WITH_CODES,
    WITHOUT_CODES,
    Course,
    Layout,
    page,
)
from ingestion_pipeline_tests.catalogs.course_pages import read_courses
from ingestion_pipeline_tests.samples import sample

CODED = [*WITH_CODES.values(), *SCORED_ONLY.values()]
UNCODED = [*WITHOUT_CODES.values(), *SCORED_ONLY_WITHOUT_CODES.values()]


@cache
def real_texts() -> list[tuple[str, str]]:
    rows = json.loads(sample("courses/acalog/rpi_catalog_250.json").read_text()).values()
    texts = {row["name"]: " ".join(row["description"].split()) for row in rows}
    return [(name, text) for name, text in texts.items() if len(text.split()) > 12]


def courses(seed: int, *, has_codes: bool) -> list[Course]:
    chosen = random.Random(seed).sample(real_texts(), (4, 8, 15)[seed % 3])
    return [
        Course(code=CODES[seed % len(CODES)](number * 7) if has_codes else None, title=title, text=text)
        for number, (title, text) in enumerate(chosen)
    ]


def words(text: object) -> str:
    return re.sub("[^a-z0-9]+", "", str(text).lower())


def describes(text: object, expected: str) -> bool:
    """Whether the text is the expected one, but for credits at its end."""
    return words(text).startswith(words(expected)) and len(words(text)) <= len(words(expected)) + 10


def assert_all_are_read(layout: Layout, *, has_codes: bool) -> None:
    """Recall and precision of records and descriptions, over pages of each number of courses and each chrome."""
    expected = read = right = described = 0
    for seed in range(6):
        truth = {words(course.key): course for course in courses(seed, has_codes=has_codes)}
        found: Mapping[str, Mapping[str, object]] = {
            words(record["course_id"]): record for record in read_courses(page(layout, list(truth.values()), seed=seed))
        }
        hits = truth.keys() & found.keys()
        expected, read, right = expected + len(truth), read + len(found), right + len(hits)
        described += sum(describes(found[key]["course_description"], truth[key].text) for key in hits)
    assert right >= 0.95 * expected
    assert right >= 0.95 * read
    assert described >= 0.85 * expected


@pytest.mark.parametrize("layout", CODED, ids=lambda layout: layout.__name__)
def test_courses_with_codes_are_read_in_layouts_that_no_rule_names(layout: Layout) -> None:
    assert_all_are_read(layout, has_codes=True)


@pytest.mark.parametrize("layout", UNCODED, ids=lambda layout: layout.__name__)
def test_courses_without_codes_have_their_titles_for_keys(layout: Layout) -> None:
    assert_all_are_read(layout, has_codes=False)


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
