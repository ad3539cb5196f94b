"""Input and output of extraction: a stored page, and the records read from it."""

from __future__ import annotations

from dataclasses import dataclass

from ingestion_pipeline.catalogs.extraction.record import ExtractionMethod, Record
from ingestion_pipeline.reading.llm import OverBudget
from ingestion_pipeline.reading.structured.items import Problem
from ingestion_pipeline.tasks.errors import Resource

READER_VERSION = 3  # increase when rules or answer parsing change, so that pages are read again


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContent:
    """A stored page: its decoded body, and the cleaned text that evidence refers to.

    Where a part of the page was cut out, both are of that part, and `starts_at` is its offset in
    the stored text. The text of a JSON document is the document.
    """

    url: str
    body: str
    text: str
    content_type: str | None = None
    starts_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionResult:
    """Every record of a page, in page order, each with all required fields.

    `method` and `model` are those of the costliest record; both None where there is no record and
    no model was asked. `reason` is why rules did not suffice, empty where they did. `explored` are
    canonical URLs to visit. Problems and notes are for people.
    """

    records: tuple[Record, ...]
    method: ExtractionMethod | None = None
    model: str | None = None
    reason: str = ""
    explored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


class ExtractionOverBudget(Resource):
    """Error: the extraction's budget allows no further call; `over` has the amounts.

    The extraction is to be cancelled. Code that only handles `Resource` postpones the page, which
    is harmless.
    """

    over: OverBudget
