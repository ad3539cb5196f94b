"""The Markdown that link patterns are matched on, and what a match means."""

from __future__ import annotations

import pytest

from ingestion_pipeline.catalogs.recipes.patterns import LinkPattern, matched_links, simplified_markdown
from ingestion_pipeline_tests.samples import sample

BASE = "https://a.test/dir/list"


def found(html: str, pattern: str, *, exact: bool = False) -> list[str]:
    markdown = simplified_markdown(f"<body>{html}")
    return matched_links(markdown, LinkPattern(pattern, is_exact=exact), BASE)


def test_what_is_no_content_is_gone_and_links_stand_inline() -> None:
    html = (
        "<head><title>T</title><link rel=next href=/n></head><body><!-- /c/1 -->"
        "<script>'/c/2'</script><div></div><iframe src=/c/3></iframe>"
        "<div><div><a href='c/4' class=x title='/c/5' data-to='/c/6'>Four</a></div></div>"
        "<footer><a href=/c/7>Seven</a></footer>"
    )

    assert simplified_markdown(html) == "[Four](c/4)"


def test_the_same_page_gives_the_same_text() -> None:
    html = sample("courses/cleancatalog/atlanticcape_baking_certificate.html").read_text()

    first = simplified_markdown(html)

    assert first == simplified_markdown(html)
    assert "[ENGL101](/english/engl101)" in first  # as in the reference beside the sample
    assert "[Culinary Arts](/culinary-arts)" in first


def test_hidden_lists_are_kept() -> None:
    assert found("<div style='display:none'><a href=/c/1>x</a></div>", "/c/") == ["https://a.test/c/1"]


@pytest.mark.parametrize(
    ("html", "pattern", "urls"),
    [
        ("<a href='/c/1?x=1'>1</a>", "/c/[0-9]", ["https://a.test/c/1?x=1"]),
        ("<a href='c/1'>1</a>", r"^c/\d$", ["https://a.test/dir/c/1"]),
        ("<a href='c/1'>1</a>", r"^https://a\.test/dir/c/\d$", ["https://a.test/dir/c/1"]),
        ("<a href='/c/1'>1</a><a href='/c/1#x'>2</a>", "/c/", ["https://a.test/c/1"]),
        ("<a href='/c/(a)'>1</a>", "/c/", ["https://a.test/c/(a)"]),
        ("<a href='/c/a b'>1</a>", "/c/", ["https://a.test/c/a%20b"]),
        ("<p>see https://b.test/c/9 too", r"https?://\S+/c/\d", ["https://b.test/c/9"]),
        ("<p>see /c/9 too", r"/c/\d", ["https://a.test/c/9"]),
        ("<p>all courses here", "courses", []),
        ("<a href='/x'>GEN 101</a><a href='/y'>Help</a>", r"\[GEN \d+\]\(\S+?\)", ["https://a.test/x"]),
        ("<a href='/x'>/c/1</a>", "/c/", []),
        ("<a href='/c/2'>2</a> <a href='/c/1'>1</a>", "/c/.*", ["https://a.test/c/2", "https://a.test/c/1"]),
        (
            "<a href='/preview_course.php?catoid=7&amp;coid=12'>x</a>",
            r"coid=\d+",
            ["https://a.test/preview_course.php?catoid=7&coid=12"],
        ),
    ],
)
def test_a_match_means_a_page(html: str, pattern: str, urls: list[str]) -> None:
    assert found(html, pattern) == urls


def test_an_exact_match_is_the_matched_part_alone() -> None:
    html = "<a href='/dir/dir/c/1/print'>1</a>"

    assert found(html, r"/dir/c/\d", exact=True) == ["https://a.test/dir/c/1"]
