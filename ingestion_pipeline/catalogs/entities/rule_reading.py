"""What rules make of a page, and whether that is good enough to ask no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ingestion_pipeline.catalogs.entities.counting import announced_count, is_count
from ingestion_pipeline.catalogs.entities.entity_type import EntityType
from ingestion_pipeline.catalogs.entities.ladder import RulePage, has_rules, is_json, read_by_rules
from ingestion_pipeline.catalogs.entities.model_rungs import wanting
from ingestion_pipeline.catalogs.entities.page_reading import PageContent
from ingestion_pipeline.catalogs.entities.record import Record
from ingestion_pipeline.catalogs.entities.selectors import Selectors
from ingestion_pipeline.reading.markup import refuse_bombs
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.work.errors import Transient

MOST_BAD_SHARE = 0.5  # of what rules found; more, and the page is asked about as a whole


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleReading:
    """What rules made of a page; `reason` is why it goes up, empty if it does not.

    `bad` are the places of records that lack a required field or its proof; `is_mostly_right` if
    only those are left open, and each can be asked about alone.
    """

    records: tuple[Record, ...]
    notes: tuple[str, ...]
    announced: int | None
    bad: tuple[int, ...] = ()
    reason: str = ""
    is_mostly_right: bool = False


def rule_reading(
    kind: EntityType,
    page: PageContent,
    selectors: Selectors | None,
    settings: Settings,
    *,
    learned: Selectors | None = None,
) -> RuleReading:
    """The records that rules find, none of them if the entity has no rules.

    Raises:
        Transient: the page is empty.
        Permanent: it is a bomb or breaks off.
    """
    if not page.body.strip():
        raise Transient("the body is empty; fetch the page again", code="empty_body")
    records: Sequence[Record] = ()
    notes: Sequence[str] = ()
    if has_rules(kind, selectors or learned):
        asked = RulePage(
            body=page.body, text=page.text, url=page.url, selectors=selectors, learned=learned
        )
        reading = read_by_rules(kind, asked)
        records, notes = reading.records, reading.notes
    is_page = not is_json(page.body)
    if is_page:
        refuse_bombs(page.body)  # where no rule has looked, nobody has done so
    found = RuleReading(
        records=tuple(records),
        notes=tuple(notes),
        announced=announced_count(kind, page.text, page.body, page.url) if is_page else None,
        bad=tuple(place for place, one in enumerate(records) if wanting(kind, one)),
    )
    return _judged(found, settings)


def _judged(found: RuleReading, settings: Settings) -> RuleReading:
    if reason := _why_up(found, settings):
        return replace(found, reason=reason)
    if not found.bad:
        return found
    count = len(found.records)
    return replace(
        found,
        reason=f"{len(found.bad)} of {count} records lack a required field or its proof",
        is_mostly_right=len(found.bad) <= MOST_BAD_SHARE * count,
    )


def _why_up(found: RuleReading, settings: Settings) -> str:
    """Why the page as a whole is asked about; empty if only single records are left open."""
    records, announced = found.records, found.announced
    if not records:
        return "rules found no record"
    if announced is not None and len(records) < announced and not is_count(len(records), announced):
        return f"rules found {len(records)} records where the page announces {announced}"
    least = min(record.confidence for record in records)
    if least < settings.extraction.low_confidence:
        return f"rules are only {least:.0%} sure"
    return ""


def record_spans(kind: EntityType, records: Sequence[Record], length: int) -> list[tuple[int, int]]:
    """Where each record stands in a text of that length: from its key to the next one's."""
    starts = [record.start_of(kind.key_fields) for record in records]
    spans: list[tuple[int, int]] = []
    for place, start in enumerate(starts):
        later = (one for one in starts[place + 1 :] if one is not None and one > (start or 0))
        spans.append((0, length) if start is None else (start, next(later, length)))
    return spans
