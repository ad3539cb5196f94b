"""Platforms told by the URL alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.series.platforms import PLATFORMS
from ingestion_pipeline.sources.platforms import READERS, Platform, platforms, recognize_platform
from ingestion_pipeline.sources.source import Kind

MANGA = "a1c7c817-4e59-43b7-9365-09675a149a6f"


def test_a_series_may_be_declared_with_every_platform_that_has_an_adapter() -> None:
    assert set(READERS[Kind.SERIES]) == set(PLATFORMS)


@pytest.mark.parametrize(
    ("url", "platform"),
    [
        (f"https://mangadex.org/title/{MANGA}/one-piece", Platform("mangadex", MANGA)),
        (f"https://mangadex.org/title/{MANGA.upper()}", Platform("mangadex", MANGA)),
        (f"https://www.mangadex.org/manga/{MANGA}", Platform("mangadex", MANGA)),
        (f"https://API.mangadex.org/manga/{MANGA}/feed?limit=5", Platform("mangadex", MANGA)),
        (f"https://mangadex.org:443/title/{MANGA}", Platform("mangadex", MANGA)),
        ("https://mangadex.org/titles/latest", Platform("mangadex", None)),
        (f"https://mangadex.org.evil.test/title/{MANGA}", None),
        (f"https://notmangadex.org/title/{MANGA}", None),
        ("https://a.test/chapters.xml", Platform("rss", None)),
        ("https://a.test/chapters.RSS", Platform("rss", None)),
        ("https://a.test/index.atom?x=1", Platform("rss", None)),
        ("https://a.test/series/7/feed/", Platform("rss", None)),
        ("https://a.test/feed", Platform("rss", None)),
        ("https://a.test/feeds", None),
        ("https://a.test/feed/of/cats", None),
        ("https://a.test/?format=rss", None),
        ("https://a.test/", None),
        ("", None),
        ("not a url", None),
        ("http://[::1", None),
        ("https://a.test\\]/feed", Platform("rss", None)),  # a backslash is fetched as a slash
        ("https://a.test/sitemap.xml", None),
        ("https://a.test/sitemap_index.xml", None),
        ("ftp://a.test/feed", None),
        ("/feed", None),
    ],
)
def test_a_platform_is_recognised_by_its_url(url: str, platform: Platform | None) -> None:
    assert recognize_platform(url) == platform


@given(url=st.text() | st.text().map("https://".__add__))
def test_no_text_is_too_strange_to_be_asked(url: str) -> None:
    recognized = recognize_platform(url)

    assert recognized is None or recognized.name in {"mangadex", "rss", *platforms()}
