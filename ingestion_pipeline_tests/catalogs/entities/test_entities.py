"""Programmes, credentials, competencies and types of one's own, read without a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ingestion_pipeline.catalogs.extraction import (
    BadSelectors,
    EntityType,
    ExtractionMethod,
    Record,
    entity_type,
    item_key,
    item_keys,
    prompts,
    reader_hash,
    selectors_of,
)
from ingestion_pipeline.catalogs.extraction.cost import predicted_cost
from ingestion_pipeline.catalogs.extraction.entity_type import BadEntityType
from ingestion_pipeline.catalogs.extraction.source_config import entity_config_problems, load_entity_config
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline_tests.catalogs.entities.climbing import COURSE, MOSSES, PROSE, a_page, read_alone, values

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


@pytest.fixture
def database() -> str:
    return "sqlite"


def test_a_programme_is_its_title_and_first_paragraphs(settings: Settings) -> None:
    reading = read_alone(a_page(PROGRAM), settings, kind=entity_type("learning_program"))

    (record,) = reading.records
    assert record.fields["learning_program_id"] == "Bachelor of Science in Botany"
    text = str(record.fields["learning_program_description"])
    assert text.startswith("The programme makes")
    assert text.endswith("the country.")
    assert all(proof.is_proof for proof in record.evidence.values())
    assert (str(reading.method), reading.reason) == ("layout", "")


def test_a_programme_in_data_for_machines_is_read_from_there(settings: Settings) -> None:
    thing = {
        "@type": "EducationalOccupationalProgram",
        "identifier": "BOT-BS",
        "name": "Bachelor of Science in Botany",
        "description": "It makes botanists.",
    }
    script = f"<script type='application/ld+json'>{json.dumps({'@graph': [thing]})}</script>"

    reading = read_alone(a_page(PROGRAM + script), settings, kind=entity_type("learning_program"))

    assert values(reading, "learning_program_id") == ["BOT-BS"]
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
def test_a_credential_is_of_the_type_that_its_title_says(settings: Settings, title: str, kind: str) -> None:
    page = a_page(PROGRAM.replace("Bachelor of Science in Botany", title))

    reading = read_alone(page, settings, kind=entity_type("credential"))

    assert values(reading, "credential_type") == [kind]
    evidence = reading.records[0].evidence["credential_type"]
    assert page.text[evidence.start : evidence.end].rstrip(".") == title.rstrip(".")


COMPETENCIES = """<html lang=en-GB><h1>Botany 1</h1><ul><li>An item of another kind here</li></ul>
<h2>Learning outcomes</h2><ul><li>Name forty kinds of mosses<ul><li>by their leaves and their colour
</li></ul></li><li>Prune a rose without harm</li><li><a href=/x>Read more about this</a></li></ul>
<h2>Books</h2><ul><li>The big book of mosses</li></ul>
<p>Course objectives:</p><ol><li>To like rain and mud</li></ol>"""


def test_competencies_are_items_of_lists_made_for_them(settings: Settings) -> None:
    reading = read_alone(a_page(COMPETENCIES), settings, kind=entity_type("competency"))

    assert [(one.fields["text"], one.fields["competency_category"]) for one in reading.records] == [
        ("Name forty kinds of mosses", "outcomes"),
        ("by their leaves and their colour", "outcomes"),
        ("Prune a rose without harm", "outcomes"),
        ("To like rain and mud", "course_objectives"),
    ]
    assert set(values(reading, "language")) == {"en"}
    assert all(proof.is_proof for one in reading.records for proof in one.evidence.values())


def test_whether_a_page_has_no_list_of_competencies_is_left_to_a_model(settings: Settings) -> None:
    page = a_page("<h2>Books</h2><ul><li>The big book of mosses</li></ul>")

    with pytest.raises(Resource, match="no model configured"):
        read_alone(page, settings, kind=entity_type("competency"))


def bird(folder: Path, text: str = BIRD) -> EntityType:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bird.yaml").write_text(text)
    return entity_type("bird", folder=folder)


def test_a_type_of_ones_own_is_a_file_beside_the_sources(tmp_path: Path) -> None:
    settings = load_settings({"INGESTION_SOURCES": str(tmp_path)})
    bird(tmp_path / "entities")
    thing = {"@type": "Bird", "identifier": "R-1", "sound": "hoo hoo", "wingspan": "95 cm"}
    page = a_page(f"<h1>R-1</h1><script type='application/ld+json'>{json.dumps(thing)}</script>")

    kind = load_entity_config({"entity": "bird"}, settings).kind
    reading = read_alone(page, settings, kind=kind)

    assert [dict(one.as_dict(), evidence=0)["wingspan_cm"] for one in reading.records] == [95]
    assert str(reading.method) == "embedded"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("name: bird\nfields: 3", "bird.yaml"),
        ("name: bird\nfields: [{name: ring_evidence, kind: text}]", "ring_evidence"),
        ("name: bird\nkey: [tail]\nfields: [{name: ring, kind: text}]", "tail"),
        ("name: course\nfields: [{name: ring, kind: text}]", "choose another name"),
        ("{", "bird.yaml"),
    ],
)
def test_a_file_that_describes_no_type_is_refused_by_name(tmp_path: Path, broken: str, said: str) -> None:
    with pytest.raises(BadEntityType, match=said):
        bird(tmp_path, broken)


BLOCKS = """<div class=item><b class=c>CS 1</b> <i class=t>Logic</i><p class=d>What follows from
what, and why.</p><span class=h>3-4 credits</span></div><div class=item><b class=c>CS 2</b>
 <i class=t>Sets</i><p class=d>What belongs together.</p><span class=h>2 credits</span></div>"""
GIVEN = {
    "record": ".item",
    "course_id": ".c",
    "course_name": ".t",
    "course_description": ".d",
    "course_credits_max": ".h",
}


def test_given_selectors_read_what_no_rule_knows(settings: Settings) -> None:
    selectors = selectors_of({"selectors": GIVEN}, COURSE)

    reading = read_alone(a_page(BLOCKS), settings, selectors=selectors)

    found = [one.as_dict() for one in reading.records]
    names = ("course_id", "course_credits_min", "course_credits_max")
    assert [tuple(one[name] for name in names) for one in found] == [("CS 1", 3, 4), ("CS 2", None, 2)]
    assert str(reading.method) == "selectors"
    assert not any(one.is_flagged for one in reading.records)


def test_given_selectors_read_a_type_of_ones_own(tmp_path: Path, settings: Settings) -> None:
    kind = bird(tmp_path)
    selectors = selectors_of({"selectors": {"record": "li", "ring": "b", "order": "i"}}, kind)
    html = "<ul><li><b>R-1</b> <i>Owls</i></li><li><b>R-2</b> <i>Dragons</i></li></ul>"

    reading = read_alone(a_page(html), settings, kind=kind, selectors=selectors)

    assert values(reading, "ring") == ["R-1", "R-2"]
    assert values(reading, "order") == ["Owls", None]


def test_a_given_selector_may_mean_what_follows_a_label(tmp_path: Path, settings: Settings) -> None:
    kind = bird(tmp_path)
    given = {"record": "li", "ring": "b::after-label", "order": "i"}
    html = "<ul><li><b>Ring: R-1</b> <i>Owls</i></li><li><b>R-2</b> <i>Owls</i></li></ul>"

    selectors = selectors_of({"selectors": given}, kind)
    reading = read_alone(a_page(html), settings, kind=kind, selectors=selectors)

    assert selectors is not None
    assert selectors.as_config() == given
    assert values(reading, "ring") == ["R-1"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("b", "must be a mapping"),
        ({"course_id": "b"}, "course_name, course_description is missing"),
        (GIVEN | {"colour": "b"}, "selectors.colour: unknown key"),
        (GIVEN | {"course_id": "b["}, "is no CSS selector"),
        (GIVEN | {"course_id": 3}, "selectors.course_id"),
    ],
)
def test_selectors_that_cannot_be_used_are_refused_with_their_key(given: object, said: str) -> None:
    with pytest.raises(BadSelectors) as refused:
        selectors_of({"selectors": given}, COURSE)

    assert said in str(refused.value)


def test_the_entity_of_a_source_is_checked_where_it_is_declared(tmp_path: Path) -> None:
    bird(tmp_path)

    assert list(entity_config_problems({"entity": "credential"})) == []
    assert "there are: competency, course" in next(entity_config_problems({"entity": "cuorse"}))
    assert "there are" in next(entity_config_problems({"entity": 3}))
    assert list(entity_config_problems({"entity": "bird"}, tmp_path)) == []
    assert "no entity" in next(entity_config_problems({"entity": "fish"}, tmp_path))
    assert "unknown key" in next(entity_config_problems({"selectors": GIVEN | {"x": "b"}}))


def a_course(code: str, name: str = "Logic") -> Record:
    fields = {"course_id": code, "course_name": name, "course_description": "x"}
    return Record(entity="course", fields=fields, evidence={}, method=ExtractionMethod.LAYOUT, confidence=1)


def test_a_natural_key_is_readable_and_the_same_however_it_is_spaced() -> None:
    assert item_key(COURSE, a_course("CS  101")) == item_key(COURSE, a_course("cs 101", " LOGIC"))
    assert item_key(COURSE, a_course("CS 101")) == "cs 101 | logic"
    assert item_keys(COURSE, [a_course("A 1"), a_course("B 1"), a_course("A 1")]) == [
        "a 1 | logic",
        "b 1 | logic",
        "a 1 | logic#2",
    ]


def test_a_long_key_is_cut_and_still_tells_two_apart() -> None:
    keys = [item_key(COURSE, a_course("A 1", "x" * 5_000 + end)) for end in ("y", "z")]

    assert keys[0] != keys[1]
    assert max(map(len, keys)) <= 200


def test_a_page_is_read_anew_for_another_schema_selector_or_model_that_may_be_asked(tmp_path: Path) -> None:
    plain = load_settings({})
    named = load_settings({"INGESTION_MODEL_CHEAP": "tiny"})
    asked = load_settings({"OPENAI_API_KEY": "k"})
    other = load_settings({"OPENAI_API_KEY": "k", "INGESTION_MODEL_CHEAP": "tiny"})
    selectors = selectors_of({"selectors": GIVEN}, COURSE)

    assert reader_hash(COURSE, plain) == reader_hash(COURSE, named)
    found = {
        reader_hash(COURSE, plain),
        reader_hash(COURSE, asked),
        reader_hash(COURSE, other),
        reader_hash(COURSE, plain, selectors=selectors),
        reader_hash(COURSE.model_copy(update={"about": "x"}), plain),
        reader_hash(bird(tmp_path), plain),
    }
    assert len(found) == 6


def test_a_page_is_read_anew_by_other_words_of_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, asked = load_settings({}), load_settings({"OPENAI_API_KEY": "k"})
    before = reader_hash(COURSE, plain), reader_hash(COURSE, asked)

    monkeypatch.setattr(prompts, "PROMPT_VERSION", prompts.PROMPT_VERSION + 1)

    assert reader_hash(COURSE, plain) == before[0]
    assert reader_hash(COURSE, asked) != before[1]


def test_what_reading_may_cost_is_known_before() -> None:
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


def test_a_prediction_is_not_less_than_what_a_short_page_takes() -> None:
    settings = load_settings({"OPENAI_API_KEY": "k"})
    size = len(a_page(PROSE).text.encode())

    assert predicted_cost(COURSE, [size], settings).tokens > len(json.dumps(MOSSES)) / 4
