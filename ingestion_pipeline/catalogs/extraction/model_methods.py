"""Extract records from a page by questions to language models."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar, cast

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.prompts import (
    ONE_QUESTION_TOKENS,
    PART_TOKENS,
    PagePart,
    ReadAnswer,
    next_part,
    read_answer,
    reading_question,
    single_record_question,
    tokens_of,
)
from ingestion_pipeline.catalogs.extraction.record import (
    CandidateRecord,
    ExtractionMethod,
    ExtractionOverBudget,
    Record,
    item_key,
    record_of,
)
from ingestion_pipeline.catalogs.extraction.rules.counting import RecordEvidence, is_expected_count, record_sections
from ingestion_pipeline.reading.evidence.grounding import Evidence
from ingestion_pipeline.reading.html.parsing import in_parser_thread
from ingestion_pipeline.reading.llm import (
    Answered,
    Billing,
    ModelClient,
    ModelTier,
    NoAnswer,
    OverBudget,
    PageText,
    Question,
    Unanswered,
)
from ingestion_pipeline.reading.llm.client import UNCONFIGURED_WAIT
from ingestion_pipeline.reading.llm.question import Fault
from ingestion_pipeline.reading.structured.items import Problem
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.tasks.errors import WorkError

_T = TypeVar("_T")
MAX_CONCURRENT_QUESTIONS = 4  # per page; pages are read concurrently, too
_TIERS = {ExtractionMethod.CHEAP_MODEL: ModelTier.CHEAP, ExtractionMethod.STRONG_MODEL: ModelTier.STRONG}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageModelClient:
    """Client for the questions about one page: few at a time, each with its own call site."""

    client: ModelClient
    billing: Billing
    settings: Settings
    now: datetime
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_QUESTIONS))
    _stopped: list[WorkError] = field(default_factory=list[WorkError])

    @property
    def methods(self) -> tuple[ExtractionMethod, ...]:
        """The configured model methods, the cheap one first."""
        if self.settings.model_cheap == self.settings.model_strong:
            return (ExtractionMethod.CHEAP_MODEL,)
        return (ExtractionMethod.CHEAP_MODEL, ExtractionMethod.STRONG_MODEL)

    async def ask(self, question: Question, method: ExtractionMethod, *, call_site: str = "") -> Answered | Unanswered:
        """Return the answer of that method's model; after a failure no more questions are sent.

        Raises:
            ExtractionOverBudget: the extraction's budget allows no further call.
            Resource, Transient: as `ModelClient.ask`.
        """
        site = ".".join(filter(None, (self.billing.call_site, call_site)))
        billing = replace(self.billing, call_site=site)
        async with self._turns:
            if self._stopped:
                raise self._stopped[0]
            try:
                answer = await self.client.ask(question, billing, tiers=(_TIERS[method],))
                if not isinstance(answer, OverBudget):
                    return answer
                over_budget = ExtractionOverBudget(str(answer), until=self.now + UNCONFIGURED_WAIT, code="over_budget")
                over_budget.over = answer
                raise over_budget
            except WorkError as error:
                self._stopped.append(error)
                raise


async def gather_all(awaitables: Iterable[Awaitable[_T]]) -> list[_T]:
    """Return all results in order; raise the first failure only after all have ended."""
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast("list[_T]", results)


MAX_HALVINGS = 3  # if an eighth of a part is cut off, its length is not the cause
MIN_HALVED_TOKENS = 100  # below, a cut-off answer means that the model rambles


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPage:
    """The part of a page that models receive: its text, with injected instructions blanked."""

    text: str
    links: tuple[str, ...]

    def page_text(self, start: int, end: int) -> PageText:
        """Return a span of the text in the form that is sent."""
        lines = (line for line in self.text[start:end].split("\n") if line.strip())
        return PageText(text="\n".join(lines), links=self.links)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRecord:
    """A record with the span of the text that it was read from."""

    record: Record
    span: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """Records that one method read from a part.

    `retry_reason` is why the next method should try, empty if it should not.
    """

    records: tuple[PlacedRecord, ...]
    explore: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    retry_reason: str = ""


class ModelReader:
    """Reads one page by models."""

    def __init__(self, kind: EntityType, page: ModelPage, client: PageModelClient) -> None:
        self._kind = kind
        self._page = page
        self._client = client

    async def read(self, parts: Sequence[PagePart]) -> PartResult:
        """Return the records of all parts in page order; without parts, split by size."""
        readings = (
            await gather_all(self._read_part(part) for part in parts)
            if parts
            else await self._read_by_size(PagePart(start=0, end=len(self._page.text)))
        )
        return _merge_readings(readings)

    async def repair(self, placed: PlacedRecord) -> Record:
        """Return the record with required fields proved, as far as questions about it help."""
        record, span = placed.record, placed.span
        for attempt in range(1, self._client.settings.extraction.asked_again + 1):
            missing = missing_or_unproved(self._kind, record)
            if not missing:
                break
            question = single_record_question(self._kind, self._page.page_text(*span), missing, attempt)
            # The model that read the record (or the cheap one) first, then the strong one.
            is_strong = attempt > 1 or record.method is ExtractionMethod.STRONG_MODEL
            method = self._client.methods[-1 if is_strong else 0]
            answer = await self._client.ask(question, method, call_site="alone")
            if isinstance(answer, Answered):
                record = await in_parser_thread(self._pick_better, record, answer, method, span)
        return record

    def _pick_better(self, record: Record, answer: Answered, method: ExtractionMethod, span: tuple[int, int]) -> Record:
        candidates = read_answer(self._kind, answer.data).candidates
        grounded = self._grounded(candidates, method, answer.model, span)
        records = [placed.record for placed in grounded]
        key = item_key(self._kind, record)
        same_key = [other for other in records if item_key(self._kind, other) == key]
        best = min(same_key or records[:1], key=self._fault_count, default=record)
        reason = f"asked again for {', '.join(missing_or_unproved(self._kind, record))}"
        is_better = self._fault_count(best) < self._fault_count(record)
        return replace(best, reason=reason) if is_better else record

    def _fault_count(self, record: Record) -> int:
        return len(missing_or_unproved(self._kind, record))

    async def _read_part(self, part: PagePart, halvings: int = 0) -> PartResult:
        """Return the best reading of the part; a part whose answer is cut off is read in halves.

        Raises:
            Permanent: no model gave an answer.
        """
        question = reading_question(self._kind, self._page.page_text(part.start, part.end))
        tries: list[NoAnswer] = []
        readings: list[PartResult] = []
        for method in self._client.methods:
            answer = await self._client.ask(question, method)
            if isinstance(answer, Unanswered):
                is_cut = any(failure.fault is Fault.CUT_OFF for failure in answer.tries)
                is_long = tokens_of(self._page.text[part.start : part.end]) > MIN_HALVED_TOKENS
                if is_cut and is_long and halvings < MAX_HALVINGS:
                    return await self._read_halves(part, halvings + 1)
                tries += answer.tries
                continue
            readings.append(await in_parser_thread(self._evaluate, part, answer, method, tries))
            if not readings[-1].retry_reason:
                break
        if not readings:
            raise Unanswered(tries=tuple(tries)).as_error()
        return _with_problem(max(readings, key=self._quality), part)

    async def _read_halves(self, part: PagePart, halvings: int) -> PartResult:
        """Return the part's records, read in halves and counted together."""
        tokens = tokens_of(self._page.text[part.start : part.end])
        readings = await self._read_by_size(part, tokens=tokens // 2, most=tokens * 3 // 4, halvings=halvings)
        merged = _merge_readings(readings)
        count = len(merged.records)
        is_wrong = part.expected is not None and not is_expected_count(count, part.expected)
        mismatch = f"{count} records where {part.expected} are expected" if is_wrong else ""
        return _with_problem(replace(merged, retry_reason=mismatch), part)

    def _evaluate(
        self, part: PagePart, answer: Answered, method: ExtractionMethod, tries: Sequence[NoAnswer]
    ) -> PartResult:
        parsed = read_answer(self._kind, answer.data)
        placed = self._grounded(parsed.candidates, method, answer.model, (part.start, part.end))
        if tries:
            reason = "; ".join(dict.fromkeys(f"{failure.model}: {failure.fault}" for failure in tries))
            placed = [replace(item, record=replace(item.record, reason=reason)) for item in placed]
        return PartResult(
            records=tuple(placed),
            explore=parsed.explore,
            retry_reason=self._retry_reason([item.record for item in placed], parsed, part),
        )

    def _retry_reason(self, records: Sequence[Record], parsed: ReadAnswer, part: PagePart) -> str:
        expected = part.expected if part.expected is not None else parsed.stated_count
        if expected is not None and not is_expected_count(len(records), expected):
            return f"{len(records)} records where {expected} are expected"
        if not records:
            return "no record"
        mean = sum(record.confidence for record in records) / len(records)
        if mean < self._client.settings.extraction.low_confidence:
            return f"the page proves only {mean:.0%} of its values"
        return ""

    def _quality(self, reading: PartResult) -> tuple[bool, int, int]:
        """Return the rank of a reading: correct first, then by the number of sound records."""
        records = [placed.record for placed in reading.records]
        sound = sum(not missing_or_unproved(self._kind, record) for record in records)
        return (not reading.retry_reason, sound, bool(records))

    def _grounded(
        self, candidates: Sequence[CandidateRecord], method: ExtractionMethod, model: str, part: tuple[int, int]
    ) -> list[PlacedRecord]:
        text, (start, end) = self._page.text, part
        wider = Evidence(text[start:end])
        placed: list[PlacedRecord] = []
        for candidate, span in zip(candidates, record_sections(self._kind, candidates, text, part), strict=True):
            evidence = RecordEvidence(text, span, wider, wider_start=start, only_own_numbers=True)
            record = record_of(self._kind, candidate, method=method, evidence=evidence, model=model)
            if record.evidence:
                proved = sum(grounding.is_proof for grounding in record.evidence.values())
                record = replace(record, confidence=round(proved / len(record.evidence), 3))
                placed.append(PlacedRecord(record=record, span=span))
        return placed

    async def _read_by_size(
        self, whole: PagePart, *, tokens: int = PART_TOKENS, most: int = ONE_QUESTION_TOKENS, halvings: int = 0
    ) -> list[PartResult]:
        """Read part after part; each begins with the last record of the one before, read again."""
        text, start, first = self._page.text[: whole.end], whole.start, tokens
        readings: list[PartResult] = []
        while start < len(text):
            part = next_part(text, start, tokens=tokens)
            reading = await self._read_part(part, halvings)
            last = reading.records[-1].span[0] if reading.records else part.end
            is_end, is_cut = part.end >= len(text), last <= part.start
            if is_cut and not is_end and tokens < most:
                tokens = min(tokens * 2, most)  # a single record, which may continue after the part
                continue
            is_kept = is_end or is_cut or not reading.records
            records = reading.records if is_kept else reading.records[:-1]
            readings.append(replace(reading, records=records))
            start, tokens = part.end if is_kept else last, first
        return readings


def _merge_readings(readings: Sequence[PartResult]) -> PartResult:
    """Return the readings combined into one."""
    return PartResult(
        records=tuple(placed for reading in readings for placed in reading.records),
        explore=tuple(url for reading in readings for url in reading.explore),
        problems=tuple(problem for reading in readings for problem in reading.problems),
    )


def missing_or_unproved(kind: EntityType, record: Record) -> tuple[str, ...]:
    """Return the required fields that the record lacks or that nothing proves."""
    return (*record.missing_fields, *record.unproved(kind.required))


def _with_problem(reading: PartResult, part: PagePart) -> PartResult:
    """Add a count mismatch as a problem, where the expected number of records is known."""
    if not reading.retry_reason or part.expected is None or not reading.records:
        return reading
    where = f"characters {part.start}-{part.end}"
    return replace(reading, problems=(Problem(where=where, message=reading.retry_reason, code="count_mismatch"),))
