"""Learned selectors as a method: after configured selectors, before layout, never final."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ingestion_pipeline.catalogs.extraction.entity_type import entity_type
from ingestion_pipeline.catalogs.extraction.record import ExtractionResult
from ingestion_pipeline.catalogs.extraction.source_selectors import Selectors, load_entity_config
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline_tests.catalogs.entities.page_readings import field_values, page_content, read_without_model

FIELD_SELECTORS = {"course_id": "i", "course_name": "h4", "course_description": "div.lead"}
LEARNED = Selectors(record=None, fields=tuple(FIELD_SELECTORS.items()))
TEXT = "How mosses grow on the north side of walls, and why they do."
GARDEN = f"<h1>School</h1><h4>The life of mosses</h4><i>GRD/7</i><div class=lead>{TEXT}</div>"


def read_learned(html: str, settings: Settings, **more: Any) -> ExtractionResult:
    return read_without_model(page_content(html), settings, **({"learned": LEARNED} | more))


def method_reasons(reading: ExtractionResult) -> Sequence[tuple[str, str]]:
    return [(str(record.method), record.reason) for record in reading.records]


def test_learned_selectors_read_the_page_and_are_named_as_method(settings: Settings) -> None:
    reading = read_learned(GARDEN, settings)

    assert field_values(reading, "course_id") == ["GRD/7"]
    assert method_reasons(reading) == [("selectors", "learned")]
    assert (reading.reason, reading.method) == ("", "selectors")
    assert reading.notes == ("read by learned selectors (selectors), 1 records",)
    assert all(proof.is_proof for proof in reading.records[0].evidence.values())


def test_configured_selectors_are_used_instead(settings: Settings) -> None:
    configured = Selectors(record=None, fields=tuple((FIELD_SELECTORS | {"course_name": "h1"}).items()))

    reading = read_learned(GARDEN, settings, selectors=configured)

    assert field_values(reading, "course_name") == ["School"]
    assert method_reasons(reading) == [("selectors", "")]


def test_embedded_data_comes_first(settings: Settings) -> None:
    course = {"@type": "Course", "courseCode": "GRD/7", "name": "The life of mosses", "description": TEXT}
    script = f"<script type='application/ld+json'>{json.dumps(course)}</script>"

    assert method_reasons(read_learned(GARDEN + script, settings)) == [("embedded", "")]


@pytest.mark.parametrize(
    "html",
    [
        GARDEN.replace("GRD/7", ""),
        GARDEN.replace("class=lead", "class=text"),
        GARDEN + "<h4>The life of ferns</h4><i>GRD/8</i><div class=lead>Another.</div>",
    ],
    ids=["incomplete", "another layout", "two records"],
)
def test_a_page_they_do_not_read_completely_is_left_to_the_next_method(settings: Settings, html: str) -> None:
    assert ("selectors", "learned") not in method_reasons(read_learned(html, settings))


def test_a_page_whose_stored_text_does_not_prove_the_record_is_left_to_the_next_method(settings: Settings) -> None:
    page = page_content(GARDEN, text="School\nThe life of mosses\nGRD/7\nNothing else is said.")

    reading = read_without_model(page, settings, learned=LEARNED)

    assert ("selectors", "learned") not in method_reasons(reading)


def test_without_a_model_they_do_not_decide_that_a_page_has_no_record(settings: Settings) -> None:
    kind = entity_type("learning_program")
    learned = Selectors(record=None, fields=tuple((name, "h6") for name in kind.required))

    with pytest.raises(Resource, match="no model configured"):
        read_learned("<p>Some words about nothing.</p>", settings, kind=kind, learned=learned)


def test_the_reader_hash_does_not_depend_on_learned_selectors(settings: Settings) -> None:
    plain = load_entity_config({}, settings)

    configured = load_entity_config({"selectors": FIELD_SELECTORS}, settings)

    assert replace(plain, learned=LEARNED).reader_hash(settings) == plain.reader_hash(settings)
    assert configured.reader_hash(settings) != plain.reader_hash(settings)
