"""Extract records from a page by questions to language models, which are built from the entity type.

Long pages are split. No text of a page is part of a prompt, not even the name of a record that is asked
about again: page text only ever stands between the lines that mark it as data. Lines that are addressed
to a model and not to visitors are hidden from it and are no evidence; not every such phrase can be listed.
"""

import asyncio
import dataclasses
import hashlib
import json
import re
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ingestion_pipeline.catalogs.extraction.entity_type import COURSE, EVIDENCE, EntityType, FieldKind
from ingestion_pipeline.catalogs.extraction.record import (
    READER_VERSION,
    CandidateRecord,
    ExtractionMethod,
    ExtractionOverBudget,
    FieldValue,
    Record,
    RecordEvidence,
    is_expected_count,
    item_key,
    record_of,
    record_sections,
)
from ingestion_pipeline.catalogs.extraction.rules.course_words import read_heading
from ingestion_pipeline.reading.evidence.grounding import Evidence
from ingestion_pipeline.reading.html.cleaning import in_parser_thread
from ingestion_pipeline.reading.llm import (
    Answered,
    AnswerSchema,
    Billing,
    ModelClient,
    ModelTier,
    NoAnswer,
    OverBudget,
    PageText,
    Prompt,
    Question,
    Unanswered,
)
from ingestion_pipeline.reading.llm.batch_lines import MODEL_BATCH
from ingestion_pipeline.reading.llm.client import UNCONFIGURED_WAIT
from ingestion_pipeline.reading.llm.ledger import estimated_usage
from ingestion_pipeline.reading.llm.question import Fault
from ingestion_pipeline.reading.structured.items import Problem
from ingestion_pipeline.reading.text.plain_text import QuickCheck, packaged_data
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.tasks.errors import WorkError

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

_PHRASES = packaged_data("ingestion_pipeline.catalogs.extraction", "injected_instructions.yaml")
INJECTED_INSTRUCTIONS = re.compile("|".join(_PHRASES["phrases"]), re.IGNORECASE)
_QUICK_CHECK = QuickCheck("|".join(_PHRASES["quick_check"]))


def has_injected_instructions(text: str) -> bool:
    """Return whether the text contains instructions for a machine."""
    return _is_injected(" ".join(text.split()))


def blank_injected_instructions(text: str) -> tuple[str, int]:
    """Return the text with such lines replaced by blanks, and how many those are.

    Every other character keeps its position, so that spans are valid in both texts.
    """
    if not _QUICK_CHECK.sees(text):
        return text, 0
    lines = text.split("\n")
    matches = [number for number, line in enumerate(lines) if _is_injected(line)]
    for number in matches:
        lines[number] = " " * len(lines[number])
    return "\n".join(lines), len(matches)


def _is_injected(line: str) -> bool:
    return _QUICK_CHECK.sees(line) and INJECTED_INSTRUCTIONS.search(line) is not None


PROMPT_VERSION = 1  # increase with every change of the texts in `questions.yaml`
_QUESTIONS: dict[str, str] = packaged_data("ingestion_pipeline.catalogs.extraction", "questions.yaml")
_KINDS = {  # in words, and as the JSON type of the value
    FieldKind.TEXT: ("text", "string"),
    FieldKind.NUMBER: ("number", "number"),
    FieldKind.FLAG: ("true or false", "boolean"),
    FieldKind.CHOICE: ("one of the list", "string"),
    FieldKind.LANGUAGE: ("a language's code", "string"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAnswer:
    """A model's parsed answer: unchecked records, and how many the model says there are."""

    candidates: tuple[CandidateRecord, ...]
    stated_count: int | None
    explore: tuple[str, ...] = ()


def prompt_labels(kind: EntityType) -> tuple[str, ...]:
    """Return the versions of all prompts about the entity."""
    names = [kind.name, f"{kind.name}_alone"]
    names += [f"{kind.name}_presence"] if kind.presence_check else []
    return tuple(Prompt(name=name, version=PROMPT_VERSION, instructions="").label for name in names)


def reading_question(kind: EntityType, page: PageText) -> Question:
    """Return the question for every record on the page, or on the part of it."""
    prompt = Prompt(name=kind.name, version=PROMPT_VERSION, instructions=_instructions(kind))
    return Question(prompt=prompt, schema=answer_schema(kind), page=page, extractor_version=_extractor_version(kind))


def single_record_question(kind: EntityType, page: PageText, missing: Sequence[str], attempt: int) -> Question:
    """Return the question about one record again, for some of its fields.

    The attempt is part of the cache key, so that the earlier answer is not reused.
    """
    about = _QUESTIONS["single_record"].format(name=_words(kind.name), missing=", ".join(missing))
    return Question(
        prompt=Prompt(
            name=f"{kind.name}_alone", version=PROMPT_VERSION, instructions=f"{_instructions(kind)}\n{about}"
        ),
        schema=answer_schema(kind),
        page=page,
        extractor_version=f"{_extractor_version(kind)}/{'+'.join(missing)}/{attempt}",
    )


def presence_question(kind: EntityType, page: PageText) -> Question:
    """Return the question whether the page has a list made for the entity."""
    return Question(
        prompt=Prompt(
            name=f"{kind.name}_presence",
            version=PROMPT_VERSION,
            instructions=_QUESTIONS["present"].format(about=kind.about or f"A {_words(kind.name)} is wanted."),
        ),
        schema=AnswerSchema(
            name="presence", schema=_object({"has_list": {"type": "boolean"}, "heading": {"type": ["string", "null"]}})
        ),
        page=page,
        extractor_version=_extractor_version(kind),
        max_output_tokens=500,
    )


@lru_cache(maxsize=50)
def answer_schema(kind: EntityType) -> AnswerSchema:
    """Return the schema of an answer: a list of records, each with every field, null if absent."""
    record: dict[str, Any] = {}
    for field in kind.fields:
        record[field.name] = {"type": [_KINDS[field.kind][1], "null"]}
        if field.kind is FieldKind.CHOICE:
            record[field.name]["enum"] = [*field.choices, None]
        if field.derived:
            record[f"{field.name}{EVIDENCE}"] = {"type": ["string", "null"]}
    answer: dict[str, Any] = {
        "records_on_page": {"type": ["integer", "null"]},
        "records": {"type": "array", "items": _object(record)},
    }
    if kind.explores:
        answer["explore"] = {"type": "array", "items": {"type": "string"}}
    return AnswerSchema(name=kind.name, schema=_object(answer))


def read_answer(kind: EntityType, data: Mapping[str, object]) -> ReadAnswer:
    """Parse an answer's records; `data` has the form of `answer_schema`."""
    items = cast("list[Mapping[str, object]]", data["records"])
    explore = cast("list[str]", data.get("explore") or [])
    return ReadAnswer(
        candidates=tuple(_candidate(kind, item) for item in items),
        stated_count=cast("int | None", data["records_on_page"]),
        explore=tuple(explore),
    )


def _candidate(kind: EntityType, item: Mapping[str, object]) -> CandidateRecord:
    quotes = {
        field.name: quote
        for field in kind.fields
        if field.derived and isinstance(quote := item.get(f"{field.name}{EVIDENCE}"), str)
    }
    fields = {field.name: _value(item.get(field.name)) for field in kind.fields}
    for field in kind.fields:
        # Pages rarely state that something is false: without a quote the value is unknown.
        if fields[field.name] is False and field.name not in quotes:
            fields[field.name] = None
    return CandidateRecord(fields=fields, quotes=quotes)


def _value(value: object) -> FieldValue | None:
    if isinstance(value, bool) or value is None:
        return value
    return Decimal(str(value)) if isinstance(value, int | float) else str(value)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _instructions(kind: EntityType) -> str:
    fields = "\n".join(
        f"- {field.name}: {_KINDS[field.kind][0]}"
        + (", required" if field.required else "")
        + (f"; {field.about}" if field.about else "")
        for field in kind.fields
    )
    instructions = _QUESTIONS["find"].format(name=_words(kind.name), about=kind.about, fields=fields, evidence=EVIDENCE)
    return f"{instructions}\n{_QUESTIONS['explore']}" if kind.explores else instructions


def _words(name: str) -> str:
    return name.replace("_", " ")


@lru_cache(maxsize=50)
def _extractor_version(kind: EntityType) -> str:
    """Return a version that changes with the type's file, which is part of the question."""
    digest = hashlib.sha256(json.dumps(kind.model_dump(mode="json"), sort_keys=True).encode())
    return f"{READER_VERSION}.{digest.hexdigest()[:16]}"


LONG_TOKENS = 1_000  # a longer page with several records is split
PART_TOKENS = 1_000  # per part, unless one record has more
ONE_QUESTION_TOKENS = 12_000  # a longer page is split even without known record starts
_TAGS = ("h2", "h3", "h4", "h5", "dt", "h1", "summary", "th")


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePart:
    """A span of the text, and how many records begin in it; None where unknown."""

    start: int
    end: int
    expected: int | None = None


def tokens_of(text: str) -> int:
    """Return about how many tokens the text has, rounded up."""
    return estimated_usage(input_bytes=len(text.encode()), output_tokens=0).input_tokens


def parts_of(kind: EntityType, text: str, tree: "LexborHTMLParser", *, announced: int | None) -> list[PagePart]:
    """Split a long page with several records into parts; else return the page as one part.

    An empty list: the page must be split, and no record starts are known (see `next_part`).
    """
    tokens = tokens_of(text)
    if tokens <= LONG_TOKENS:
        return [PagePart(start=0, end=len(text), expected=announced)]
    starts = record_starts(kind, text, tree, announced=announced)
    if starts:
        return list(_grouped(text, starts))
    is_one = announced is None or announced <= 1
    if is_one and tokens <= ONE_QUESTION_TOKENS:
        return [PagePart(start=0, end=len(text), expected=announced)]
    return []


def record_starts(kind: EntityType, text: str, tree: "LexborHTMLParser", *, announced: int | None) -> list[int]:
    """Return where the records begin; empty if that is not certain."""
    codes = _code_lines(text) if kind.name == COURSE else []
    if announced is None:
        return codes if len(codes) > 1 else []
    if announced <= 1:
        return []
    candidates = [codes, *(_heading_lines(text, tree, tag) for tag in _TAGS)]
    fitting = [starts for starts in candidates if is_expected_count(len(starts), announced)]
    return fitting[0] if fitting else []


def next_part(text: str, start: int, *, tokens: int = PART_TOKENS) -> PagePart:
    """Return the longest part that begins there and ends with a line, by size alone."""
    end, size = start, 0
    for line in text[start:].splitlines(keepends=True):
        size += tokens_of(line)
        if size > tokens and end > start:
            break
        end += len(line)
    return PagePart(start=start, end=end)


def _grouped(text: str, starts: Sequence[int]) -> Iterator[PagePart]:
    """Group consecutive records into parts of at most `PART_TOKENS`."""
    ends = [*starts[1:], len(text)]
    first, count, size = starts[0], 0, 0
    for start, end in zip(starts, ends, strict=True):
        tokens = tokens_of(text[start:end])
        if count and size + tokens > PART_TOKENS:
            yield PagePart(start=first, end=start, expected=count)
            first, count, size = start, 0, 0
        count, size = count + 1, size + tokens
    yield PagePart(start=first, end=len(text), expected=count)


def _code_lines(text: str) -> list[int]:
    """Return the starts of lines that begin like a course: a code and a title, and no sentence."""
    starts: list[int] = []
    for start, line in _lines(text):
        heading = read_heading(line)
        if heading is None or not heading.title:
            continue
        if heading.credits is not None or not heading.title.rstrip().endswith((".", ",", ";")):
            starts.append(start)
    return starts


def _heading_lines(text: str, tree: "LexborHTMLParser", tag: str) -> list[int]:
    """Return where the elements of a tag are in the text, in page order."""
    headings = ("".join(node.text(separator=" ").split()) for node in tree.css(tag))
    starts: list[int] = []
    lines = iter([(start, "".join(line.split())) for start, line in _lines(text)])
    for heading in filter(None, headings):
        start = next((place for place, line in lines if line == heading), None)
        if start is None:
            return []
        starts.append(start)
    return starts


def _lines(text: str) -> Iterator[tuple[int, str]]:
    start = 0
    for line in text.split("\n"):
        yield start, line
        start += len(line) + 1


_T = TypeVar("_T")
LOW_CONFIDENCE = 0.5  # below it the next method or model reads the page
FOLLOW_UP_QUESTIONS = 3  # about the required fields that a model left out of a record
MAX_CONCURRENT_QUESTIONS = 4  # per page; pages are read concurrently, too
_TIERS = {ExtractionMethod.CHEAP_MODEL: ModelTier.CHEAP, ExtractionMethod.STRONG_MODEL: ModelTier.STRONG}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageModelClient:
    """Client for the questions about one page: few at a time, each with its own call site."""

    client: ModelClient
    billing: Billing
    settings: Settings
    now: datetime
    _turns: asyncio.Semaphore = dataclasses.field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_QUESTIONS))
    _stopped: list[WorkError] = dataclasses.field(default_factory=list[WorkError])

    @property
    def methods(self) -> tuple[ExtractionMethod, ...]:
        """The configured model methods, the cheap one first."""
        if self.settings.model_cheap == self.settings.model_strong:
            return (ExtractionMethod.CHEAP_MODEL,)
        return (ExtractionMethod.CHEAP_MODEL, ExtractionMethod.STRONG_MODEL)

    async def ask(self, question: Question, method: ExtractionMethod, *, call_site: str = "") -> Answered | Unanswered:
        """Return the answer of that method's model; after a failure no more questions are sent.

        A question that waits in a batch is no failure: the others of the page wait in it, too.

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
                if error.code != MODEL_BATCH:
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
        for attempt in range(1, FOLLOW_UP_QUESTIONS + 1):
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
        if mean < LOW_CONFIDENCE:
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
