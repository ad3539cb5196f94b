"""Asks models about one page, on account of whoever wants it read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar, cast

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.item_keys import item_key
from ingestion_pipeline.catalogs.extraction.page_result import ExtractionOverBudget
from ingestion_pipeline.catalogs.extraction.prompts import (
    ONE_QUESTION_TOKENS,
    PART_TOKENS,
    PagePart,
    ReadAnswer,
    alone_question,
    next_part,
    read_answer,
    reading_question,
    tokens_of,
)
from ingestion_pipeline.catalogs.extraction.record import (
    ExtractionMethod,
    Record,
    RecordField,
    record_of,
)
from ingestion_pipeline.catalogs.extraction.rules.counting import (
    SectionEvidence,
    is_count,
    sections,
)
from ingestion_pipeline.reading.llm import (
    Answer,
    Answered,
    Billing,
    CutOff,
    ModelClient,
    NoAnswer,
    OverBudget,
    PageText,
    Question,
    Unanswered,
)
from ingestion_pipeline.reading.llm import ModelTier as ModelRung
from ingestion_pipeline.reading.parser_thread import in_parser_thread
from ingestion_pipeline.reading.structured.items import Problem
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.tasks.errors import WorkError

_T = TypeVar("_T")
AT_A_TIME = 4  # questions about one page; pages are read at the same time, too
_RUNGS = {
    ExtractionMethod.CHEAP_MODEL: ModelRung.CHEAP,
    ExtractionMethod.STRONG_MODEL: ModelRung.STRONG,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """One page's questions, few at a time, each in the ledger under its own call site."""

    client: ModelClient
    billing: Billing
    settings: Settings
    now: datetime
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_A_TIME))
    _stopped: list[WorkError] = field(default_factory=list[WorkError])

    @property
    def rungs(self) -> tuple[ExtractionMethod, ...]:
        """The models there are, the cheap one first."""
        if self.settings.model_cheap == self.settings.model_strong:
            return (ExtractionMethod.CHEAP_MODEL,)
        return (ExtractionMethod.CHEAP_MODEL, ExtractionMethod.STRONG_MODEL)

    async def ask(
        self, question: Question, rung: ExtractionMethod, *, call_site: str = ""
    ) -> Answered | Unanswered:
        """What the model of that rung says; after a failure nothing more is asked about the page.

        Raises:
            ExtractionOverBudget: the extraction's budget holds no further call.
            Resource, Transient: as `ModelClient.ask`.
        """
        site = ".".join(filter(None, (self.billing.call_site, call_site)))
        billing = replace(self.billing, call_site=site)
        async with self._turns:
            if self._stopped:
                raise self._stopped[0]
            try:
                return self._paid(await self.client.ask(question, billing, rungs=(_RUNGS[rung],)))
            except WorkError as error:
                self._stopped.append(error)
                raise

    def _paid(self, outcome: Answer) -> Answered | Unanswered:
        if isinstance(outcome, OverBudget):
            raise self._over(outcome)
        return outcome

    def _over(self, over: OverBudget) -> ExtractionOverBudget:
        pause = timedelta(seconds=self.settings.models.unconfigured_wait_seconds)
        error = ExtractionOverBudget(str(over), until=self.now + pause, code="over_budget")
        error.over = over
        return error


async def all_of(asked: Iterable[Awaitable[_T]]) -> list[_T]:
    """Every result, in order; a failure is raised when all have ended: none goes on alone."""
    found = await asyncio.gather(*asked, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return cast("list[_T]", found)


MOST_HALVINGS = 3  # an eighth of a part is cut off again: then it is not its length
LEAST_HALVED_TOKENS = 100  # below, a cut-off says that the model rambles


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPage:
    """What models are shown of a page: its text, with blanks for what speaks to machines."""

    text: str
    links: tuple[str, ...]

    def shown(self, start: int, end: int) -> PageText:
        """A span of it as it is sent."""
        lines = (line for line in self.text[start:end].split("\n") if line.strip())
        return PageText(text="\n".join(lines), links=self.links)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRecord:
    """A record with the span of the text that is about it."""

    record: Record
    span: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReading:
    """What one rung made of a part; `why_not` says why the next one should try, empty if not."""

    records: tuple[PlacedRecord, ...]
    explore: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    why_not: str = ""


class ModelReader:
    """Reads one page by models."""

    def __init__(self, kind: EntityType, page: ModelPage, asker: Asker) -> None:
        self._kind = kind
        self._page = page
        self._asker = asker

    async def read(self, parts: Sequence[PagePart]) -> PartReading:
        """The records of all parts, in page order; without parts the page is split by size."""
        found = (
            await all_of(self._read_part(part) for part in parts)
            if parts
            else await self._read_by_size(PagePart(start=0, end=len(self._page.text)))
        )
        return _merged(found)

    async def mended(self, placed: PlacedRecord) -> Record:
        """The record with its required fields proved, as far as asking about it alone helps."""
        record, span = placed.record, placed.span
        for attempt in range(1, self._asker.settings.extraction.asked_again + 1):
            missing = wanting(self._kind, record)
            if not missing:
                break
            question = alone_question(self._kind, self._page.shown(*span), missing, attempt)
            rung = self._rung_for(record, attempt)
            answer = await self._asker.ask(question, rung, call_site="alone")
            if isinstance(answer, Answered):
                record = await in_parser_thread(self._better, record, answer, rung, span)
        return record

    def _rung_for(self, record: Record, attempt: int) -> ExtractionMethod:
        """First of the model that read it, or of the cheap one; then of the strong one."""
        rungs = self._asker.rungs
        if attempt > 1 or record.rung is ExtractionMethod.STRONG_MODEL:
            return rungs[-1]
        return rungs[0]

    def _better(
        self, record: Record, answer: Answered, rung: ExtractionMethod, span: tuple[int, int]
    ) -> Record:
        found = read_answer(self._kind, answer.data).found
        others = [one.record for one in self._grounded(found, rung, answer.model, span)]
        alike = [one for one in others if item_key(self._kind, one) == item_key(self._kind, record)]
        best = min(alike or others[:1], key=self._faults, default=record)
        reason = f"asked again for {', '.join(wanting(self._kind, record))}"
        is_better = self._faults(best) < self._faults(record)
        return replace(best, reason=reason) if is_better else record

    def _faults(self, record: Record) -> int:
        return len(wanting(self._kind, record))

    async def _read_part(self, part: PagePart, halvings: int = 0) -> PartReading:
        """What the best rung makes of the part; an answer that is cut off is asked for in halves.

        Raises:
            Permanent: no rung gave an answer.
        """
        question = reading_question(self._kind, self._page.shown(part.start, part.end))
        tries: list[NoAnswer] = []
        readings: list[PartReading] = []
        for rung in self._asker.rungs:
            answer = await self._asker.ask(question, rung)
            if isinstance(answer, Unanswered):
                if halvings < MOST_HALVINGS and self._is_too_long(part, answer):
                    return await self._halved(part, halvings + 1)
                tries += answer.tries
                continue
            readings.append(await in_parser_thread(self._judged, part, answer, rung, tries))
            if not readings[-1].why_not:
                break
        if not readings:
            raise Unanswered(tries=tuple(tries)).as_error()
        return _with_problem(max(readings, key=self._worth), part)

    def _is_too_long(self, part: PagePart, answer: Unanswered) -> bool:
        """Whether the model had more to say of the part than it may; not of what is short."""
        is_cut = any(isinstance(one, CutOff) for one in answer.tries)
        return is_cut and tokens_of(self._page.text[part.start : part.end]) > LEAST_HALVED_TOKENS

    async def _halved(self, part: PagePart, halvings: int) -> PartReading:
        """The part's records, read in halves, and counted together."""
        tokens = tokens_of(self._page.text[part.start : part.end])
        found = await self._read_by_size(
            part, tokens=tokens // 2, most=tokens * 3 // 4, halvings=halvings
        )
        merged = _merged(found)
        count = len(merged.records)
        is_wrong = part.expected is not None and not is_count(count, part.expected)
        said = f"{count} records where {part.expected} are expected" if is_wrong else ""
        return _with_problem(replace(merged, why_not=said), part)

    def _judged(
        self, part: PagePart, answer: Answered, rung: ExtractionMethod, tries: Sequence[NoAnswer]
    ) -> PartReading:
        read = read_answer(self._kind, answer.data)
        placed = self._grounded(read.found, rung, answer.model, (part.start, part.end))
        if tries:
            reason = "; ".join(dict.fromkeys(f"{one.model}: {one.code}" for one in tries))
            placed = [replace(one, record=replace(one.record, reason=reason)) for one in placed]
        return PartReading(
            records=tuple(placed),
            explore=read.explore,
            why_not=self._why_not([one.record for one in placed], read, part),
        )

    def _why_not(self, records: Sequence[Record], read: ReadAnswer, part: PagePart) -> str:
        expected = part.expected if part.expected is not None else read.counted
        if expected is not None and not is_count(len(records), expected):
            return f"{len(records)} records where {expected} are expected"
        if not records:
            return "no record"
        mean = sum(record.confidence for record in records) / len(records)
        if mean < self._asker.settings.extraction.low_confidence:
            return f"of its values the page proves {mean:.0%}"
        return ""

    def _worth(self, reading: PartReading) -> tuple[bool, int, int]:
        """What is right, else what has most sound records; of equals the later one."""
        records = [one.record for one in reading.records]
        sound = sum(not wanting(self._kind, one) for one in records)
        return (not reading.why_not, sound, bool(records))

    def _grounded(
        self,
        found: Sequence[RecordField],
        rung: ExtractionMethod,
        model: str,
        part: tuple[int, int],
    ) -> list[PlacedRecord]:
        spans = sections(self._kind, found, self._page.text, part)
        placed: list[PlacedRecord] = []
        for one, span in zip(found, spans, strict=True):
            evidence = SectionEvidence(self._page.text, span, part)
            record = record_of(self._kind, one, rung=rung, evidence=evidence, model=model)
            if record.evidence:
                sure = replace(record, confidence=_proved_share(record))
                placed.append(PlacedRecord(record=sure, span=span))
        return placed

    async def _read_by_size(
        self,
        whole: PagePart,
        *,
        tokens: int = PART_TOKENS,
        most: int = ONE_QUESTION_TOKENS,
        halvings: int = 0,
    ) -> list[PartReading]:
        """Part after part, each beginning with the last record of the one before, read anew."""
        text, start, first = self._page.text[: whole.end], whole.start, tokens
        found: list[PartReading] = []
        while start < len(text):
            part = next_part(text, start, tokens=tokens)
            reading = await self._read_part(part, halvings)
            last = reading.records[-1].span[0] if reading.records else part.end
            is_end, is_cut = part.end >= len(text), last <= part.start
            if is_cut and not is_end and tokens < most:
                tokens = min(tokens * 2, most)  # one record alone: it may go on behind the part
                continue
            is_kept = is_end or is_cut or not reading.records
            records = reading.records if is_kept else reading.records[:-1]
            found.append(replace(reading, records=records))
            start, tokens = part.end if is_kept else last, first
        return found


def _merged(found: Sequence[PartReading]) -> PartReading:
    """All of them as one."""
    return PartReading(
        records=tuple(one for part in found for one in part.records),
        explore=tuple(url for part in found for url in part.explore),
        problems=tuple(problem for part in found for problem in part.problems),
    )


def wanting(kind: EntityType, record: Record) -> tuple[str, ...]:
    """The required fields that the record lacks or that nothing proves."""
    return (*record.lacks, *record.unproved(kind.required))


def _proved_share(record: Record) -> float:
    proved = sum(one.is_proof for one in record.evidence.values())
    return round(proved / len(record.evidence), 3)


def _with_problem(reading: PartReading, part: PagePart) -> PartReading:
    """Too few or too many are told, where it is known how many there are."""
    if not reading.why_not or part.expected is None or not reading.records:
        return reading
    where = f"characters {part.start}-{part.end}"
    return replace(
        reading,
        problems=(Problem(where=where, message=reading.why_not, code="count_mismatch"),),
    )
