import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pytest

from ingestion_pipeline.cli.output import (
    Column,
    CommandRefused,
    cell,
    cell_width,
    distance,
    echo,
    harmless,
    print_facts,
    print_json,
    print_table,
    shortened,
    table_lines,
)
from ingestion_pipeline.sources import Tier
from ingestion_pipeline_tests.builders import NOON


def test_json_has_utc_times_and_decimals_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    east = datetime(2026, 3, 1, 13, tzinfo=timezone(timedelta(hours=1)))

    print_json({"at": east, "number": Decimal("10.50"), "tier": Tier.HOT, "at_home": Path("x")})

    assert json.loads(capsys.readouterr().out) == {
        "at": "2026-03-01T12:00:00+00:00",
        "number": "10.50",
        "tier": "hot",
        "at_home": "x",
    }


def test_json_survives_half_a_character(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"title": "\ud83d"})

    assert json.loads(capsys.readouterr().out) == {"title": "\ud83d"}


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0s ago"),
        (-59, "59s ago"),
        (-90, "2m ago"),
        (119 * 60, "in 119m"),
        (2 * 3_600, "in 2h"),
        (47 * 3_600, "in 47h"),
        (-3 * 86_400, "3d ago"),
    ],
)
def test_a_time_span_is_short(seconds: int, expected: str) -> None:
    assert distance(NOON + timedelta(seconds=seconds), NOON) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"),
        (0, "0"),
        (True, "yes"),
        ({"a": [1]}, '{"a": [1]}'),
        (datetime(2026, 3, 1, 12, tzinfo=UTC), "2026-03-01 12:00:00 UTC"),
    ],
)
def test_a_cell_is_human_readable(value: object, expected: str) -> None:
    assert cell(value) == expected


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert harmless("a\x1b]0;x\x07\x9bb\nc\td") == "a�]0;x��b\nc\td"


BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
HIDDEN = "\u00ad\u200b\u2028\u2029\u2060\ufeff\ufffb\U000e0041"


@pytest.mark.parametrize("character", BIDI + HIDDEN + "\x1b\x7f\x9b")
def test_no_character_that_reorders_hides_or_commands_reaches_the_terminal(
    character: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"invoice{character}fdp.exe"

    echo(text)
    print_table(["title"], [[text]])
    print_facts({"title": text})
    print_json({"title": text})
    CommandRefused(text, code="usage").show()

    captured = capsys.readouterr()
    assert character not in captured.out + captured.err
    assert captured.out.count("\N{REPLACEMENT CHARACTER}") == 3
    assert json.loads(captured.out[captured.out.index("{") :]) == {"title": text}


@pytest.mark.parametrize("text", ["👩\u200d🔬 Chemist", "\u0645\u06cc\u200c\u062e", "❤\ufe0f"])
def test_characters_of_scripts_and_emoji_are_shown(text: str) -> None:
    assert harmless(text) == text


def test_a_shortened_text_is_one_line() -> None:
    assert shortened("a  b\nc", 10) == "a b c"
    assert shortened("abcdef", 4) == "abc…"


def test_a_value_is_wrapped_but_a_path_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/home/" + "x" * 120

    print_facts({"path": path, "why": "because " * 20})

    first, *rest = capsys.readouterr().out.splitlines()
    assert first == f"path  {path}"
    assert rest[0].startswith("why   because")
    assert rest[1].startswith("      because")
    assert max(map(len, rest)) <= 100


def test_wide_characters_keep_the_table_within_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["id", "title"], [["x" * 60, "第" * 100]], flexible={"title"})

    captured = capsys.readouterr().out
    assert captured.count("x") == 60
    assert captured.count("第") == 100
    assert max(len(line) + line.count("第") for line in captured.splitlines()) <= 100


SOURCE, HEALTH, WHY = Column("source"), Column("health"), Column("why", is_flexible=True)


@pytest.mark.parametrize(
    ("columns", "rows", "width", "expected"),
    [
        pytest.param(
            [SOURCE, Column("n", is_number=True), WHY],
            [["a", "5", "one two three four five six seven"], ["bb", "12", "x"]],
            42,
            [
                *("source   n  why", "─" * 42, "a        5  one two three four five six"),
                *("            seven", "bb      12  x"),
            ],
            id="a flexible column wraps between words",
        ),
        pytest.param(
            [SOURCE, WHY],
            [["a", "http://feeds.example/" + "x" * 30 + ".xml"]],
            40,
            ["source  why", "─" * 40, "a       http://feeds.exa…xxxxxxxxxxx.xml"],
            id="a word that is too long is shortened in its middle",
        ),
        pytest.param(
            [SOURCE, HEALTH, WHY],
            [["series:lighthouse", "open", "its breaker is open"]],
            26,
            [
                *("source             health", "─" * 25, "series:lighthouse  open"),
                *("    why: its breaker is", "    open"),
            ],
            id="what has no room stands beneath its row",
        ),
        pytest.param(
            [Column("a"), Column("b")],
            [["x" * 9, "y" * 9]],
            12,
            ["a", "─" * 9, "x" * 9, "    b: yyyyyyyyy"[:4] + "b:", "    yyyyyyyy", "    y"],
            id="columns that do not fit stand beneath",
        ),
        pytest.param([SOURCE, HEALTH], [], 80, ["source  health", "─" * 14], id="no rows"),
    ],
)
def test_a_table_fits_its_page_and_loses_nothing(
    columns: list[Column], rows: list[list[str]], width: int, expected: list[str]
) -> None:
    assert table_lines(columns, rows, width=width) == expected


@pytest.mark.parametrize(("text", "expected"), [("abc", 3), ("第一", 4), ("e\u0301", 1), ("a\u200db", 2)])
def test_a_text_is_as_wide_as_the_terminal_shows_it(text: str, expected: int) -> None:
    assert cell_width(text) == expected
