"""The visible text of a page: what is hidden by elements, attributes, styles and style sheets, and what is not."""

import time
from html import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.reading import cleaned_text
from ingestion_pipeline.reading.html.cleaning import (
    MAX_SELECTORS,
    body_html,
    hiding,
    hiding_selectors,
    parse_html,
    readable,
)
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.links import page_links
from ingestion_pipeline.reading.html.markdown import visible_page
from ingestion_pipeline_tests.reading.tables import table
from ingestion_pipeline_tests.samples import sample

SEEN = "<h1>Baking I</h1>"


@pytest.mark.parametrize("hidden", table(__file__, "test_content_hidden_from_visitors_is_not_text"))
def test_content_hidden_from_visitors_is_not_text(hidden: str) -> None:
    assert cleaned_text(f"<body>{SEEN}{hidden}</body>") == "Baking I"


@pytest.mark.parametrize("output", table(__file__, "test_content_that_visitors_can_reveal_is_text"))
def test_content_that_visitors_can_reveal_is_text(output: str) -> None:
    assert cleaned_text(f"<body>{SEEN}{output}</body>") == "Baking I\nshown"


def test_a_page_that_is_hidden_until_a_script_runs_is_not_empty() -> None:
    assert cleaned_text("<div style='display:none'><p>Everything<script>x</script></div>") == ("Everything")
    assert cleaned_text("<body style='visibility:hidden'>Everything") == "Everything"


@pytest.mark.parametrize(("html", "text"), table(__file__, "test_a_block_is_a_line"))
def test_a_block_is_a_line(html: str, text: str) -> None:
    assert cleaned_text(html) == text


def test_text_that_another_extractor_finds_is_found() -> None:
    folder = "courses/cleancatalog/atlanticcape_baking_certificate"
    theirs = sample(f"{folder}.simplified.txt").read_text()
    ours = cleaned_text(sample(f"{folder}.html").read_text())

    words = {word for word in theirs.replace("](", " ").split() if word.isalpha()}

    assert len(words) > 150
    assert {word for word in words if word not in ours} == set()


@given(st.text(alphabet="ab é漢\u00a0\u2003\u3000\u200b\t\n\x0b\x1f\x85&<>;#l", max_size=40))
def test_a_paragraph_is_its_words_whatever_is_between_them(text: str) -> None:
    message = cleaned_text(f"<p>{escape(text)}<p>b <b>b</b>")

    assert message == "\n".join(filter(None, [readable(text.replace("\n", " ")), "b b"]))


def test_preformatted_text_is_unchanged() -> None:
    assert cleaned_text("<p>&amp;lt;<plaintext>&copy; b") == "&lt;\n&copy; b"


@given(st.text(alphabet="<>/&;'\"= abp\n\0\ud800!-#x", max_size=80))
def test_no_text_raises_or_leaves_a_tag(html: str) -> None:
    text = cleaned_text(html)

    assert "\0" not in text
    assert text == text.strip()


@given(st.text(alphabet="ab \u00a0\u2003\u3000\u2028\t\n\r\x0b\x0c\x1f\x85é", max_size=40))
def test_whitespace_of_all_kinds_is_collapsed(text: str) -> None:
    lines = [" ".join(line.split()) for line in text.replace("\r", "\n").split("\n")]

    assert readable(text) == "\n".join(line for line in lines if line)


URL = "https://a.test/shop/list"

SEEN_LINK = "<a href=/seen>seen</a>"


@pytest.mark.parametrize("hidden", table(__file__, "test_hidden_links_come_after_visible_ones"))
def test_hidden_links_come_after_visible_ones(hidden: str) -> None:
    page = visible_page(Document(f"<body>{hidden}{SEEN_LINK}", url=URL))

    assert page.links == ("https://a.test/seen", "https://a.test/hidden")
    assert page.text == "seen"


def test_hidden_links_are_found_among_many_icons() -> None:
    icons = "<svg><path d=x /></svg>" * 100
    page = visible_page(Document(f"<body>{icons}<p hidden><a href=/hidden>x</a></p>{SEEN_LINK}", url=URL))

    assert page.links == ("https://a.test/seen", "https://a.test/hidden")


def test_a_fully_hidden_page_still_has_links() -> None:
    page = visible_page(Document(f"<div hidden>{SEEN_LINK}<p>text</p></div>", url=URL))

    assert page.links == ("https://a.test/seen",)
    assert "text" in page.text


def test_markup_inside_text_is_not_a_link() -> None:
    html = f"{SEEN_LINK}<textarea><a href=/no>x</a></textarea><!-- <a href=/no> --><plaintext>{SEEN_LINK}"

    assert visible_page(Document(html + "<a href=/no>", url=URL)).links == ("https://a.test/seen",)


@pytest.mark.parametrize("note", ["<!-- note -->", "<!-- note --><!-- > -->", "<!---->"])
def test_a_comment_in_a_tag_hides_nothing(note: str) -> None:
    """Inside a tag it is not a comment but odd attributes: all text up to the next comment was once lost."""
    page = visible_page(Document(f"<p {note}>one</p>{SEEN_LINK}<!-- two --> three", url=URL))

    assert page.links == ("https://a.test/seen",)
    assert "seen" in page.text
    assert "two" not in page.text
    assert "three" in page.text


def test_comment_syntax_in_plain_text_is_text() -> None:
    assert "3 < 4" in visible_page(Document("<p>one</p><plaintext>3 < 4 <!-- 5", url=URL)).text


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "<!-- x -->"])
def test_many_comments_in_tags_are_read_as_fast_as_other_pages(end: str) -> None:
    """Each was once searched for up to the end of the page: 8,000 of them took seconds."""
    html = "".join(f"<p <!--{number}>t</p>" for number in range(20_000)) + end
    tree = parse_html(html)
    started = time.thread_time()

    assert b"<!--19999" in body_html(tree)

    assert time.thread_time() - started < 2


PARTS = st.sampled_from(
    [
        *("<div hidden>", "</div>", "<svg>", "</svg>", "<noscript>", "</noscript>", "<p>", "</p>"),
        *("<map>", "<area href=/m>", "<template>", "</template>", "<select>", "<table>", "<td>"),
        *("<textarea>", "</textarea>", "<!--", "-->", "<title>", "</title>", "<iframe>", "<math>"),
        *("<span style='display:none'>", "</span>", "<a hidden href=/h>", "<plaintext>", "<body>"),
        *("<a href='/x?a=1&b=\"2\"'>", "<a href=../y#z>", "</a>", "<a id=' href='>", "text", "<b>"),
        *("<base href=/b/>", "<style>.c{display:none}</style>", "<a class=c href=c>"),
    ]
)


@pytest.mark.slow
@given(st.lists(PARTS, max_size=14).map("".join))
def test_every_link_of_a_page_is_found_once(html: str) -> None:
    links = visible_page(Document(html, url=URL)).links

    assert sorted(links) == sorted(page_links(parse_html(html), URL))
    assert visible_page(Document(html, url=URL, utf8=html.encode())).links == links


VISIBLE = "<p>Baking I</p>"


def is_visible(html: str) -> bool:
    text = cleaned_text(f"<body>{VISIBLE}{html}</body>")
    assert "Baking I" in text
    return "word" in text


@pytest.mark.parametrize("style", table(__file__, "test_text_hidden_by_an_inline_style_is_dropped"))
def test_text_hidden_by_an_inline_style_is_dropped(style: str) -> None:
    assert not is_visible(f'<p style="{style}">word</p>')


@pytest.mark.parametrize("style", table(__file__, "test_a_style_for_position_or_color_hides_nothing"))
def test_a_style_for_position_or_color_hides_nothing(style: str) -> None:
    assert is_visible(f'<p style="{style}">word</p>')


@pytest.mark.parametrize(
    "html",
    [
        "<div style='font-size:0'><p class=cell>word</p></div>",
        "<div style='visibility:hidden'><p style='visibility:visible'>word</p></div>",
        "<style>.grid{font-size:0}</style><div class=grid><p style='font-size:16px'>word</p></div>",
    ],
)
def test_a_child_may_override_inherited_size_and_visibility(html: str) -> None:
    assert is_visible(html)


@pytest.mark.parametrize(("css", "html"), table(__file__, "test_text_hidden_by_a_style_sheet_is_dropped"))
def test_text_hidden_by_a_style_sheet_is_dropped(css: str, html: str) -> None:
    assert not is_visible(f"<style>{css}</style>{html}")


@pytest.mark.parametrize(("css", "html"), table(__file__, "test_text_that_a_style_sheet_may_show_is_text"))
def test_text_that_a_style_sheet_may_show_is_text(css: str, html: str) -> None:
    assert is_visible(f"<style>{css}</style>{html}")


@pytest.mark.parametrize(
    "sheet",
    [
        "<style media=print>.x{display:none}</style>",
        "<style media='(max-width: 600px)'>.x{display:none}</style>",
        "<style type=text/x>.x{display:none}</style>",
        "<noscript><style>.x{display:none}</style></noscript>",
    ],
)
def test_a_style_sheet_for_other_media_hides_nothing(sheet: str) -> None:
    assert is_visible(f"{sheet}<p class=x>word")


def test_with_too_many_rules_the_first_apply_in_every_process() -> None:
    sheet = "".join(f".c{number}{{display:none}}" for number in range(MAX_SELECTORS + 50))

    selectors = [selector for selector, _ in hiding_selectors(sheet)]

    assert selectors == [f"body .c{number}" for number in range(MAX_SELECTORS)]


@pytest.mark.parametrize(
    "style",
    [
        "font-size:" + "0" * 200_000 + "x",
        "overflow:hidden;width:" + "0" * 200_000 + "x",
        "clip-path:polygon(" + "0" * 200_000,
        "transform:" + ")" * 200_000,
        "width " * 50_000,
        "\\" * 100_000,
        "display:" + "/*" * 100_000,
    ],
    ids=lambda style: style[:20],
)
def test_a_hostile_style_is_parsed_as_fast_as_others(style: str) -> None:
    started = time.thread_time()

    hiding(style)

    assert time.thread_time() - started < 2


@pytest.mark.parametrize(
    "css",
    [
        ".a{display:none}" + "a " * 200_000,
        "display:none" + "@" * 300_000,
        "none" + "/*" * 200_000,
        "none" + "{" * 300_000,
        "@media screen{" * 50_000 + ".x{display:none}",
        ".a{display:none;" + "a:b;" * 100_000 + "}",
        ".a{display:none}" + "}" * 300_000,
        ".a" + ">.a" * 100_000 + "{display:none}",
        "." + "a" * 300_000 + "{display:none}",
        "[a=" + '"' * 100_000 + "{display:none}",
    ],
    ids=lambda css: css[:20],
)
def test_a_hostile_style_sheet_is_parsed_as_fast_as_others(css: str) -> None:
    """Text without a brace once took seconds, and everything else in the run waited."""
    started = time.thread_time()

    hiding_selectors(css)

    assert time.thread_time() - started < 2
