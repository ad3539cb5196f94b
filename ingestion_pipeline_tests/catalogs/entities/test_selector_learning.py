"""Selectors learned from pages with known records, and records that they extract."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, entity_type
from ingestion_pipeline.catalogs.extraction.record import ExtractionResult
from ingestion_pipeline.catalogs.extraction.selector_learning import TrainingPage, learn_selectors
from ingestion_pipeline.catalogs.extraction.source_selectors import (
    BadSelectors,
    Selectors,
    load_entity_config,
    records_by_learned,
    records_by_selectors,
    selectors_of,
    texts_at,
)
from ingestion_pipeline.reading.html.cleaning import visible_tree
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline_tests.catalogs.entities.page_readings import field_values, page_content, read_without_model

COURSE = entity_type("course")
NAMES = ["Mosses", "Ferns of the wall", "Lichens", "Old trees", "Roots & soil", "Bark"]


def course_fields(number: int, **more: Any) -> dict[str, Any]:
    """Return the fields of a course as a model finds them, null where the page states none."""
    empty = {field.name: None for field in COURSE.fields}
    stated = {
        "course_id": f"GRD-{number}",
        "course_name": NAMES[number % len(NAMES)],
        "course_description": f"The life of number {number}, seen through the year by all.",
        "course_credits_max": Decimal(number % 4 + 1),
    }
    return empty | stated | more


def escaped_values(record: Mapping[str, Any]) -> tuple[str, str, str, str]:
    escaped = str(record["course_name"]).replace("&", "&amp;")
    credit = record["course_credits_max"]
    return record["course_id"], escaped, record["course_description"], "" if credit is None else credit


def definition_block(record: Mapping[str, Any]) -> str:
    number, name, text, credit = escaped_values(record)
    return (
        f"<h1>Garden school</h1><dl><dt>Code:</dt><dd>{number}</dd><dt>Title</dt><dd>{name}</dd>"
        f"<dt>Points</dt><dd>{credit} points</dd><dt>Content</dt><dd>{text}</dd></dl>"
    )


def facts_block(record: Mapping[str, Any]) -> str:
    number, name, text, credit = escaped_values(record)
    return (
        f'<h1>{name}</h1><table class="facts"><tr><th>Reference</th><td>{number}</td></tr>'
        f"<tr><th>Points</th><td>{credit}</td></tr></table>"
        f"<div id=about-{number}><p>{text}</p></div>"
    )


def class_block(record: Mapping[str, Any]) -> str:
    number, name, text, credit = escaped_values(record)
    extra = "featured" if ord(number[-1]) % 2 else "plain new"
    return (
        f'<article class="{extra} entry post-{number}"><span class="ref css-19x7">{number}</span>'
        f'<h2 class="{extra} name"><a href="/x">{name}</a></h2>'
        f'<div class="lead"><p>{text}</p></div><b class="pts">{credit} points</b></article>'
    )


def page_of_blocks(block: Callable[[Mapping[str, Any]], str]) -> Callable[..., str]:
    def page(records: Sequence[Mapping[str, Any]]) -> str:
        blocks = "".join(block(record) for record in records)
        return f"<body><nav><a href=/>Home</a></nav><main>{blocks}</main><p>Imprint</p></body>"

    return page


def row_page(records: Sequence[Mapping[str, Any]]) -> str:
    cells = ("<td>" + "</td><td>".join(map(str, escaped_values(record))) + "</td>" for record in records)
    rows = "".join(f"<tr>{row}</tr>" for row in cells)
    head = "<tr><th>Code</th><th>Name</th><th>About</th><th>Points</th></tr>"
    return f"<body><h1>All</h1><table>{head}{rows}</table></body>"


def card_page(records: Sequence[Mapping[str, Any]]) -> str:
    cards = "".join(
        f"<li><div><h3>{name}</h3><small>{number}</small></div><p>{text}</p><i>{credit}</i></li>"
        for number, name, text, credit in map(escaped_values, records)
    )
    return f'<body><ul class="menu"><li>Home</li></ul><ul class="list">{cards}</ul></body>'


def page_with_hidden_blocks(records: Sequence[Mapping[str, Any]]) -> str:
    """Return a page with hidden blocks of the same classes before the visible ones."""
    decoy = class_block(course_fields(99, course_name="Decoy"))
    hidden = f'<div hidden>{decoy}</div><div style="display:none">{class_block(records[0])}</div>'
    return page_of_blocks(class_block)(records).replace("<main>", f"<main>{hidden}<script>1</script>")


def label_block(record: Mapping[str, Any]) -> str:
    number, name, text, credit = escaped_values(record)
    return (
        f'<section class="one"><h2>{name}</h2><p class="ref">Code: {number}</p>'
        f'<p class="pts">Points: {credit}</p>'
        f'<p class="about">About the course: {text}</p></section>'
    )


PAGES = {
    "labels": page_of_blocks(label_block),
    "definitions": page_of_blocks(definition_block),
    "facts": page_of_blocks(facts_block),
    "classes": page_of_blocks(class_block),
    "hidden": page_with_hidden_blocks,
}
LISTS = {
    "labels": page_of_blocks(label_block),
    "rows": row_page,
    "cards": card_page,
    "classes": page_of_blocks(class_block),
    "hidden": page_with_hidden_blocks,
}


def training_pages(page: Callable[..., str], *groups: Sequence[int]) -> list[TrainingPage]:
    record_groups = [[course_fields(number) for number in group] for group in groups]
    return [TrainingPage(body=page(records), records=records) for records in record_groups]


def extracted_fields(selectors: Selectors | None, html: str) -> list[dict[str, Any]]:
    assert selectors is not None
    tree = visible_tree(html)
    return [dict(record.fields) for record in records_by_learned(COURSE, selectors, tree)]


def stated_fields(*records: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if value is not None} for record in records]


@pytest.mark.parametrize("name", PAGES)
def test_three_pages_train_selectors_that_read_the_fourth(name: str) -> None:
    page, new_course = PAGES[name], course_fields(17, course_name="Never seen before")

    learned = learn_selectors(COURSE, training_pages(page, [1], [2], [4]))

    assert extracted_fields(learned, page([new_course])) == stated_fields(new_course)


@pytest.mark.parametrize("name", LISTS)
def test_one_page_of_three_records_trains_selectors_that_read_a_longer_one(name: str) -> None:
    page, new_courses = LISTS[name], [course_fields(number) for number in (7, 8, 9, 10, 11)]

    learned = learn_selectors(COURSE, training_pages(page, [1, 2, 4]))

    assert extracted_fields(learned, page(new_courses)) == stated_fields(*new_courses)
    assert extracted_fields(learned, page(new_courses[:1])) == stated_fields(new_courses[0])


@pytest.mark.parametrize("name", LISTS)
def test_the_same_training_pages_give_the_same_selectors(name: str) -> None:
    trained_on = training_pages(LISTS[name], [1, 2, 4], [3])

    assert learn_selectors(COURSE, trained_on) == learn_selectors(COURSE, trained_on)


def test_class_names_of_one_page_or_one_build_are_not_learned() -> None:
    learned = learn_selectors(COURSE, training_pages(page_of_blocks(class_block), [11, 12, 14]))

    assert learned is not None
    assert learned.as_config() == {
        "record": "article.entry",
        "course_id": "span.ref",
        "course_name": "h2.name",
        "course_description": "div.lead",
        "course_credits_max": "b.pts",
    }


@pytest.mark.parametrize("groups", [[[1], [2]], [[1, 2]], [[1], [2, 3]]], ids=["two pages", "two", "two and one"])
def test_too_few_examples_give_no_selectors(groups: Sequence[Sequence[int]]) -> None:
    assert learn_selectors(COURSE, training_pages(page_of_blocks(class_block), *groups)) is None
    assert learn_selectors(COURSE, []) is None


def test_a_required_field_that_no_element_states_gives_no_selectors() -> None:
    trained_on = training_pages(page_of_blocks(class_block), [1], [2], [4])
    wrong = {**trained_on[1].records[0], "course_description": "A summary that a model made up."}

    trained_on[1] = TrainingPage(body=trained_on[1].body, records=[wrong])

    assert learn_selectors(COURSE, trained_on) is None


def test_selectors_that_would_find_additional_records_are_rejected() -> None:
    page = page_of_blocks(class_block)
    records = [course_fields(number) for number in (1, 2, 4)]

    assert learn_selectors(COURSE, [TrainingPage(body=page([*records, course_fields(5)]), records=records)]) is None


def test_an_optional_field_may_fail_seldom_but_not_often() -> None:
    def pages_with_wrong_credits(wrong: int) -> list[TrainingPage]:
        trained_on = training_pages(page_of_blocks(class_block), *([number] for number in range(1, 11)))
        for at in range(wrong):
            records = [{**trained_on[at].records[0], "course_credits_max": Decimal(9)}]
            trained_on[at] = TrainingPage(body=trained_on[at].body, records=records)
        return trained_on

    assert learn_selectors(COURSE, pages_with_wrong_credits(1)) is not None
    assert learn_selectors(COURSE, pages_with_wrong_credits(2)) is None


def test_a_field_missing_from_the_records_is_not_learned() -> None:
    def without_credits(number: int) -> dict[str, Any]:
        return {key: value for key, value in course_fields(number).items() if key != "course_credits_max"}

    page = page_of_blocks(class_block)
    trained_on = [
        TrainingPage(body=page([course_fields(number)]), records=[without_credits(number)]) for number in (1, 2, 4)
    ]

    learned = learn_selectors(COURSE, trained_on)

    assert learned is not None
    assert "course_credits_max" not in dict(learned.fields)


def test_a_range_of_credits_is_learned_from_one_element() -> None:
    def page(record: Mapping[str, Any]) -> str:
        low, high = record["course_credits_min"], record["course_credits_max"]
        credit_text = high if low is None else f"{low}-{high}"
        return class_block({**record, "course_credits_max": credit_text})

    records = [
        course_fields(1),
        course_fields(2, course_credits_min=Decimal(2), course_credits_max=Decimal(5)),
        course_fields(4, course_credits_min=Decimal(1), course_credits_max=Decimal(3)),
    ]

    learned = learn_selectors(COURSE, [TrainingPage(body=page(record), records=[record]) for record in records])

    assert learned is not None
    assert "course_credits_min" not in dict(learned.fields)
    assert extracted_fields(learned, page(records[2])) == stated_fields(records[2])


def test_the_kind_of_credits_is_learned_from_its_words() -> None:
    def page(record: Mapping[str, Any]) -> str:
        words = {"SemesterHour": "semester hours", "ClockHour": "clock hours"}
        unit = words[record["course_credits_type"]]
        return class_block(record).replace("points", unit)

    kinds = ["SemesterHour", "ClockHour", "SemesterHour"]
    records = [course_fields(at, course_credits_type=kind) for at, kind in enumerate(kinds, start=1)]

    learned = learn_selectors(COURSE, [TrainingPage(body=page(record), records=[record]) for record in records])

    new = course_fields(5, course_credits_type="ClockHour")
    assert extracted_fields(learned, page(new)) == stated_fields(new)


def test_a_second_record_on_a_single_record_page_is_not_ignored() -> None:
    page = page_of_blocks(class_block)
    learned = learn_selectors(COURSE, training_pages(page, [1], [2], [4]))

    assert extracted_fields(learned, page([course_fields(7), course_fields(8)])) == []


def test_a_record_without_a_required_field_leaves_the_page_to_other_methods() -> None:
    page = page_of_blocks(class_block)
    learned = learn_selectors(COURSE, training_pages(page, [1, 2, 4]))

    assert extracted_fields(learned, page([course_fields(7), course_fields(8, course_description="")])) == []


HOSTILE = {
    "deep": "<div class=a>" * 400 + "{}" + "</div>" * 400,
    "wide": "{}" + "<i class=x>1</i>" * 20_000,
    "odd names": '<div class="a&quot;] b\\ c{{}} :x" id="1\'">{}</div>',
    "odd tags": "<o:p><x-y->{}</x-y-></o:p><svg><g>{}</g></svg>",
    "odd labels": '<dl><dt>a"]) , *</dt><dd>{}</dd></dl>',
    "unclosed": "<table><tr><td><p><b><i>{}<td><tr>",
    "long": "<p>" + "word " * 30_000 + "</p>{}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_page_is_learned_from_in_time_or_not_at_all(name: str) -> None:
    began = time.thread_time()
    records = [course_fields(number) for number in (1, 2, 4)]
    bodies = [HOSTILE[name].replace("{}", class_block(record)) for record in records]

    learned = learn_selectors(
        COURSE, [TrainingPage(body=body, records=[record]) for body, record in zip(bodies, records, strict=True)]
    )

    assert learned is None or extracted_fields(learned, bodies[0]) == stated_fields(records[0])
    assert time.thread_time() - began < 5


WORDS = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=3, max_size=5), st.sampled_from(sorted(LISTS)))
def test_learned_selectors_find_the_records_they_were_trained_on(texts: list[tuple[str, str, str]], name: str) -> None:
    fields = ("course_id", "course_name", "course_description")
    records = [course_fields(1, **dict(zip(fields, values, strict=True))) for values in texts]
    html = LISTS[name](records)

    learned = learn_selectors(COURSE, [TrainingPage(body=html, records=records)])

    keys = [tuple(record[field] for field in fields) for record in extracted_fields(learned, html)] if learned else []
    assert learned is None or set(keys) == {tuple(record[field] for field in fields) for record in records}


FIELD_SELECTORS = {"course_id": "i", "course_name": "h4", "course_description": "div.lead"}
LEARNED = Selectors(record=None, fields=tuple((name, (css,)) for name, css in FIELD_SELECTORS.items()))
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
    fields = FIELD_SELECTORS | {"course_name": "h1"}
    configured = Selectors(record=None, fields=tuple((name, (css,)) for name, css in fields.items()))

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
    learned = Selectors(record=None, fields=tuple((name, ("h6",)) for name in kind.required))

    with pytest.raises(Resource, match="no model configured"):
        read_learned("<p>Some words about nothing.</p>", settings, kind=kind, learned=learned)


def test_the_reader_hash_does_not_depend_on_learned_selectors(settings: Settings) -> None:
    plain = load_entity_config({}, settings)

    configured = load_entity_config({"selectors": FIELD_SELECTORS}, settings)

    assert replace(plain, learned=LEARNED).reader_hash(settings) == plain.reader_hash(settings)
    assert configured.reader_hash(settings) != plain.reader_hash(settings)


PROFILE = """<body><div id=ads>Advert</div><h1>{name}</h1><p>City: <b>Bonn</b><br>Phone: {phone}<br>{site}</p>
<div>Related <a>Elsewhere</a></div></body>"""


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ("p::text(2)", "Bonn"),
        ("p::text(-1)", "www.a.test"),
        ("p::text(9)", None),
        ('::text-after("city")', "Bonn"),
        ('p::text-after("Phone")', "228 1"),
        ('div::text-after("Phone")', None),
        ("p::after-label", "Bonn Phone: 228 1 www.a.test"),
    ],
)
def test_a_selector_can_name_a_part_of_an_elements_text(selector: str, text: str | None) -> None:
    body = visible_tree(PROFILE.format(name="A", phone="228 1", site="www.a.test")).body
    assert body is not None

    assert " ".join(next(texts_at(body, selector), "").split()) == (text or "")


def profile_type(*names: str) -> EntityType:
    fields = [{"name": name, "kind": "text", "required": name == "name"} for name in names]
    return EntityType.model_validate({"name": "profile", "fields": fields})


def profile_page(name: str, phone: str, site: str) -> TrainingPage:
    values = {"name": name, "phone": phone, "site": site}
    return TrainingPage(body=PROFILE.format(**values), records=[values])


def test_values_that_share_an_element_with_others_are_learned_as_parts_of_its_text() -> None:
    pages = [profile_page(f"School {n}", f"228 {n}", f"www.{n}.test") for n in range(3)]
    new = profile_page("Another", "30 7", "www.seven.test")

    learned = learn_selectors(profile_type("name", "phone", "site"), pages)

    assert learned is not None
    [record] = records_by_learned(profile_type("name", "phone", "site"), learned, visible_tree(new.body))
    assert record.fields == new.records[0]


def test_selectors_that_disagree_find_no_value() -> None:
    kind = profile_type("name", "phone")
    voters = ("h1", "div#ads", "b")

    [record] = records_by_selectors(
        kind,
        Selectors(record=None, fields=(("name", ("h1",)), ("phone", voters))),
        visible_tree(PROFILE.format(name="A", phone="1", site="s")),
    )

    assert record.fields == {"name": "A"}


def test_a_list_of_selectors_can_be_configured_and_each_is_checked() -> None:
    kind = profile_type("name", "phone")

    selectors = selectors_of({"selectors": {"name": ["h1", "h2", "p::text(1)"], "phone": "b"}}, kind)

    assert selectors is not None
    assert selectors.as_config() == {"name": ["h1", "h2", "p::text(1)"], "phone": "b"}
    with pytest.raises(BadSelectors, match=r"selectors\.name\[1\]"):
        selectors_of({"selectors": {"name": ["h1", "h2["]}}, kind)
