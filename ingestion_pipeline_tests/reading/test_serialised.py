"""What the reading of a page relies on in the HTML that the parser writes."""

from __future__ import annotations

import pytest

from ingestion_pipeline.reading.html.cleaning import cleaned_text
from ingestion_pipeline.reading.html.markdown import to_markdown
from ingestion_pipeline.reading.html.parsing import parse_html


def test_no_attribute_is_written_with_a_bracket() -> None:
    tree = parse_html("<p title='a > b < c \"d\"'>text")

    assert tree.body is not None
    assert tree.body.html == '<body><p title="a &gt; b &lt; c &quot;d&quot;">text</p></body>'


@pytest.mark.parametrize(
    "html", ["<p data-x='1 > 2'>seats</p>", '<p x"y>seats</p>', "<div><b title='<i>'>sea</b><i>ts</i></div>"]
)
def test_nothing_of_a_tag_is_text(html: str) -> None:
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
def test_a_link_stands_in_the_markdown_as_a_whole_address(html: str, markdown: str) -> None:
    assert to_markdown(f"<body>{html}", url="http://a.test/x/y").strip() == markdown
