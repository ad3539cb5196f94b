from __future__ import annotations

import pytest

from ingestion_pipeline.reading.links import absolute_link, absolute_links

BASE = "https://a.test/list/?page=2"


@pytest.mark.parametrize(
    ("link", "address"),
    [
        ("7", "https://a.test/list/7"),
        ("/7", "https://a.test/7"),
        ("?page=3", "https://a.test/list/?page=3"),
        ("//b.test/7", "https://b.test/7"),
        ("HTTP://b.test/7", "HTTP://b.test/7"),
        ("/7#comments", "https://a.test/7#comments"),
    ],
)
def test_a_link_is_an_address(link: str, address: str) -> None:
    assert absolute_link(BASE, link) == address


@pytest.mark.parametrize(
    "link",
    [
        *("javascript:void(0)", "JavaScript:x", "mailto:a@a.test", "data:text/html,x", "tel:1"),
        *("#", "#top", "", None, "http://[", "blob:https://a.test/1"),
    ],
)
def test_what_a_browser_would_not_fetch_is_no_address(link: str | None) -> None:
    assert absolute_link(BASE, link) is None


def test_a_relative_link_of_nowhere_is_no_address() -> None:
    assert absolute_link("", "/7") is None


def test_a_fragment_stays_only_if_it_tells_two_links_apart() -> None:
    links = [(BASE, "/7#read"), (BASE, "/8#a"), (BASE, "/8#b"), (BASE, "#top")]

    assert list(absolute_links(links).values()) == [
        "https://a.test/7",
        "https://a.test/8#a",
        "https://a.test/8#b",
        None,
    ]
