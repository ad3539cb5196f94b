"""Read a page by the cheapest sufficient method, rules before models, and build its records, problems and links.

Rules read embedded data, selectors and layout. A saved page is read by rules alone: no network, database or model.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from ingestion_pipeline.catalogs.extraction.entity_type import COURSE, EntityType, entity_type
from ingestion_pipeline.catalogs.extraction.model_methods import (
    LOW_CONFIDENCE,
    ModelPage,
    ModelReader,
    PageModelClient,
    PagePart,
    PlacedRecord,
    blank_injected_instructions,
    gather_all,
    has_injected_instructions,
    missing_or_unproved,
    parts_of,
    presence_question,
)
from ingestion_pipeline.catalogs.extraction.record import (
    LEARNED,
    MAX_PAGE_RECORDS,
    MODEL_METHODS,
    CandidateRecord,
    ExtractionMethod,
    ExtractionOverBudget,
    ExtractionResult,
    PageContent,
    Record,
    announced_count,
    embedded_evidence,
    is_expected_count,
    item_key,
    placed_evidence,
    record_of,
    spans_between,
)
from ingestion_pipeline.catalogs.extraction.rules.course_blocks import course_by_title, courses_by_blocks
from ingestion_pipeline.catalogs.extraction.rules.course_layouts import (
    courses_by_labels,
    courses_by_layout,
    courses_by_table,
    courses_by_vendor,
    items_by_list,
    labels_of,
    thing_by_title,
)
from ingestion_pipeline.catalogs.extraction.rules.course_words import has_phrase
from ingestion_pipeline.catalogs.extraction.rules.listed_records import records_of_feed, records_of_list
from ingestion_pipeline.catalogs.extraction.rules.page_lines import content_lines
from ingestion_pipeline.catalogs.extraction.rules.repeated_blocks import MIN_BLOCKS
from ingestion_pipeline.catalogs.extraction.rules.structured_records import (
    courses_by_api,
    courses_by_embedded,
    courses_by_xml,
    things_by_embedded,
)
from ingestion_pipeline.catalogs.extraction.source_selectors import (
    EntityConfig,
    Selectors,
    records_by_learned,
    records_by_selectors,
    selectors_of,
)
from ingestion_pipeline.reading.evidence.grounding import ground
from ingestion_pipeline.reading.html.cleaning import in_parser_thread
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.links import canonical_or_none
from ingestion_pipeline.reading.llm import Answered, Billing, ModelClient, OverBudget
from ingestion_pipeline.reading.llm.client import UNCONFIGURED_WAIT
from ingestion_pipeline.reading.structured.items import TOO_MANY, ParsedFeed, Problem, SavedBody, SavedBodyResult
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.tasks.errors import Permanent, Resource, Transient
from ingestion_pipeline.urls import checked_url

MAX_PROBLEMS = 50
SUFFICIENT_SHARE = 0.8  # of the best method's records; then the cheaper one is taken
# As above, for a known layout with complete records: other methods also read its term tables.
KNOWN_LAYOUT_SHARE = 0.5
MAX_HEAD = 20_000  # characters in which a page's title stands
_TITLE = re.compile(r"<title\b[^>]{0,200}>([^<]{1,300})", re.IGNORECASE)
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
    kind: EntityType, document: Document, *, only_embedded: bool = False, selectors: Selectors | None = None
) -> ParsedFeed[Record]:
    """Return every record that rules find in a page or an API's answer; none is no error.

    The cheapest method wins that finds nearly as many complete records as any.

    Raises:
        NoRules: no rules read this entity.
        Permanent: the body is too large (`refuse_bombs`) or truncated.
        Transient: it is empty.
    """
    if not document.html.strip():
        raise Transient("the body is empty; fetch the page again", code="empty_body")
    text = ""
    if not is_json(document.html):
        document.preload("embedded")
        text = document.visible_utf8.decode()
    page = PageContent(document=document, text=text)
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
            unique.setdefault(tuple(record.fields[name] for name in (*kind.required, *kind.key_fields)), record)
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
    elif kind.repeated is not None and (entries := records_of_feed(kind, page.body)):
        yield _RuleAnswer(ExtractionMethod.API, "feed", entries)
    elif is_course and (candidates := courses_by_xml(page.body)):
        yield _RuleAnswer(ExtractionMethod.API, "xml", candidates)
    else:
        yield from _embedded(kind, page)
        yield from _by_selectors(config, page)
        if is_course:
            yield from _course_layouts(page)
        else:
            tree = page.document.take_visible_tree()  # both rules remove the same asides
            items = items_by_list(kind, tree)
            yield _RuleAnswer(ExtractionMethod.LAYOUT, "lists", items, page.text)
            titled = thing_by_title(kind, tree, page.url)
            yield _RuleAnswer(ExtractionMethod.LAYOUT, "title", titled, page.text)
            if kind.repeated is not None:
                listed = records_of_list(kind, tree, page.url)
                yield _RuleAnswer(ExtractionMethod.LAYOUT, "repeated", listed, page.text)


def _by_selectors(config: EntityConfig, page: PageContent) -> Iterator[_RuleAnswer]:
    """Yield what configured selectors find, else learned ones if every record is complete and proved."""
    if config.selectors is not None:
        candidates = records_by_selectors(config.kind, config.selectors, page.document.visible_tree)
        yield _RuleAnswer(ExtractionMethod.SELECTORS, "configured selectors", candidates, page.text)
    elif config.learned is not None:
        candidates = records_by_learned(config.kind, config.learned, page.document.visible_tree)
        answer = _RuleAnswer(ExtractionMethod.SELECTORS, "learned selectors", candidates, page.text, reason=LEARNED)
        if candidates and not any(record.is_flagged for record in _records(config.kind, answer)):
            yield answer


def _course_layouts(page: PageContent) -> Iterator[_RuleAnswer]:
    title = _TITLE.search(page.body[:MAX_HEAD])  # the visible tree has none
    about = f"{title[1] if title else ''} {urlsplit(page.url or '').path}"
    tree = page.document.take_visible_tree()
    name, candidates = courses_by_vendor(tree)
    yield _RuleAnswer(ExtractionMethod.SELECTORS, name, candidates, page.text)
    yield _RuleAnswer(ExtractionMethod.LAYOUT, "tables", by_table := courses_by_table(tree), page.text)
    lines = content_lines(tree)  # last use of the tree: it removes what is no content
    labels = list(labels_of(lines))
    by_labels, by_layout = courses_by_labels(lines, labels), courses_by_layout(lines)
    yield _RuleAnswer(ExtractionMethod.LAYOUT, "labels", by_labels, page.text)
    yield _RuleAnswer(ExtractionMethod.LAYOUT, "layout", by_layout, page.text)
    by_any_sign = courses_by_labels(lines, labels, any_sign=True)
    yield _RuleAnswer(ExtractionMethod.LAYOUT, "labels", by_any_sign, page.text)
    if not candidates and max(map(len, (by_table, by_labels, by_layout, by_any_sign))) < MIN_BLOCKS:
        blocks = courses_by_blocks(lines, about) or course_by_title(lines, page.url)
        yield _RuleAnswer(ExtractionMethod.LAYOUT, "blocks", blocks, page.text)


def _embedded(kind: EntityType, page: PageContent) -> Iterator[_RuleAnswer]:
    data = page.document.embedded
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
    required = [name for name in kind.required if name not in kind.key_fields]
    complete = [
        sum(all(candidate.fields.get(name) for name in required) for candidate in answer.candidates)
        for answer in answers
    ]
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


def rule_reading(config: EntityConfig, page: PageContent) -> RuleResult:
    """Return the records that rules find; none if the entity has no rules. It raises what `read_records` does."""
    if not page.body.strip():
        raise Transient("the body is empty; fetch the page again", code="empty_body")
    kind, is_page = config.kind, not is_json(page.body)
    announced = announced_count(kind, page.text, page.document) if is_page else None
    if is_page and kind.explores:  # before the rules take the tree apart
        page.document.preload("links", "embedded", "visible_links")
    result: ParsedFeed[Record] = ParsedFeed(records=[])
    if has_rules(kind, config.selectors or config.learned):
        result = read_by_rules(config, page)
    if is_page:
        page.document.refuse_bomb()  # not yet checked where no rule has parsed the page
    records = tuple(result.records)
    incomplete = tuple(place for place, record in enumerate(records) if missing_or_unproved(kind, record))
    reason, is_mostly_right = _reason_for_model(records, announced), False
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


def _reason_for_model(records: Sequence[Record], announced: int | None) -> str:
    """Return why the page as a whole needs a model; empty if only single records are left open."""
    if not records:
        return "rules found no record"
    if announced is not None and len(records) < announced and not is_expected_count(len(records), announced):
        return f"rules found {len(records)} records where the page announces {announced}"
    least = min(record.confidence for record in records)
    if least < LOW_CONFIDENCE:
        return f"rules have a confidence of only {least:.0%}"
    return ""


MAX_LINKS = 20  # per page; the crawl has its own limits of depth and pages


def explored_links(
    kind: EntityType, page: PageContent, records: Sequence[Record], *, proposed: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return canonical URLs that may lead to more entities, those a model proposed first.

    Empty unless the page has records and the type explores. Only links that visitors see, of the
    same host, other than the page itself; each once.
    """
    if not kind.explores or not records:
        return ()
    here, own = _host(page.url), canonical_or_none(page.url)
    links = {
        address: f"{text} {unquote(urlsplit(address).path)} {unquote(urlsplit(address).query)}"
        for address, text in page.document.visible_links
        if _host(address) == here and address != own
    }
    proposed_links = [canonical for url in proposed if (canonical := canonical_or_none(url)) in links]
    matching_links = [address for address, words in links.items() if has_phrase(words, kind.link_phrases)]
    return tuple(dict.fromkeys([*proposed_links, *matching_links]))[:MAX_LINKS]


def _host(url: str) -> str:
    return urlsplit(url).netloc.casefold()


PRESENCE_CHARACTERS = 40_000  # a list of the entity begins within these
_METHODS_BY_COST = list(ExtractionMethod)


class Reader(Protocol):
    """Reader of one page; every failure is raised as a `WorkError`."""

    async def read(self, config: EntityConfig, page: PageContent, billing: Billing) -> ExtractionResult | OverBudget:
        """Return every record of the configured entity on the page; no record is no error."""
        ...


class PipelineReader:
    """Reader that uses rules, then models for what is left open; without a client, rules alone."""

    def __init__(self, settings: Settings, now: Callable[[], datetime], client: ModelClient | None = None) -> None:
        self._settings = settings
        self._now = now
        self._client = client

    async def read(self, config: EntityConfig, page: PageContent, billing: Billing) -> ExtractionResult | OverBudget:
        """Return the records of the cheapest method that reads the page well."""
        try:
            return await read_page(
                config, page, client=self._client, billing=billing, settings=self._settings, now=self._now()
            )
        except ExtractionOverBudget as error:
            return error.over


async def read_page(
    config: EntityConfig,
    page: PageContent,
    *,
    client: ModelClient | None,
    billing: Billing,
    settings: Settings,
    now: datetime,
) -> ExtractionResult:
    """Return every record of the page, by the cheapest method that reads it well.

    No model is asked if rules give proved, complete records. Without a model the result of the
    rules is final, where the entity has sufficient rules. Learned selectors are used where none are
    configured, and are never final by themselves.

    Raises:
        Resource: it takes a model, and none is configured, free or affordable for now; as
            `ExtractionOverBudget` it is the extraction's own budget.
        Transient: the page is empty, or a model did not answer in time.
        Permanent: the page is too large (`refuse_bombs`), no model gives a usable answer, or the page takes a model
            and reserves its text.
    """
    page_reader, reading = await in_parser_thread(_by_rules, config, page)
    if reading is not None:
        return reading
    by_rules = page_reader.by_rules
    if not page.may_ask_models:
        if not by_rules.records and not config.can_finish_by_rules:
            raise Permanent(f"{page.url} reserves its text: no model may read it", code="rights_reserved")
        note = f"the page reserves its text; the result of the rules is final: {by_rules.reason}"
        return await in_parser_thread(page_reader.finish, by_rules.records, notes=[note])
    if client is None or not settings.has_model:
        if not by_rules.records and not config.can_finish_by_rules:
            raise no_model_error(config.kind, now)
        note = f"no model configured; the result of the rules is final: {by_rules.reason}"
        return await in_parser_thread(page_reader.finish, by_rules.records, notes=[note])
    return await page_reader.read(PageModelClient(client=client, billing=billing, settings=settings, now=now))


def _by_rules(config: EntityConfig, page: PageContent) -> "tuple[_PageReader, ExtractionResult | None]":
    """Return the rules' result, and the finished reading if they leave nothing open."""
    by_rules = rule_reading(config, page)
    reader = _PageReader(kind=config.kind, page=page, by_rules=by_rules)
    reading = None if by_rules.reason else reader.finish(by_rules.records)
    page.document.release()  # a model may take minutes, and the caller holds the page meanwhile
    return reader, reading


def no_model_error(kind: EntityType, now: datetime) -> Resource:
    """Return the error of a page that waits for a model."""
    return Resource(
        f"no model configured: rules cannot find every {kind.name} of the page; set OPENAI_API_KEY or OPENAI_BASE_URL",
        until=now + UNCONFIGURED_WAIT,
        code="no_model",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PageReader:
    """A page that rules have read; slow steps run outside the event loop."""

    kind: EntityType
    page: PageContent
    by_rules: RuleResult

    async def read(self, model_client: PageModelClient) -> ExtractionResult:
        """Read by models what rules left open."""
        model_page = await in_parser_thread(self._model_page)
        reader = ModelReader(self.kind, model_page, model_client)
        if self.by_rules.is_mostly_right:
            repaired = await self._repair_records(reader, len(model_page.text))
            return await in_parser_thread(self.finish, repaired)
        if self.kind.presence_check and not await self._is_present(model_page, model_client):
            return await in_parser_thread(self.finish, (), notes=["the page has no list of this entity; skipped"])
        reading = await reader.read(await in_parser_thread(self._parts, model_page))
        records = await gather_all(reader.repair(placed) for placed in reading.records)
        return await in_parser_thread(self.finish, records, problems=reading.problems, proposed=reading.explore)

    def finish(
        self,
        records: Sequence[Record],
        *,
        notes: Iterable[str] = (),
        problems: Iterable[Problem] = (),
        proposed: Iterable[str] = (),
    ) -> ExtractionResult:
        """Return the reading to store; problems name records left out, and suspicious ones."""
        unique = self._deduplicate([self._annotated(record) for record in records if not record.missing_fields])
        costliest = max(unique, key=lambda record: _METHODS_BY_COST.index(record.method), default=None)
        return ExtractionResult(
            records=tuple(unique),
            method=costliest.method if costliest else None,
            model=costliest.model if costliest else None,
            reason=self.by_rules.reason,
            explored=explored_links(self.kind, self.page, unique, proposed=proposed),
            notes=(*self.by_rules.notes, *notes),
            problems=(*problems, *self._problems(records, unique)),
        )

    def _annotated(self, record: Record) -> Record:
        """Flag a record with instructions for machines; give that of a model the reason why it was asked."""
        values = record.fields.values()
        is_injected = any(isinstance(value, str) and has_injected_instructions(value) for value in values)
        reasons = [self.by_rules.reason, record.reason] if record.method in MODEL_METHODS else [record.reason]
        reason = "; ".join(filter(None, reasons))
        return replace(record, reason=reason, is_flagged=record.is_flagged or is_injected)

    def _deduplicate(self, records: Sequence[Record]) -> list[Record]:
        """Return each record once, though two parts of a page may have it; unflagged ones win."""
        unique: dict[object, Record] = {}
        for record in records:
            key = item_key(self.kind, record), tuple(record.fields[name] for name in self.kind.required)
            existing = unique.setdefault(key, record)
            if existing.is_flagged and not record.is_flagged:
                unique[key] = record
        return list(unique.values())

    def _problems(self, records: Sequence[Record], unique: Sequence[Record]) -> Iterator[Problem]:
        kind, announced = self.kind, self.by_rules.announced
        for record in [record for record in records if record.missing_fields][:MAX_PROBLEMS]:
            message = f"required fields missing: {', '.join(record.missing_fields)}; not stored"
            yield Problem(where=item_key(kind, record) or kind.name, message=message, code="incomplete")
        for record in [record for record in unique if record.is_flagged][:MAX_PROBLEMS]:
            names = ", ".join(record.unproved(kind.required))
            why = f"the page does not prove its {names}" if names else "it has instructions for machines"
            message = f"{why}; it is stored for review and not exported"
            yield Problem(where=item_key(kind, record), message=message, code="flagged", hides_record=False)
        count = len(unique)
        if announced is not None and count < announced and not is_expected_count(count, announced):
            message = f"{count} records, and the page announces {announced}"
            yield Problem(where=kind.name, message=message, code="count_mismatch")
        _, lines = blank_injected_instructions(self.page.text)
        if lines:
            message = f"{lines} lines of the page are instructions for machines; no model received them"
            yield Problem(where=self.page.url, message=message, code="orders", hides_record=False)

    async def _repair_records(self, reader: ModelReader, length: int) -> list[Record]:
        """Return the rules' records, each incomplete one completed by questions about it alone."""
        records, incomplete = list(self.by_rules.records), self.by_rules.incomplete
        spans = spans_between([record.start_of(self.kind.key_fields) for record in records], length)
        placed_records = [PlacedRecord(record=records[place], span=spans[place] or (0, length)) for place in incomplete]
        repaired = await gather_all(reader.repair(placed) for placed in placed_records)
        for place, record in zip(incomplete, repaired, strict=True):
            records[place] = record
        return records

    async def _is_present(self, model_page: ModelPage, model_client: PageModelClient) -> bool:
        """Return whether the page has a list of the entity, under a heading that is on the page.

        True where no model answers, so that the page is read: a failed question is not an answer.
        """
        question = presence_question(self.kind, model_page.page_text(0, PRESENCE_CHARACTERS))
        answer = await model_client.ask(question, model_client.methods[0], call_site="presence")
        if not isinstance(answer, Answered):
            return True
        heading = answer.data["heading"]
        is_there = isinstance(heading, str) and ground(heading, model_page.text).is_proof
        return answer.data["has_list"] is True and is_there

    def _model_page(self) -> ModelPage:
        links = () if is_json(self.page.body) else self.page.document.links
        self.page.document.release()
        text, _ = blank_injected_instructions(self.page.text)
        return ModelPage(text=text, links=tuple(links))

    def _parts(self, model_page: ModelPage) -> list[PagePart]:
        document = Document("") if is_json(self.page.body) else self.page.document
        return parts_of(self.kind, model_page.text, document.take_visible_tree(), announced=self.by_rules.announced)


PLATFORMS = ("catalog", "jsonld")


class NoCatalogConfig(ValueError):
    """A configuration key that reading a saved body does not accept."""


def read_saved(
    platform: str,
    kind: Kind,  # noqa: ARG001 - every system takes it: one may read several kinds
    saved: SavedBody,
    config: Mapping[str, Any],
    *,
    entity: str | None = None,
    entities: Path | None = None,
) -> SavedBodyResult:
    """Return the records that the rules find in a saved body, and the problems.

    `entities` is a folder with the user's own schema files. A bad entity or config raises
    ValueError.
    """
    if unknown := sorted(config.keys() - {"selectors"}):
        raise NoCatalogConfig(f"{platform} takes no config but selectors; remove {', '.join(unknown)}")
    if saved.url:
        checked_url(saved.url)
    record_type = entity_type(entity or COURSE, folder=entities)
    selectors, only_embedded = selectors_of(config, record_type), platform == "jsonld"

    def read() -> ParsedFeed[Record]:
        document = Document.of(saved.body, url=saved.url)
        return read_records(record_type, document, only_embedded=only_embedded, selectors=selectors)

    return SavedBodyResult.of(read, Record.as_dict)
