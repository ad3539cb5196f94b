"""Entity types as data, their rules for a record, their selectors, and the predicted cost of reading."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import ValidationError

from ingestion_pipeline.catalogs.extraction import model_methods
from ingestion_pipeline.catalogs.extraction.entity_type import (
    BadEntityType,
    EntityType,
    UnknownEntityType,
    entity_type,
    entity_types,
)
from ingestion_pipeline.catalogs.extraction.record import (
    CandidateRecord,
    ExtractionMethod,
    FieldValue,
    Record,
    item_key,
    item_keys,
    record_of,
)
from ingestion_pipeline.catalogs.extraction.source_selectors import (
    BadSelectors,
    EntityConfig,
    entity_config_problems,
    load_entity_config,
    selectors_of,
)
from ingestion_pipeline.catalogs.reruns import predicted_cost
from ingestion_pipeline.reading.evidence.grounding import Evidence
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline_tests.catalogs.entities.page_readings import (
    COURSE,
    MOSSES,
    PROSE,
    field_values,
    page_content,
    read_without_model,
)

BIRD = """
name: bird
about: A bird is an animal with feathers.
key: [ring]
announced_as: [birds]
fields:
  - {name: ring, kind: text, required: true}
  - {name: call, kind: text}
  - {name: wingspan_cm, kind: number}
  - {name: order, kind: choice, choices: [Owls, Ducks], derived: true}
embedded:
  types: [Bird]
  fields: {ring: [identifier], call: [sound], wingspan_cm: [wingspan]}
"""
PROGRAM = """<nav><ul><li>Home</li></ul></nav><main><h1>Bachelor of Science in Botany</h1>
<p>The programme makes botanists of people who like to be outside in any weather.</p>
<p>Its graduates work in gardens, in forests and at schools all over the country.</p>
<h2>Admission</h2><p>Whoever has finished school may apply until the end of summer.</p></main>"""


def test_a_programme_is_its_title_and_first_paragraphs(settings: Settings) -> None:
    reading = read_without_model(page_content(PROGRAM), settings, kind=entity_type("learning_program"))

    (record,) = reading.records
    assert record.fields["learning_program_id"] == "Bachelor of Science in Botany"
    text = str(record.fields["learning_program_description"])
    assert text.startswith("The programme makes")
    assert text.endswith("the country.")
    assert all(proof.is_proof for proof in record.evidence.values())
    assert (str(reading.method), reading.reason) == ("layout", "")


def test_a_programme_in_embedded_data_is_read_from_there(settings: Settings) -> None:
    thing = {
        "@type": "EducationalOccupationalProgram",
        "identifier": "BOT-BS",
        "name": "Bachelor of Science in Botany",
        "description": "It makes botanists.",
    }
    script = f"<script type='application/ld+json'>{json.dumps({'@graph': [thing]})}</script>"

    reading = read_without_model(page_content(PROGRAM + script), settings, kind=entity_type("learning_program"))

    assert field_values(reading, "learning_program_id") == ["BOT-BS"]
    assert str(reading.method) == "embedded"


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("Bachelor of Science in Botany", "BachelorOfScienceDegree"),
        ("Botany, B.A.", "BachelorOfArtsDegree"),
        ("Graduate Certificate in Mosses", "Certificate"),
        ("Ph.D. in Botany", "ResearchDoctorate"),
        ("Associate of Applied Science in Gardening", "AssociateOfAppliedScienceDegree"),
    ],
)
def test_the_type_of_a_credential_follows_from_its_title(settings: Settings, title: str, kind: str) -> None:
    page = page_content(PROGRAM.replace("Bachelor of Science in Botany", title))

    reading = read_without_model(page, settings, kind=entity_type("credential"))

    assert field_values(reading, "credential_type") == [kind]
    evidence = reading.records[0].evidence["credential_type"]
    assert page.text[evidence.start : evidence.end].rstrip(".") == title.rstrip(".")


COMPETENCIES = """<html lang=en-GB><h1>Botany 1</h1><ul><li>An item of another kind here</li></ul>
<h2>Learning outcomes</h2><ul><li>Name forty kinds of mosses<ul><li>by their leaves and their colour
</li></ul></li><li>Prune a rose without harm</li><li><a href=/x>Read more about this</a></li></ul>
<h2>Books</h2><ul><li>The big book of mosses</li></ul>
<p>Course objectives:</p><ol><li>To like rain and mud</li></ol>"""


def test_competencies_are_items_of_lists_made_for_them(settings: Settings) -> None:
    reading = read_without_model(page_content(COMPETENCIES), settings, kind=entity_type("competency"))

    assert [(record.fields["text"], record.fields["competency_category"]) for record in reading.records] == [
        ("Name forty kinds of mosses", "outcomes"),
        ("by their leaves and their colour", "outcomes"),
        ("Prune a rose without harm", "outcomes"),
        ("To like rain and mud", "course_objectives"),
    ]
    assert set(field_values(reading, "language")) == {"en"}
    assert all(proof.is_proof for record in reading.records for proof in record.evidence.values())


def test_a_page_without_a_list_of_competencies_waits_for_a_model(settings: Settings) -> None:
    page = page_content("<h2>Books</h2><ul><li>The big book of mosses</li></ul>")

    with pytest.raises(Resource, match="no model configured"):
        read_without_model(page, settings, kind=entity_type("competency"))


def bird_type(folder: Path, text: str = BIRD) -> EntityType:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bird.yaml").write_text(text)
    return entity_type("bird", folder=folder)


def test_a_custom_type_is_a_file_beside_the_sources(tmp_path: Path) -> None:
    settings = load_settings({"INGESTION_SOURCES": str(tmp_path)})
    bird_type(tmp_path / "entities")
    thing = {"@type": "Bird", "identifier": "R-1", "sound": "hoo hoo", "wingspan": "95 cm"}
    page = page_content(f"<h1>R-1</h1><script type='application/ld+json'>{json.dumps(thing)}</script>")

    kind = load_entity_config({"entity": "bird"}, settings).kind
    reading = read_without_model(page, settings, kind=kind)

    assert [dict(record.as_dict(), evidence=0)["wingspan_cm"] for record in reading.records] == [95]
    assert str(reading.method) == "embedded"


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("name: bird\nfields: 3", "bird.yaml"),
        ("name: bird\nfields: [{name: ring_evidence, kind: text}]", "ring_evidence"),
        ("name: bird\nkey: [tail]\nfields: [{name: ring, kind: text}]", "tail"),
        ("name: course\nfields: [{name: ring, kind: text}]", "choose another name"),
        ("{", "bird.yaml"),
    ],
)
def test_an_invalid_type_file_is_refused_by_name(tmp_path: Path, broken: str, message: str) -> None:
    with pytest.raises(BadEntityType, match=message):
        bird_type(tmp_path, broken)


def test_every_mistake_of_a_type_file_is_named_with_its_line(tmp_path: Path) -> None:
    broken = """name: bird
colour: blue
key: [tail]
fields:
  - {name: Ring No, kind: text}
  - {name: record, kind: text}
  - {name: size, kind: choice}
  - {name: beak_evidence, kind: banana}
rules:
  - {rule: excludes, when: size, drops: song}
"""

    with pytest.raises(BadEntityType) as refused:
        bird_type(tmp_path, broken)

    places = [problem.split(": ")[:2] for problem in str(refused.value).split("; ") if "bird.yaml:" in problem]
    file = tmp_path / "bird.yaml"
    assert places == [
        [f"{file}:2", "colour"],
        [f"{file}:5", "fields[0].name"],
        [f"{file}:7", "fields[2].choices"],
        [f"{file}:8", "fields[3].kind"],
        [f"{file}:6", "fields[1].name"],
        [f"{file}:8", "fields[3].name"],
        [f"{file}:3", "key[0]"],
        [f"{file}:10", "rules[0].drops"],
    ]


BLOCKS = """<div class=item><b class=c>CS 1</b> <i class=t>Logic</i><p class=d>What follows from
what, and why.</p><span class=h>3-4 credits</span></div><div class=item><b class=c>CS 2</b>
 <i class=t>Sets</i><p class=d>What belongs together.</p><span class=h>2 credits</span></div>"""
SELECTORS = {
    "record": ".item",
    "course_id": ".c",
    "course_name": ".t",
    "course_description": ".d",
    "course_credits_max": ".h",
}


def test_configured_selectors_read_what_no_rule_knows(settings: Settings) -> None:
    selectors = selectors_of({"selectors": SELECTORS}, COURSE)

    reading = read_without_model(page_content(BLOCKS), settings, selectors=selectors)

    courses = [record.as_dict() for record in reading.records]
    names = ("course_id", "course_credits_min", "course_credits_max")
    assert [tuple(course[name] for name in names) for course in courses] == [("CS 1", 3, 4), ("CS 2", None, 2)]
    assert str(reading.method) == "selectors"
    assert not any(record.is_flagged for record in reading.records)


def test_configured_selectors_read_a_custom_type(tmp_path: Path, settings: Settings) -> None:
    kind = bird_type(tmp_path)
    selectors = selectors_of({"selectors": {"record": "li", "ring": "b", "order": "i"}}, kind)
    html = "<ul><li><b>R-1</b> <i>Owls</i></li><li><b>R-2</b> <i>Dragons</i></li></ul>"

    reading = read_without_model(page_content(html), settings, kind=kind, selectors=selectors)

    assert field_values(reading, "ring") == ["R-1", "R-2"]
    assert field_values(reading, "order") == ["Owls", None]


def test_a_configured_selector_may_take_the_text_after_a_label(tmp_path: Path, settings: Settings) -> None:
    kind = bird_type(tmp_path)
    config = {"record": "li", "ring": "b::after-label", "order": "i"}
    html = "<ul><li><b>Ring: R-1</b> <i>Owls</i></li><li><b>R-2</b> <i>Owls</i></li></ul>"

    selectors = selectors_of({"selectors": config}, kind)
    reading = read_without_model(page_content(html), settings, kind=kind, selectors=selectors)

    assert selectors is not None
    assert selectors.as_config() == config
    assert field_values(reading, "ring") == ["R-1"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("b", "must be a mapping"),
        ({"course_id": "b"}, "course_name, course_description is missing"),
        (SELECTORS | {"colour": "b"}, "selectors.colour: unknown key"),
        (SELECTORS | {"course_id": "b["}, "is no CSS selector"),
        (SELECTORS | {"course_id": 3}, "selectors.course_id"),
    ],
)
def test_invalid_selectors_are_refused_with_their_key(config: object, message: str) -> None:
    with pytest.raises(BadSelectors) as refused:
        selectors_of({"selectors": config}, COURSE)

    assert message in str(refused.value)


def test_the_entity_of_a_source_is_checked_at_declaration(tmp_path: Path) -> None:
    bird_type(tmp_path)

    assert list(entity_config_problems({"entity": "credential"})) == []
    assert "there are: competency, course" in next(entity_config_problems({"entity": "cuorse"}))
    assert "there are" in next(entity_config_problems({"entity": 3}))
    assert list(entity_config_problems({"entity": "bird"}, tmp_path)) == []
    assert "no entity" in next(entity_config_problems({"entity": "fish"}, tmp_path))
    assert "unknown key" in next(entity_config_problems({"selectors": SELECTORS | {"x": "b"}}))


def course_record(code: str, name: str = "Logic") -> Record:
    fields = {"course_id": code, "course_name": name, "course_description": "x"}
    return Record(entity="course", fields=fields, evidence={}, method=ExtractionMethod.LAYOUT, confidence=1)


def test_a_natural_key_is_readable_and_ignores_case_and_spacing() -> None:
    assert item_key(COURSE, course_record("CS  101")) == item_key(COURSE, course_record("cs 101", " LOGIC"))
    assert item_key(COURSE, course_record("CS 101")) == "cs 101 | logic"
    assert item_keys(COURSE, [course_record("A 1"), course_record("B 1"), course_record("A 1")]) == [
        "a 1 | logic",
        "b 1 | logic",
        "a 1 | logic#2",
    ]


def test_a_long_key_is_cut_and_still_unique() -> None:
    keys = [item_key(COURSE, course_record("A 1", "x" * 5_000 + end)) for end in ("y", "z")]

    assert keys[0] != keys[1]
    assert max(map(len, keys)) <= 200


def test_the_reader_hash_changes_with_schema_selectors_and_usable_models(tmp_path: Path) -> None:
    plain = load_settings({})
    named = load_settings({"INGESTION_MODEL_CHEAP": "tiny"})
    with_model = load_settings({"OPENAI_API_KEY": "k"})
    with_other_model = load_settings({"OPENAI_API_KEY": "k", "INGESTION_MODEL_CHEAP": "tiny"})
    selectors = selectors_of({"selectors": SELECTORS}, COURSE)

    assert EntityConfig(kind=COURSE).reader_hash(plain) == EntityConfig(kind=COURSE).reader_hash(named)
    hashes = {
        EntityConfig(kind=COURSE).reader_hash(plain),
        EntityConfig(kind=COURSE).reader_hash(with_model),
        EntityConfig(kind=COURSE).reader_hash(with_other_model),
        EntityConfig(kind=COURSE, selectors=selectors).reader_hash(plain),
        EntityConfig(kind=COURSE.model_copy(update={"about": "x"})).reader_hash(plain),
        EntityConfig(kind=bird_type(tmp_path)).reader_hash(plain),
    }
    assert len(hashes) == 6


def test_the_reader_hash_changes_with_the_prompt_version(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, with_model = load_settings({}), load_settings({"OPENAI_API_KEY": "k"})
    before = EntityConfig(kind=COURSE).reader_hash(plain), EntityConfig(kind=COURSE).reader_hash(with_model)

    monkeypatch.setattr(model_methods, "PROMPT_VERSION", model_methods.PROMPT_VERSION + 1)

    assert EntityConfig(kind=COURSE).reader_hash(plain) == before[0]
    assert EntityConfig(kind=COURSE).reader_hash(with_model) != before[1]


def test_the_cost_of_reading_is_predicted() -> None:
    variables = {"OPENAI_API_KEY": "k", "INGESTION_MODELS__PRICES": "a=1/0.1/2, b=10/1/20"}
    priced = load_settings(variables | {"INGESTION_MODEL_CHEAP": "a", "INGESTION_MODEL_STRONG": "b"})
    unknown = load_settings(variables | {"INGESTION_MODEL_CHEAP": "c"})

    small, large = predicted_cost(COURSE, [900], priced), predicted_cost(COURSE, [9_000], priced)

    assert (small.calls, large.calls) == (2, 6)
    assert small.usd is not None
    assert large.usd is not None
    assert 0 < small.usd < large.usd
    assert predicted_cost(COURSE, [900], unknown).usd is None
    assert predicted_cost(COURSE, [900], load_settings({})) == (0, 0, 0)
    assert predicted_cost(entity_type("competency"), [900], priced).calls == 4
    assert str(small).startswith("at most 2 calls")


def test_a_prediction_covers_the_tokens_of_a_short_page() -> None:
    settings = load_settings({"OPENAI_API_KEY": "k"})
    size = len(page_content(PROSE).text.encode())

    assert predicted_cost(COURSE, [size], settings).tokens > len(json.dumps(MOSSES)) / 4


def checked_course(text: str | None = None, **fields: FieldValue | None) -> Record:
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
    record = checked_course(
        course_credits_min=Decimal(low) if low else None, course_credits_max=Decimal(high) if high else None
    )

    credits_range = (record.fields["course_credits_min"], record.fields["course_credits_max"])
    assert credits_range == tuple(Decimal(text) if text else None for text in expected)


def test_a_value_outside_the_choices_is_dropped_and_non_credit_has_no_type() -> None:
    assert checked_course(course_credits_type="BananaHour").fields["course_credits_type"] is None
    typed = checked_course(course_credits_type="SemesterHour")
    assert typed.fields["course_credits_type"] == "SemesterHour"
    free = checked_course(course_credits_type="SemesterHour", course_non_credit=True)
    assert free.fields["course_credits_type"] is None


def test_every_value_has_evidence_and_a_derived_one_its_quote() -> None:
    text = "CS 1 Logic, 3 semester hours"
    record = checked_course(
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
    assert str(checked_course(course_id="CS 1").evidence["course_id"].status) == "source"


def test_a_programme_without_id_gets_its_name_as_id() -> None:
    candidate = CandidateRecord(fields={"learning_program_name": "Welding"})

    record = record_of(entity_type("learning_program"), candidate, method=ExtractionMethod.LAYOUT)

    assert record.fields["learning_program_id"] == "Welding"
