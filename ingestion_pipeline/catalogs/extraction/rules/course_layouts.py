"""Extract records by the layout of a page: known vendors, lines that begin with a code, labels, titles, lists, tables.

The vendors' layouts are in `layouts/vendors.yaml`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, FieldKind, ListedRule, Titled
from ingestion_pipeline.catalogs.extraction.record import MAX_PAGE_RECORDS, CandidateRecord, FieldValue
from ingestion_pipeline.catalogs.extraction.rules.course_building import (
    Parts,
    Slots,
    build_course,
    is_catalogue,
    is_first_described_alone,
    is_prose,
    label_of,
    labelled_text,
    may_name,
    own_lines,
    part_text,
    read_parts,
    stated_prerequisites,
    states_something,
    upwards,
)
from ingestion_pipeline.catalogs.extraction.rules.course_words import (
    PHRASES,
    CoursePart,
    choice_by_phrase,
    has_phrase,
    is_title,
    names_section,
    part_named,
    read_code,
    read_credits,
    read_heading,
    reversed_heading,
    slot_credits,
    split_heading,
)
from ingestion_pipeline.catalogs.extraction.rules.page_lines import Line, lines_of, text_in_line
from ingestion_pipeline.catalogs.extraction.rules.repeated_blocks import PageForms
from ingestion_pipeline.reading.html.cleaning import fragment_text
from ingestion_pipeline.reading.html.links import language_of
from ingestion_pipeline.reading.text.plain_text import packaged_data

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

MAX_BLOCKS = 5_000
VENDOR_CONFIDENCE = 0.95


class VendorLayout(BaseModel):
    """The selectors of the parts of a course on a vendor's pages."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    block: str | None = None
    body: str | None = None
    heading: tuple[str, ...] = Field(min_length=1)
    code: tuple[str, ...] = ()
    title: tuple[str, ...] = ()
    credits: tuple[str, ...] = ()
    description: tuple[str, ...] = ()
    prerequisites: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def vendor_layouts() -> tuple[VendorLayout, ...]:
    """Return the known layouts, in the order in which they are tried."""
    return TypeAdapter(tuple[VendorLayout, ...]).validate_python(
        packaged_data("ingestion_pipeline.catalogs.extraction", "layouts/vendors.yaml")
    )


def courses_by_vendor(tree: LexborHTMLParser) -> tuple[str, list[CandidateRecord]]:
    """Return the name and the courses of the layout that finds most; the tree is a cleaned one."""
    best: tuple[str, list[CandidateRecord]] = "", []
    for layout in vendor_layouts():
        courses = _courses_of_vendor(tree, layout)
        if _complete(courses) > _complete(best[1]) or (courses and not best[1]):
            best = layout.name, courses
    return best


def _complete(courses: list[CandidateRecord]) -> int:
    return sum(bool(course.fields.get("course_description")) for course in courses)


def _courses_of_vendor(tree: LexborHTMLParser, layout: VendorLayout) -> list[CandidateRecord]:
    if layout.block is None:
        courses = list(_by_sequence(tree, layout))
    else:
        courses = [_by_block(block, layout) for block in _innermost(tree.css(layout.block)[:MAX_BLOCKS])]
    return [course for course in courses if course is not None]


def _innermost(blocks: list[LexborNode]) -> list[LexborNode]:
    """Return the blocks that contain no other: a page-wide one is no single course."""
    outer = {node.mem_id for block in blocks for node in upwards(block.parent)}
    return [block for block in blocks if block.mem_id not in outer]


def _by_sequence(tree: LexborHTMLParser, layout: VendorLayout) -> Iterator[CandidateRecord | None]:
    courses: list[tuple[str, list[str]]] = []
    headings = {node.mem_id for node in tree.css(", ".join(layout.heading))}
    both = f"{', '.join(layout.heading)}, {layout.body}"
    for node in tree.css(both)[: 2 * MAX_BLOCKS]:
        if node.mem_id in headings:
            courses.append((text_in_line(node), []))
        elif courses:
            courses[-1][1].extend(_lines(node))
    return (build_course(Slots(heading=heading), lines, confidence=VENDOR_CONFIDENCE) for heading, lines in courses)


def _by_block(block: LexborNode, layout: VendorLayout) -> CandidateRecord | None:
    used: set[int] = set()
    heading = _heading(block, layout, used)
    credit_text = _first(block, layout.credits, used)
    code, title = _first(block, layout.code, used), _first(block, layout.title, used)
    before = _first(block, layout.prerequisites, used)
    described = _description(block, layout, used)
    slots = Slots(
        code=code,
        title=title,
        heading=heading,
        credits=slot_credits(credit_text) if credit_text else None,
        description=described.text(),
        prerequisites=stated_prerequisites(before) or described.required_before(),
    )
    lines = [part_text(line) for line in lines_of(block, without=used)]
    return build_course(slots, lines, confidence=VENDOR_CONFIDENCE, otherwise=described.credits)


def _heading(block: LexborNode, layout: VendorLayout, used: set[int]) -> str | None:
    """Return the first heading that begins with a code, else the first that there is."""
    nodes = [node for css in layout.heading for node in block.css(css)]
    named = next((node for node in nodes if read_heading(text_in_line(node))), None)
    chosen = named or next((node for node in nodes if text_in_line(node)), None)
    if chosen is None:
        return None
    used.add(chosen.mem_id)
    return text_in_line(chosen)


def _first(block: LexborNode, selectors: tuple[str, ...], used: set[int]) -> str | None:
    for css in selectors:
        for node in block.css(css):
            if text := text_in_line(node):
                used.add(node.mem_id)
                return text
    return None


def _description(block: LexborNode, layout: VendorLayout, used: set[int]) -> Parts:
    """Return the parts in the element for descriptions, prerequisites and credits included."""
    for css in layout.description:
        for node in block.css(css):
            if node.mem_id in used:
                continue
            lines = _lines(node)
            parts = read_parts(lines)
            if parts.text() and label_of(lines[0])[0] is None:  # a text has a line
                used.add(node.mem_id)
                return parts
    return Parts()


def _lines(node: LexborNode) -> list[str]:
    return [labelled_text(line) for line in lines_of(node)]


MAX_LINES_BELOW_CODE = 80  # of one course; what follows is another part of the page
CODE_LINE_CONFIDENCE = 0.75
MIN_PLACE_SHARE = 0.3  # of the lines at that place; where title, text and terms are paragraphs alike, it is a third
MIN_MOST_SHARE = 0.75  # of a page's courses; the others may stand outside the element around these
_FIGURE = re.compile("[0-9]")


@dataclass(slots=True)
class _Course:
    """A course while its lines are collected, its first line among them.

    Where that is only a code, the title may stand `above` it, or below it as a heading.
    """

    heading: str
    lines: list[Line]
    rest: str = ""  # text after the heading on the first line
    has_title: bool = True
    above: str | None = None
    has_heading_below: bool = False
    title: str | None = None


def courses_by_layout(lines: Sequence[Line]) -> list[CandidateRecord]:
    """Return the courses of repeated lines; none if the page does not look like a catalogue."""
    courses = _split(lines)
    _give_titles(courses)
    if courses:
        courses[-1].lines = own_lines([course.lines for course in courses])
    _give_titles_below(courses)
    pairs: list[tuple[_Course, CandidateRecord]] = []
    for course in courses:
        slots = Slots(heading=course.heading, title=course.title)
        body = [course.rest] if course.rest else []
        body += [labelled_text(line) for line in course.lines[1:]]
        record = build_course(slots, body, confidence=CODE_LINE_CONFIDENCE)
        if record is not None and record.fields.get("course_name"):
            pairs.append((course, record))
    pairs = _where_most_are(pairs)
    records = [record for _, record in pairs]
    courses_read = records if is_catalogue(records) else _catalogues_by_form(pairs)
    is_named_alone = not any(map(states_something, courses_read)) and len(courses_read) > 1
    return [] if is_named_alone and _is_exception(lines, [course.lines[0] for course, _ in pairs]) else courses_read


def _is_exception(lines: Sequence[Line], firsts: Sequence[Line]) -> bool:
    """Return whether most lines at the place where these begin courses begin none: a list of something else."""
    forms = dict(zip(map(id, lines), PageForms(lines).forms, strict=True))
    own = Counter(forms[id(line)] for line in firsts)
    everywhere = Counter(forms.values())
    return len(firsts) < MIN_PLACE_SHARE * sum(everywhere[form] for form in own)


def _where_most_are(pairs: Sequence[tuple[_Course, CandidateRecord]]) -> list[tuple[_Course, CandidateRecord]]:
    """Return the courses inside the smallest element around most of them: what stands elsewhere is chrome."""
    paths = [[node.mem_id for node in upwards(course.lines[0].node)] for course, _ in pairs]
    held = Counter(number for path in paths for number in path)
    depths = {number: depth for path in paths for depth, number in enumerate(reversed(path))}
    around = min(
        (number for number, count in held.items() if count >= MIN_MOST_SHARE * len(pairs)),
        key=lambda number: (held[number], -depths[number]),
        default=None,
    )
    if around is None:
        return list(pairs)
    return [pair for pair, path in zip(pairs, paths, strict=True) if around in path]


def _catalogues_by_form(pairs: Sequence[tuple[_Course, CandidateRecord]]) -> list[CandidateRecord]:
    """Return the courses of each form that is a catalogue by itself.

    A page about one course may list others beside it, with another layout, or only their names.
    """
    forms: dict[object, list[CandidateRecord]] = {}
    for course, record in pairs:
        forms.setdefault(_form(course.lines[0]), []).append(record)
    catalogues = [record for group in forms.values() if is_catalogue(group) for record in group]
    records = [record for _, record in pairs]
    return catalogues or (records[:1] if is_first_described_alone(records) else [])


def _form(line: Line) -> tuple[str | None, str | None, bool]:
    """Return the line's form: its element, its class, and whether it is a heading."""
    node = line.node
    return (node.tag, node.attrs.get("class"), line.is_heading) if node else (None, None, False)


def _split(lines: Sequence[Line]) -> list[_Course]:
    courses: list[_Course] = []
    is_open = is_list = False
    last: Line | None = None
    for line in lines:
        course, last, above = _course_start(line), line, last
        is_marked = line.is_heading or bool(line.lead)
        if course is not None and (is_marked or not is_list or _is_set_alike(line, courses)):
            if len(courses) > MAX_PAGE_RECORDS:
                break
            is_title = above is not None and (above.is_heading or above.lead == above.text) and may_name(above)
            course.above = above.text if above is not None and is_title else None
            courses.append(course)
            is_open, is_list = True, False
            continue
        if is_marked or label_of(line.text)[0] is not None:
            is_list = _opens_list(line)
        is_open = is_open and not _ends(line, courses[-1])
        if is_open:
            course = courses[-1]
            is_next = line.is_heading and len(course.lines) == 1
            course.has_heading_below |= is_next and label_of(line.text)[0] is None
            course.lines.append(line)
    return courses


def _is_set_alike(line: Line, courses: Sequence[_Course]) -> bool:
    """Return whether the line has the tag and class of the last course's first line."""
    if not courses or line.node is None or courses[-1].lines[0].node is None:
        return False
    before = courses[-1].lines[0].node
    name = line.node.attrs.get("class")
    return bool(name) and name == before.attrs.get("class") and line.node.tag == before.tag


def _give_titles(courses: Sequence[_Course]) -> None:
    """Give codes without title the titles above them, where every one of them has one.

    A page's own title stands above the first course, too: one course with a heading below its code
    is enough to tell that titles stand there.
    """
    alone = [number for number, course in enumerate(courses) if not course.has_title]
    if any(courses[number].above is None or courses[number].has_heading_below for number in alone):
        return
    for number in alone:
        course, before = courses[number], courses[number - 1].lines if number else []
        if len(before) > 1 and before[-1].text == course.above:  # bold ended no course
            before.pop()
        course.title = course.above


def _give_titles_below(courses: Sequence[_Course]) -> None:
    """Give codes without title a title with a colon below them, where those of most have the same form.

    By itself it looks like a fact: Geology I: The Interior.
    """
    below = [
        (course, place)
        for course in courses
        for place in [next((at for at, line in enumerate(course.lines) if at and not read_credits(line.text)), 0)]
        if place and not (course.has_title or course.title)
    ]
    forms = Counter(_form(course.lines[place]) for course, place in below)
    for course, place in below:
        line = course.lines[place]
        is_usual = forms[_form(line)] > len(below) / 2 and len(below) > 1
        if is_usual and ": " in line.text and is_title(line.text) and label_of(line.text)[0] is None:
            course.title = course.lines.pop(place).text


def _ends(line: Line, course: _Course) -> bool:
    is_title = line.is_heading and label_of(line.text)[0] is None and (bool(course.rest) or len(course.lines) > 1)
    return is_title or len(course.lines) > MAX_LINES_BELOW_CODE


def _opens_list(line: Line) -> bool:
    """Return whether courses below the line are requirements of another one."""
    part, rest = label_of(line.text)
    is_label = part in {CoursePart.PREREQUISITES, CoursePart.OTHER} and not rest
    return is_label and not names_section(line.text)  # Course offerings


def _course_start(line: Line) -> _Course | None:
    """Return the course that the line begins, with the rest of the line; None if it begins none."""
    if not _FIGURE.search(line.text) or _is_labelled(line):
        return None
    lead = read_heading(line.lead) if line.lead and line.lead != line.text else None
    if lead is not None and lead.title:
        text = line.lead if lead.credits else line.lead.rstrip(" .")  # 3 s.h.
        return _Course(text, [line], rest=line.rest.lstrip(" .:\u2013\u2014-"))
    if line.is_heading and (turned := reversed_heading(line.text)):
        return _Course(turned, [line])
    heading = read_heading(line.text)
    has_credits = heading is not None and heading.credits is not None
    if not has_credits and (parts := split_heading(line.text)):
        return _Course(parts[0], [line], rest=parts[1])
    if heading is None:
        return None
    has_place = line.is_heading or bool(line.lead) or has_credits
    is_one = has_place or not heading.title.rstrip().endswith((".", ",", ";"))
    return _Course(line.text, [line], has_title=bool(heading.title)) if is_one else None


def _is_labelled(line: Line) -> bool:
    """Return whether the line is a label with its value, "ECTS: 6", which may look like a code."""
    part, rest = label_of(labelled_text(line))
    return part not in {None, CoursePart.UNNAMED} and bool(rest) and not line.is_heading


MAX_LABELLED_CHARACTERS = 200  # of a label with its code, title or credits
MAX_LABELLED_LINES = 150  # of one course; what follows is another part of the page
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
        yield titles[number], range(start, min(end, start + MAX_LABELLED_LINES))


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

_COLUMNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in PHRASES["columns"].items()}


def courses_by_table(tree: LexborHTMLParser) -> list[CandidateRecord]:
    """Return the courses of every table with codes and descriptions; the tree is a cleaned one.

    A table without descriptions lists the requirements of a programme, not courses.
    """
    return [course for table in tree.css("table") for course in _courses_of_table(table)]


def _courses_of_table(table: LexborNode) -> Iterator[CandidateRecord]:
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
