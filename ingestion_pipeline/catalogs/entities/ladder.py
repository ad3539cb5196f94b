"""The rungs that need no model, from a body to records: data for machines, vendors, layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from ingestion_pipeline.catalogs.entities.api_shapes import courses_by_api
from ingestion_pipeline.catalogs.entities.embedded_courses import courses_by_embedded
from ingestion_pipeline.catalogs.entities.entity_type import EntityType
from ingestion_pipeline.catalogs.entities.layout_rules import courses_by_layout
from ingestion_pipeline.catalogs.entities.places import embedded, placed
from ingestion_pipeline.catalogs.entities.record import Found, Record, Rung, record_of
from ingestion_pipeline.catalogs.entities.table_rules import courses_by_table
from ingestion_pipeline.catalogs.entities.vendor_layouts import courses_by_vendor
from ingestion_pipeline.reading.cleaning import cleaned_text, visible_tree
from ingestion_pipeline.reading.embedded import read_embedded
from ingestion_pipeline.reading.reading import Problem, Reading
from ingestion_pipeline.work.errors import Permanent, Transient

MAX_PROBLEMS = 50
NEARLY_ALL = 0.8  # of the courses that the best rung finds; then the cheaper one is taken
COURSE = "course"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    rung: Rung
    by: str
    found: list[Found]
    text: str | None  # what proves the fields; None where the source itself does


class NoRules(ValueError):
    """The entity can only be read by a model."""


def read_records(kind: EntityType, text: str, *, only_embedded: bool = False) -> Reading[Record]:
    """Every record that rules find in a page or an API's answer; none is no error.

    Of the rungs, the cheapest counts that finds nearly as many complete ones as any.

    Raises:
        NoRules: no rules read this entity.
        Permanent: the body is a bomb or breaks off.
        Transient: it is empty.
    """
    if kind.name != COURSE:
        raise NoRules(f"no rules read {kind.name} without a model; they read: {COURSE}")
    if not text.strip():
        raise Transient("the body is empty; fetch the page again", code="empty_body")
    answers = list(_embedded(text)) if only_embedded else list(_answers(text))
    best = _best(answers)
    if best is None:
        return Reading(records=[], notes=["no rung found a course"])
    records = _records(kind, best)
    kept = _once([record for record in records if _is_named(record)])
    note = f"read by {best.by} ({best.rung}), {len(kept)} records"
    return Reading(records=kept, problems=_problems(kept), notes=[note])


def _records(kind: EntityType, answer: _Answer) -> list[Record]:
    found, rung = answer.found, answer.rung
    if answer.text is None:
        return [record_of(kind, one, rung=rung) for one in found]
    prove = embedded if rung is Rung.EMBEDDED else placed
    proofs = prove(found, answer.text)
    return [
        record_of(kind, one, rung=rung, evidence=proof)
        for one, proof in zip(found, proofs, strict=True)
    ]


def _answers(text: str) -> Iterator[_Answer]:
    """What each rung finds, the cheapest first."""
    if text.lstrip("\ufeff \r\n\t")[:1] in {"{", "["}:
        name, found = courses_by_api(_document(text))
        yield _Answer(rung=Rung.API, by=name, found=found, text=None)
        return
    yield from _embedded(text)
    seen = cleaned_text(text)
    name, found = courses_by_vendor(visible_tree(text))
    yield _Answer(rung=Rung.SELECTORS, by=name, found=found, text=seen)
    yield _Answer(
        rung=Rung.LAYOUT, by="tables", found=courses_by_table(visible_tree(text)), text=seen
    )
    yield _Answer(
        rung=Rung.LAYOUT, by="layout", found=courses_by_layout(visible_tree(text)), text=seen
    )


def _embedded(text: str) -> Iterator[_Answer]:
    data, seen = read_embedded(text), cleaned_text(text)
    found = courses_by_embedded(data)
    yield _Answer(rung=Rung.EMBEDDED, by="schema.org", found=found, text=seen)
    for state in data.states:
        name, by_state = courses_by_api(state.data)
        if by_state:
            yield _Answer(rung=Rung.EMBEDDED, by=f"{state.name}: {name}", found=by_state, text=seen)


def _document(text: str) -> object:
    try:
        return json.loads(text.lstrip("\ufeff"))
    except RecursionError as error:
        raise Permanent("JSON nested beyond reason; it is not read", code="not_json") from error
    except ValueError as error:
        raise Permanent(f"it begins like JSON and is none: {error}", code="not_json") from error


def _best(answers: list[_Answer]) -> _Answer | None:
    """The first that finds nearly all that any finds.

    A vendor's layout also counts if its courses lack descriptions: layout alone would take what
    stands below them for one.
    """
    most = max((_complete(answer.found) for answer in answers), default=0)
    count = max((len(answer.found) for answer in answers), default=0)
    for answer in answers:
        is_known = answer.rung is Rung.SELECTORS and len(answer.found) >= NEARLY_ALL * count
        if answer.found and (_complete(answer.found) >= NEARLY_ALL * most or is_known):
            return answer
    return None


def _complete(found: list[Found]) -> int:
    return sum(bool(one.fields.get("course_description")) for one in found)


def _is_named(record: Record) -> bool:
    return not {"course_id", "course_name"} & set(record.lacks)


def _once(records: list[Record]) -> list[Record]:
    """Each course once: pages repeat a block for small screens."""
    known: dict[object, Record] = {}
    for record in records:
        fields = record.fields
        known.setdefault(
            (fields["course_id"], fields["course_name"], fields["course_description"]), record
        )
    return list(known.values())


def _problems(records: list[Record]) -> list[Problem]:
    lacking = [record for record in records if record.lacks]
    return [
        Problem(
            where=str(record.fields["course_id"]),
            message=f"it has no {', '.join(record.lacks)}, which is required; it is not stored",
            code="incomplete",
            hides_record=False,
        )
        for record in lacking[:MAX_PROBLEMS]
    ]
