"""What goes up the ladder and what comes down: a stored page, and the records it states."""

from __future__ import annotations

from dataclasses import dataclass

from ingestion_pipeline.catalogs.extraction.record import ExtractionMethod, Record
from ingestion_pipeline.reading.llm import OverBudget
from ingestion_pipeline.reading.structured.items import Problem
from ingestion_pipeline.tasks.errors import Resource

READER_VERSION = 3  # raise it when rules or the reading of answers change: pages are read again


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContent:
    """A page as it was kept: its body, decoded, and the cleaned text that evidence refers to.

    Where a part of the page was cut out, both are of that part, and `starts_at` says where in the
    kept text it begins. The text of a JSON document is the document.
    """

    url: str
    body: str
    text: str
    content_type: str | None = None
    starts_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PageReading:
    """Every record the page states, in its order, none of them without a required field.

    `rung` and `model` are those of the dearest record; both None where there is no record and
    no model was asked. `reason` says why the page went up the ladder, empty where it did not.
    `explored` are canonical URLs that are worth a visit. Problems are for people; notes, too.
    """

    records: tuple[Record, ...]
    rung: ExtractionMethod | None = None
    model: str | None = None
    reason: str = ""
    explored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


class ExtractionOverBudget(Resource):
    """The extraction's budget holds no further call: `over` says how much; it is to be cancelled.

    Whoever does not know it sees a `Resource` and postpones the page, which does no harm.
    """

    over: OverBudget
