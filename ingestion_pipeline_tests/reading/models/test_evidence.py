from __future__ import annotations

import pytest

from ingestion_pipeline.reading.llm import PageText
from ingestion_pipeline.reading.llm.question import without_strange_urls

PAGE = PageText(
    text="See https://a.test/x?b=1&a=2, (www.b.test/y). Write to mailto:me@a.test. Data: 5",
    links=["https://a.test/relative"],
)


@pytest.mark.parametrize(
    "value",
    [
        "https://a.test/x?b=1&a=2",
        "HTTPS://A.test:443/x?a=2&b=1",
        "https://a.test/x?b=1&a=2#top",
        "www.b.test/y",
        "https://a.test/relative",
        "more at https://a.test/relative.",
        "mailto:me@a.test",
        "no address: at all",
        "Data: 5",
        "",
    ],
)
def test_what_stands_on_the_page_stays(value: str) -> None:
    assert without_strange_urls({"x": value}, PAGE) == ({"x": value}, ())


@pytest.mark.parametrize(
    "value",
    [
        "https://evil.test/",
        "http://a.test/x?b=1&a=2",
        "https://a.test/x",
        "https://a.test.evil.test/relative",
        "//evil.test/x",
        "www.evil.test",
        "javascript:alert(1)",
        "data:text/html,x",
        "ftp://a.test/relative",
        "fine text and then https://evil.test/x",
        "mailto:you@a.test",
    ],
)
def test_what_does_not_is_null_and_named(value: str) -> None:
    stored, dropped = without_strange_urls({"x": {"y": value}, "z": 1}, PAGE)

    assert stored == {"x": {"y": None}, "z": 1}
    assert [item.path for item in dropped] == ["$.x.y"]


def test_an_item_of_a_list_goes_and_a_null_that_was_there_stays() -> None:
    stored, dropped = without_strange_urls({"x": [None, "https://evil.test/", "https://a.test/relative"]}, PAGE)

    assert stored == {"x": [None, "https://a.test/relative"]}
    assert [item.path for item in dropped] == ["$.x[1]"]


def test_a_password_in_a_url_is_not_kept_for_the_record() -> None:
    _, dropped = without_strange_urls({"x": "https://u:geheim@evil.test/"}, PAGE)

    assert "geheim" not in dropped[0].url
