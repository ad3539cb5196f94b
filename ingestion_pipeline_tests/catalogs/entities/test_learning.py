"""Selectors learned from examples: they find the same again, or there are none."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingestion_pipeline.catalogs.extraction import Selectors, entity_type
from ingestion_pipeline.catalogs.learning.learned_selectors import records_by_learned
from ingestion_pipeline.catalogs.learning.selector_learning import TrainingPage, learn_selectors
from ingestion_pipeline.reading.html.cleaning import visible_tree

COURSE = entity_type("course")
NAMES = ["Mosses", "Ferns of the wall", "Lichens", "Old trees", "Roots & soil", "Bark"]


def a_course(number: int, **more: Any) -> dict[str, Any]:
    """What a model found of one, and that the page says no more of it."""
    empty = {field.name: None for field in COURSE.fields}
    said = {
        "course_id": f"GRD-{number}",
        "course_name": NAMES[number % len(NAMES)],
        "course_description": f"The life of number {number}, seen through the year by all.",
        "course_credits_max": Decimal(number % 4 + 1),
    }
    return empty | said | more


def code(one: Mapping[str, Any]) -> tuple[str, str, str, str]:
    escaped = str(one["course_name"]).replace("&", "&amp;")
    credit = one["course_credits_max"]
    return one["course_id"], escaped, one["course_description"], "" if credit is None else credit


def by_definitions(one: Mapping[str, Any]) -> str:
    number, name, text, credit = code(one)
    return (
        f"<h1>Garden school</h1><dl><dt>Code:</dt><dd>{number}</dd><dt>Title</dt><dd>{name}</dd>"
        f"<dt>Points</dt><dd>{credit} points</dd><dt>Content</dt><dd>{text}</dd></dl>"
    )


def by_facts(one: Mapping[str, Any]) -> str:
    number, name, text, credit = code(one)
    return (
        f'<h1>{name}</h1><table class="facts"><tr><th>Reference</th><td>{number}</td></tr>'
        f"<tr><th>Points</th><td>{credit}</td></tr></table>"
        f"<div id=about-{number}><p>{text}</p></div>"
    )


def by_classes(one: Mapping[str, Any]) -> str:
    number, name, text, credit = code(one)
    extra = "featured" if ord(number[-1]) % 2 else "plain new"
    return (
        f'<article class="{extra} entry post-{number}"><span class="ref css-19x7">{number}</span>'
        f'<h2 class="{extra} name"><a href="/x">{name}</a></h2>'
        f'<div class="lead"><p>{text}</p></div><b class="pts">{credit} points</b></article>'
    )


def in_a_page(block: Callable[[Mapping[str, Any]], str]) -> Callable[..., str]:
    def page(records: Sequence[Mapping[str, Any]]) -> str:
        blocks = "".join(block(one) for one in records)
        return f"<body><nav><a href=/>Home</a></nav><main>{blocks}</main><p>Imprint</p></body>"

    return page


def by_rows(records: Sequence[Mapping[str, Any]]) -> str:
    cells = ("<td>" + "</td><td>".join(map(str, code(one))) + "</td>" for one in records)
    rows = "".join(f"<tr>{row}</tr>" for row in cells)
    head = "<tr><th>Code</th><th>Name</th><th>About</th><th>Points</th></tr>"
    return f"<body><h1>All</h1><table>{head}{rows}</table></body>"


def by_cards(records: Sequence[Mapping[str, Any]]) -> str:
    cards = "".join(
        f"<li><div><h3>{name}</h3><small>{number}</small></div><p>{text}</p><i>{credit}</i></li>"
        for number, name, text, credit in map(code, records)
    )
    return f'<body><ul class="menu"><li>Home</li></ul><ul class="list">{cards}</ul></body>'


def with_hidden(records: Sequence[Mapping[str, Any]]) -> str:
    """The same classes before, hidden, with other words; and the right words in a script."""
    decoy = by_classes(a_course(99, course_name="Decoy"))
    hidden = f'<div hidden>{decoy}</div><div style="display:none">{by_classes(records[0])}</div>'
    return in_a_page(by_classes)(records).replace("<main>", f"<main>{hidden}<script>1</script>")


def by_labels(one: Mapping[str, Any]) -> str:
    number, name, text, credit = code(one)
    return (
        f'<section class="one"><h2>{name}</h2><p class="ref">Code: {number}</p>'
        f'<p class="pts">Points: {credit}</p>'
        f'<p class="about">About the course: {text}</p></section>'
    )


PAGES = {
    "labels": in_a_page(by_labels),
    "definitions": in_a_page(by_definitions),
    "facts": in_a_page(by_facts),
    "classes": in_a_page(by_classes),
    "hidden": with_hidden,
}
LISTS = {
    "labels": in_a_page(by_labels),
    "rows": by_rows,
    "cards": by_cards,
    "classes": in_a_page(by_classes),
    "hidden": with_hidden,
}


def lessons(page: Callable[..., str], *groups: Sequence[int]) -> list[TrainingPage]:
    known = [[a_course(number) for number in group] for group in groups]
    return [TrainingPage(body=page(records), records=records) for records in known]


def found(selectors: Selectors | None, html: str) -> list[dict[str, Any]]:
    assert selectors is not None
    tree = visible_tree(html)
    return [dict(one.fields) for one in records_by_learned(COURSE, selectors, tree)]


def said(*records: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{key: one for key, one in record.items() if one is not None} for record in records]


@pytest.mark.parametrize("name", PAGES)
def test_three_pages_teach_how_the_fourth_is_read(name: str) -> None:
    page, new = PAGES[name], a_course(17, course_name="Never seen before")

    learned = learn_selectors(COURSE, lessons(page, [1], [2], [4]))

    assert found(learned, page([new])) == said(new)


@pytest.mark.parametrize("name", LISTS)
def test_one_page_of_three_records_teaches_how_a_longer_one_is_read(name: str) -> None:
    page, new = LISTS[name], [a_course(number) for number in (7, 8, 9, 10, 11)]

    learned = learn_selectors(COURSE, lessons(page, [1, 2, 4]))

    assert found(learned, page(new)) == said(*new)
    assert found(learned, page(new[:1])) == said(new[0])


@pytest.mark.parametrize("name", LISTS)
def test_the_same_lessons_teach_the_same(name: str) -> None:
    taught = lessons(LISTS[name], [1, 2, 4], [3])

    assert learn_selectors(COURSE, taught) == learn_selectors(COURSE, taught)


def test_names_of_one_page_or_one_build_are_not_learned() -> None:
    learned = learn_selectors(COURSE, lessons(in_a_page(by_classes), [11, 12, 14]))

    assert learned is not None
    assert learned.as_config() == {
        "record": "article.entry",
        "course_id": "span.ref",
        "course_name": "h2.name",
        "course_description": "div.lead",
        "course_credits_max": "b.pts",
    }


@pytest.mark.parametrize("groups", [[[1], [2]], [[1, 2]], [[1], [2, 3]]], ids=["two pages", "two", "two and one"])
def test_too_few_examples_teach_nothing(groups: Sequence[Sequence[int]]) -> None:
    assert learn_selectors(COURSE, lessons(in_a_page(by_classes), *groups)) is None
    assert learn_selectors(COURSE, []) is None


def test_a_required_field_that_no_element_states_teaches_nothing() -> None:
    taught = lessons(in_a_page(by_classes), [1], [2], [4])
    wrong = {**taught[1].records[0], "course_description": "A summary that a model made up."}

    taught[1] = TrainingPage(body=taught[1].body, records=[wrong])

    assert learn_selectors(COURSE, taught) is None


def test_a_record_that_the_selectors_would_find_beside_the_known_ones_teaches_nothing() -> None:
    page = in_a_page(by_classes)
    known = [a_course(number) for number in (1, 2, 4)]

    assert learn_selectors(COURSE, [TrainingPage(body=page([*known, a_course(5)]), records=known)]) is None


def test_another_field_may_fail_now_and_then_but_not_often() -> None:
    def taught(wrong: int) -> list[TrainingPage]:
        made = lessons(in_a_page(by_classes), *([number] for number in range(1, 11)))
        for at in range(wrong):
            records = [{**made[at].records[0], "course_credits_max": Decimal(9)}]
            made[at] = TrainingPage(body=made[at].body, records=records)
        return made

    assert learn_selectors(COURSE, taught(1)) is not None
    assert learn_selectors(COURSE, taught(2)) is None


def test_what_is_not_known_of_a_record_does_not_count() -> None:
    def known(number: int) -> dict[str, Any]:
        return {key: one for key, one in a_course(number).items() if key != "course_credits_max"}

    page = in_a_page(by_classes)
    taught = [TrainingPage(body=page([a_course(one)]), records=[known(one)]) for one in (1, 2, 4)]

    learned = learn_selectors(COURSE, taught)

    assert learned is not None
    assert "course_credits_max" not in dict(learned.fields)


def test_a_range_of_credits_is_learned_from_the_place_of_both() -> None:
    def page(one: Mapping[str, Any]) -> str:
        low, high = one["course_credits_min"], one["course_credits_max"]
        shown = high if low is None else f"{low}-{high}"
        return by_classes({**one, "course_credits_max": shown})

    known = [
        a_course(1),
        a_course(2, course_credits_min=Decimal(2), course_credits_max=Decimal(5)),
        a_course(4, course_credits_min=Decimal(1), course_credits_max=Decimal(3)),
    ]

    learned = learn_selectors(COURSE, [TrainingPage(body=page(one), records=[one]) for one in known])

    assert learned is not None
    assert "course_credits_min" not in dict(learned.fields)
    assert found(learned, page(known[2])) == said(known[2])


def test_the_kind_of_credits_is_learned_from_the_words_for_it() -> None:
    def page(one: Mapping[str, Any]) -> str:
        words = {"SemesterHour": "semester hours", "ClockHour": "clock hours"}
        said = words[one["course_credits_type"]]
        return by_classes(one).replace("points", said)

    kinds = ["SemesterHour", "ClockHour", "SemesterHour"]
    known = [a_course(at, course_credits_type=one) for at, one in enumerate(kinds, start=1)]

    learned = learn_selectors(COURSE, [TrainingPage(body=page(one), records=[one]) for one in known])

    new = a_course(5, course_credits_type="ClockHour")
    assert found(learned, page(new)) == said(new)


def test_a_second_record_where_one_was_learned_is_not_passed_over() -> None:
    page = in_a_page(by_classes)
    learned = learn_selectors(COURSE, lessons(page, [1], [2], [4]))

    assert found(learned, page([a_course(7), a_course(8)])) == []


def test_a_record_without_a_required_field_leaves_the_page_to_others() -> None:
    page = in_a_page(by_classes)
    learned = learn_selectors(COURSE, lessons(page, [1, 2, 4]))

    assert found(learned, page([a_course(7), a_course(8, course_description="")])) == []


HOSTILE = {
    "deep": "<div class=a>" * 400 + "{}" + "</div>" * 400,
    "wide": "{}" + "<i class=x>1</i>" * 20_000,
    "odd names": '<div class="a&quot;] b\\ c{{}} :x" id="1\'">{}</div>',
    "odd tags": "<o:p><x-y->{}</x-y-></o:p><svg><g>{}</g></svg>",
    "odd labels": '<dl><dt>a"]) , *</dt><dd>{}</dd></dl>',
    "unclosed": "<table><tr><td><p><b><i>{}<td><tr>",
    "long": "<p>" + "word " * 30_000 + "</p>{}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_page_teaches_in_time_or_not_at_all(name: str) -> None:
    began = time.thread_time()
    known = [a_course(number) for number in (1, 2, 4)]
    bodies = [HOSTILE[name].replace("{}", by_classes(one)) for one in known]

    learned = learn_selectors(
        COURSE, [TrainingPage(body=body, records=[one]) for body, one in zip(bodies, known, strict=True)]
    )

    assert learned is None or found(learned, bodies[0]) == said(known[0])
    assert time.thread_time() - began < 5


WORDS = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=3, max_size=5), st.sampled_from(sorted(LISTS)))
def test_whatever_is_learned_finds_what_was_known(texts: list[tuple[str, str, str]], name: str) -> None:
    fields = ("course_id", "course_name", "course_description")
    known = [a_course(1, **dict(zip(fields, one, strict=True))) for one in texts]
    html = LISTS[name](known)

    learned = learn_selectors(COURSE, [TrainingPage(body=html, records=known)])

    keys = [tuple(one[field] for field in fields) for one in found(learned, html)] if learned else []
    assert learned is None or set(keys) == {tuple(one[field] for field in fields) for one in known}
