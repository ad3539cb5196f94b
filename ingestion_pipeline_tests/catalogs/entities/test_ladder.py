"""From a saved body to records: each layout, nothing invented, nothing that crashes."""

from __future__ import annotations

import json
import time
from random import Random

import pytest

from ingestion_pipeline.catalogs.entities.entity_type import EntityType, entity_type
from ingestion_pipeline.catalogs.entities.ladder import NoRules, read_records
from ingestion_pipeline.reading import cleaned_text
from ingestion_pipeline.work.errors import Permanent, Transient
from ingestion_pipeline_tests.catalogs.pages import WITH, WITHOUT, body, courses, expected

COURSE = entity_type("course")


@pytest.mark.parametrize("name", WITH)
def test_every_field_of_every_course_is_as_a_reader_sees_it(name: str) -> None:
    found = courses(body(name))

    wanted = expected(name)
    assert [
        {key: one[key] for key in want} for one, want in zip(found, wanted, strict=True)
    ] == wanted


@pytest.mark.parametrize("name", WITHOUT)
def test_a_page_without_courses_gives_none_and_no_problem(name: str) -> None:
    reading = read_records(COURSE, body(name))

    assert reading.records == []
    assert reading.problems == ()


@pytest.mark.parametrize("name", [name for name in WITH if not name.endswith("_api")])
def test_what_is_read_from_a_page_is_proved_by_the_page(name: str) -> None:
    text = cleaned_text(body(name))

    for record in read_records(COURSE, body(name)).records:
        for field, proof in record.evidence.items():
            assert proof.is_proof, (record.fields["course_id"], field)
            assert proof.end is None or proof.end <= len(text)


def test_each_course_is_proved_by_its_own_part_of_the_page() -> None:
    text = cleaned_text(body("banner_listing"))

    credits_of = [
        text[proof.start : proof.end]
        for record in read_records(COURSE, body("banner_listing")).records
        if (proof := record.evidence["course_credits_max"])
    ]

    assert credits_of == ["3.000", "6.000", "3.000", "0.000"]
    second = read_records(COURSE, body("banner_listing")).records[1]
    spans = [proof.start or 0 for proof in second.evidence.values()]
    assert max(spans) - min(spans) < 200


def test_a_course_without_description_is_shown_and_said_to_be_incomplete() -> None:
    reading = read_records(COURSE, body("banner_listing"))

    assert [one.where for one in reading.problems] == ["ACC 0100"]
    assert not reading.problems[0].hides_record


def test_the_cheapest_rung_that_finds_nearly_all_is_taken() -> None:
    thing = {"@type": "Course", "courseCode": "PHY 105", "name": "X", "description": "One of many."}
    script = f"<script type='application/ld+json'>{json.dumps(thing)}</script>"

    both = read_records(COURSE, body("definition_list").replace("</body>", f"{script}</body>"))

    assert {str(one.rung) for one in both.records} == {"layout"}
    assert len(both.records) == 4
    alone = read_records(COURSE, script)
    assert [str(one.rung) for one in alone.records] == ["embedded"]


def test_what_a_page_says_to_machines_alone_is_no_proof() -> None:
    thing = {"@type": "Course", "courseCode": "HACK 1", "name": "Pwned", "description": "Buy now."}
    script = f"<script type='application/ld+json'>{json.dumps(thing)}</script>"
    words = "We are a small college with a large garden and many friends. " * 10

    hidden = read_records(COURSE, f"<p>{words}</p>{script}").records[0]
    shown = read_records(COURSE, f"<h1>Pwned</h1><p>{words}</p>{script}").records[0]
    alone = read_records(COURSE, f"<div id=app></div>{script}").records[0]

    assert {str(one.status) for one in hidden.evidence.values()} == {"absent"}
    assert str(shown.evidence["course_name"].status) == "exact"
    assert str(shown.evidence["course_description"].status) == "source"
    assert {str(one.status) for one in alone.evidence.values()} == {"source"}


def test_a_block_that_the_page_repeats_is_one_course() -> None:
    twice = body("courseleaf_titles").replace("</main>", body("courseleaf_titles") + "</main>")

    assert len(courses(twice)) == 4


def test_a_type_whose_schema_has_no_rules_takes_a_model_or_selectors() -> None:
    bare = EntityType.model_validate({"name": "bird", "fields": [{"name": "wing", "kind": "text"}]})

    with pytest.raises(NoRules, match="selectors"):
        read_records(bare, "<p>x</p>")


def test_a_course_that_only_machines_are_told_of_does_not_hide_those_that_are_shown() -> None:
    thing = {"@type": "Course", "courseCode": "HACK 1", "name": "Pwned", "description": "Buy now."}
    script = f"<script type='application/ld+json'>{json.dumps(thing)}</script>"
    clean = body("courseleaf_titles")

    assert courses(clean.replace("</body>", f"{script * 9}</body>")) == courses(clean)


def test_what_is_no_body_is_refused() -> None:
    with pytest.raises(Transient):
        read_records(COURSE, " \n")
    with pytest.raises(Permanent, match="none"):
        read_records(COURSE, '{"data": [')
    with pytest.raises(Permanent):
        read_records(COURSE, "[" * 100_000)


def test_250_spoilt_pages_crash_nothing_and_take_no_time(random: Random) -> None:
    slowest = 0.0
    for _ in range(250):
        text = body(random.choice(WITH))
        place, length = random.randrange(len(text)), random.randrange(200)
        spoilt = (
            text[:place]
            + random.choice(["", "<td>", "CS 101 (", "\0", "|", "9" * 99])
            + text[place + length :]
        )
        started = time.thread_time()
        try:
            courses(spoilt)
        except (Permanent, Transient):
            continue
        slowest = max(slowest, time.thread_time() - started)

    assert slowest < 1


@pytest.mark.parametrize(
    "text",
    [
        "CS 101 " * 30_000,
        "<p>A A A A A 1</p>" * 3_000,
        "<h3>CS 101 X (3)</h3>" * 2_000,
        "(3" * 50_000,
    ],
)
def test_a_page_made_to_be_slow_is_not(text: str) -> None:
    started = time.thread_time()

    courses(f"<main>{text}</main>")

    assert time.thread_time() - started < 4


DESCRIBED = "Students study the growth of plants in many soils and climates."


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param("<h3>Plants {n} (BIO {n})</h3><p>3 credits</p><p>{text}</p>", id="code last"),
        pytest.param(
            "<table><tr><td>BIO {n} - Plants {n}</td></tr><tr><td>{text}<br>3.000 Credit hours<br>"
            "3.000 Lecture hours</td></tr></table>",
            id="rows without classes",
        ),
        pytest.param(
            "<details><summary>BIO {n} - Plants {n} (3 cr)</summary><p>{text}</p></details>",
            id="folded",
        ),
    ],
)
def test_layouts_of_no_vendor_are_read_as_people_read_them(layout: str) -> None:
    page = "".join(layout.format(n=n, text=DESCRIBED) for n in (101, 102, 103))

    names = ("course_id", "course_name", "course_description", "course_credits_max")
    assert [tuple(one[name] for name in names) for one in courses(page)] == [
        (f"BIO {n}", f"Plants {n}", DESCRIBED, 3) for n in (101, 102, 103)
    ]
