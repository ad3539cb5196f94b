"""Accuracy of chapter labels, pay and places of ads, and coverage of the public list of boards, for `make eval`.

The truth of the labels is that of the tests: numbers as people read them, none for volumes and side stories. The labels
are measured in halves by site, so that a rule that fits one half only shows.
"""

import csv
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any
from zlib import crc32

import yaml

from benchmarks.record_accuracy import Measure
from ingestion_pipeline.companies.job_listing import Salary, salary_in
from ingestion_pipeline.companies.places import Place, places_in
from ingestion_pipeline.companies.platforms import PLATFORMS
from ingestion_pipeline.series.chapter_labels import chapter_number, chapter_numbers, volume_text
from ingestion_pipeline.sources import recognize_platform

TRUTH = Path(__file__).resolve().parents[1] / "ingestion_pipeline_tests" / "series" / "expected" / "chapter_labels.yaml"
ADS = Path(__file__).resolve().parents[1] / "ingestion_pipeline_tests" / "fixtures" / "companies" / "job_listing.yaml"
SITES, VECTORS = "sites/haruneko_series_and_chapters.json", "chapter_numbers/mihon_chapter_recognition.json"


def chapter_labels(folder: Path) -> Iterator[Measure]:
    """Read the labels of sites in two halves, the vectors of Mihon, and labels of our own."""
    truth: Mapping[str, Any] = yaml.safe_load(TRUTH.read_text(encoding="utf-8"))
    numbers: Mapping[str, str | None] = dict.fromkeys(truth["sites_with_number_1"], "1") | truth["site_numbers"]
    halves: defaultdict[int, list[bool]] = defaultdict(list)
    for row in json.loads((folder / SITES).read_text(encoding="utf-8")):
        expected = expected_number(row, numbers)
        halves[crc32(row["site"].encode()) % 2].append(
            chapter_number(row["chapter_title"], row["series_title"]) == expected
        )
    for half, results in sorted(halves.items()):
        yield Measure(name=f"chapter labels of sites, half {half + 1}", n=len(results), ours=share(results), floor=0.98)
    vectors = json.loads((folder / VECTORS).read_text(encoding="utf-8"))
    results = [
        chapter_number(row["chapter_name"], row["series_title"]) == (None if row["expected"] == -1 else decimal(row))
        for row in vectors
    ]
    yield Measure(name="chapter labels, Mihon's vectors", n=len(results), ours=share(results), floor=1.0)
    results = [
        (*chapter_numbers(label), volume_text(label)) == (first and Decimal(first), last and Decimal(last), volume)
        for label, first, last, volume in truth["varied_labels"]
    ]
    yield Measure(name="side stories, ranges, parts, words", n=len(results), ours=share(results), floor=0.98)


def expected_number(row: Mapping[str, Any], numbers: Mapping[str, str | None]) -> Decimal | None:
    """Return the number of the table, else the only one in the label."""
    digits = re.findall(r"\d+(?:[.,]\d+)*", unicodedata.normalize("NFKC", row["chapter_title"]))
    text = numbers.get(row["site"], digits[0] if digits else None)
    return Decimal(text) if text else None


def decimal(row: Mapping[str, Any]) -> Decimal:
    """Return the expected number as it is written."""
    return Decimal(str(row["expected"]))


def job_boards(folder: Path) -> Iterator[Measure]:
    """Count the boards of the public list whose platform is recognised and has a reader; read pay and places."""
    has_reader: list[bool] = []
    with (folder / "board_urls" / "ats_urls.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            platform = recognize_platform(row["url"])
            has_reader.append(platform is not None and platform.name in PLATFORMS)
    yield Measure(name="boards of the public list with a reader", n=len(has_reader), ours=share(has_reader), floor=0.85)
    truth: Mapping[str, Any] = yaml.safe_load(ADS.read_text(encoding="utf-8"))
    salaries = [
        salary_values(salary_in(text)) == stated for text, *stated in truth["test_a_salary_of_any_locale_is_read"]
    ]
    yield Measure(name="salaries of many locales", n=len(salaries), ours=share(salaries), floor=0.95)
    places = [
        places_in(text)[:1] == (Place(town=town, region=region, country=country, is_remote=is_remote),)
        for text, town, region, country, is_remote in truth["test_a_place_of_any_locale_is_read"]
    ]
    yield Measure(name="places of many locales", n=len(places), ours=share(places), floor=0.9)


def salary_values(salary: Salary | None) -> list[object]:
    """Return the values of a salary as the table of the tests has them."""
    if salary is None:
        return [None] * 4
    amounts = [amount and float(amount) for amount in (salary.minimum, salary.maximum)]
    return [*amounts, salary.currency, salary.period]


def share(results: list[bool]) -> float:
    """Return the share that is right."""
    return sum(results) / max(len(results), 1)


MEASURES: Mapping[str, Callable[[Path], Iterator[Measure]]] = {"manga": chapter_labels, "jobs": job_boards}
