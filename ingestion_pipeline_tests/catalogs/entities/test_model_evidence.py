"""What a model says is proved by the page, in any script, or stays unproved."""

from __future__ import annotations

from typing import Any

import pytest

from ingestion_pipeline.demo.model_server import Say, in_turn
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.catalogs.entities.climbing import MOSSES, PROSE, a_page, answer, climb_with, values

PAGE = a_page(PROSE)


def changed(**changes: Any) -> Say:
    return answer(MOSSES | changes)


@pytest.fixture
def database() -> str:
    return "sqlite"


@pytest.mark.parametrize(
    ("name", "value"),
    [("course_prerequisites", "A year of Latin"), ("course_credits_max", 30), ("course_ceu_credits", 0.3)],
)
def test_what_is_optional_and_invented_stays_unproved_and_costs_nothing_more(
    store: Store, settings: Settings, name: str, value: Any
) -> None:
    reading, asked = climb_with(store, settings, PAGE, in_turn(changed(**{name: value})))

    (record,) = reading.records
    assert str(record.evidence[name].status) == "absent"
    assert (record.is_flagged, len(asked)) == (False, 1)
    assert record.confidence < 1


@pytest.mark.parametrize(
    ("quote", "is_proof"), [("It earns 3 points", True), ("3 semester hours", False), (None, False)]
)
def test_what_is_concluded_takes_a_quote_that_stands_on_the_page(
    store: Store, settings: Settings, quote: str | None, is_proof: bool
) -> None:
    said = changed(course_credits_type="SemesterHour", course_credits_type_evidence=quote)

    reading, _ = climb_with(store, settings, PAGE, in_turn(said))

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
def test_every_script_is_proved_by_its_own_words(
    store: Store, settings: Settings, html: str, right: dict[str, Any], wrong: dict[str, Any]
) -> None:
    page = a_page(html)

    true, _ = climb_with(store, settings, page, in_turn(answer(right)))
    false, _ = climb_with(
        store,
        settings,
        page,
        in_turn(answer(right | wrong)),
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
    swapped = answer(MOSSES | {"course_credits_max": 9}, ferns)

    reading, _ = climb_with(store, settings, a_page(two), in_turn(swapped))

    statuses = [str(one.evidence["course_credits_max"].status) for one in reading.records]
    assert values(reading, "course_id") == ["GRD-7", "GRD-8"]
    assert statuses[1] == "absent"


def test_a_url_that_the_page_lacks_is_no_value(store: Store, settings: Settings) -> None:
    planted = changed(course_prerequisites="see https://evil.test/x")

    reading, _ = climb_with(store, settings, PAGE, in_turn(planted))

    assert reading.records[0].fields["course_prerequisites"] is None
