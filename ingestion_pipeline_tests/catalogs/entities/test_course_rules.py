"""Rules for the text of a course: its heading, its credits, its parts, and the lines of the page."""

from decimal import Decimal

import pytest

from ingestion_pipeline.catalogs.extraction.rules.course_building import own_lines, read_parts
from ingestion_pipeline.catalogs.extraction.rules.course_words import (
    leading_credits,
    read_code,
    read_credits,
    read_heading,
    reversed_heading,
    slot_credits,
    split_heading,
    trailing_credits,
)
from ingestion_pipeline.catalogs.extraction.rules.page_lines import Line, content_lines
from ingestion_pipeline.reading.html.cleaning import visible_tree
from ingestion_pipeline_tests.reading.tables import table


@pytest.mark.parametrize(
    ("line", "code", "title", "low", "high"), table(__file__, "test_code_title_and_credits_are_separated")
)
def test_code_title_and_credits_are_separated(
    line: str, code: str, title: str, low: str | None, high: str | None
) -> None:
    heading = read_heading(line)

    assert heading is not None
    assert (heading.code, heading.title) == (code, title)
    stated = heading.credits
    assert [stated and stated.low and str(stated.low), stated and stated.high and str(stated.high)] == [low, high]


@pytest.mark.parametrize(
    "line",
    [
        *("MATH 101 is required of all students.", "CS 101 or CS 102 with a grade of C"),
        *("M W 4:10pm", "FL2020 Departments", "CRN 12291", "CS 101 001", "3.00"),
        *("ISO 9001 certified again", "TOP 10 reasons", "COVID 19 rules", "ROOM 210", "MAY 2024 News"),
        *("The course is about CS 101", "", "1999 was a good year", "Chapter 10 Endings", "May 2024 News"),
    ],
)
def test_a_sentence_a_date_and_a_standard_are_no_courses(line: str) -> None:
    assert read_heading(line) is None


def test_a_single_line_course_is_split_after_its_credits() -> None:
    line = "TH 501 Church History I (3 hrs) - From the apostles to the councils."

    assert split_heading(line) == ("TH 501 Church History I (3 hrs)", "From the apostles to the councils.")
    assert split_heading("TH 501 Church History I (3 hrs)") is None
    assert split_heading("We offer TH 501 (3 hrs) and more of the same.") is None


@pytest.mark.parametrize(
    ("text", "code"), [("CIS*1300", "CIS*1300"), (" Bio 12 ", "Bio 12"), ("BIOL\u00a01010.", "BIOL 1010"), ("x", None)]
)
def test_codes_in_code_elements_are_normalized(text: str, code: str | None) -> None:
    assert read_code(text) == code


@pytest.mark.parametrize(
    ("line", "turned"),
    [
        ("Botany (BIO 101)", "BIO 101 Botany"),
        ("Ceramics I - ART 171", "ART 171 Ceramics I"),
        ("Postgraduate Course: Stories (LLLG07031)", "LLLG07031 Stories"),
        ("Prerequisite: BIO 101", None),
    ],
)
def test_a_code_may_end_a_heading(line: str, turned: str | None) -> None:
    assert reversed_heading(line) == turned


def test_a_bare_number_is_a_code_only_where_one_is_certain() -> None:
    assert read_code("005712") is None
    assert read_code("005712", is_sure=True) == "005712"
    assert read_code("Monday", is_sure=True) is None


ABOUT = "How programs are written and read."


@pytest.mark.parametrize(
    ("lines", "before"),
    [
        ([ABOUT, "Prerequisite: CS 101."], "CS 101."),
        ([f"{ABOUT} Prerequisites: CS 101 or consent."], "CS 101 or consent."),
        ([f"Prerequisite: CS 101. {ABOUT}"], "CS 101."),
        ([f"{ABOUT} Prereq: CS 101. Coreq: CS 102."], "CS 101."),
        ([ABOUT, "Prerequisites:", "CS 101 Minimum Grade of C"], "CS 101 Minimum Grade of C"),
        ([ABOUT, "Corequisites:", "CS 102"], None),
        ([ABOUT, "Prerequisites: None"], None),
        ([ABOUT, "Antirequisite: CS 103", "Exclusion: CS 104"], None),
        ([ABOUT, "Prerequisite(s): CS 101. Students need a C or better."], "CS 101. Students need a C or better."),
        (["3 Credits", ABOUT, "Restrictions: Majors only."], None),
        (["Course Attributes: Core", "Description", ABOUT], None),
        (["Fall", "Description:", ABOUT, "Typically Offered: Spring"], None),
        ([ABOUT, "Campus: North", "Module leader: Dr Quill"], None),
        ([f"(3 cr.) {ABOUT}"], None),
        (["Inhalt", ABOUT, "Voraussetzungen", "Keine"], None),
    ],
)
def test_only_prerequisites_are_prerequisites_and_only_prose_describes(lines: list[str], before: str | None) -> None:
    parts = read_parts(lines)

    assert parts.text() == ABOUT
    assert parts.required_before() == before


def test_page_furniture_is_left_out() -> None:
    parts = read_parts(["Print-Friendly Page (opens a new window)", ABOUT, "Back to Top", "Dept/CS"])

    assert parts.text() == ABOUT


PROSE = "Students study the growth of plants in many soils."


def page_lines(html: str) -> list[Line]:
    return content_lines(visible_tree(html))


@pytest.mark.parametrize(
    "html",
    [
        "<dl><dt>Credits</dt><dd>3</dd></dl>",
        "<table><tr><td>Credits</td><td>3</td></tr></table>",
        "<div><span class=fact__label>Credits</span><span>3</span></div>",
    ],
)
def test_labels_are_distinguished_from_their_values(html: str) -> None:
    assert [(line.text, line.is_term) for line in page_lines(html)] == [("Credits", True), ("3", False)]


@pytest.mark.parametrize("html", ["<pre>BIO 101\n  Plants</pre>", "BIO 101\n  Plants"])
def test_line_ends_count_where_there_is_no_other_layout(html: str) -> None:
    assert [line.text for line in page_lines(html)] == ["BIO 101", "Plants"]


def test_navigation_and_footers_are_no_content_but_the_head_of_an_article_is() -> None:
    page = "<header>Home</header><main><header>BIO 101</header></main><div class=footer>End</div>"

    assert [line.text for line in page_lines(page)] == ["BIO 101"]


def test_the_last_course_ends_before_content_that_no_other_course_has() -> None:
    course = f"<div class=course><h3>BIO 1</h3><p>{PROSE}</p></div>"
    first, second = page_lines(course), page_lines(f"{course}{course}<div>Room 12, Main Street</div>")

    lines_of_course = own_lines([second[:2], second[2:]])

    assert [line.text for line in lines_of_course] == [line.text for line in first]


def test_a_single_course_keeps_facts_that_stand_beside_it() -> None:
    page = f"<div><h1>BIO 1</h1><p>{PROSE}</p></div><div><p>Credits: 3</p><p>Main Street</p></div>"

    lines_of_course = own_lines([page_lines(page)])

    assert [line.text for line in lines_of_course] == ["BIO 1", PROSE, "Credits: 3"]


@pytest.mark.parametrize(("text", "low", "high", "kind"), table(__file__, "test_a_line_states_credits"))
def test_a_line_states_credits(text: str, low: str, high: str | None, kind: str | None) -> None:
    stated = read_credits(text)

    assert stated is not None
    assert stated.low == Decimal(low)
    assert stated.high == (Decimal(high) if high else None)
    assert stated.kind == kind


@pytest.mark.parametrize(
    "text",
    [
        *("3.000 Lecture hours", "Lecture Contact Hours: 3", "Lab Contact Hours: 0", "Room 3"),
        *("Carries no credit toward the major.", "120 credits", "credit for 2019 work", "$300 credits"),
    ],
)
def test_hours_of_teaching_sums_and_prose_are_no_credits(text: str) -> None:
    assert read_credits(text) is None


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("3", "3", None), ("[0.50]", "0.50", None), ("1 - 4", "1", "4"), ("2-4-6 units", "12", None)],
)
def test_in_a_slot_a_number_is_enough(text: str, low: str, high: str | None) -> None:
    stated = slot_credits(text)

    assert stated is not None
    assert stated.low == Decimal(low)
    assert stated.high == (Decimal(high) if high else None)


def test_continuing_education_units_and_non_credit_are_recognized() -> None:
    ceu, none = read_credits("CEUs: 9.6"), read_credits("Non-credit")

    assert ceu is not None
    assert (ceu.ceu, ceu.low) == (Decimal("9.6"), None)
    assert none is not None
    assert none.non_credit
    assert none.low is None


@pytest.mark.parametrize(
    "stated",
    [
        *("(3 cr.)", "(3 hrs.)", "(3)", "3 credits.", "Credit Hours: 3.00.", "Cr. 3. (3-0)."),
        *("Credits 3. 3 Lecture Hours.", "Units: 3;"),
    ],
)
def test_a_paragraph_may_begin_with_its_credits(stated: str) -> None:
    parsed = leading_credits(f"{stated} Who draws maps, and for whom.")

    assert parsed is not None
    assert parsed[0].low == 3
    assert parsed[1] == "Who draws maps, and for whom."


@pytest.mark.parametrize(
    ("text", "low"),
    [
        ("Sorting, searching and graphs. 3 credits.", 3),
        ("Sorting, searching and graphs. (4 units)", 4),
        ("Students who have earned 90 credits.", None),
        ("It may be repeated for up to 6 credits.", None),
    ],
)
def test_a_paragraph_may_end_with_its_credits(text: str, low: int | None) -> None:
    stated = trailing_credits(text)

    assert (stated.low if stated else None) == low


@pytest.mark.parametrize("text", ["(3 cr; A-F or Audit; offered Every Fall)", "3 Points of light"])
def test_a_remark_or_a_phrase_is_no_paragraph_with_credits(text: str) -> None:
    assert leading_credits(text) is None
