"""Extract courses from repeated blocks of a page: each has a title and a text at the same places, most have no code.

A course without a code has its title for a key. Such blocks are courses only where the page says so: its title, its
address or a heading above them names courses, or most of the blocks state credits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from ingestion_pipeline.catalogs.extraction.record import CandidateRecord
from ingestion_pipeline.catalogs.extraction.rules.course_building import (
    Parts,
    credit_fields,
    credit_quotes,
    is_fact_row,
    is_prose,
    label_of,
    labelled_text,
    length_in_words,
    own_lines,
    part_text,
    read_parts,
    upwards,
)
from ingestion_pipeline.catalogs.extraction.rules.course_words import (
    PHRASES,
    CoursePart,
    is_title,
    names_section,
    read_code,
    read_credits,
    read_heading,
    reversed_heading,
)
from ingestion_pipeline.catalogs.extraction.rules.page_lines import Line
from ingestion_pipeline.catalogs.extraction.rules.repeated_blocks import Block, Form, PageForms

BLOCK_CONFIDENCE = 0.6
MAX_LINES = 10_000  # of a page; longer ones have layouts that other methods know
MIN_SHARE = 0.75  # of the blocks that have a title and a text, or a code
MIN_TEXT_WORDS = 8
MIN_STATED_SHARE = 0.5  # of the blocks that state credits, where nothing above them names courses
MAX_TITLE_WORDS = 16
MIN_FACTS = 2  # labelled ones of a page about one course
MAX_LINES_OF_COURSE = 150

_LISTED = re.compile(r"[0-9]{1,3}[.)] (?=\S)")
_REST: Form = ("rest",)  # the place of the text after a title in the same line
_OF_CODES = {CoursePart.CODE, CoursePart.UNNAMED, None}
_NAMES_COURSES = re.compile(rf"(?<![^\W_])(?:{'|'.join(PHRASES['courses'])})(?![^\W_])", re.IGNORECASE)


def courses_by_blocks(lines: Sequence[Line], about: str) -> list[CandidateRecord]:
    """Return the courses of the blocks with most titles and texts; `about` is the page's title and address."""
    if len(lines) > MAX_LINES:
        return []
    best: list[CandidateRecord] = []
    best_score = (0.0, 0)
    for blocks in PageForms(lines).hypotheses(_may_start):
        described = _described_form(blocks)
        if described is None or not _are_courses(lines, blocks, about):
            continue
        courses = list(_courses(blocks, described))
        titles = {course.fields["course_id"] for course in courses}
        length = sum(len(str(course.fields["course_description"])) for course in courses)
        if len(titles) < MIN_SHARE * len(blocks):
            continue
        score = (len(titles) * _emphasis(blocks), length)
        if score > best_score:
            best, best_score = courses, score
    return best


def course_by_title(lines: Sequence[Line], url: str | None) -> list[CandidateRecord]:
    """Return the one course without a code that a page is about; none if that is not evident.

    A folder of its address names courses, it has one heading of the first level, labelled facts and a text below it.
    """
    folders = urlsplit(url or "").path.strip("/").split("/")[:-1]
    titles = [place for place, line in enumerate(lines) if line.is_heading and _is_first_level(line)]
    if len(titles) != 1 or not any(_NAMES_COURSES.fullmatch(folder.replace("-", " ")) for folder in folders):
        return []
    title, below = lines[titles[0]].text, lines[titles[0] + 1 : titles[0] + 1 + MAX_LINES_OF_COURSE]
    facts = [line for line in below if label_of(labelled_text(line))[0] not in {None, CoursePart.UNNAMED}]
    parts = read_parts(part_text(line) for line in own_lines([[lines[titles[0]], *below]])[1:])
    text = parts.text() or ""
    if len(facts) < MIN_FACTS or names_section(title) or not is_title(title) or not is_prose(text):
        return []
    return [_record(title, title, text, parts)]


def _is_first_level(line: Line) -> bool:
    return any(node.tag == "h1" for node in upwards(line.node))


def _record(code: str, title: str, text: str, parts: Parts) -> CandidateRecord:
    return CandidateRecord(
        fields={
            "course_id": code,
            "course_name": title,
            "course_description": text,
            "course_prerequisites": parts.required_before(),
            **credit_fields(parts.credits),
        },
        quotes=credit_quotes(parts.credits),
        confidence=BLOCK_CONFIDENCE,
    )


def _may_start(line: Line) -> bool:
    """Return whether the line has the title of a course: a few words, no sentence, no label, no value."""
    title, rest = _title_and_rest(line)
    is_short = len(title.split()) <= MAX_TITLE_WORDS and not title.endswith((".", ":", "?"))
    is_short = is_short and (not is_fact_row(title) or read_heading(title) is not None)
    is_own = is_short and is_title(title) and not names_section(title) and label_of(line.text)[0] is None
    return is_own and (not rest or length_in_words(rest) >= MIN_TEXT_WORDS)


def _title_and_rest(line: Line) -> tuple[str, str]:
    """Return the title in the line, without its number in a list, and the text after it in the same line.

    It is the marked part of a line of few words (`New` **Drawing** `with Ann Hill`), and the marked beginning of
    a longer one.
    """
    title, rest = line.text, ""
    if line.marked and line.marked != line.text and not line.is_heading:
        is_start = line.text.startswith(line.marked)
        if len(line.text.split()) <= MAX_TITLE_WORDS:
            title = line.marked
        elif is_start:
            title, rest = line.marked.rstrip(" .:"), line.text.removeprefix(line.marked).lstrip(" .:\u2013\u2014-")
    return _LISTED.sub("", title), rest


def _emphasis(blocks: Sequence[Block]) -> float:
    """Return how far the first lines look like titles: headings most, then bold words and links.

    Where most begin with the same word (Starts 4 October), it is rather a label.
    """
    first = blocks[0].first
    share = 1.0 if first.is_heading or first.is_term else 0.95 if first.marked else 0.8
    [(_, count)] = Counter(block.first.text.split()[0] for block in blocks).most_common(1)
    return share * (0.5 if count > len(blocks) / 2 else 1)


def _described_form(blocks: Sequence[Block]) -> Form | None:
    """Return the place where most blocks have a text of some length; None if they have none at the same place."""
    counts: Counter[Form] = Counter()
    lengths: Counter[Form] = Counter()
    for block in blocks:
        texts = [
            (form, line.text)
            for number, (form, line) in enumerate(zip(block.forms, block.lines, strict=True))
            if number != block.start and length_in_words(line.text) >= MIN_TEXT_WORDS and not _is_labelled(line)
        ]
        if rest := _title_and_rest(block.first)[1]:
            texts.append((_REST, rest))
        counts.update({form for form, _ in texts})
        for form, text in texts:
            lengths[form] += len(text)
    form = max(counts, key=lambda form: (counts[form] >= MIN_SHARE * len(blocks), lengths[form]), default=None)
    return form if form is not None and counts[form] >= MIN_SHARE * len(blocks) else None


def _is_labelled(line: Line) -> bool:
    part, _ = label_of(labelled_text(line))
    return part not in {None, CoursePart.DESCRIPTION}


def _are_courses(lines: Sequence[Line], blocks: Sequence[Block], about: str) -> bool:
    """Return whether the page names courses above the blocks, or most of them state credits."""
    first = lines.index(blocks[0].first)
    above = [line.text for line in lines[:first] if line.is_heading][-2:]
    if any(_NAMES_COURSES.search(text) for text in (about, *above)):
        return True
    stated = sum(any(read_credits(line.text) for line in block.lines if not is_prose(line.text)) for block in blocks)
    return stated >= MIN_STATED_SHARE * len(blocks)


def _courses(blocks: Sequence[Block], described: Form) -> Iterator[CandidateRecord]:
    codes = [_code(block) for block in blocks]
    has_codes = sum(code is not None for code in codes) >= MIN_SHARE * len(blocks)
    for block, code in zip(blocks, codes, strict=True):
        course = _course(block, described, code if has_codes else None)
        if course is not None and (code or not has_codes):
            yield course


def _code(block: Block) -> tuple[str, str] | None:
    """Return code and title of the block: both in its first line, or the code alone in another one."""
    title, _ = _title_and_rest(block.first)
    for heading in filter(None, (title, reversed_heading(block.first.text))):
        if (read := read_heading(heading)) and read.title:
            return read.code, read.title
    for number, line in enumerate(block.lines):
        text = labelled_text(line)
        part, value = label_of(text)
        is_possible = number != block.start and part in _OF_CODES
        if is_possible and (code := read_code(value.strip("()[] "), is_sure=part is CoursePart.CODE)):
            return code, title
    return None


def _course(block: Block, described: Form, coded: tuple[str, str] | None) -> CandidateRecord | None:
    title, rest = _title_and_rest(block.first)
    code, title = coded or (title, title)
    texts: list[str] = [rest] if described == _REST else []
    body: list[str] = []
    for number, (form, line) in enumerate(zip(block.forms, block.lines, strict=True)):
        if number == block.start:
            continue
        is_fact = is_fact_row(line.text) or (length_in_words(line.text) < MIN_TEXT_WORDS and not is_prose(line.text))
        if form == described and not _is_labelled(line) and not is_fact:
            texts.append(line.text)
        elif _is_labelled(line) or not is_prose(line.text):
            body.append(labelled_text(line))
    if not texts:
        return None
    return _record(code, title, " ".join(texts), read_parts(body))
