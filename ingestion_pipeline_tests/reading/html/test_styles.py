"""Styles that hide text from visitors, and styles that do not."""

import time

import pytest

from ingestion_pipeline.reading import cleaned_text
from ingestion_pipeline.reading.html.cleaning import MAX_SELECTORS, hiding, hiding_selectors

VISIBLE = "<p>Baking I</p>"


def is_visible(html: str) -> bool:
    text = cleaned_text(f"<body>{VISIBLE}{html}</body>")
    assert "Baking I" in text
    return "word" in text


@pytest.mark.parametrize(
    "style",
    [
        "display:/**/none",
        "display:n\\6fne",
        "font-size:0.0px",
        "font-size:1px",
        "font-size:.1px",
        "font:0/0 a",
        "transform:scale(0,0)",
        "transform:scaleX(0)",
        "scale:0",
        "transform:translateX(-9999px)",
        "text-indent:-9999px",
        "position:absolute;left:-99em",
        "position:absolute;left:200vw",
        "position:absolute;left:calc(-9999px)",
        "position:fixed;inset:-9999px auto auto 0",
        "clip-path:circle(0)",
        "clip-path:polygon(0 0, 0 0, 0 0)",
        "height:0.0px;overflow:hidden",
        "content-visibility:hidden",
        "color:transparent",
        "color:#fff;background:#fff",
        "background-color: White; color: white",
    ],
)
def test_text_hidden_by_an_inline_style_is_dropped(style: str) -> None:
    assert not is_visible(f'<p style="{style}">word</p>')


@pytest.mark.parametrize(
    "style",
    [
        "position:absolute;left:50%;margin-left:-480px",
        "position:absolute;top:-100px",
        "text-indent:-120px;margin-left:120px",
        "overflow:hidden;width:1%",
        "overflow:hidden;height:1em",
        "overflow:hidden;width:0;flex:1",
        "overflow:hidden;width:0;min-width:100%",
        "color:transparent;background-clip:text;background:red",
        "color:#fff;background:#000",
        "background:none",
        "font-size:10px",
        "transform:scale(0.9)",
    ],
)
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


@pytest.mark.parametrize(
    ("css", "html"),
    [
        (".a .b{display:none}", "<div class=a><p class=b>word</div>"),
        (".menu.off{display:none}", "<p class='menu off'>word"),
        ("@media screen{.x{display:none}}", "<p class=x>word"),
        ("@media all { .y{color:red} .x{display:none} }", "<p class=x>word"),
        ("@layer base{.x{display:none}}", "<p class=x>word"),
        ("@supports (display:grid){.x{display:none}}", "<p class=x>word"),
        ("[data-h]{display:none}", "<p data-h>word"),
        ("p[data-h='1'] {display:none}", "<p data-h=1>word"),
        ("div>p.x{display:none}", "<div><p class=x>word</div>"),
        ("body .x{display:none}", "<p class=x>word"),
        ("*#h{display:none}", "<p id=h>word"),
        (".é{display:none}", "<p class=é>word"),
        ("aside{display:none}", "<aside>word</aside>"),
        ("my-el{display:none}", "<my-el>word</my-el>"),
        ("@import url(x.css); .x{display:none}", "<p class=x>word"),
        ("@charset 'utf-8'; .x{display:none}", "<p class=x>word"),
        ("<!-- .x{display:none} -->", "<p class=x>word"),
        (".note{display:none} .notebook{display:block}", "<p class=note>word"),
        ("div{display:block} div.x{display:none}", "<div class=x>word</div>"),
        (".x{color:red;display:none;margin:0}", "<p class=x>word"),
    ],
)
def test_text_hidden_by_a_style_sheet_is_dropped(css: str, html: str) -> None:
    assert not is_visible(f"<style>{css}</style>{html}")


@pytest.mark.parametrize(
    ("css", "html"),
    [
        (".t>.pane{display:none} .t>.on{display:block}", "<div class=t><p class=pane>word</div>"),
        (".x{display:none} .x:hover{display:block}", "<p class=x>word"),
        (".x{display:none} @media (min-width:1px){.x{display:block}}", "<p class=x>word"),
        (".tab{display:none}", "<p class=tab style='display:block'>word"),
        ("[v-cloak]{display:none}", "<div v-cloak>word</div>"),
        ("@media (max-width: 600px){.x{display:none}}", "<p class=x>word"),
        ("@media print{.x{display:none}", "<p class=x>word"),
        ("@supports not (display:grid){.x{display:none}}", "<p class=x>word"),
        (".x:first-child{display:none}", "<p class=x>word"),
        ("@keyframes a{from{display:none}}", "<p class=from>word"),
        ("main{display:none} *{visibility:hidden}", "<main>word</main>"),
    ],
)
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
