"""Find the records of a list page in any layout: rows, cards or paragraphs, each with a title, an address and a date.

The page's lines are cut into blocks at each place where records may begin; the cut wins that gives most records with a
title, a date and an address. A column is what stands at the same place in all blocks, or has the same label.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, Repeated
from ingestion_pipeline.catalogs.extraction.record import MAX_PAGE_RECORDS, CandidateRecord, FieldValue
from ingestion_pipeline.catalogs.extraction.rules.page_lines import Line, content_lines
from ingestion_pipeline.catalogs.extraction.rules.repeated_blocks import Block, Form, PageForms
from ingestion_pipeline.reading.html.links import base_of, linked_page
from ingestion_pipeline.reading.structured.feeds import FeedEntry, read_feed
from ingestion_pipeline.reading.text.values import first_date, is_month_first

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

LIST_CONFIDENCE = 0.7
MIN_RECORDS = 2
MAX_LINES = 20_000
MAX_TITLE_CHARACTERS = 400
MIN_SHARE = 0.5  # of the records that have a column
MIN_ALIKE = 0.5  # how far the titles of a list without dates are like the examples
MIN_USUAL_SHARE = 0.7  # of the records that have a column which chrome between them lacks
UNDATED_WEIGHT, ABOVE_WEIGHT = 0.2, 0.5  # of a list without dates, and of one with dates only above its records
MAX_DATE_CHARACTERS = 30
MAX_DAY_LETTERS = 30  # beside a date: Opinions released
DOCUMENT_BONUS = 1.5  # a link to a document is rather the record's address than one to a page about it

_LABEL = re.compile(r"[^\W\d_][^:0-9]{0,30}:$")
_NUMBERED = re.compile(r"^[^:]{0,30}[0-9][^:]{0,20}:\s+(?=\S)")  # Case No. 16-1938:
_BRACKETED = re.compile(r"[(\[](?=[^()\[\]]{0,80}[0-9])[^()\[\]]{1,80}[)\]]$")  # (SJC 13641) (September 10, 2025)
_DOCUMENT = re.compile(r"\.(?:pdf|docx?|rtf|html?)(?:$|[?#])|download|/file\b|document", re.IGNORECASE)
_POSTED = re.compile(r"\b(?:posted|updated|modified|uploaded|added)\b", re.IGNORECASE)
_LEADING_NUMBER = re.compile(r"^[0-9]{4,}\s+(?=[^\W\d])")  # 6134 Arender v. Oliver
_LETTER = re.compile(r"[^\W\d_]")
_GENERIC = re.compile(r"(?:view|read|download|open|see|show|pdf|html|details?|more|link|click)\b.{0,30}", re.IGNORECASE)

_FEED = re.compile(r"<(?:rss|feed|rdf:RDF)\b", re.IGNORECASE)
MAX_FEED_HEAD = 1_000

Column = tuple[Form, str, int]
_ABOVE: Column = (("above",), "", 0)  # of a day that stands above the record


@dataclass(slots=True, kw_only=True)
class _Row:
    """A block as columns: their texts and addresses, and the day that the block states."""

    texts: dict[Column, str] = field(default_factory=dict[Column, str])
    links: dict[Column, str] = field(default_factory=dict[Column, str])
    documents: dict[Column, float] = field(default_factory=dict[Column, float])  # how far links look like one to it
    days: dict[Column, tuple[date, str]] = field(default_factory=dict[Column, tuple[date, str]])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """The rows of a page, the columns of their title (the likeliest first), date and address, and how good they are."""

    rows: Sequence[_Row]
    titles: Sequence[Column]
    date: Column | None
    url: Column | None
    score: float


def records_of_list(kind: EntityType, tree: LexborHTMLParser, url: str | None) -> list[CandidateRecord]:
    """Return the records of the page's list, in page order; none if nothing looks like one. The tree is used up."""
    rule = kind.repeated
    base = base_of(tree, url)
    lines = content_lines(tree, with_links=True)
    if rule is None or len(lines) > MAX_LINES:
        return []
    month_first = is_month_first(line.text for line in lines)
    above = _days_above(lines, month_first=month_first)
    pages = PageForms(lines).hypotheses(bool, least=MIN_RECORDS)
    cuts = (_cut(rule, [_row(block, above, month_first=month_first) for block in blocks]) for blocks in pages)
    best = max((cut for cut in cuts if cut is not None), key=lambda cut: cut.score, default=None)
    if best is None:
        return []
    records = (_record(kind, rule, best, row, base) for row in best.rows)
    return [record for record in records if record is not None][: MAX_PAGE_RECORDS + 1]


def records_of_feed(kind: EntityType, body: str) -> list[CandidateRecord]:
    """Return the entries of an RSS or Atom feed as records; none if the body is no feed."""
    rule = kind.repeated
    if rule is None or not _FEED.search(body[:MAX_FEED_HEAD]):
        return []
    return [
        CandidateRecord(fields=_fields_of_entry(rule, entry))
        for entry in read_feed(body.encode(), elements=("published",)).records
        if entry.title
    ]


def _fields_of_entry(rule: Repeated, entry: FeedEntry) -> dict[str, FieldValue | None]:
    fields: dict[str, FieldValue | None] = {rule.title: entry.title}
    stated = first_date(entry.elements.get("published", ""))  # 12/30/2022: no date of the format, and read nevertheless
    day = entry.published_at.date() if entry.published_at else stated[0] if stated else None
    if rule.url:
        fields[rule.url] = entry.url
    if rule.date and day:
        fields[rule.date] = day.isoformat()
    return fields


@lru_cache(maxsize=20_000)
def _day(text: str, *, month_first: bool | None) -> tuple[date, str] | None:
    stated = first_date(text[:MAX_TITLE_CHARACTERS], month_first=month_first)
    return (stated[0], text[slice(*stated[1])]) if stated else None


def _days_above(lines: Sequence[Line], *, month_first: bool | None) -> dict[int, tuple[date, str]]:
    """Return the last day stated by a line of its own above each line: the day of the records below it."""
    above: dict[int, tuple[date, str]] = {}
    last: tuple[date, str] | None = None
    for line in lines:
        stated = _day(line.text, month_first=month_first)
        if stated is not None and len(_LETTER.findall(line.text.replace(stated[1], ""))) <= MAX_DAY_LETTERS:
            last = stated
        if last is not None:
            above[id(line)] = last
    return above


def _row(block: Block, above: Mapping[int, tuple[date, str]], *, month_first: bool | None) -> _Row:
    row = _Row()
    counts: Counter[tuple[Form, str]] = Counter()
    label = ""
    for form, line in zip(block.forms, block.lines, strict=True):
        lead = line.lead if line.lead != line.text and _LABEL.fullmatch(line.lead) else ""
        key = (form, lead or label)
        column = (*key, counts[key])
        counts[key] += 1
        text = line.rest.strip(" :") if lead else line.text
        label = line.text if not lead and _LABEL.fullmatch(line.text) else ""
        row.texts[column] = text
        if line.marked and not lead and line.marked != text:
            row.texts[(form, "marked", column[2])] = line.marked
        for number, link in enumerate(line.links):
            place = (form, key[1], column[2] * 10 + number)
            row.links[place] = link
            row.documents[place] = bool(_DOCUMENT.search(link)) + bool(_GENERIC.fullmatch(text)) / 2
        if stated := _day(text, month_first=month_first):
            row.days[column] = stated
    if not row.days and (stated := above.get(id(block.lines[0]))):
        row.days[_ABOVE] = stated
    return row


def _cut(rule: Repeated, rows: Sequence[_Row]) -> _Cut | None:
    scores = _title_scores(rule, rows)
    best = max(scores.values(), default=0)
    titles = sorted((column for column in scores if scores[column] >= best / 2), key=lambda column: -scores[column])
    named = [row for row in rows if not row.texts.keys().isdisjoint(titles)]
    if best <= 0 or len(named) < MIN_RECORDS:
        return None
    posted = {column for row in named for column in row.days if _POSTED.search(f"{column[1]} {row.texts.get(column)}")}
    day = _commonest([row.days for row in named], posted) if rule.date else None
    named = _usual_rows(named, day)
    url = _url_column(rule, named, titles[0]) if rule.url else None
    part_count = 1 + bool(rule.date) + bool(rule.url)
    complete = sum((1 + (bool(rule.date) and bool(row.days)) + (url in row.links)) / part_count for row in named)
    is_undated = sum(bool(row.days) for row in named) < MIN_SHARE * len(named)
    examples = rule.examples.get(rule.title, ())
    texts = [row.texts[titles[0]] for row in named if titles[0] in row.texts]
    if rule.date and is_undated and not (examples and _likeness(examples, texts) >= MIN_ALIKE):
        return None  # links of a menu
    dated = UNDATED_WEIGHT if rule.date and is_undated else ABOVE_WEIGHT if day == _ABOVE else 1
    return _Cut(rows=named, titles=titles, date=day, url=url, score=complete * best**2 * dated)


def _usual_rows(rows: Sequence[_Row], day: Column | None) -> list[_Row]:
    """Return the rows without those that have neither the day nor half of the columns of most: these are chrome."""
    counts = Counter(column for row in rows for column in row.texts)
    usual = {column for column, count in counts.items() if count >= MIN_USUAL_SHARE * len(rows)}
    return [row for row in rows if day in row.days or len(usual & row.texts.keys()) * 2 > len(usual)]


def _commonest(columns: Sequence[Mapping[Column, object]], less_likely: Set[Column]) -> Column | None:
    """Return the column that most rows have, of equals the first that is not less likely; None below a share."""
    counts = Counter(column for row in columns for column in row)
    best = max(counts, key=lambda column: counts[column], default=None)
    if best is None or counts[best] < MIN_SHARE * len(columns):
        return None
    return next((column for column in counts if counts[column] == counts[best] and column not in less_likely), best)


def _title_scores(rule: Repeated, rows: Sequence[_Row]) -> dict[Column, float]:
    """Return how likely each column has the titles: worded, different in each row, like the examples."""
    texts: dict[Column, list[str]] = {}
    for row in rows:
        for column, text in row.texts.items():
            texts.setdefault(column, []).append(text)
    return {
        column: score * min(1, len(values) / len(rows) + 0.5)
        for column, values in texts.items()
        if len(values) >= MIN_RECORDS and (score := _titles_score(rule, column, values)) > 0
    }


def _titles_score(rule: Repeated, column: Column, values: Sequence[str]) -> float:
    worded = [value for value in values if 0 < len(value) <= MAX_TITLE_CHARACTERS and not _GENERIC.fullmatch(value)]
    if len(worded) < MIN_SHARE * len(values):
        return 0
    letters = sum(len(_LETTER.findall(value)) for value in worded) / sum(map(len, worded))
    different = len(set(worded)) / len(values)
    length = min(sum(len(value.split()) for value in worded) / len(worded), 5) / 5
    dates = [value for value in worded if len(value) < MAX_DATE_CHARACTERS and _day(value, month_first=None)]
    score = letters * different * length * (1.1 if column[1] == "marked" else 1)
    examples = rule.examples.get(rule.title, ())
    return 0 if len(dates) * 2 > len(worded) else score * (0.05 + _likeness(examples, worded)) if examples else score


def _likeness(examples: Sequence[str], values: Sequence[str]) -> float:
    """Return how far texts are like examples: the same text, the examples' common words, or a similar length."""
    shared = Counter(word for example in examples for word in set(_words(example)))
    common = {word for word, count in shared.items() if count * 2 > len(examples)}
    lengths = [len(example.split()) for example in examples]
    score = 0.0
    for value in values:
        words = value.split()
        is_long = min(lengths) / 2 <= len(words) <= max(lengths) * 2
        has_common = bool(common & set(_words(value)))
        score += 1 if value in examples or has_common else (0.15 if common else 0.4) * is_long
    return score / len(values)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())


def _url_column(rule: Repeated, rows: Sequence[_Row], title: Column) -> Column | None:
    """Return the column of the links that differ most; a link to a document, and the title's own, come first."""
    links: dict[Column, list[str]] = {}
    for row in rows:
        for column, link in row.links.items():
            links.setdefault(column, []).append(link)
    examples = rule.examples.get(rule.url or "", ())

    def score(column: Column) -> tuple[float, bool]:
        values = links[column]
        share = len(set(values)) / len(rows)
        documents = sum(row.documents.get(column, 0) for row in rows) / len(values)
        like = _likeness(examples, values) if examples else 0
        return share * (1 + (DOCUMENT_BONUS - 1) * documents + like), column[0] == title[0]

    best = max(links, key=score, default=None)
    return best if best is not None and len(links[best]) >= MIN_SHARE * len(rows) else None


def _record(kind: EntityType, rule: Repeated, cut: _Cut, row: _Row, base: str | None) -> CandidateRecord | None:
    stated_title = next(row.texts[column] for column in cut.titles if column in row.texts)
    title = _title(stated_title)
    if not title:
        return None
    fields: dict[str, str | None] = {rule.title: title}
    quotes: dict[str, str] = {}
    stated = row.days.get(cut.date) if cut.date else None
    if rule.date and (stated := stated or next(iter(row.days.values()), None)):
        fields[rule.date], quotes[rule.date] = stated[0].isoformat(), stated[1]
    if rule.url and cut.url and (link := row.links.get(cut.url)):
        fields[rule.url], quotes[rule.url] = linked_page(base, link) or link, stated_title
    for name, examples in rule.examples.items():
        if name not in {rule.title, rule.date, rule.url} and (text := _like_examples(examples, row)):
            fields[name] = text
    missing = [name for name in kind.required if not fields.get(name)]
    return None if missing else CandidateRecord(fields=fields, quotes=quotes, confidence=LIST_CONFIDENCE)


def _title(text: str) -> str:
    """Return the title without the number before it, and without brackets with numbers after it."""
    text = _LEADING_NUMBER.sub("", _NUMBERED.sub("", text))
    while (shorter := _BRACKETED.sub("", text).rstrip()) != text and shorter:
        text = shorter
    return text.strip(" ,;:-\u2013\u2014")


def _like_examples(examples: Sequence[str], row: _Row) -> str | None:
    """Return the first text, or part of one, that has the form of an example: 13-14377 has that of 22-0282."""
    forms = list(map(_pattern_of, examples))
    return next((match[0] for text in row.texts.values() for form in forms if (match := form.search(text))), None)


@lru_cache(maxsize=1_000)
def _pattern_of(example: str) -> re.Pattern[str]:
    """Return a pattern of texts with the same signs: digits for digits, letters for letters."""
    kinds = ((str.isdigit, "[0-9]{1,12}"), (str.isalpha, r"[^\W\d_]{1,30}"), (str.isspace, r"\s{1,5}"))
    parts = re.findall(r"[0-9]+|[^\W\d_]+|\s+|.", example)
    form = "".join(next((form for is_of, form in kinds if is_of(part)), re.escape(part)) for part in parts)
    return re.compile(rf"(?<![\w-]){form}(?![\w-])")
