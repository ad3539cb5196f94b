"""Saved pages in the layouts of vendors, what is on them, and how many courses are read right."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingestion_pipeline.catalogs.extraction.entity_type import entity_type
from ingestion_pipeline.catalogs.extraction.rule_pipeline import read_records

FOLDER = Path(__file__).parent.parent / "fixtures" / "pages" / "catalogs"
NAMES = sorted(path.name.removesuffix(".expected.json") for path in FOLDER.glob("*.expected.json"))
WITHOUT = [name for name in NAMES if name.startswith("none_")]
WITH = [name for name in NAMES if name not in WITHOUT]
LAYOUTS = FOLDER.parent / "layouts"  # `built` with the rules at hand, `held` back from them
CORE = ("course_name", "course_description", "course_credits_min", "course_credits_max")


@dataclass(frozen=True)
class Score:
    """How many of the courses are right in code, title, credits and description."""

    right: int
    total: int
    invented: int
    misses: Sequence[str]

    @property
    def share(self) -> float:
        return self.right / self.total if self.total else 1.0


def body(name: str) -> str:
    path = FOLDER / f"{name}.html"
    return (path if path.exists() else path.with_suffix(".json")).read_text()


def expected(name: str) -> list[dict[str, Any]]:
    return json.loads((FOLDER / f"{name}.expected.json").read_text())["records"]


def layouts(half: str) -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """The pages of one half and the courses on each, by name."""
    suffix = ".expected.json"
    return {
        path.name.removesuffix(suffix): (
            path.with_name(path.name.replace(suffix, ".html")).read_text(),
            json.loads(path.read_text())["records"],
        )
        for path in sorted((LAYOUTS / half).glob(f"*{suffix}"))
    }


def courses(text: str) -> list[dict[str, Any]]:
    return [record.as_dict() for record in read_records(entity_type("course"), text).records]


def score(text: str, wanted: Sequence[Mapping[str, Any]]) -> Score:
    found: dict[str, dict[str, Any]] = {}
    for course in courses(text):
        found.setdefault(course["course_id"], course)
    misses = [
        one["course_id"]
        for one in wanted
        if any(found.get(one["course_id"], {}).get(name, "missing") != one[name] for name in CORE)
    ]
    invented = set(found) - {one["course_id"] for one in wanted}
    return Score(len(wanted) - len(misses), len(wanted), len(invented), misses)
