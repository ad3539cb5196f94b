"""Tables for the UI: a stranger's title is shown, and does nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from ingestion_pipeline.orchestration.events import MAX_PICTURE_BYTES, MAX_TITLE_CHARS, chapter_table, picture, plain
from ingestion_pipeline.series.reporting import ListedChapter
from ingestion_pipeline_tests.builders import NOON

CHAPTER = ListedChapter(
    number=Decimal("17.50"), title="The Cat", published_at=NOON - timedelta(days=1), detected_at=NOON, is_new=True
)


def test_a_chapter_is_one_line_of_the_table() -> None:
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
def test_what_a_title_says_means_nothing_to_the_page(title: str | None, markdown: str) -> None:
    assert plain(title) == markdown


def test_a_long_title_is_cut_before_it_is_escaped() -> None:
    shown = plain("|" * 1_000)

    assert shown == r"\|" * (MAX_TITLE_CHARS - 1) + "…"


def test_a_picture_is_inside_the_text_of_the_event() -> None:
    assert picture(b"\xff\xd8\xffx") == "![screenshot](data:image/jpeg;base64,/9j/eA==)"
    assert picture(b"\x89PNG") == "![screenshot](data:image/png;base64,iVBORw==)"


@pytest.mark.parametrize("body", [b"\xff\xd8\xff" + bytes(MAX_PICTURE_BYTES), b"<svg onload=x>", b""])
def test_what_is_too_large_or_no_picture_is_not_shown(body: bytes) -> None:
    assert picture(body) is None
