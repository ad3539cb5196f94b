"""Build the questions to models from the entity type, split long pages, and parse the answers.

No text of a page is part of a prompt, not even the name of a record that is asked about again: page
text only ever stands between the lines that mark it as data.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from ingestion_pipeline.catalogs.extraction.entity_type import EVIDENCE, EntityType, FieldKind
from ingestion_pipeline.catalogs.extraction.record import READER_VERSION, CandidateRecord, FieldValue
from ingestion_pipeline.catalogs.extraction.rules.counting import is_expected_count
from ingestion_pipeline.catalogs.extraction.rules.course_code import read_heading
from ingestion_pipeline.reading.llm import AnswerSchema, PageText, Prompt, Question
from ingestion_pipeline.reading.llm.budgets import estimated_usage

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser


PROMPT_VERSION = 1  # increase with every change of the texts below
_FIND = """\
Find every {name} on the page, in the order of the page. {about}
Each record has these fields:
{fields}
Copy text word for word, whole, neither shortened nor mended nor translated. Where the page says
nothing about a field it is null; a record of which the page says nothing is left out.
Beside some fields stands another that ends in {evidence}: the words of the page from which you
conclude the value, copied exactly; null if there are none, and then the value is null, too.
records_on_page is how many of them the page holds, found or not."""
_EXPLORE = """
explore holds the URLs of links on the page that lead to more of them, and no others."""
_SINGLE_RECORD = """
The page below is the part about a single {name}. These fields were not right the last time, since
the page does not have the words: {missing}. Copy them from the page, or give null."""
_PRESENT = """\
{about}
Does the page have a list made for them, under a heading or a sentence of its own? A mention in a
description is none. heading is that heading or sentence, copied exactly; null if there is none."""
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
    about = _SINGLE_RECORD.format(name=_words(kind.name), missing=", ".join(missing))
    return Question(
        prompt=Prompt(name=f"{kind.name}_alone", version=PROMPT_VERSION, instructions=_instructions(kind) + about),
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
            instructions=_PRESENT.format(about=kind.about or f"A {_words(kind.name)} is wanted."),
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
    instructions = _FIND.format(name=_words(kind.name), about=kind.about, fields=fields, evidence=EVIDENCE)
    return instructions + (_EXPLORE if kind.explores else "")


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
_COURSE = "course"


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
    codes = _code_lines(text) if kind.name == _COURSE else []
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
