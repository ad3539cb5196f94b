"""Entity types as data, and their rules for a record."""

from decimal import Decimal

import pytest
from pydantic import ValidationError

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, UnknownEntityType, entity_type, entity_types
from ingestion_pipeline.catalogs.extraction.record import (
    CandidateRecord,
    ExtractionMethod,
    FieldValue,
    Record,
    record_of,
)
from ingestion_pipeline.reading.evidence.grounding import Evidence

COURSE = entity_type("course")


def course_record(text: str | None = None, **fields: FieldValue | None) -> Record:
    candidate = CandidateRecord(fields=fields, quotes={"course_credits_type": "semester hours"})
    evidence = Evidence(text) if text is not None else None
    return record_of(COURSE, candidate, method=ExtractionMethod.LAYOUT, evidence=evidence)


def test_the_four_types_have_the_fields_of_the_specification() -> None:
    assert set(entity_types()) == {"course", "learning_program", "competency", "credential"}
    assert COURSE.required == ("course_id", "course_name", "course_description")
    assert len(COURSE.field("course_credits_type").choices) == 14
    assert entity_type("credential").required[-1] == "credential_type"
    assert entity_type("competency").explores
    assert not entity_type("competency").screenshot


def test_an_unknown_type_is_refused_with_the_existing_ones() -> None:
    with pytest.raises(UnknownEntityType, match="competency, course, credential"):
        entity_type("banana")


@pytest.mark.parametrize(
    "broken",
    [
        {"fields": [{"name": "a", "kind": "choice"}]},
        {"fields": [{"name": "a", "kind": "text", "choices": ["x"]}]},
        {"fields": [{"name": "A b", "kind": "text"}]},
        {"fields": [], "rules": [{"rule": "excludes", "when": "x", "drops": "y"}]},
        {"fields": [], "rules": [{"rule": "invents"}]},
        {"fields": [], "colour": "blue"},
    ],
)
def test_a_schema_that_contradicts_itself_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        EntityType.model_validate({"name": "x", **broken})


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [("3", None, (None, "3")), ("3", "3", (None, "3")), ("1", "3", ("1", "3")), (None, "3", (None, "3"))],
)
def test_a_single_credit_value_goes_to_max(low: str | None, high: str | None, expected: tuple[str | None, str]) -> None:
    record = course_record(
        course_credits_min=Decimal(low) if low else None, course_credits_max=Decimal(high) if high else None
    )

    credits_range = (record.fields["course_credits_min"], record.fields["course_credits_max"])
    assert credits_range == tuple(Decimal(text) if text else None for text in expected)


def test_a_value_outside_the_choices_is_dropped_and_non_credit_has_no_type() -> None:
    assert course_record(course_credits_type="BananaHour").fields["course_credits_type"] is None
    typed = course_record(course_credits_type="SemesterHour")
    assert typed.fields["course_credits_type"] == "SemesterHour"
    free = course_record(course_credits_type="SemesterHour", course_non_credit=True)
    assert free.fields["course_credits_type"] is None


def test_every_value_has_evidence_and_a_derived_one_its_quote() -> None:
    text = "CS 1 Logic, 3 semester hours"
    record = course_record(
        text,
        course_id="CS 1",
        course_name="Rhetoric",
        course_credits_max=Decimal(3),
        course_credits_type="SemesterHour",
    )

    statuses = {name: str(proof.status) for name, proof in record.evidence.items()}
    assert statuses == {
        "course_id": "exact",
        "course_name": "absent",
        "course_credits_max": "exact",
        "course_credits_type": "exact",
    }
    assert record.missing_fields == ("course_description",)


def test_an_api_value_is_proved_by_its_source() -> None:
    assert str(course_record(course_id="CS 1").evidence["course_id"].status) == "source"


def test_a_programme_without_id_gets_its_name_as_id() -> None:
    candidate = CandidateRecord(fields={"learning_program_name": "Welding"})

    record = record_of(entity_type("learning_program"), candidate, method=ExtractionMethod.LAYOUT)

    assert record.fields["learning_program_id"] == "Welding"
