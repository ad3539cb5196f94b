"""The whole ladder: rules, and models only for what rules leave open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ingestion_pipeline.catalogs.entities.asker import Asker, all_of
from ingestion_pipeline.catalogs.entities.entity_type import EntityType
from ingestion_pipeline.catalogs.entities.finishing import finished_reading
from ingestion_pipeline.catalogs.entities.ladder import COURSE, is_json
from ingestion_pipeline.catalogs.entities.model_rungs import ModelPage, ModelReader, PlacedRecord
from ingestion_pipeline.catalogs.entities.orders import without_orders
from ingestion_pipeline.catalogs.entities.page_reading import PageContent, PageReading
from ingestion_pipeline.catalogs.entities.questions import presence_question
from ingestion_pipeline.catalogs.entities.record import Record
from ingestion_pipeline.catalogs.entities.rule_reading import (
    RuleReading,
    record_spans,
    rule_reading,
)
from ingestion_pipeline.catalogs.entities.selectors import Selectors
from ingestion_pipeline.catalogs.entities.splitting import PagePart, parts_of
from ingestion_pipeline.reading.cleaning import visible_tree
from ingestion_pipeline.reading.desk import in_parser_thread
from ingestion_pipeline.reading.grounding import ground
from ingestion_pipeline.reading.links import page_links
from ingestion_pipeline.reading.markup import parse_html
from ingestion_pipeline.reading.models import Answered, Billing, ModelClient
from ingestion_pipeline.reading.reading import Problem
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.work.errors import Resource

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
