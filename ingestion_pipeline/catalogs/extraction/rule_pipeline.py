"""Extract records without a model, from embedded data, selectors and layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.injected_instructions import has_injected_instructions
from ingestion_pipeline.catalogs.extraction.model_methods import missing_or_unproved
from ingestion_pipeline.catalogs.extraction.record import (
    LEARNED,
    MAX_PAGE_RECORDS,
    CandidateRecord,
    ExtractionMethod,
    PageContent,
    Record,
    record_of,
)
from ingestion_pipeline.catalogs.extraction.rules.api_answers import courses_by_api, courses_by_xml
from ingestion_pipeline.catalogs.extraction.rules.counting import (
    announced_count,
    embedded_evidence,
    is_expected_count,
    placed_evidence,
)
from ingestion_pipeline.catalogs.extraction.rules.embedded import courses_by_embedded, things_by_embedded
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
from ingestion_pipeline.catalogs.learning.learned_selectors import records_by_learned
from ingestion_pipeline.reading.html.cleaning import cleaned_text, visible_tree
from ingestion_pipeline.reading.html.parsing import refuse_bombs
from ingestion_pipeline.reading.structured.embedded import read_embedded
from ingestion_pipeline.reading.structured.items import TOO_MANY, ParsedFeed, Problem
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.tasks.errors import Permanent, Transient

MAX_PROBLEMS = 50
SUFFICIENT_SHARE = 0.8  # of the best method's records; then the cheaper one is taken
# As above, for a known layout with complete records: other methods also read its term tables.
KNOWN_LAYOUT_SHARE = 0.5
NAME_FIELDS = 2  # fields of a record that only name it: its code and its title
COURSE = "course"


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePage:
    """A page as rules read it; `text` is the stored one, which spans of evidence refer to.

    Learned selectors count only where none are configured.
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
class _RuleAnswer:
    method: ExtractionMethod
    rule_name: str
    candidates: list[CandidateRecord]
    text: str | None  # evidence of the fields; None where the source itself states them
    reason: str = ""


class NoRules(ValueError):
    """Error: the entity can only be read by a model."""


def read_records(
    kind: EntityType,
    text: str,
    *,
    only_embedded: bool = False,
    url: str | None = None,
    selectors: Selectors | None = None,
) -> ParsedFeed[Record]:
    """Return every record that rules find in a page or an API's answer; none is no error.

    The cheapest method wins that finds nearly as many complete records as any.

    Raises:
        NoRules: no rules read this entity.
        Permanent: the body is too large (`refuse_bombs`) or truncated.
        Transient: it is empty.
    """
    if not text.strip():
        raise Transient("the body is empty; fetch the page again", code="empty_body")
    cleaned = "" if is_json(text) else cleaned_text(text)
    page = RulePage(body=text, text=cleaned, url=url, selectors=selectors)
    return read_by_rules(kind, page, only_embedded=only_embedded)


def read_by_rules(kind: EntityType, page: RulePage, *, only_embedded: bool = False) -> ParsedFeed[Record]:
    """Return every record that rules find in a page with known text; see `read_records`."""
    if not has_rules(kind, page.selectors or page.learned):
        raise NoRules(
            f"no rules read {kind.name} without a model; give its schema `embedded`, `titled` or"
            " `listed`, or the source `selectors`"
        )
    answers = list(_embedded(kind, page)) if only_embedded else list(_answers(kind, page))
    best = _best(kind, answers)
    if best is None:
        return ParsedFeed(records=[], notes=[f"no method found a {kind.name}"])
    if len(best.candidates) > MAX_PAGE_RECORDS:  # a part of them would pass for all: the others vanish
        raise Permanent(
            f"the page states more than {MAX_PAGE_RECORDS} records of {kind.name}; none of them is"
            " read: give the source a page or an address that lists fewer",
            code=TOO_MANY,
        )
    records = _records(kind, best)
    unique = _deduplicate(kind, [record for record in records if _is_named(kind, record)])
    note = f"read by {best.rule_name} ({best.method}), {len(unique)} records"
    return ParsedFeed(records=unique, problems=_problems(kind, unique), notes=[note])


def has_rules(kind: EntityType, selectors: Selectors | None = None) -> bool:
    """Return whether anything but a model can read the entity."""
    return kind.name == COURSE or kind.has_rules or selectors is not None


def is_json(text: str) -> bool:
    """Return whether the text begins like a JSON document."""
    return text.lstrip("\ufeff \r\n\t")[:1] in {"{", "["}


def _records(kind: EntityType, answer: _RuleAnswer) -> list[Record]:
    candidates, method = answer.candidates, answer.method
    if answer.text is None:
        return [record_of(kind, candidate, method=method) for candidate in candidates]
    prove = embedded_evidence if method is ExtractionMethod.EMBEDDED else placed_evidence
    proofs = prove(kind, candidates, answer.text)
    return [
        replace(record_of(kind, candidate, method=method, evidence=proof), reason=answer.reason)
        for candidate, proof in zip(candidates, proofs, strict=True)
    ]


def _answers(kind: EntityType, page: RulePage) -> Iterator[_RuleAnswer]:
    """Yield what each method finds, the cheapest first."""
    if page.is_json:
        name, candidates = courses_by_api(_document(page.body)) if kind.name == COURSE else ("", [])
        yield _RuleAnswer(method=ExtractionMethod.API, rule_name=name, candidates=candidates, text=None)
        return
    if kind.name == COURSE and (candidates := courses_by_xml(page.body)):
        yield _RuleAnswer(method=ExtractionMethod.API, rule_name="xml", candidates=candidates, text=None)
        return
    yield from _embedded(kind, page)
    if page.selectors is not None:
        candidates = records_by_selectors(kind, page.selectors, visible_tree(page.body))
        yield _RuleAnswer(
            method=ExtractionMethod.SELECTORS, rule_name="configured selectors", candidates=candidates, text=page.text
        )
    elif page.learned is not None:
        yield from _learned(kind, page, page.learned)
    yield from _course_layouts(page) if kind.name == COURSE else _layouts(kind, page)


def _learned(kind: EntityType, page: RulePage, learned: Selectors) -> Iterator[_RuleAnswer]:
    """Yield what learned selectors find, if every record is complete and proved."""
    candidates = records_by_learned(kind, learned, visible_tree(page.body))
    answer = _RuleAnswer(
        method=ExtractionMethod.SELECTORS,
        rule_name="learned selectors",
        candidates=candidates,
        text=page.text,
        reason=LEARNED,
    )
    if candidates and not any(record.is_flagged for record in _records(kind, answer)):
        yield answer


def _course_layouts(page: RulePage) -> Iterator[_RuleAnswer]:
    tree = visible_tree(page.body)
    name, candidates = courses_by_vendor(tree)
    yield _RuleAnswer(method=ExtractionMethod.SELECTORS, rule_name=name, candidates=candidates, text=page.text)
    yield _RuleAnswer(
        method=ExtractionMethod.LAYOUT, rule_name="tables", candidates=courses_by_table(tree), text=page.text
    )
    lines = content_lines(tree)  # last use of the tree: it removes what is no content
    labels = list(labels_of(lines))
    by_line = (
        ("labels", courses_by_labels(lines, labels)),
        ("layout", courses_by_layout(lines)),
        ("labels", courses_by_labels(lines, labels, any_sign=True)),
    )
    for rule_name, candidates in by_line:
        yield _RuleAnswer(method=ExtractionMethod.LAYOUT, rule_name=rule_name, candidates=candidates, text=page.text)


def _layouts(kind: EntityType, page: RulePage) -> Iterator[_RuleAnswer]:
    items = items_by_list(kind, visible_tree(page.body))
    yield _RuleAnswer(method=ExtractionMethod.LAYOUT, rule_name="lists", candidates=items, text=page.text)
    titled = thing_by_title(kind, visible_tree(page.body), page.url)
    yield _RuleAnswer(method=ExtractionMethod.LAYOUT, rule_name="title", candidates=titled, text=page.text)


def _embedded(kind: EntityType, page: RulePage) -> Iterator[_RuleAnswer]:
    data = read_embedded(page.body)
    candidates = things_by_embedded(kind, data)
    if kind.name == COURSE:
        candidates = courses_by_embedded(data)
    candidates = [candidate for candidate in candidates if not _is_injected(candidate)]
    yield _RuleAnswer(method=ExtractionMethod.EMBEDDED, rule_name="schema.org", candidates=candidates, text=page.text)
    for state in data.states if kind.name == COURSE else ():
        name, by_state = courses_by_api(state.data)
        if by_state:
            yield _RuleAnswer(
                method=ExtractionMethod.EMBEDDED, rule_name=f"{state.name}: {name}", candidates=by_state, text=page.text
            )


def _is_injected(candidate: CandidateRecord) -> bool:
    """Return whether it contains instructions for machines: invisible text is not trusted then."""
    return any(isinstance(value, str) and has_injected_instructions(value) for value in candidate.fields.values())


def _document(text: str) -> object:
    try:
        return json.loads(text.lstrip("\ufeff"))
    except RecursionError as error:
        raise Permanent("JSON nested too deeply; it is not read", code="not_json") from error
    except ValueError as error:
        raise Permanent(f"invalid JSON: {error}", code="not_json") from error


def _best(kind: EntityType, answers: list[_RuleAnswer]) -> _RuleAnswer | None:
    """Return the first answer that has nearly all that any answer has.

    A vendor's layout also counts if its courses lack descriptions: layout alone would take the text
    below them for one. Embedded data that the page does not show counts only where no other method
    finds anything: it could hide the visible records.
    """
    visible = [answer for answer in answers if _is_visible(kind, answer)]
    return _first_sufficient(kind, visible) or _first_sufficient(kind, answers)


def _first_sufficient(kind: EntityType, answers: list[_RuleAnswer]) -> _RuleAnswer | None:
    most = max((_count_complete(kind, answer.candidates) for answer in answers), default=0)
    count = max((len(answer.candidates) for answer in answers), default=0)
    for answer in answers:
        is_known_layout = (
            _has_more_than_names(answer) and len(answer.candidates) >= _required_share(kind, answer) * count
        )
        is_sufficient = _count_complete(kind, answer.candidates) >= SUFFICIENT_SHARE * most
        if answer.candidates and (is_sufficient or is_known_layout):
            return answer
    return None


def _required_share(kind: EntityType, answer: _RuleAnswer) -> float:
    """Return the share of all records that a known layout must find: less if they are complete."""
    count = len(answer.candidates)
    is_complete = count > 1 and _count_complete(kind, answer.candidates) == count
    return KNOWN_LAYOUT_SHARE if is_complete else SUFFICIENT_SHARE


def _has_more_than_names(answer: _RuleAnswer) -> bool:
    """Return whether a known layout gives more than names: blocks of titles alone do not count."""
    if answer.method is not ExtractionMethod.SELECTORS:
        return False
    return any(
        len([value for value in candidate.fields.values() if value]) > NAME_FIELDS for candidate in answer.candidates
    )


def _is_visible(kind: EntityType, answer: _RuleAnswer) -> bool:
    if answer.method is not ExtractionMethod.EMBEDDED or not answer.candidates:
        return True
    flagged = sum(record.is_flagged for record in _records(kind, answer))
    return flagged <= (1 - SUFFICIENT_SHARE) * len(answer.candidates)


def _count_complete(kind: EntityType, candidates: Sequence[CandidateRecord]) -> int:
    required = [name for name in kind.required if name not in kind.key_fields]
    return sum(all(candidate.fields.get(name) for name in required) for candidate in candidates)


def _is_named(kind: EntityType, record: Record) -> bool:
    required_keys = {name for name in kind.key_fields if kind.field(name).required}
    return not required_keys & set(record.missing_fields)


def _deduplicate(kind: EntityType, records: list[Record]) -> list[Record]:
    """Return each record once: pages repeat a block for small screens."""
    unique: dict[object, Record] = {}
    for record in records:
        unique.setdefault(tuple(record.fields[name] for name in kind.required), record)
    return list(unique.values())


def _problems(kind: EntityType, records: list[Record]) -> list[Problem]:
    lacking = [record for record in records if record.missing_fields]
    return [
        Problem(
            where=str(record.fields[kind.key_fields[0]]),
            message=f"required fields missing: {', '.join(record.missing_fields)}; not stored",
            code="incomplete",
            hides_record=False,
        )
        for record in lacking[:MAX_PROBLEMS]
    ]


MAX_INCOMPLETE_SHARE = 0.5  # of the rules' records; above it, models read the whole page


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResult:
    """Result of the rules for a page; `reason` is why a model is needed, empty if none is.

    `incomplete` are the positions of records that lack a required field or its proof;
    `is_mostly_right` if only those are left open, and each can be asked about alone.
    """

    records: tuple[Record, ...]
    notes: tuple[str, ...]
    announced: int | None
    incomplete: tuple[int, ...] = ()
    reason: str = ""
    is_mostly_right: bool = False


def rule_reading(
    kind: EntityType,
    page: PageContent,
    selectors: Selectors | None,
    settings: Settings,
    *,
    learned: Selectors | None = None,
) -> RuleResult:
    """Return the records that rules find; none if the entity has no rules.

    Raises:
        Transient: the page is empty.
        Permanent: it is too large (`refuse_bombs`) or truncated.
    """
    if not page.body.strip():
        raise Transient("the body is empty; fetch the page again", code="empty_body")
    records: Sequence[Record] = ()
    notes: Sequence[str] = ()
    if has_rules(kind, selectors or learned):
        rule_page = RulePage(body=page.body, text=page.text, url=page.url, selectors=selectors, learned=learned)
        result = read_by_rules(kind, rule_page)
        records, notes = result.records, result.notes
    is_page = not is_json(page.body)
    if is_page:
        refuse_bombs(page.body)  # not yet checked where no rule has parsed the page
    reading = RuleResult(
        records=tuple(records),
        notes=tuple(notes),
        announced=announced_count(kind, page.text, page.body, page.url) if is_page else None,
        incomplete=tuple(place for place, record in enumerate(records) if missing_or_unproved(kind, record)),
    )
    return _with_reason(reading, settings)


def _with_reason(reading: RuleResult, settings: Settings) -> RuleResult:
    if reason := _reason_for_model(reading, settings):
        return replace(reading, reason=reason)
    if not reading.incomplete:
        return reading
    count = len(reading.records)
    return replace(
        reading,
        reason=f"{len(reading.incomplete)} of {count} records lack a required field or its proof",
        is_mostly_right=len(reading.incomplete) <= MAX_INCOMPLETE_SHARE * count,
    )


def _reason_for_model(reading: RuleResult, settings: Settings) -> str:
    """Return why the page as a whole needs a model; empty if only single records are left open."""
    records, announced = reading.records, reading.announced
    if not records:
        return "rules found no record"
    if announced is not None and len(records) < announced and not is_expected_count(len(records), announced):
        return f"rules found {len(records)} records where the page announces {announced}"
    least = min(record.confidence for record in records)
    if least < settings.extraction.low_confidence:
        return f"rules have a confidence of only {least:.0%}"
    return ""


def record_spans(kind: EntityType, records: Sequence[Record], length: int) -> list[tuple[int, int]]:
    """Return the span of each record in a text of that length: from its key to the next one's."""
    starts = [record.start_of(kind.key_fields) for record in records]
    spans: list[tuple[int, int]] = []
    for place, start in enumerate(starts):
        later = (other for other in starts[place + 1 :] if other is not None and other > (start or 0))
        spans.append((0, length) if start is None else (start, next(later, length)))
    return spans
