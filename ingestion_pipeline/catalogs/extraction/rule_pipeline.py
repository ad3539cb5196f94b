"""The rungs that need no model, from a body to records: data for machines, selectors, layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.injected_instructions import gives_orders
from ingestion_pipeline.catalogs.extraction.model_methods import wanting
from ingestion_pipeline.catalogs.extraction.page_result import PageContent
from ingestion_pipeline.catalogs.extraction.record import (
    LEARNED,
    MAX_PAGE_RECORDS,
    ExtractionMethod,
    Record,
    RecordField,
    record_of,
)
from ingestion_pipeline.catalogs.extraction.rules.api_answers import courses_by_api, courses_by_xml
from ingestion_pipeline.catalogs.extraction.rules.counting import (
    announced_count,
    embedded,
    is_count,
    placed,
)
from ingestion_pipeline.catalogs.extraction.rules.embedded import (
    courses_by_embedded,
    things_by_embedded,
)
from ingestion_pipeline.catalogs.extraction.rules.labelled import (
    courses_by_labels,
    courses_by_table,
    items_by_list,
    labels_of,
    thing_by_title,
)
from ingestion_pipeline.catalogs.extraction.rules.layout import courses_by_layout
from ingestion_pipeline.catalogs.extraction.rules.page_lines import content_lines
from ingestion_pipeline.catalogs.extraction.rules.vendors import courses_by_vendor
from ingestion_pipeline.catalogs.extraction.selectors import Selectors, records_by_selectors
from ingestion_pipeline.catalogs.learning.learned_selectors import found_by_learned
from ingestion_pipeline.reading.html.cleaning import cleaned_text, visible_tree
from ingestion_pipeline.reading.html.parsing import refuse_bombs
from ingestion_pipeline.reading.structured.embedded import read_embedded
from ingestion_pipeline.reading.structured.items import TOO_MANY, Problem, Reading
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.tasks.errors import Permanent, Transient

MAX_PROBLEMS = 50
NEARLY_ALL = 0.8  # of the records that the best rung finds; then the cheaper one is taken
MOST = 0.5  # the same where a known layout finds them whole: others read its tables of terms, too
NAMES = 2  # fields of a record that only name it: its code and its title
COURSE = "course"


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePage:
    """A page as rules read it; `text` is the stored one, which spans of evidence refer to.

    Learned selectors count only where none are given.
    """

    body: str
    text: str
    url: str | None = None
    selectors: Selectors | None = None
    learned: Selectors | None = None

    @property
    def is_json(self) -> bool:
        """Whether it begins like a JSON document."""
        return is_json(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    rung: ExtractionMethod
    by: str
    found: list[RecordField]
    text: str | None  # what proves the fields; None where the source itself does
    reason: str = ""


class NoRules(ValueError):
    """The entity can only be read by a model."""


def read_records(
    kind: EntityType,
    text: str,
    *,
    only_embedded: bool = False,
    url: str | None = None,
    selectors: Selectors | None = None,
) -> Reading[Record]:
    """Every record that rules find in a page or an API's answer; none is no error.

    Of the rungs, the cheapest counts that finds nearly as many complete ones as any.

    Raises:
        NoRules: no rules read this entity.
        Permanent: the body is a bomb or breaks off.
        Transient: it is empty.
    """
    if not text.strip():
        raise Transient("the body is empty; fetch the page again", code="empty_body")
    seen = "" if is_json(text) else cleaned_text(text)
    page = RulePage(body=text, text=seen, url=url, selectors=selectors)
    return read_by_rules(kind, page, only_embedded=only_embedded)


def read_by_rules(
    kind: EntityType, page: RulePage, *, only_embedded: bool = False
) -> Reading[Record]:
    """The same of a page whose text is at hand; see `read_records`."""
    if not has_rules(kind, page.selectors or page.learned):
        raise NoRules(
            f"no rules read {kind.name} without a model; give its schema `embedded`, `titled` or"
            " `listed`, or the source `selectors`"
        )
    answers = list(_embedded(kind, page)) if only_embedded else list(_answers(kind, page))
    best = _best(kind, answers)
    if best is None:
        return Reading(records=[], notes=[f"no rung found a {kind.name}"])
    if len(best.found) > MAX_PAGE_RECORDS:  # a part of them would pass for all: the others vanish
        raise Permanent(
            f"the page states more than {MAX_PAGE_RECORDS} records of {kind.name}; none of them is"
            " read: give the source a page or an address that lists fewer",
            code=TOO_MANY,
        )
    records = _records(kind, best)
    kept = _once(kind, [record for record in records if _is_named(kind, record)])
    note = f"read by {best.by} ({best.rung}), {len(kept)} records"
    return Reading(records=kept, problems=_problems(kind, kept), notes=[note])


def has_rules(kind: EntityType, selectors: Selectors | None = None) -> bool:
    """Whether anything but a model reads the entity."""
    return kind.name == COURSE or kind.has_rules or selectors is not None


def is_json(text: str) -> bool:
    """Whether the text begins like a JSON document."""
    return text.lstrip("\ufeff \r\n\t")[:1] in {"{", "["}


def _records(kind: EntityType, answer: _Answer) -> list[Record]:
    found, rung = answer.found, answer.rung
    if answer.text is None:
        return [record_of(kind, one, rung=rung) for one in found]
    prove = embedded if rung is ExtractionMethod.EMBEDDED else placed
    proofs = prove(kind, found, answer.text)
    return [
        replace(record_of(kind, one, rung=rung, evidence=proof), reason=answer.reason)
        for one, proof in zip(found, proofs, strict=True)
    ]


def _answers(kind: EntityType, page: RulePage) -> Iterator[_Answer]:
    """What each rung finds, the cheapest first."""
    if page.is_json:
        name, found = courses_by_api(_document(page.body)) if kind.name == COURSE else ("", [])
        yield _Answer(rung=ExtractionMethod.API, by=name, found=found, text=None)
        return
    if kind.name == COURSE and (found := courses_by_xml(page.body)):
        yield _Answer(rung=ExtractionMethod.API, by="xml", found=found, text=None)
        return
    yield from _embedded(kind, page)
    if page.selectors is not None:
        found = records_by_selectors(kind, page.selectors, visible_tree(page.body))
        yield _Answer(
            rung=ExtractionMethod.SELECTORS, by="given selectors", found=found, text=page.text
        )
    elif page.learned is not None:
        yield from _learned(kind, page, page.learned)
    yield from _course_layouts(page) if kind.name == COURSE else _layouts(kind, page)


def _learned(kind: EntityType, page: RulePage, learned: Selectors) -> Iterator[_Answer]:
    """What learned selectors find, if every record is whole and proved."""
    found = found_by_learned(kind, learned, visible_tree(page.body))
    answer = _Answer(
        rung=ExtractionMethod.SELECTORS,
        by="learned selectors",
        found=found,
        text=page.text,
        reason=LEARNED,
    )
    if found and not any(record.is_flagged for record in _records(kind, answer)):
        yield answer


def _course_layouts(page: RulePage) -> Iterator[_Answer]:
    tree = visible_tree(page.body)
    name, found = courses_by_vendor(tree)
    yield _Answer(rung=ExtractionMethod.SELECTORS, by=name, found=found, text=page.text)
    yield _Answer(
        rung=ExtractionMethod.LAYOUT, by="tables", found=courses_by_table(tree), text=page.text
    )
    lines = content_lines(tree)  # the last to use the tree: it takes out what is no content
    labels = list(labels_of(lines))
    by_line = (
        ("labels", courses_by_labels(lines, labels)),
        ("layout", courses_by_layout(lines)),
        ("labels", courses_by_labels(lines, labels, any_sign=True)),
    )
    for by, found in by_line:
        yield _Answer(rung=ExtractionMethod.LAYOUT, by=by, found=found, text=page.text)


def _layouts(kind: EntityType, page: RulePage) -> Iterator[_Answer]:
    items = items_by_list(kind, visible_tree(page.body))
    yield _Answer(rung=ExtractionMethod.LAYOUT, by="lists", found=items, text=page.text)
    titled = thing_by_title(kind, visible_tree(page.body), page.url)
    yield _Answer(rung=ExtractionMethod.LAYOUT, by="title", found=titled, text=page.text)


def _embedded(kind: EntityType, page: RulePage) -> Iterator[_Answer]:
    data = read_embedded(page.body)
    found = things_by_embedded(kind, data)
    if kind.name == COURSE:
        found = courses_by_embedded(data)
    found = [one for one in found if not _gives_orders(one)]
    yield _Answer(rung=ExtractionMethod.EMBEDDED, by="schema.org", found=found, text=page.text)
    for state in data.states if kind.name == COURSE else ():
        name, by_state = courses_by_api(state.data)
        if by_state:
            by = f"{state.name}: {name}"
            yield _Answer(rung=ExtractionMethod.EMBEDDED, by=by, found=by_state, text=page.text)


def _gives_orders(found: RecordField) -> bool:
    """Whether it speaks to machines: then no word of it is believed, since nobody sees it."""
    return any(isinstance(one, str) and gives_orders(one) for one in found.fields.values())


def _document(text: str) -> object:
    try:
        return json.loads(text.lstrip("\ufeff"))
    except RecursionError as error:
        raise Permanent("JSON nested beyond reason; it is not read", code="not_json") from error
    except ValueError as error:
        raise Permanent(f"it begins like JSON and is none: {error}", code="not_json") from error


def _best(kind: EntityType, answers: list[_Answer]) -> _Answer | None:
    """The first that finds nearly all that any finds.

    A vendor's layout also counts if its courses lack descriptions: layout alone would take what
    stands below them for one. What a page tells machines and nobody sees counts only where no other
    rung finds anything: it could keep what is seen from being read.
    """
    shown = [answer for answer in answers if _is_shown(kind, answer)]
    return _first(kind, shown) or _first(kind, answers)


def _first(kind: EntityType, answers: list[_Answer]) -> _Answer | None:
    most = max((_complete(kind, answer.found) for answer in answers), default=0)
    count = max((len(answer.found) for answer in answers), default=0)
    for answer in answers:
        is_known = _says_more(answer) and len(answer.found) >= _share(kind, answer) * count
        is_whole = _complete(kind, answer.found) >= NEARLY_ALL * most
        if answer.found and (is_whole or is_known):
            return answer
    return None


def _share(kind: EntityType, answer: _Answer) -> float:
    """How many of all that any rung finds a known layout must find: fewer if they are whole."""
    is_whole = len(answer.found) > 1 and _complete(kind, answer.found) == len(answer.found)
    return MOST if is_whole else NEARLY_ALL


def _says_more(answer: _Answer) -> bool:
    """Whether a layout that is known gives more than names: blocks of titles alone are none."""
    if answer.rung is not ExtractionMethod.SELECTORS:
        return False
    return any(len([one for one in found.fields.values() if one]) > NAMES for found in answer.found)


def _is_shown(kind: EntityType, answer: _Answer) -> bool:
    if answer.rung is not ExtractionMethod.EMBEDDED or not answer.found:
        return True
    flagged = sum(record.is_flagged for record in _records(kind, answer))
    return flagged <= (1 - NEARLY_ALL) * len(answer.found)


def _complete(kind: EntityType, found: Sequence[RecordField]) -> int:
    wanted = [name for name in kind.required if name not in kind.key_fields]
    return sum(all(one.fields.get(name) for name in wanted) for one in found)


def _is_named(kind: EntityType, record: Record) -> bool:
    wanted = {name for name in kind.key_fields if kind.field(name).required}
    return not wanted & set(record.lacks)


def _once(kind: EntityType, records: list[Record]) -> list[Record]:
    """Each record once: pages repeat a block for small screens."""
    known: dict[object, Record] = {}
    for record in records:
        known.setdefault(tuple(record.fields[name] for name in kind.required), record)
    return list(known.values())


def _problems(kind: EntityType, records: list[Record]) -> list[Problem]:
    lacking = [record for record in records if record.lacks]
    return [
        Problem(
            where=str(record.fields[kind.key_fields[0]]),
            message=f"it has no {', '.join(record.lacks)}, which is required; it is not stored",
            code="incomplete",
            hides_record=False,
        )
        for record in lacking[:MAX_PROBLEMS]
    ]


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
