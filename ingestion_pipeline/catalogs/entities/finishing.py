"""The last look at a page's records: what is dropped, what is flagged, what people are told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ingestion_pipeline.catalogs.entities.counting import is_count
from ingestion_pipeline.catalogs.entities.entity_type import EntityType
from ingestion_pipeline.catalogs.entities.exploring import explored_links
from ingestion_pipeline.catalogs.entities.item_keys import item_key
from ingestion_pipeline.catalogs.entities.orders import gives_orders, without_orders
from ingestion_pipeline.catalogs.entities.page_reading import PageContent, PageReading
from ingestion_pipeline.catalogs.entities.record import ExtractionMethod, Record
from ingestion_pipeline.reading.reading import Problem

MAX_PROBLEMS = 50
_BY_MODEL = {ExtractionMethod.CHEAP_MODEL, ExtractionMethod.STRONG_MODEL}
_RUNGS = list(ExtractionMethod)


def finished_reading(
    kind: EntityType,
    page: PageContent,
    records: Sequence[Record],
    *,
    announced: int | None,
    reason: str,
    proposed: Iterable[str] = (),
) -> PageReading:
    """The reading as it may be stored; problems name what is not in it, and what looks wrong."""
    whole = [_reasoned(_flagged(one), reason) for one in records if not one.lacks]
    kept = _once(kind, whole)
    dearest = max(kept, key=lambda one: _RUNGS.index(one.rung), default=None)
    return PageReading(
        records=tuple(kept),
        rung=dearest.rung if dearest else None,
        model=dearest.model if dearest else None,
        reason=reason,
        explored=explored_links(kind, page, kept, proposed=proposed),
        problems=(
            *_lacking(kind, records),
            *_unproved(kind, kept),
            *_miscounted(kind, kept, announced),
            *_ordered(page),
        ),
    )


def _flagged(record: Record) -> Record:
    """A record that speaks to machines is for people to look at, whichever rung read it."""
    speaks = any(isinstance(one, str) and gives_orders(one) for one in record.fields.values())
    return replace(record, is_flagged=True) if speaks else record


def _reasoned(record: Record, reason: str) -> Record:
    is_asked = record.rung in _BY_MODEL
    said = "; ".join(filter(None, (reason, record.reason))) if is_asked else record.reason
    return replace(record, reason=said)


def _once(kind: EntityType, records: Sequence[Record]) -> list[Record]:
    """Each record once, though two parts of a page may state it: the sounder of them."""
    known: dict[object, Record] = {}
    for record in records:
        required = tuple(record.fields[name] for name in kind.required)
        before = known.setdefault((item_key(kind, record), required), record)
        if before.is_flagged and not record.is_flagged:
            known[item_key(kind, record), required] = record
    return list(known.values())


def _lacking(kind: EntityType, records: Sequence[Record]) -> list[Problem]:
    lacking = [record for record in records if record.lacks]
    return [
        Problem(
            where=item_key(kind, record) or kind.name,
            message=f"it has no {', '.join(record.lacks)}, which is required; it is not stored",
            code="incomplete",
        )
        for record in lacking[:MAX_PROBLEMS]
    ]


def _unproved(kind: EntityType, records: Sequence[Record]) -> list[Problem]:
    flagged = [record for record in records if record.is_flagged]
    return [
        Problem(
            where=item_key(kind, record),
            message=_why_flagged(kind, record),
            code="flagged",
            hides_record=False,
        )
        for record in flagged[:MAX_PROBLEMS]
    ]


def _why_flagged(kind: EntityType, record: Record) -> str:
    names = ", ".join(record.unproved(kind.required))
    why = f"the page does not prove its {names}" if names else "its words speak to machines"
    return f"{why}; it is kept for people to look at, and not exported"


def _miscounted(
    kind: EntityType, records: Sequence[Record], announced: int | None
) -> list[Problem]:
    if announced is None or len(records) >= announced or is_count(len(records), announced):
        return []
    said = f"{len(records)} records, and the page announces {announced}"
    return [Problem(where=kind.name, message=said, code="count_mismatch")]


def _ordered(page: PageContent) -> list[Problem]:
    _, count = without_orders(page.text)
    said = f"{count} lines of the page speak to machines; no model was shown them"
    return [Problem(where=page.url, message=said, code="orders", hides_record=False)] * bool(count)
