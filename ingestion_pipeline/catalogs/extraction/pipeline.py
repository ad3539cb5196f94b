"""Read a page by the cheapest sufficient method and build its records, problems and links."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.injected_instructions import (
    blank_injected_instructions,
    has_injected_instructions,
)
from ingestion_pipeline.catalogs.extraction.model_methods import (
    ModelPage,
    ModelReader,
    PageModelClient,
    PlacedRecord,
    gather_all,
)
from ingestion_pipeline.catalogs.extraction.prompts import PagePart, parts_of, presence_question
from ingestion_pipeline.catalogs.extraction.record import (
    ExtractionMethod,
    ExtractionOverBudget,
    ExtractionResult,
    PageContent,
    Record,
    item_key,
)
from ingestion_pipeline.catalogs.extraction.rule_pipeline import RuleResult, is_json, rule_reading
from ingestion_pipeline.catalogs.extraction.rules.counting import is_expected_count, spans_between
from ingestion_pipeline.catalogs.extraction.rules.course_words import has_phrase
from ingestion_pipeline.catalogs.extraction.source_config import EntityConfig
from ingestion_pipeline.reading.evidence.grounding import ground
from ingestion_pipeline.reading.html.cleaning import visible_tree
from ingestion_pipeline.reading.html.links import base_of, canonical_or_none, linked_page, page_links
from ingestion_pipeline.reading.html.parsing import in_parser_thread, parse_html
from ingestion_pipeline.reading.llm import Answered, Billing, ModelClient, OverBudget
from ingestion_pipeline.reading.llm.client import UNCONFIGURED_WAIT
from ingestion_pipeline.reading.structured.items import Problem
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.tasks.errors import Resource

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser


MAX_LINKS = 20  # per page; the crawl has its own limits of depth and pages


def explored_links(
    kind: EntityType,
    page: PageContent,
    records: Sequence[Record],
    *,
    proposed: Iterable[str] = (),
    most: int = MAX_LINKS,
) -> tuple[str, ...]:
    """Return canonical URLs that may lead to more entities, those a model proposed first.

    Empty unless the page has records and the type explores. Only links that visitors see, of the
    same host, other than the page itself; each once.
    """
    if not kind.explores or not records:
        return ()
    here, own = _host(page.url), canonical_or_none(page.url)
    links = {
        address: words
        for address, words in _links(visible_tree(page.body), page.url)
        if _host(address) == here and address != own
    }
    proposed_links = [canonical for url in proposed if (canonical := canonical_or_none(url)) in links]
    matching_links = [address for address, words in links.items() if has_phrase(words, kind.link_phrases)]
    return tuple(dict.fromkeys([*proposed_links, *matching_links]))[:most]


def _links(tree: "LexborHTMLParser", url: str) -> Iterable[tuple[str, str]]:
    """Yield each link's canonical URL, with its text and the words of its address."""
    base = base_of(tree, url)
    for node in tree.css("a[href], area[href]"):
        address = canonical_or_none(linked_page(base, node.attrs.get("href")) or "")
        if address is not None:
            parts = urlsplit(address)
            yield address, f"{node.text()} {unquote(parts.path)} {unquote(parts.query)}"


def _host(url: str) -> str:
    return urlsplit(url).netloc.casefold()


MAX_PROBLEMS = 50
PRESENCE_CHARACTERS = 40_000  # a list of the entity begins within these
_BY_MODEL = {ExtractionMethod.CHEAP_MODEL, ExtractionMethod.STRONG_MODEL}
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
        Permanent: the page is too large (`refuse_bombs`), or no model gives a usable answer.
    """
    page_reader, reading = await in_parser_thread(_by_rules, config, page, settings)
    if reading is not None:
        return reading
    by_rules = page_reader.by_rules
    if client is None or not settings.has_model:
        if not by_rules.records and not config.can_finish_by_rules:
            raise no_model_error(config.kind, now)
        note = f"no model configured; the result of the rules is final: {by_rules.reason}"
        return await in_parser_thread(page_reader.finish, by_rules.records, notes=[note])
    return await page_reader.read(PageModelClient(client=client, billing=billing, settings=settings, now=now))


def _by_rules(
    config: EntityConfig, page: PageContent, settings: Settings
) -> "tuple[_PageReader, ExtractionResult | None]":
    """Return the rules' result, and the finished reading if they leave nothing open."""
    by_rules = rule_reading(config, page, settings)
    reader = _PageReader(kind=config.kind, page=page, by_rules=by_rules)
    return reader, None if by_rules.reason else reader.finish(by_rules.records)


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
        reasons = [self.by_rules.reason, record.reason] if record.method in _BY_MODEL else [record.reason]
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
        is_page = not is_json(self.page.body)
        links = page_links(parse_html(self.page.body), self.page.url) if is_page else ()
        text, _ = blank_injected_instructions(self.page.text)
        return ModelPage(text=text, links=tuple(links))

    def _parts(self, model_page: ModelPage) -> list[PagePart]:
        tree = visible_tree("" if is_json(self.page.body) else self.page.body)
        return parts_of(self.kind, model_page.text, tree, announced=self.by_rules.announced)
