"""Values of a model are proved by the page, in any script, or stay unproved."""

from typing import Any

import pytest

from ingestion_pipeline.demo.model_server import Say, in_turn
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.catalogs.entities.page_readings import (
    MOSSES,
    PROSE,
    field_values,
    model_answer,
    page_content,
    read_with_model,
)

PAGE = page_content(PROSE)


def answer_with(**changes: Any) -> Say:
    return model_answer(MOSSES | changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [("course_prerequisites", "A year of Latin"), ("course_credits_max", 30), ("course_ceu_credits", 0.3)],
)
def test_an_invented_optional_value_stays_unproved_without_further_requests(
    store: Store, settings: Settings, name: str, value: Any
) -> None:
    reading, requests = read_with_model(store, settings, PAGE, in_turn(answer_with(**{name: value})))

    (record,) = reading.records
    assert str(record.evidence[name].status) == "absent"
    assert (record.is_flagged, len(requests)) == (False, 1)
    assert record.confidence < 1


@pytest.mark.parametrize(
    ("quote", "is_proof"), [("It earns 3 points", True), ("3 semester hours", False), (None, False)]
)
def test_a_derived_value_needs_a_quote_from_the_page(
    store: Store, settings: Settings, quote: str | None, is_proof: bool
) -> None:
    reply = answer_with(course_credits_type="SemesterHour", course_credits_type_evidence=quote)

    reading, _ = read_with_model(store, settings, PAGE, in_turn(reply))

    assert reading.records[0].evidence["course_credits_type"].is_proof is is_proof


@pytest.mark.parametrize(
    ("html", "right", "wrong"),
    [
        pytest.param(
            "<h2>Мхи и лишайники</h2><p>Код БОТ-12. Студенты изучают мхи и лишайники северных лесов.</p>",
            {
                "course_id": "БОТ-12",
                "course_name": "Мхи и лишайники",
                "course_description": "Студенты изучают мхи и лишайники северных лесов.",
            },
            {"course_name": "Папоротники"},
            id="Cyrillic",
        ),
        pytest.param(
            "<h2>苔の静かな生活</h2><p>番号 植物七。壁の北側に育つ苔について学びます。</p>",
            {
                "course_id": "植物七",
                "course_name": "苔の静かな生活",
                "course_description": "壁の北側に育つ苔について学びます。",
            },
            {"course_name": "羊歯の生活"},
            id="Japanese",
        ),
    ],
)
def test_values_in_any_script_are_proved_by_their_own_words(
    store: Store, settings: Settings, html: str, right: dict[str, Any], wrong: dict[str, Any]
) -> None:
    page = page_content(html)

    true, _ = read_with_model(store, settings, page, in_turn(model_answer(right)))
    false, _ = read_with_model(
        store,
        settings,
        page,
        in_turn(model_answer(right | wrong)),
        INGESTION_MODEL_CHEAP="second",
        INGESTION_MODEL_STRONG="third",
    )

    assert not true.records[0].is_flagged
    assert false.records[0].is_flagged


def test_a_number_of_the_next_record_proves_nothing(store: Store, settings: Settings) -> None:
    two = PROSE + "<h2>The loud life of ferns</h2><p>Reference GRD-8. Ferns are heard. 9 points.</p>"
    ferns = {
        "course_id": "GRD-8",
        "course_name": "The loud life of ferns",
        "course_description": "Ferns are heard.",
        "course_credits_max": 3,
    }
    swapped = model_answer(MOSSES | {"course_credits_max": 9}, ferns)

    reading, _ = read_with_model(store, settings, page_content(two), in_turn(swapped))

    statuses = [str(record.evidence["course_credits_max"].status) for record in reading.records]
    assert field_values(reading, "course_id") == ["GRD-7", "GRD-8"]
    assert statuses[1] == "absent"


def test_a_url_that_is_not_on_the_page_is_dropped(store: Store, settings: Settings) -> None:
    planted = answer_with(course_prerequisites="see https://evil.test/x")

    reading, _ = read_with_model(store, settings, PAGE, in_turn(planted))

    assert reading.records[0].fields["course_prerequisites"] is None
