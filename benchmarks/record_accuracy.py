"""Accuracy of records without a model: lists of courts, and catalogues of generated layouts."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.pipeline import read_records
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.scoring import FieldScore
from ingestion_pipeline_tests.catalogs.catalogue_layouts import (
    SCORED_ONLY,
    SCORED_ONLY_WITHOUT_CODES,
    WITH_CODES,
    WITHOUT_CODES,
    LayoutScore,
    course_texts,
)

LIST_FIELDS = ("name", "date", "url", "docket")
LIST_URL = "https://courts.example/"
LIST_FLOOR = 0.9
MIN_SHOWN = 0.6  # of a list's names that the page shows; parsers take others from further pages
ALIKE = 0.8  # of two names' letters
MAX_LONGER = 3  # times the words of the true name: parties' roles


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A share of `n` cases, with what is published of others on the same data, and the floor it must not fall below."""

    name: str
    n: int
    ours: float
    floor: float
    peer: str = ""


OPINION = EntityType.model_validate(
    {
        "name": "opinion",
        "fields": [{"name": name, "kind": "text", "required": name == "name"} for name in LIST_FIELDS],
        "key": ["name", "url", "docket"],
        "repeated": {
            "title": "name",
            "date": "date",
            "url": "url",
            "examples": {
                "name": ["United States v. Warda", "People v. Lewis", "In re Custody of H.J."],
                "docket": ["13-14377", "2023AP001167", "A14A1744"],
            },
        },
    }
)


def list_pages(folder: Path) -> Iterator[Measure]:
    """Read lists of courts by one entity type with three example values; every third list was only ever scored.

    A list whose parser took few of its rows, those of one court, counts for recall alone: the others are true, too.
    """
    for part, is_held in (("written with", False), ("only scored", True)):
        totals = {name: FieldScore() for name in ("name", "date", "url")}
        for place, file in enumerate(sorted(folder.glob("*.expected.json"))):
            if (place % 3 == 2) is is_held and (page := scored_list(file)):
                for name, score in page.items():
                    total = totals[name]
                    total.right += score.right
                    total.wrong += score.wrong
                    total.missed += score.missed
        for name, score in totals.items():
            for what, share in (("recall", score.recall), ("precision", score.precision)):
                yield Measure(
                    name=f"lists {part}, {name}, {what}", n=score.right + score.missed, ours=share, floor=LIST_FLOOR
                )


def scored_list(file: Path) -> dict[str, FieldScore] | None:
    """Return the scores of a list; None if it does not show the names that the parser took from elsewhere."""
    truth: Sequence[Mapping[str, Any]] = json.loads(file.read_text())
    document = Document.of(file.with_name(file.name.replace(".expected.json", ".html")).read_bytes(), url=LIST_URL)
    shown = set(words(document.visible_utf8.decode())) | {"united", "states", "v"}
    if sum(shown.issuperset(words(record["case_names"])) for record in truth) < MIN_SHOWN * len(truth):
        return None
    found = [record.fields for record in read_records(OPINION, document).records]
    expected = {
        "name": [" ".join(words(record["case_names"])) for record in truth],
        "date": [record["case_dates"] for record in truth],
        "url": [last_part(record["download_urls"]) for record in truth if record.get("download_urls")],
    }
    actual = {
        "name": [" ".join(words(str(record["name"]))) for record in found],
        "date": [str(record["date"]) for record in found if record["date"]],
        "url": [last_part(str(record["url"])) for record in found if record["url"]],
    }
    is_whole = len(found) < 2 * len(truth)
    scores = {name: score_values(expected[name], actual[name]) for name in expected if expected[name]}
    for score in scores.values():
        score.wrong = score.wrong if is_whole else 0
    return scores


def score_values(expected: Sequence[str], found: Sequence[str]) -> FieldScore:
    """Count equal values, then those that have the words of a true one: with parties' roles, or shortened."""
    missing, others = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    right = len(expected) - missing.total()
    for value in others.elements():
        alike = next((other for other in missing if missing[other] and is_alike(value, other)), None)
        if alike is not None:
            missing[alike] -= 1
            right += 1
    return FieldScore(right=right, wrong=len(found) - right, missed=len(expected) - right)


def is_alike(value: str, expected: str) -> bool:
    """Return whether the value has all the words of the expected one, and not many others, or nearly its letters."""
    has_all = set(expected.split()) <= set(value.split()) and len(value.split()) <= MAX_LONGER * len(expected.split())
    return (has_all and " " in expected) or (
        " " in expected and SequenceMatcher(None, value, expected).ratio() >= ALIKE
    )


def words(text: str) -> list[str]:
    """Return the words of a case's name; parsers spell out the United States."""
    spelled = text.lower().replace("usa ", "united states ").replace("u.s. ", "united states ")
    return re.findall(r"[a-z0-9]+", re.sub(r"\bvs?\b", "v", spelled))


def last_part(url: str) -> str:
    """Return what tells the address from others, since parsers join it with other hosts: its file, else its query."""
    path, _, query = url.partition("?")
    file = path.rstrip("/").rsplit("/", 1)[-1].lower()
    return file if any(map(str.isdigit, file)) or not query else f"{file}?{query[:60].lower()}"


def catalogues(folder: Path) -> Iterator[Measure]:
    """Read catalogues of generated layouts without a model: with codes and without, amid menus, filters and news."""
    texts = course_texts(folder / "acalog" / "rpi_catalog_250.json")
    parts = {"written with": (WITH_CODES, WITHOUT_CODES), "only scored": (SCORED_ONLY, SCORED_ONLY_WITHOUT_CODES)}
    for part, (coded, uncoded) in parts.items():
        score = LayoutScore()
        for layout in coded.values():
            score.add(layout, texts, has_codes=True)
        for layout in uncoded.values():
            score.add(layout, texts, has_codes=False)
        for what, ours, floor in (
            ("recall", score.recall, 0.95),
            ("precision", score.precision, 0.95),
            ("descriptions", score.described / score.expected, 0.85),
        ):
            yield Measure(name=f"catalogues {part}, {what}", n=score.expected, ours=ours, floor=floor)
