"""The rung of learned selectors: after what is given, before layout, and never the last word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ingestion_pipeline.catalogs.extraction import PageReading, Selectors, entity_type
from ingestion_pipeline.catalogs.extraction.source_config import load_entity_config
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline_tests.catalogs.entities.climbing import a_page, read_alone, values

WHERE = {"course_id": "i", "course_name": "h4", "course_description": "div.lead"}
LEARNED = Selectors(record=None, fields=tuple(WHERE.items()))
TEXT = "How mosses grow on the north side of walls, and why they do."
GARDEN = f"<h1>School</h1><h4>The life of mosses</h4><i>GRD/7</i><div class=lead>{TEXT}</div>"


def read(html: str, settings: Settings, **more: Any) -> PageReading:
    return read_alone(a_page(html), settings, **({"learned": LEARNED} | more))


def reasons(reading: PageReading) -> Sequence[tuple[str, str]]:
    return [(str(record.method), record.reason) for record in reading.records]


def test_learned_selectors_read_the_page_and_say_so(settings: Settings) -> None:
    reading = read(GARDEN, settings)

    assert values(reading, "course_id") == ["GRD/7"]
    assert reasons(reading) == [("selectors", "learned")]
    assert (reading.reason, reading.method) == ("", "selectors")
    assert reading.notes == ("read by learned selectors (selectors), 1 records",)
    assert all(proof.is_proof for proof in reading.records[0].evidence.values())


def test_selectors_that_are_given_are_asked_instead(settings: Settings) -> None:
    given = Selectors(record=None, fields=tuple((WHERE | {"course_name": "h1"}).items()))

    reading = read(GARDEN, settings, selectors=given)

    assert values(reading, "course_name") == ["School"]
    assert reasons(reading) == [("selectors", "")]


def test_data_for_machines_comes_before(settings: Settings) -> None:
    course = {"@type": "Course", "courseCode": "GRD/7", "name": "The life of mosses", "description": TEXT}
    script = f"<script type='application/ld+json'>{json.dumps(course)}</script>"

    assert reasons(read(GARDEN + script, settings)) == [("embedded", "")]


@pytest.mark.parametrize(
    "html",
    [
        GARDEN.replace("GRD/7", ""),
        GARDEN.replace("class=lead", "class=text"),
        GARDEN + "<h4>The life of ferns</h4><i>GRD/8</i><div class=lead>Another.</div>",
    ],
    ids=["incomplete", "another layout", "two records"],
)
def test_what_they_do_not_read_whole_is_left_to_the_next_rung(settings: Settings, html: str) -> None:
    assert ("selectors", "learned") not in reasons(read(html, settings))


def test_what_the_stored_text_does_not_prove_is_left_to_the_next_rung(settings: Settings) -> None:
    page = a_page(GARDEN, text="School\nThe life of mosses\nGRD/7\nNothing else is said.")

    reading = read_alone(page, settings, learned=LEARNED)

    assert ("selectors", "learned") not in reasons(reading)


def test_where_no_model_is_they_do_not_say_that_a_page_has_no_record(settings: Settings) -> None:
    kind = entity_type("learning_program")
    learned = Selectors(record=None, fields=tuple((name, "h6") for name in kind.required))

    with pytest.raises(Resource, match="no model configured"):
        read("<p>Some words about nothing.</p>", settings, kind=kind, learned=learned)


def test_a_page_is_read_as_the_same_whatever_was_learned(settings: Settings) -> None:
    wanted = load_entity_config({}, settings)

    given = load_entity_config({"selectors": WHERE}, settings)

    assert replace(wanted, learned=LEARNED).reader_hash(settings) == wanted.reader_hash(settings)
    assert given.reader_hash(settings) != wanted.reader_hash(settings)
