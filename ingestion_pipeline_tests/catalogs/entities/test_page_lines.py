"""A page as lines, and where its last course ends."""

from __future__ import annotations

import pytest

from ingestion_pipeline.catalogs.extraction.rules.courses import own_lines
from ingestion_pipeline.catalogs.extraction.rules.page_lines import Line, content_lines
from ingestion_pipeline.reading.html.cleaning import visible_tree

PROSE = "Students study the growth of plants in many soils."


def lines(html: str) -> list[Line]:
    return content_lines(visible_tree(html))


@pytest.mark.parametrize(
    "html",
    [
        "<dl><dt>Credits</dt><dd>3</dd></dl>",
        "<table><tr><td>Credits</td><td>3</td></tr></table>",
        "<div><span class=fact__label>Credits</span><span>3</span></div>",
    ],
)
def test_what_names_the_next_line_is_told_from_it(html: str) -> None:
    assert [(line.text, line.is_term) for line in lines(html)] == [("Credits", True), ("3", False)]


@pytest.mark.parametrize("html", ["<pre>BIO 101\n  Plants</pre>", "BIO 101\n  Plants"])
def test_line_ends_count_where_there_is_no_other_layout(html: str) -> None:
    assert [line.text for line in lines(html)] == ["BIO 101", "Plants"]


def test_navigation_and_footers_are_no_content_but_the_head_of_an_article_is() -> None:
    page = "<header>Home</header><main><header>BIO 101</header></main><div class=footer>End</div>"

    assert [line.text for line in lines(page)] == ["BIO 101"]


def test_the_last_course_ends_where_what_no_other_has_begins() -> None:
    course = f"<div class=course><h3>BIO 1</h3><p>{PROSE}</p></div>"
    first, second = lines(course), lines(f"{course}{course}<div>Room 12, Main Street</div>")

    kept = own_lines([second[:2], second[2:]])

    assert [line.text for line in kept] == [line.text for line in first]


def test_a_single_course_keeps_facts_that_stand_beside_it() -> None:
    page = f"<div><h1>BIO 1</h1><p>{PROSE}</p></div><div><p>Credits: 3</p><p>Main Street</p></div>"

    kept = own_lines([lines(page)])

    assert [line.text for line in kept] == ["BIO 1", PROSE, "Credits: 3"]
