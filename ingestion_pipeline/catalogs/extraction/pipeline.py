"""Which links of a page are worth a visit, for entities on pages that nobody listed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.injected_instructions import (
    gives_orders,
    without_orders,
)
from ingestion_pipeline.catalogs.extraction.item_keys import item_key
from ingestion_pipeline.catalogs.extraction.model_methods import (
    Asker,
    ModelPage,
    ModelReader,
    PlacedRecord,
    all_of,
)
from ingestion_pipeline.catalogs.extraction.page_result import PageContent, PageReading
from ingestion_pipeline.catalogs.extraction.prompts import PagePart, parts_of, presence_question
from ingestion_pipeline.catalogs.extraction.record import ExtractionMethod, Record
from ingestion_pipeline.catalogs.extraction.rule_pipeline import (
    COURSE,
    RuleReading,
    is_json,
    record_spans,
    rule_reading,
)
from ingestion_pipeline.catalogs.extraction.rules.counting import is_count
from ingestion_pipeline.catalogs.extraction.rules.vocabulary import has_phrase
from ingestion_pipeline.catalogs.extraction.selectors import Selectors
from ingestion_pipeline.reading.evidence.grounding import ground
from ingestion_pipeline.reading.html.cleaning import visible_tree
from ingestion_pipeline.reading.html.links import (
    base_of,
    canonical_or_none,
    linked_page,
    page_links,
)
from ingestion_pipeline.reading.html.parsing import parse_html
from ingestion_pipeline.reading.llm import Answered, Billing, ModelClient
from ingestion_pipeline.reading.parser_thread import in_parser_thread
from ingestion_pipeline.reading.structured.items import Problem
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.tasks.errors import Resource

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser


MOST_LINKS = 20  # of one page; the crawl has its own bounds of depth and pages


def explored_links(
    kind: EntityType,
    page: PageContent,
    records: Sequence[Record],
    *,
    proposed: Iterable[str] = (),
    most: int = MOST_LINKS,
) -> tuple[str, ...]:
    """Canonical URLs that may lead to more of the entity, those a model proposed first.

    Only where the page had records and the type explores; only links that a visitor sees on the
    page, of the same host, and not the page itself; each once.
    """
    if not kind.explores or not records:
        return ()
    here, own = _host(page.url), canonical_or_none(page.url)
    links = {
        address: said
        for address, said in _links(visible_tree(page.body), page.url)
        if _host(address) == here and address != own
    }
    asked = [found for one in proposed if (found := canonical_or_none(one)) in links]
    alike = [address for address, said in links.items() if has_phrase(said, kind.link_phrases)]
    return tuple(dict.fromkeys([*asked, *alike]))[:most]


def _links(tree: LexborHTMLParser, url: str) -> Iterable[tuple[str, str]]:
    """Each link's canonical URL, with its words and those of its address."""
    base = base_of(tree, url)
    for node in tree.css("a[href], area[href]"):
        address = canonical_or_none(linked_page(base, node.attrs.get("href")) or "")
        if address is not None:
            parts = urlsplit(address)
            yield address, f"{node.text()} {unquote(parts.path)} {unquote(parts.query)}"


def _host(url: str) -> str:
    return urlsplit(url).netloc.casefold()


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


PRESENCE_CHARACTERS = 40_000  # a list made for something is not hidden behind so many


async def read_page(
    kind: EntityType,
    page: PageContent,
    *,
    client: ModelClient | None,
    billing: Billing,
    settings: Settings,
    now: datetime,
    selectors: Selectors | None = None,
    learned: Selectors | None = None,
) -> PageReading:
    """Every record the page states, by the cheapest rung that reads it well.

    Rules that give proved, complete records end it; no model is asked then. Without a model the
    rules have the last word, where the entity has any that could tell. `learned` selectors are
    asked where none are given, and never have the last word.

    Raises:
        Resource: it takes a model, and none is configured, free or affordable for now; as
            `ExtractionOverBudget` it is the extraction's own budget.
        Transient: the page is empty, or a model did not answer in time.
        Permanent: the page is a bomb, or no model gives a usable answer.
    """
    page_reader, read = await in_parser_thread(
        _by_rules, kind, page, selectors, settings, learned=learned
    )
    if read is not None:
        return read
    ruled = page_reader.ruled
    if client is None or not settings.has_model:
        could_tell = kind.name == COURSE or selectors is not None
        if not ruled.records and not could_tell:
            raise no_model(kind, settings, now)
        note = f"no model configured; rules have the last word: {ruled.reason}"
        return await page_reader.finished(ruled.records, notes=[note])
    return await page_reader.read(Asker(client=client, billing=billing, settings=settings, now=now))


def _by_rules(
    kind: EntityType,
    page: PageContent,
    selectors: Selectors | None,
    settings: Settings,
    *,
    learned: Selectors | None,
) -> tuple[_PageReader, PageReading | None]:
    """What rules make of the page; the reading as well, if they leave nothing open."""
    ruled = rule_reading(kind, page, selectors, settings, learned=learned)
    reader = _PageReader(kind=kind, page=page, ruled=ruled)
    return reader, None if ruled.reason else reader.finish(ruled.records)


def no_model(kind: EntityType, settings: Settings, now: datetime) -> Resource:
    """Return the reason of a page that waits for a model."""
    return Resource(
        f"no model configured: rules cannot tell every {kind.name} of the page;"
        " set OPENAI_API_KEY or OPENAI_BASE_URL",
        until=now + timedelta(seconds=settings.models.unconfigured_wait_seconds),
        code="no_model",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PageReader:
    """One page that rules have read; what takes time is done off the event loop."""

    kind: EntityType
    page: PageContent
    ruled: RuleReading

    async def read(self, asker: Asker) -> PageReading:
        """The page read by models, as far as rules left it open."""
        shown = await in_parser_thread(self._shown)
        reader = ModelReader(self.kind, shown, asker)
        if self.ruled.is_mostly_right:
            return await self.finished(await self._mended(reader, len(shown.text)))
        if self.kind.presence_check and not await self._is_present(shown, asker):
            return await self.finished((), notes=["the page has no list made for it; skipped"])
        reading = await reader.read(await in_parser_thread(self._parts, shown))
        records = await all_of(reader.mended(one) for one in reading.records)
        return await self.finished(records, problems=reading.problems, proposed=reading.explore)

    async def finished(
        self,
        records: Sequence[Record],
        *,
        notes: Iterable[str] = (),
        problems: Iterable[Problem] = (),
        proposed: Iterable[str] = (),
    ) -> PageReading:
        """As `finish`."""
        return await in_parser_thread(
            self.finish, records, notes=notes, problems=problems, proposed=proposed
        )

    def finish(
        self,
        records: Sequence[Record],
        *,
        notes: Iterable[str] = (),
        problems: Iterable[Problem] = (),
        proposed: Iterable[str] = (),
    ) -> PageReading:
        """The reading with all that is to be told of it."""
        found = finished_reading(
            self.kind,
            self.page,
            records,
            announced=self.ruled.announced,
            reason=self.ruled.reason,
            proposed=proposed,
        )
        return replace(
            found,
            notes=(*self.ruled.notes, *notes),
            problems=(*problems, *found.problems),
        )

    async def _mended(self, reader: ModelReader, length: int) -> list[Record]:
        """The records of the rules, those that are left open asked about alone."""
        records, bad = list(self.ruled.records), self.ruled.bad
        spans = record_spans(self.kind, records, length)
        asked = [PlacedRecord(record=records[place], span=spans[place]) for place in bad]
        mended = await all_of(reader.mended(one) for one in asked)
        for place, record in zip(bad, mended, strict=True):
            records[place] = record
        return records

    async def _is_present(self, shown: ModelPage, asker: Asker) -> bool:
        """Whether the page has a list made for the entity, under a heading that stands on it.

        Where no model says, the page is looked through: a failed question is not an answer.
        """
        question = presence_question(self.kind, shown.shown(0, PRESENCE_CHARACTERS))
        answer = await asker.ask(question, asker.rungs[0], call_site="presence")
        if not isinstance(answer, Answered):
            return True
        heading = answer.data["heading"]
        is_there = isinstance(heading, str) and ground(heading, shown.text).is_proof
        return answer.data["has_list"] is True and is_there

    def _shown(self) -> ModelPage:
        is_page = not is_json(self.page.body)
        links = page_links(parse_html(self.page.body), self.page.url) if is_page else ()
        text, _ = without_orders(self.page.text)
        return ModelPage(text=text, links=tuple(links))

    def _parts(self, shown: ModelPage) -> list[PagePart]:
        tree = visible_tree("" if is_json(self.page.body) else self.page.body)
        return parts_of(self.kind, shown.text, tree, announced=self.ruled.announced)
