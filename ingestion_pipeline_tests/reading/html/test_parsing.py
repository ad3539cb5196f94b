"""Limits of the HTML parser, and properties of the HTML that it serializes."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from ingestion_pipeline.reading import cleaned_text, to_markdown
from ingestion_pipeline.reading.html.parsing import MAX_CHARACTERS, MAX_TAGS, parse_html, refuse_bombs
from ingestion_pipeline.tasks.errors import Permanent

DIVS = "<div>" * 30_000
UNCLOSED = "".join(f"<b id={n}>" for n in range(1_500))
BOMBS = {
    "nested": ("<div>" * 1_000_000, "too_deep"),
    "nested-small": ("<div>" * 3_500, "too_deep"),
    "nested-sections": ("<section><p>" * 200_000, "too_deep"),
    "attributes": ("<div " + " ".join(f"a{n}=1" for n in range(100_000)) + ">", "too_many_attributes"),
    "attributes-quoted": ("<div " + " ".join(f"a{n}='<'" for n in range(100_000)) + ">", "too_many_attributes"),
    "attributes-slashed": ("<div " + "/a/b" * 50_000 + ">", "too_many_attributes"),
    "formatting-rebuilt": (f"<p>{UNCLOSED[:10_000]}</p>" + "<p>x" * 1_500, "too_deep"),
    "formatting-rebuilt-large": (f"<p>{UNCLOSED}</p>" + "<p>x" * 50_000, "too_deep"),
    "formatting-rebuilt-bare": ("<p><b><i><u><s><tt></p>" + "<p>x" * 100_000, "too_deep"),
    "formatting-rebuilt-in-tables": ("<table>" + "".join(f"<b id={n}>x<tr>" for n in range(1_400)), "too_deep"),
    "formatting-rebuilt-by-ends": ("<div>" * 500 + UNCLOSED + "</div>x" * 500, "too_deep"),
    "formatting-ended-too-early": ("</b>" * 800 + f"<p>{UNCLOSED[:8_000]}</p>" + "<p>x" * 800, "too_deep"),
    "formatting-ended-in-a-table": (
        "".join(f"<b id={n}><table></b></table>" for n in range(3_000)) + "<p>x" * 3_000,
        "too_deep",
    ),
    "slashes": ("<div/>" * 100_000, "too_deep"),
    "slashes-after-a-picture": ("<svg></svg>" + "<path/>" * 30_000, "too_deep"),
    "slashes-in-a-title": ("<svg><title>" + "<path/>" * 30_000, "too_deep"),
    "comment-with-a-mark": ("<!-- --!>" + DIVS, "too_deep"),
    "comment-empty": ("<!-->" + DIVS, "too_deep"),
    "comment-dash": ("<!--->" + DIVS, "too_deep"),
    "no-comment": ("<?<script>" + DIVS, "too_deep"),
    "picture-title": ("<svg><title>" + DIVS, "too_deep"),
    "picture-style": ("<svg><style>" + DIVS, "too_deep"),
    "formula-script": ("<math><script>" + DIVS, "too_deep"),
    "script-in-script": ("<script><!--<script></script><title></script>" + DIVS, "too_deep"),
    "script-ended-otherwise": ("<script></scripts><title></script>" + DIVS, "too_deep"),
    "script-by-another-name": ("<script\xa0>" + DIVS, "too_deep"),
    "quote-in-no-value": ('<a ">' + DIVS + '">', "too_deep"),
    "quote-within-a-value": ('<a b=c=">' + DIVS + '">', "too_deep"),
    "spans": ("<span hidden>" * 20_000, "too_deep"),
    "spans-not-ended": ("<span><p></span></p>" * 20_000, "too_deep"),
    "spans-many-within": ("<span>" * 4_000 + "<i></i>" * 100_000, "too_deep"),
    "items": ("<li><dd>" * 20_000, "too_deep"),
    "options": ("<optgroup><option>" * 20_000, "too_deep"),
    "forms": ("<form><div></form>" * 20_000, "too_deep"),
    "tables-between": ("<div><table></div></table>" * 20_000, "too_deep"),
    "own-elements": ("<x-y><div></x-y></div>" * 20_000, "too_deep"),
    "pictures-left": ("<svg><p><div></svg>" * 20_000, "too_deep"),
    "cells-without-table": ("<td><span></td>" * 20_000, "too_deep"),
    "options-flat": ("<select>" + "<option>" * 60_000, "too_deep"),
    "options-closed": ("<select>" + "<option>a</option>" * 60_000, "too_deep"),
    "option-groups-closed": ("<select>" + "<optgroup></optgroup>" * 60_000, "too_deep"),
    "options-of-many-lists": (("<select>" + "<option>a</option>" * 12_000 + "</select>") * 10, "too_deep"),
    "options-around-pictures": ("<select>" + ("<option>a</option>" * 20 + "<svg><select/></svg>") * 2_600, "too_deep"),
    "options-around-formulas": (
        "<select>" + ("<option>a" * 20 + "<math><mi><select></select></mi></math>") * 4_500,
        "too_deep",
    ),
    "attributes-of-bodies-of-a-small-page": (
        "".join(f"<body {' '.join(f'a{n}x{i}' for i in range(8))}>" for n in range(2_900)),
        "too_many_attributes",
    ),
    "attributes-of-bodies": ("".join(f"<body a{n}=1>" for n in range(70_000)), "too_many_attributes"),
    "attributes-of-roots": ("".join(f"<HTML a{n}='1'>" for n in range(70_000)), "too_many_attributes"),
    "attributes-of-one-body": ("<body a1=1>" * 90_000, "too_many_attributes"),
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
    "comments-in-a-script": "<script>" + "<!--" * 200_000 + "</script>",
    "open-values": "<a b=\"<a b='" * 100_000,
    "items-in-blocks": "<ul><li>" + "<div>" * 400 + "<dd></dd>" * 100_000,
    "one-line": "x" * 4_000_000,
    "paragraphs": "<p>x" * 100_000,
    "entities": "&amp;" * 200_000,
}


PATH = '<path d="M0 0"/>'
LOOKALIKES = {
    "unclosed-bold": "".join(f"<p>a <b>bold</p>\n<div>{n}</div>\n" for n in range(300)) * 5,
    "unclosed-fonts": "".join(f"<p><font color=#{n}>a</p>\n" for n in range(300)) + "<p>x" * 250,
    "unclosed-fonts-in-cells": "<table>"
    + "".join(f"<tr><td><font color=#{n}>a<td><b id={n}>b</td></tr>\n" for n in range(5_000))
    + "</table>",
    "paragraphs": "<i><i><i>" + "<p>x" * 20_000,
    "breaks": "a<br/>b<hr/><img src=x />" * 5_000,
    "icons": ('<i class="icon"></i><svg><title>x</title>' + PATH * 20 + "</svg>") * 500,
    "chart": "<svg><g><title>x</title>" + PATH * 5_000 + "</g></svg>",
    "comments": "<!-- <div> --><!----><!-- a -- b --!><!-->" * 5_000,
    "items": "<ul>" + "<li><p>a <b>b</b><li><a href=x>c</a>" * 5_000 + "</ul>",
    "definitions": "<dl>" + "<dt>a<dd>b<p>c" * 5_000 + "</dl>",
    "cells": "<table><tr><td>a<td><span>b</span><tr><th>c</table>" * 5_000,
    "options": ("<select>" + "<option>a" * 50 + "</select>") * 100,
    "options-of-a-long-list": "<select>" + "<option>a</option>" * 10_000 + "</select>",
    "body-twice": "<body class='a b' id=x>" * 20 + "<p>x" * 3_000,
    "rubies": "<ruby>a<rt>b</ruby>" * 5_000,
    "headings": "<h1>a</h2><p>b" * 2_000,
    "forms": "<div><form><p>a<input></form></div>" * 2_000,
    "tables-after-text": "<p>a<table><tr><td>b</table>" * 2_000,
}


@pytest.mark.parametrize(("html", "code"), BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_is_refused_before_it_is_parsed(html: str, code: str) -> None:
    started = time.thread_time()

    with pytest.raises(Permanent) as refused:
        to_markdown(html)

    assert refused.value.code == code
    assert time.thread_time() - started < 1


@pytest.mark.slow
@pytest.mark.parametrize("html", ODDITIES.values(), ids=ODDITIES.keys())
def test_an_unusual_page_is_parsed_or_refused_in_time(html: str) -> None:
    started = time.thread_time()

    with suppress(Permanent):
        cleaned_text(html)

    assert time.thread_time() - started < 1


@pytest.mark.slow
@pytest.mark.parametrize("html", LOOKALIKES.values(), ids=LOOKALIKES.keys())
def test_a_page_that_resembles_a_bomb_is_parsed(html: str) -> None:
    started = time.thread_time()

    parse_html(html)

    assert time.thread_time() - started < 1


def test_the_largest_page_that_is_not_scanned_is_parsed_in_time() -> None:
    """The parser is quadratic below the limits, too: they must be low enough."""
    deep = "<div>" * 3_000
    many = ("<div " + "a b " * 990 + ">") * 50
    unclosed = f"<p>{UNCLOSED[:4_300]}</p>" + "<p>x" * 440
    started = time.thread_time()

    parse_html(deep)
    parse_html(many)
    parse_html(unclosed)

    assert time.thread_time() - started < 1


@pytest.mark.slow
def test_a_long_page_is_not_a_bomb() -> None:
    rows = "<div><ul><li>a<li>b</ul><p>c<br></div>" * 20_000
    script = "<script>" + "if (a < b) { '<div>' }" * 50_000 + "</script>"
    picture = f"<img src='data:image/png;base64,{'A' * 500_000}' alt=x>"

    refuse_bombs(rows + script + picture)

    assert len(parse_html(rows + script + picture).css("li")) == 40_000


@pytest.mark.slow
def test_only_the_first_tags_of_too_many_are_scanned() -> None:
    with pytest.raises(Permanent) as refused:
        refuse_bombs("<p>" * (3 * MAX_TAGS))

    assert refused.value.code == "too_large"
    assert f"{3 * MAX_TAGS} tags" in str(refused.value)


@pytest.mark.slow
def test_as_many_tags_as_are_scanned_are_parsed() -> None:
    tree = parse_html("<p>x" * (MAX_TAGS - 1))

    assert len(tree.css("p")) == MAX_TAGS - 1


def test_no_attribute_is_written_with_a_bracket() -> None:
    tree = parse_html("<p title='a > b < c \"d\"'>text")

    assert tree.body is not None
    assert tree.body.html == '<body><p title="a &gt; b &lt; c &quot;d&quot;">text</p></body>'


@pytest.mark.parametrize(
    "html", ["<p data-x='1 > 2'>seats</p>", '<p x"y>seats</p>', "<div><b title='<i>'>sea</b><i>ts</i></div>"]
)
def test_no_part_of_a_tag_is_text(html: str) -> None:
    assert cleaned_text(html) == "seats"


@pytest.mark.parametrize(
    ("html", "markdown"),
    [
        ("<a class=x href=/a?b=1&amp;c=2#d title=t>in</a>", "[in](http://a.test/a?b=1&c=2#d)"),
        ("<a href=b.html>in</a>", "[in](http://a.test/x/b.html)"),
        ("<a href='https://b.test/'>out</a>", "[out](https://b.test/)"),
        ("<a href=javascript:go()>go</a>", "go"),
        ("<a href=/a><div><img src=i alt='a &lt; b'></div></a>", "[a < b](http://a.test/a)"),
        ("<a href=/a aria-label=Home></a>", "[Home](http://a.test/a)"),
        ("<a href=/a>in</a> <img src=i alt=picture>", "[in](http://a.test/a)"),
    ],
)
def test_a_link_is_an_absolute_url_in_the_markdown(html: str, markdown: str) -> None:
    assert to_markdown(f"<body>{html}", url="http://a.test/x/y").strip() == markdown
