"""Extract courses by the layouts of known vendors in `layouts/vendors.yaml`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ingestion_pipeline.catalogs.extraction.record import CandidateRecord
from ingestion_pipeline.catalogs.extraction.rules.course_building import Slots, build_course, upwards
from ingestion_pipeline.catalogs.extraction.rules.course_code import read_heading
from ingestion_pipeline.catalogs.extraction.rules.course_parts import (
    Parts,
    label_of,
    labelled_text,
    part_text,
    read_parts,
    stated_prerequisites,
)
from ingestion_pipeline.catalogs.extraction.rules.credits import slot_credits
from ingestion_pipeline.catalogs.extraction.rules.page_lines import lines_of, text_in_line

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode


MAX_BLOCKS = 5_000
CONFIDENCE = 0.95


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
    file = resources.files("ingestion_pipeline.catalogs.extraction") / "layouts" / "vendors.yaml"
    return TypeAdapter(tuple[VendorLayout, ...]).validate_python(yaml.safe_load(file.read_text()))


def courses_by_vendor(tree: LexborHTMLParser) -> tuple[str, list[CandidateRecord]]:
    """Return the name and the courses of the layout that finds most; the tree is a cleaned one."""
    best: tuple[str, list[CandidateRecord]] = "", []
    for layout in vendor_layouts():
        courses = _courses(tree, layout)
        if _complete(courses) > _complete(best[1]) or (courses and not best[1]):
            best = layout.name, courses
    return best


def _complete(courses: list[CandidateRecord]) -> int:
    return sum(bool(course.fields.get("course_description")) for course in courses)


def _courses(tree: LexborHTMLParser, layout: VendorLayout) -> list[CandidateRecord]:
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
    return (build_course(Slots(heading=heading), lines, confidence=CONFIDENCE) for heading, lines in courses)


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
    return build_course(slots, lines, confidence=CONFIDENCE, otherwise=described.credits)


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
