"""Extract records without a model, from embedded data, selectors and layout."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ingestion_pipeline.catalogs.extraction.entity_type import COURSE, EntityType
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
from ingestion_pipeline.catalogs.extraction.rules.labelled import (
    courses_by_labels,
    courses_by_table,
    items_by_list,
    labels_of,
    thing_by_title,
)
from ingestion_pipeline.catalogs.extraction.rules.layout import courses_by_layout
from ingestion_pipeline.catalogs.extraction.rules.page_lines import content_lines
from ingestion_pipeline.catalogs.extraction.rules.schema_org import courses_by_embedded, things_by_embedded
from ingestion_pipeline.catalogs.extraction.rules.vendors import courses_by_vendor
from ingestion_pipeline.catalogs.extraction.selectors import Selectors, records_by_selectors
from ingestion_pipeline.catalogs.extraction.source_config import EntityConfig
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


@dataclass(frozen=True, slots=True)
class _RuleAnswer:
    method: ExtractionMethod
    rule_name: str
    candidates: list[CandidateRecord]
    text: str | None = None  # evidence of the fields; None where the source itself states them
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
    page = PageContent(url=url or "", body=text, text="" if is_json(text) else cleaned_text(text))
    return read_by_rules(EntityConfig(kind=kind, selectors=selectors), page, only_embedded=only_embedded)


def read_by_rules(config: EntityConfig, page: PageContent, *, only_embedded: bool = False) -> ParsedFeed[Record]:
    """Return every record that rules find in a page with known text; see `read_records`."""
    kind = config.kind
    if not has_rules(kind, config.selectors or config.learned):
        raise NoRules(
            f"no rules read {kind.name} without a model; give its schema `embedded`, `titled` or"
            " `listed`, or the source `selectors`"
        )
    best = _best(kind, list(_embedded(kind, page) if only_embedded else _answers(config, page)))
    if best is None:
        return ParsedFeed(records=[], notes=[f"no method found a {kind.name}"])
    if len(best.candidates) > MAX_PAGE_RECORDS:  # a part of them would pass for all: the others vanish
        raise Permanent(
            f"the page states more than {MAX_PAGE_RECORDS} records of {kind.name}; none of them is"
            " read: give the source a page or an address that lists fewer",
            code=TOO_MANY,
        )
    required_keys = {name for name in kind.key_fields if kind.field(name).required}
    unique: dict[object, Record] = {}  # pages repeat a block for small screens
    for record in _records(kind, best):
        if required_keys.isdisjoint(record.missing_fields):
            unique.setdefault(tuple(record.fields[name] for name in kind.required), record)
    problems = [
        Problem(
            where=str(record.fields[kind.key_fields[0]]),
            message=f"required fields missing: {', '.join(record.missing_fields)}; not stored",
            code="incomplete",
            hides_record=False,
        )
        for record in unique.values()
        if record.missing_fields
    ]
    note = f"read by {best.rule_name} ({best.method}), {len(unique)} records"
    return ParsedFeed(records=list(unique.values()), problems=problems[:MAX_PROBLEMS], notes=[note])


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


def _answers(config: EntityConfig, page: PageContent) -> Iterator[_RuleAnswer]:
    """Yield what each method finds, the cheapest first."""
    kind, is_course = config.kind, config.kind.name == COURSE
    if is_json(page.body):
        try:
            document = json.loads(page.body.lstrip("\ufeff"))
        except RecursionError as error:
            raise Permanent("JSON nested too deeply; it is not read", code="not_json") from error
        except ValueError as error:
            raise Permanent(f"invalid JSON: {error}", code="not_json") from error
        yield _RuleAnswer(ExtractionMethod.API, *(courses_by_api(document) if is_course else ("", [])))
    elif is_course and (candidates := courses_by_xml(page.body)):
        yield _RuleAnswer(ExtractionMethod.API, "xml", candidates)
    else:
        yield from _embedded(kind, page)
        yield from _by_selectors(config, page)
        if is_course:
            yield from _course_layouts(page)
        else:
            items = items_by_list(kind, visible_tree(page.body))
            yield _RuleAnswer(ExtractionMethod.LAYOUT, "lists", items, page.text)
            titled = thing_by_title(kind, visible_tree(page.body), page.url)
            yield _RuleAnswer(ExtractionMethod.LAYOUT, "title", titled, page.text)


def _by_selectors(config: EntityConfig, page: PageContent) -> Iterator[_RuleAnswer]:
    """Yield what configured selectors find, else learned ones if every record is complete and proved."""
    if config.selectors is not None:
        candidates = records_by_selectors(config.kind, config.selectors, visible_tree(page.body))
        yield _RuleAnswer(ExtractionMethod.SELECTORS, "configured selectors", candidates, page.text)
    elif config.learned is not None:
        candidates = records_by_learned(config.kind, config.learned, visible_tree(page.body))
        answer = _RuleAnswer(ExtractionMethod.SELECTORS, "learned selectors", candidates, page.text, reason=LEARNED)
        if candidates and not any(record.is_flagged for record in _records(config.kind, answer)):
            yield answer


def _course_layouts(page: PageContent) -> Iterator[_RuleAnswer]:
    tree = visible_tree(page.body)
    name, candidates = courses_by_vendor(tree)
    yield _RuleAnswer(ExtractionMethod.SELECTORS, name, candidates, page.text)
    yield _RuleAnswer(ExtractionMethod.LAYOUT, "tables", courses_by_table(tree), page.text)
    lines = content_lines(tree)  # last use of the tree: it removes what is no content
    labels = list(labels_of(lines))
    yield _RuleAnswer(ExtractionMethod.LAYOUT, "labels", courses_by_labels(lines, labels), page.text)
    yield _RuleAnswer(ExtractionMethod.LAYOUT, "layout", courses_by_layout(lines), page.text)
    by_any_sign = courses_by_labels(lines, labels, any_sign=True)
    yield _RuleAnswer(ExtractionMethod.LAYOUT, "labels", by_any_sign, page.text)


def _embedded(kind: EntityType, page: PageContent) -> Iterator[_RuleAnswer]:
    data = read_embedded(page.body)
    stated = courses_by_embedded(data) if kind.name == COURSE else things_by_embedded(kind, data)
    # Invisible text with instructions for machines is not trusted.
    candidates = [
        candidate
        for candidate in stated
        if not any(isinstance(value, str) and has_injected_instructions(value) for value in candidate.fields.values())
    ]
    yield _RuleAnswer(ExtractionMethod.EMBEDDED, "schema.org", candidates, page.text)
    for state in data.states if kind.name == COURSE else ():
        name, by_state = courses_by_api(state.data)
        if by_state:
            yield _RuleAnswer(ExtractionMethod.EMBEDDED, f"{state.name}: {name}", by_state, page.text)


def _best(kind: EntityType, answers: list[_RuleAnswer]) -> _RuleAnswer | None:
    """Return the first answer that has nearly all that any answer has.

    A vendor's layout also counts if its courses lack descriptions: layout alone would take the text
    below them for one. Embedded data that the page does not show counts only where no other method
    finds anything: it could hide the visible records.
    """
    visible = [answer for answer in answers if _is_visible(kind, answer)]
    return _first_sufficient(kind, visible) or _first_sufficient(kind, answers)


def _first_sufficient(kind: EntityType, answers: list[_RuleAnswer]) -> _RuleAnswer | None:
    complete = [_count_complete(kind, answer.candidates) for answer in answers]
    most, count = max(complete, default=0), max((len(answer.candidates) for answer in answers), default=0)
    for answer, own_complete in zip(answers, complete, strict=True):
        own = len(answer.candidates)
        is_known = answer.method is ExtractionMethod.SELECTORS and any(
            sum(map(bool, candidate.fields.values())) > NAME_FIELDS for candidate in answer.candidates
        )
        share = KNOWN_LAYOUT_SHARE if own_complete == own > 1 else SUFFICIENT_SHARE
        if own and (own_complete >= SUFFICIENT_SHARE * most or (is_known and own >= share * count)):
            return answer
    return None


def _is_visible(kind: EntityType, answer: _RuleAnswer) -> bool:
    if answer.method is not ExtractionMethod.EMBEDDED or not answer.candidates:
        return True
    flagged = sum(record.is_flagged for record in _records(kind, answer))
    return flagged <= (1 - SUFFICIENT_SHARE) * len(answer.candidates)


def _count_complete(kind: EntityType, candidates: Sequence[CandidateRecord]) -> int:
    required = [name for name in kind.required if name not in kind.key_fields]
    return sum(all(candidate.fields.get(name) for name in required) for candidate in candidates)


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


def rule_reading(config: EntityConfig, page: PageContent, settings: Settings) -> RuleResult:
    """Return the records that rules find; none if the entity has no rules.

    Raises:
        Transient: the page is empty.
        Permanent: it is too large (`refuse_bombs`) or truncated.
    """
    if not page.body.strip():
        raise Transient("the body is empty; fetch the page again", code="empty_body")
    kind, announced = config.kind, None
    result: ParsedFeed[Record] = ParsedFeed(records=[])
    if has_rules(kind, config.selectors or config.learned):
        result = read_by_rules(config, page)
    if not is_json(page.body):
        refuse_bombs(page.body)  # not yet checked where no rule has parsed the page
        announced = announced_count(kind, page.text, page.body, page.url)
    records = tuple(result.records)
    incomplete = tuple(place for place, record in enumerate(records) if missing_or_unproved(kind, record))
    reason, is_mostly_right = _reason_for_model(records, announced, settings), False
    if not reason and incomplete:
        reason = f"{len(incomplete)} of {len(records)} records lack a required field or its proof"
        is_mostly_right = len(incomplete) <= MAX_INCOMPLETE_SHARE * len(records)
    return RuleResult(
        records=records,
        notes=tuple(result.notes),
        announced=announced,
        incomplete=incomplete,
        reason=reason,
        is_mostly_right=is_mostly_right,
    )


def _reason_for_model(records: Sequence[Record], announced: int | None, settings: Settings) -> str:
    """Return why the page as a whole needs a model; empty if only single records are left open."""
    if not records:
        return "rules found no record"
    if announced is not None and len(records) < announced and not is_expected_count(len(records), announced):
        return f"rules found {len(records)} records where the page announces {announced}"
    least = min(record.confidence for record in records)
    if least < settings.extraction.low_confidence:
        return f"rules have a confidence of only {least:.0%}"
    return ""
