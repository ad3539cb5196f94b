"""Metadata of materializations: known numbers, escaped tables and screenshots."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import dagster as dg
import pytest

from ingestion_pipeline.engine.system_spec import MAX_PICTURE_BYTES, MAX_TITLE_CHARS, picture, plain
from ingestion_pipeline.orchestration.runs import materialization
from ingestion_pipeline.series.series_reports import ListedChapter, SourceReport, chapter_event, chapter_table
from ingestion_pipeline_tests.builders import NOON

REPORT = SourceReport(
    source_id="series:solo",
    series_title="Solo",
    url="https://solo.test/feed",
    tier="hot",
    outcome="1 new",
    polls=16,
    changes=2,
    new=1,
    updated=3,
    withdrawn=4,
    total=20,
    latest_chapter=Decimal("20.5"),
    newest=[],
    delay_minutes=12.345,
)


def numbers(report: SourceReport) -> dict[str, Any]:
    """What the UI draws."""
    return {
        name: value.value
        for name, value in materialization(chapter_event(report)).metadata.items()
        if isinstance(value, dg.IntMetadataValue | dg.FloatMetadataValue)
    }


def test_every_number_is_plottable_in_the_ui() -> None:
    assert numbers(REPORT) == {
        "polled": 16,
        "changed": 2,
        "new": 1,
        "updated": 3,
        "withdrawn": 4,
        "total": 20,
        "latest_chapter": 20.5,
        "delay_minutes": 12.3,
    }


def test_an_unknown_number_is_absent_and_never_zero() -> None:
    incomplete = numbers(replace(REPORT, delay_minutes=None, latest_chapter=None))

    assert numbers(REPORT).keys() - incomplete.keys() == {"delay_minutes", "latest_chapter"}
    assert numbers(replace(REPORT, delay_minutes=0.0))["delay_minutes"] == 0


CHAPTER = ListedChapter(
    number=Decimal("17.50"), title="The Cat", published_at=NOON - timedelta(days=1), detected_at=NOON, is_new=True
)


def test_a_chapter_is_a_row_of_the_table() -> None:
    unknown = replace(CHAPTER, number=None, title=None, published_at=None, is_new=False)

    assert chapter_table([CHAPTER, unknown]).splitlines()[2:] == [
        "| 17.5 | The Cat | 2026-02-28 12:00 | 2026-03-01 12:00 | **new** |",
        "|  |  |  | 2026-03-01 12:00 |  |",
    ]


def test_no_chapter_is_no_table() -> None:
    assert chapter_table([]) == "no chapters"


@pytest.mark.parametrize(
    ("title", "markdown"),
    [
        ("a | b", r"a \| b"),
        ("one\n| two\r\x1b[31m", r"one \| two \[31m"),
        ("[x](javascript:y)", r"\[x\]\(javascript\:y\)"),
        ("<img src=x>", r"\<img src\=x\>"),
        ("&lt; `c` *b*", r"\&lt\; \`c\` \*b\*"),
        ("a\\", r"a\\"),
        ("https://a.test", "https\\:\u2060\\/\\/a\\.test"),
        ("WWW.a.test", "WWW\u2060\\.a\\.test"),
        ("me@a.test", "me\\@\u2060a\\.test"),
        ("\u202egnp.exe", r"gnp\.exe"),
        ("第5話「海」", "第5話「海」"),
        (None, ""),
    ],
)
def test_a_title_is_escaped_in_markdown(title: str | None, markdown: str) -> None:
    assert plain(title) == markdown


def test_a_long_title_is_cut_before_it_is_escaped() -> None:
    title = plain("|" * 1_000)

    assert title == r"\|" * (MAX_TITLE_CHARS - 1) + "…"


def test_a_screenshot_is_embedded_in_the_event() -> None:
    assert picture(b"\xff\xd8\xffx") == "![screenshot](data:image/jpeg;base64,/9j/eA==)"
    assert picture(b"\x89PNG") == "![screenshot](data:image/png;base64,iVBORw==)"


@pytest.mark.parametrize("body", [b"\xff\xd8\xff" + bytes(MAX_PICTURE_BYTES), b"<svg onload=x>", b""])
def test_a_body_that_is_too_large_or_no_image_is_not_embedded(body: bytes) -> None:
    assert picture(body) is None
