"""Platforms and job boards recognised by the URL alone."""

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.series.platforms import PLATFORMS
from ingestion_pipeline.sources.platforms import READERS, Platform, platforms, recognize_platform
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline_tests.samples import sample

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
def test_any_text_is_parsed_without_an_error(url: str) -> None:
    recognized = recognize_platform(url)

    assert recognized is None or recognized.name in {"mangadex", "rss", *platforms()}


EXPECTED = yaml.safe_load((Path(__file__).parent / "expected" / "job_board_urls.yaml").read_text())
BOARDS: dict[str, list[dict[str, Any]]] = EXPECTED["boards"]
NOT_BOARDS: list[str] = [
    *EXPECTED["not_boards"],
    "https://xn--\udc80.lever.co/a",
]  # a lone surrogate, which no file can hold


@pytest.mark.parametrize(
    ("url", "platform"),
    [
        (url, Platform(name, group["token"]))
        for name, groups in BOARDS.items()
        for group in groups
        for url in group["urls"]
    ],
)
def test_a_board_is_recognised_with_its_token(url: str, platform: Platform) -> None:
    assert recognize_platform(url) == platform


@pytest.mark.parametrize("url", NOT_BOARDS)
def test_a_vendors_own_page_or_a_look_alike_is_not_a_board(url: str) -> None:
    assert recognize_platform(url) is None


def test_every_board_platform_has_expected_urls() -> None:
    assert set(BOARDS) == set(platforms())


@given(
    host=st.sampled_from(["jobs.lever.co", "boards.greenhouse.io", "a.wd1.myworkdayjobs.com", "ats.rippling.com"]),
    rest=st.text(max_size=60),
)
def test_any_path_on_a_boards_host_is_parsed_without_an_error(host: str, rest: str) -> None:
    recognized = recognize_platform(f"https://{host}/{rest}")

    assert recognized is None or recognized.token is None or "/" not in recognized.token


def test_every_board_of_the_sample_is_recognised_with_a_token() -> None:
    with sample("jobs/board_urls/ats_urls.csv").open() as file:
        rows = list(csv.DictReader(file))

    recognized = [(row, recognize_platform(row["url"])) for row in rows]

    missed = [row["url"] for row, platform in recognized if platform is None or platform.name != row["platform"]]
    assert (len(rows), missed) == (480, [])
    assert all(platform is not None and platform.token for _, platform in recognized)
