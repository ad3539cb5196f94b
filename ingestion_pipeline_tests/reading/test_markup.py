from __future__ import annotations

import time
from contextlib import suppress

import pytest

from ingestion_pipeline.reading import cleaned_text, to_markdown
from ingestion_pipeline.reading.markup import MAX_CHARACTERS, parse_html, refuse_bombs
from ingestion_pipeline.work.errors import Permanent

BOMBS = {
    "nested": ("<div>" * 1_000_000, "too_deep"),
    "nested-small": ("<div>" * 3_500, "too_deep"),
    "nested-sections": ("<section><p>" * 200_000, "too_deep"),
    "attributes": (
        "<div " + " ".join(f"a{n}=1" for n in range(100_000)) + ">",
        "too_many_attributes",
    ),
    "attributes-quoted": (
        "<div " + " ".join(f"a{n}='<'" for n in range(100_000)) + ">",
        "too_many_attributes",
    ),
    "attributes-slashed": ("<div " + "/a/b" * 50_000 + ">", "too_many_attributes"),
    "large": ("x" * (MAX_CHARACTERS + 1), "too_large"),
}
ODDITIES = {
    "formatting": "<b>" * 100_000 + "x",
    "tables": "<table><tr><td>" * 150 + "x" * 100_000,
    "links": "<a href=x><p>" * 20_000 + "x",
    "open-quotes": '<a "' * 200_000,
    "open-tags": "<a " * 200_000,
    "ends": "<div>x</div>" + "</span>" * 200_000,
    "comments": "<!--" * 200_000,
    "one-line": "x" * 4_000_000,
    "paragraphs": "<p>x" * 100_000,
    "entities": "&amp;" * 200_000,
}


@pytest.mark.parametrize(("html", "code"), BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_is_refused_before_it_is_parsed(html: str, code: str) -> None:
    started = time.thread_time()

    with pytest.raises(Permanent) as refused:
        to_markdown(html)

    assert refused.value.code == code
    assert time.thread_time() - started < 1


@pytest.mark.parametrize("html", ODDITIES.values(), ids=ODDITIES.keys())
def test_an_odd_page_is_read_or_refused_in_time(html: str) -> None:
    started = time.thread_time()

    with suppress(Permanent):
        cleaned_text(html)

    assert time.thread_time() - started < 1


def test_the_largest_page_that_is_not_looked_over_is_parsed_in_time() -> None:
    """The parser is quadratic below the limits, too: they must be low enough."""
    deep = "<div>" * 3_000
    many = ("<div " + "a b " * 990 + ">") * 50
    started = time.thread_time()

    parse_html(deep)
    parse_html(many)

    assert time.thread_time() - started < 1


def test_a_long_page_is_no_bomb() -> None:
    rows = "<div><ul><li>a<li>b</ul><p>c<br></div>" * 20_000
    script = "<script>" + "if (a < b) { '<div>' }" * 50_000 + "</script>"
    picture = f"<img src='data:image/png;base64,{'A' * 500_000}' alt=x>"

    refuse_bombs(rows + script + picture)

    assert len(parse_html(rows + script + picture).css("li")) == 40_000
