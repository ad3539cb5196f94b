"""Extract records by labels, page titles, lists under headings, and tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, FieldKind, ListedRule, Titled
from ingestion_pipeline.catalogs.extraction.record import MAX_PAGE_RECORDS, CandidateRecord, FieldValue
from ingestion_pipeline.catalogs.extraction.rules.course_building import (
    Slots,
    build_course,
    is_catalogue,
    may_name,
    own_lines,
)
from ingestion_pipeline.catalogs.extraction.rules.course_code import read_code, read_heading
from ingestion_pipeline.catalogs.extraction.rules.course_parts import (
    is_prose,
    label_of,
    labelled_text,
    part_text,
    stated_prerequisites,
)
from ingestion_pipeline.catalogs.extraction.rules.course_words import (
    CoursePart,
    choice_by_phrase,
    has_phrase,
    part_named,
)
from ingestion_pipeline.catalogs.extraction.rules.credits import slot_credits
from ingestion_pipeline.catalogs.extraction.rules.page_lines import Line, lines_of, text_in_line
from ingestion_pipeline.reading.html.cleaning import fragment_text
from ingestion_pipeline.reading.html.head import language_of

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode


MAX_LABELLED_CHARACTERS = 200  # of a label with its code, title or credits
MAX_BODY_LINES = 150  # of one course; what follows is another part of the page
LABELLED_CONFIDENCE = 0.8

_OPENING = frozenset({CoursePart.CODE, CoursePart.TITLE, CoursePart.CREDITS, CoursePart.DESCRIPTION})


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A line that names a part of a course, whose value is in it or on the next line."""

    place: int
    part: CoursePart
    name: str
    value: str


def courses_by_labels(
    lines: Sequence[Line], labels: Sequence[Label], *, any_sign: bool = False
) -> list[CandidateRecord]:
    """Return the courses with a code under a label for codes; none if they form no catalogue.

    With `any_sign` any text under the label counts as a code: 61411.
    """
    codes = {
        label.place: code
        for label in labels
        if label.part is CoursePart.CODE and (code := read_code(label.value, is_sure=any_sign))
    }
    if not codes:
        return []
    blocks = _blocks(lines, _starts(labels, len(codes)))
    courses = [course for block in blocks if (course := _course(lines, block, labels, codes))]
    return courses if is_catalogue(courses) else []


def labels_of(lines: Sequence[Line]) -> Iterator[Label]:
    """Yield the labels of a course's main parts, in page order."""
    for place, line in enumerate(lines):
        text = labelled_text(line)
        part, rest = label_of(text[:MAX_LABELLED_CHARACTERS])
        if part in _OPENING:
            below = lines[place + 1].text if place + 1 < len(lines) else ""
            name = text[: len(text) - len(rest)] if rest else text
            yield Label(place=place, part=part, name=name.casefold(), value=rest or below)


def _starts(labels: Sequence[Label], count: int) -> list[int]:
    """Return where the courses begin: at the first label that is as frequent as their codes."""
    counts = Counter(label.name for label in labels)
    first = next((label.name for label in labels if counts[label.name] == count), None)
    return [label.place for label in labels if label.name == first]


def _blocks(lines: Sequence[Line], starts: Sequence[int]) -> Iterator[tuple[int | None, range]]:
    """Yield each course's title position, if above its labels, and the range of its lines."""
    titles = [_title_above(lines, start, starts[number - 1] if number else -1) for number, start in enumerate(starts)]
    for number, start in enumerate(starts):
        ends = [*titles[number + 1 : number + 2], *starts[number + 1 : number + 2], len(lines)]
        end = next(candidate for candidate in ends if candidate is not None)
        yield titles[number], range(start, min(end, start + MAX_BODY_LINES))


def _title_above(lines: Sequence[Line], start: int, after: int) -> int | None:
    """Return the nearest heading above that may name a course; else a line in bold."""
    above = range(start - 1, after, -1)
    headings = (place for place in above if lines[place].is_heading)
    bold = (place for place in above[:3] if lines[place].lead == lines[place].text)
    places = (place for kind in (headings, bold) for place in kind)
    return next((place for place in places if may_name(lines[place])), None)


def _course(
    lines: Sequence[Line], block: tuple[int | None, range], labels: Sequence[Label], codes: dict[int, str]
) -> CandidateRecord | None:
    title, places = block
    code = next((codes[place] for place in places if place in codes), None)
    if code is None:
        return None
    has_title = any(label.part is CoursePart.TITLE and label.place in places for label in labels)
    heading = lines[title].text if title is not None and not has_title else None
    above = lines[title + 1 : places.start] if title is not None else ()
    prose = [line.text for line in above if is_prose(line.text)]
    body = [part_text(line) for line in own_lines([lines[places.start : places.stop]])]
    course = build_course(Slots(code=code, heading=heading), prose + body, confidence=LABELLED_CONFIDENCE)
    return course if course is not None and course.fields.get("course_name") else None


TITLED_CONFIDENCE = 0.7
MAX_TITLE_WORDS = 20
MIN_TITLE_WORDS = 2  # "Programs" is a list's title
MIN_PARAGRAPH_WORDS = 8
FIRST_PARAGRAPHS = 3
ASIDE = "nav, header nav, footer, aside, [role=navigation], [role=contentinfo], .breadcrumb"


def thing_by_title(kind: EntityType, tree: LexborHTMLParser, url: str | None) -> list[CandidateRecord]:
    """Return the one entity that the page is about, if evident; the tree is a cleaned one."""
    titled = kind.titled
    for node in tree.css(ASIDE):
        node.decompose()
    headings = [" ".join(node.text().split()) for node in tree.css("h1")]
    if titled is None or tree.body is None or len(headings) != 1:
        return []
    title = headings[0]
    if not MIN_TITLE_WORDS <= len(title.split()) <= MAX_TITLE_WORDS or not _is_evident(titled, title, url):
        return []
    text = _first_paragraphs(list(lines_of(tree.body)), title)
    chosen = choice_by_phrase(title, titled.choices)
    if not text or (titled.choice and chosen is None):
        return []
    choice: dict[str, FieldValue | None] = {titled.choice: chosen} if titled.choice else {}
    return [
        CandidateRecord(
            fields={titled.name: title, titled.text: text, **choice},
            quotes=dict.fromkeys(choice, title),
            confidence=TITLED_CONFIDENCE,
        )
    ]


def _is_evident(titled: Titled, title: str, url: str | None) -> bool:
    phrases = [*titled.phrases, *(phrase for choice_phrases in titled.choices.values() for phrase in choice_phrases)]
    folders = urlsplit(url or "").path.casefold().strip("/").split("/")[:-1]
    return has_phrase(title, phrases) or bool(set(folders) & set(titled.paths))


def _first_paragraphs(lines: list[Line], title: str) -> str | None:
    """Return the first paragraphs of prose between the title and the next heading."""
    start = next((number for number, line in enumerate(lines) if line.text == title), None)
    if start is None:
        return None
    paragraphs: list[str] = []
    for line in lines[start + 1 :]:
        if line.is_heading and paragraphs:
            break
        if not line.is_heading and len(line.text.split()) >= MIN_PARAGRAPH_WORDS:
            paragraphs.append(line.text)
        if len(paragraphs) == FIRST_PARAGRAPHS:
            break
    return "\n".join(paragraphs) or None


LISTED_CONFIDENCE = 0.8
MAX_HEADING_WORDS = 12
MIN_ITEM_WORDS = 3
_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6", "dt", "summary", "caption", "legend"})
_LIST_CONTEXT = "h1, h2, h3, h4, h5, h6, dt, summary, caption, legend, p, strong, b, li"


def items_by_list(kind: EntityType, tree: LexborHTMLParser) -> list[CandidateRecord]:
    """Return the items of every list made for the entity; the tree is a cleaned one."""
    listed = kind.listed
    if listed is None:
        return []
    language = language_of(tree)
    for node in tree.css(ASIDE):
        node.decompose()
    items: dict[str, CandidateRecord] = {}
    choice, heading = None, ""
    for node in tree.css(_LIST_CONTEXT):
        text = _own_text(node)
        if node.tag == "li":
            is_possible = choice and len(items) <= MAX_PAGE_RECORDS and len(text.split()) >= MIN_ITEM_WORDS
            if choice and is_possible and not any(_own_text(link) == text for link in node.css("a")):
                items.setdefault(text, _item(kind, listed, text, choice, heading, language))
        elif _is_heading(node, text):
            choice, heading = choice_by_phrase(text, listed.under), text
    return list(items.values())


def _item(
    kind: EntityType, listed: ListedRule, text: str, choice: str, heading: str, language: str | None
) -> CandidateRecord:
    fields: dict[str, FieldValue | None] = {listed.field: text, listed.choice: choice}
    quotes = {listed.choice: heading}
    for field in kind.fields:
        if field.kind is FieldKind.LANGUAGE and language:
            # the page declares its language, and the item's text is in it
            fields[field.name], quotes[field.name] = language.split("-")[0].lower(), text
    return CandidateRecord(fields=fields, quotes=quotes, confidence=LISTED_CONFIDENCE)


def _is_heading(node: LexborNode, text: str) -> bool:
    """Return whether it is a heading, or a short line in bold or with a colon at its end."""
    if not text or (node.tag not in _HEADINGS and len(text.split()) > MAX_HEADING_WORDS):
        return False
    if node.tag in _HEADINGS:
        return True
    stands_alone = node.parent is not None and _own_text(node.parent) == text
    return text.endswith(":") or (node.tag in {"strong", "b"} and stands_alone)


def _own_text(node: LexborNode) -> str:
    """Return the element's text without that of lists inside it."""
    html = node.html or ""
    for inner in node.css("ul, ol"):
        html = html.replace(inner.html or "", " ", 1)
    return " ".join(fragment_text(html).split())


TABLE_CONFIDENCE = 0.85
MIN_DESCRIBED_SHARE = 0.5  # of its rows; a programme's table has a remark here and there

_COLUMNS = {
    "code": re.compile(r"(?:course )?(?:code|number|no\.?|#|id)|course|subject(?: code)?", re.IGNORECASE),
    "title": re.compile(r"(?:course )?(?:title|name)|subject name", re.IGNORECASE),
    "credits": re.compile(
        r"(?:credit|semester|quarter)?\s?"
        r"(?:credits?|hours?|hrs?\.?|units?|cr\.?|ects|points?)(?: ?\(s\))?",
        re.IGNORECASE,
    ),
    "description": re.compile(r"(?:course )?(?:descriptions?|summary|content|details)", re.IGNORECASE),
    "prerequisites": re.compile(r"(?:pre-?\s?)?requisites?(?:\(s\))?|prereqs?\.?", re.IGNORECASE),
}


def courses_by_table(tree: LexborHTMLParser) -> list[CandidateRecord]:
    """Return the courses of every table with codes and descriptions; the tree is a cleaned one.

    A table without descriptions lists the requirements of a programme, not courses.
    """
    return [course for table in tree.css("table") for course in _courses(table)]


def _courses(table: LexborNode) -> Iterator[CandidateRecord]:
    rows = [
        [text_in_line(node) for node in row.iter() if node.tag in {"td", "th"}]
        for row in table.css("tr")[: MAX_PAGE_RECORDS + 2]
    ]
    columns = _columns(rows)
    if columns is None:
        return
    start, places = columns
    if "description" not in places and not _describes_below(rows[start:]):
        return
    position = start
    while position < len(rows):
        cells = rows[position]
        position += 1
        below = None
        if "description" not in places and position < len(rows) and len(rows[position]) == 1:
            below = rows[position][0]
            position += 1
        if course := _course_of_row(cells, places, below):
            yield course


def _columns(rows: list[list[str]]) -> tuple[int, dict[str, int]] | None:
    """Return the first row of courses, and the column of each part."""
    for number, cells in enumerate(rows[:3]):
        places: dict[str, int] = {}
        for place, text in enumerate(cell.strip(" :*") for cell in cells):
            named = next((name for name, pattern in _COLUMNS.items() if pattern.fullmatch(text)), None)
            name = named or (part_named(text) or CoursePart.OTHER).value
            if name in _COLUMNS:
                places.setdefault(name, place)
        describes = "description" in places or any(len(row) == 1 for row in rows[number + 1 :])
        if "code" in places and describes and len(places) > 1:
            return number + 1, places
    return None


def _describes_below(rows: list[list[str]]) -> bool:
    """Return whether most rows of a course are followed by a row that describes it."""
    whole = [len(row) == 1 for row in rows]
    described = sum(is_below and not is_above for is_above, is_below in pairwise(whole))
    return described >= MIN_DESCRIBED_SHARE * (len(rows) - sum(whole))


def _course_of_row(cells: list[str], places: dict[str, int], below: str | None) -> CandidateRecord | None:
    stated = {name: cells[place] for name, place in places.items() if place < len(cells)}
    description = stated.get("description") or below
    code = stated.get("code", "")
    if not description or not code:
        return None
    heading = code if "title" not in stated and read_heading(code) else None
    credit_text = stated.get("credits", "")
    slots = Slots(
        code=None if heading else code,
        title=stated.get("title"),
        heading=heading,
        credits=slot_credits(credit_text) if credit_text else None,
        prerequisites=stated_prerequisites(stated.get("prerequisites")),
    )
    course = build_course(slots, [description], confidence=TABLE_CONFIDENCE)
    return course if course and course.fields.get("course_name") else None
