"""docs/features.md names only existing modules and tests, and has a row for every feature."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
TEXT = (ROOT / "docs" / "features.md").read_text()
ROWS = [
    line for line in TEXT.splitlines() if re.match(r"\| ([ABCDT]\d\d|[AB]-\d|[45]\.\d+|1c|2c|edge case|\d+ )", line)
]


def quoted_names(row: str) -> list[str]:
    return re.findall(r"`([^`]+\.py(?:::[a-z0-9_]+)?)`", row)


def is_test(name: str) -> bool:
    return Path(name.split("::", maxsplit=1)[0]).name.startswith("test_")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:6].strip())
def test_every_module_and_test_of_a_row_exists(row: str) -> None:
    for name in quoted_names(row):
        file, _, function = name.partition("::")
        path = (TESTS if is_test(name) else ROOT / "ingestion_pipeline") / file
        assert path.is_file(), name
        assert not function or f"def {function}(" in path.read_text(), name


@pytest.mark.parametrize("row", [row for row in ROWS if "| built |" in row], ids=lambda row: row[2:6])
def test_every_built_feature_names_a_test(row: str) -> None:
    assert any(is_test(name) for name in quoted_names(row))
    assert any(not is_test(name) for name in quoted_names(row))


def test_every_promise_of_the_series_has_a_row() -> None:
    labels = {row[2:5] for row in ROWS}

    assert {f"D{number:02}" for number in range(1, 24)} <= labels


def test_every_promise_of_the_catalogues_has_a_row() -> None:
    labels = {row[2:].split()[0] for row in ROWS}
    promised = {f"A{number:02}" for number in range(1, 26)}
    rulings = {f"A-{number}" for number in range(1, 11)}
    attacks = {f"T{number}" for number in range(33, 39)}
    traps = {str(number) for number in range(6, 15)}

    assert promised | rulings | attacks | traps <= labels


def test_every_promise_of_the_websites_has_a_row() -> None:
    labels = {row[2:5] for row in ROWS}

    assert {f"B{number:02}" for number in range(1, 25)} <= labels


PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("docs/**/*.md")})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_holds_no_mark_of_an_unfinished_merge(page: Path) -> None:
    assert not re.findall("^(?:<{7}|>{7}|={7}$)", page.read_text(), re.MULTILINE)
