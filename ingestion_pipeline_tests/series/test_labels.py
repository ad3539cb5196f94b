"""Labels of real sites and files: how many give the expected number, and why the others do not."""

import json
import re
import unicodedata
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestion_pipeline.series import chapter_number
from ingestion_pipeline.sources import recognize_platform
from ingestion_pipeline.urls import canonical_url
from ingestion_pipeline_tests.samples import sample

EXPECTED = yaml.safe_load((Path(__file__).parent / "expected" / "chapter_labels.yaml").read_text())
# By file name and by site: the number that is parsed, where it is not the expected one.
MISREAD_FILES: dict[str, str] = {name: row["number"] for name, row in EXPECTED["misread_files"].items()}
MISREAD_SITES: dict[str, str] = {site: row["number"] for site, row in EXPECTED["misread_sites"].items()}
SITE_NUMBERS: dict[str, str] = dict.fromkeys(EXPECTED["sites_with_number_1"], "1") | EXPECTED["site_numbers"]


def comictagger() -> list[dict[str, Any]]:
    return json.loads(sample("manga/chapter_numbers/comictagger_filenames.json").read_text())


def sites() -> list[dict[str, Any]]:
    return json.loads(sample("manga/sites/haruneko_series_and_chapters.json").read_text())


def number(text: str | None) -> Decimal | None:
    return Decimal(text.replace("½", "0.5")) if text else None


def expected_number(row: dict[str, Any]) -> Decimal | None:
    """Return the number of the table, else the only number in the label."""
    digits = re.findall(r"\d+(?:[.,]\d+)*", unicodedata.normalize("NFKC", row["chapter_title"]))
    return number(SITE_NUMBERS.get(row["site"], digits[0] if digits else None))


def test_59_of_65_comic_file_names_give_the_expected_number() -> None:
    vectors = comictagger()

    wrong = {
        vector["filename"]
        for vector in vectors
        if vector["filename"] not in MISREAD_FILES
        and chapter_number(vector["filename"], vector["expected"]["series"]) != number(vector["expected"]["issue"])
    }

    assert wrong == set()
    assert (len(vectors) - len(MISREAD_FILES), len(vectors)) == (59, 65)


def test_a_comic_file_name_that_is_no_chapter_label_is_parsed_as_a_label() -> None:
    parsed = {
        vector["filename"]: chapter_number(vector["filename"], vector["expected"]["series"])
        for vector in comictagger()
        if vector["filename"] in MISREAD_FILES
    }

    assert parsed == {name: number(text) for name, text in MISREAD_FILES.items()}


def test_618_of_623_site_labels_give_the_expected_number() -> None:
    rows = sites()

    wrong = {
        row["site"]: chapter_number(row["chapter_title"], row["series_title"])
        for row in rows
        if chapter_number(row["chapter_title"], row["series_title"]) != expected_number(row)
    }

    assert wrong == {site: number(text) for site, text in MISREAD_SITES.items()}
    assert (len(rows) - len(wrong), len(rows)) == (618, 623)
    assert sum(expected_number(row) is None for row in rows) == 19


def test_urls_of_real_sites_have_one_canonical_form_and_platform() -> None:
    recognised: dict[str, str] = {}
    for row in sites():
        url = canonical_url(row["series_url"])
        assert canonical_url(url) == url
        if platform := recognize_platform(row["series_url"]):
            recognised[row["site"]] = platform.name
            assert platform == recognize_platform(url)

    assert recognised == {"MangaDex": "mangadex"}


@pytest.mark.parametrize(
    ("label", "series_title", "expected"),
    [
        ("第十二話", None, "12"),
        ("第百二十三話", None, "123"),
        ("第二〇話", None, "20"),
        ("الفصل ١٢", None, "12"),
        ("Cap. 10½", None, "10.5"),
        ("#½", None, "0.5"),
        ("12.Bölüm", None, "12"),
        ("12.b", None, "12.2"),
        ("Том 3 Глава 12", None, "12"),
        ("Tập 3 Chương 12", None, "12"),
        ("제3권 12화", None, "12"),
        ("Saison 2 - Épisode 8", None, "8"),
        ("Tome 3", None, "3"),
        ("Vol. 3 (2021)", None, "3"),
        ("Oneshot (2021)", None, None),
        ("3 Wishes #12", None, "12"),
        ("Ch. 12 - Room #3", None, "12"),
        ("game#3 4", None, "3"),
        ("Area 51", "Area 51", None),
        ("Area 51 Chapter 3", "Area 51", "3"),
        ("Level 99 chap 3", "Level 99 (レベル99)", "3"),
        ("86", "86", "86"),
        ("12 Special A", "Special A", "12"),
    ],
)
def test_a_label_is_parsed_by_rule(label: str, series_title: str | None, expected: str | None) -> None:
    assert chapter_number(label, series_title) == number(expected)
