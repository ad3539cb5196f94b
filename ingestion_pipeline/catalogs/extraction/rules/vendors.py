"""Courses by the layouts of known vendors, which are data: `layouts/vendors.yaml`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ingestion_pipeline.catalogs.extraction.record import RecordField
from ingestion_pipeline.catalogs.extraction.rules.course_code import read_heading
from ingestion_pipeline.catalogs.extraction.rules.course_parts import (
    Parts,
    label_of,
    labelled_text,
    part_text,
    read_parts,
    stated_prerequisites,
)
from ingestion_pipeline.catalogs.extraction.rules.courses import Slots, course_found
from ingestion_pipeline.catalogs.extraction.rules.credits import slot_credits
from ingestion_pipeline.catalogs.extraction.rules.page_lines import lines_of
from ingestion_pipeline.reading.html.cleaning import fragment_text

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode


MAX_BLOCKS = 5_000
CONFIDENCE = 0.95


class VendorLayout(BaseModel):
    """Where on a vendor's pages the parts of a course are."""

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
    """The layouts that are known, in the order in which they are tried."""
    file = resources.files("ingestion_pipeline.catalogs.extraction") / "layouts" / "vendors.yaml"
    return TypeAdapter(tuple[VendorLayout, ...]).validate_python(yaml.safe_load(file.read_text()))


def courses_by_vendor(tree: LexborHTMLParser) -> tuple[str, list[RecordField]]:
    """The courses of the layout that finds most, and its name; the tree is a cleaned one."""
    best: tuple[str, list[RecordField]] = "", []
    for layout in vendor_layouts():
        found = list(_courses(tree, layout))
        if _complete(found) > _complete(best[1]) or (found and not best[1]):
            best = layout.name, found
    return best


def _complete(found: list[RecordField]) -> int:
    return sum(bool(one.fields.get("course_description")) for one in found)


def _courses(tree: LexborHTMLParser, layout: VendorLayout) -> Iterator[RecordField]:
    if layout.block is None:
        yield from _by_sequence(tree, layout)
        return
    for block in _innermost(tree.css(layout.block)[:MAX_BLOCKS]):
        found = _by_block(block, layout)
        if found is not None:
            yield found


def _innermost(blocks: list[LexborNode]) -> list[LexborNode]:
    """Blocks without those around others: a page-wide one holds no single course."""
    outer = {parent for block in blocks for parent in _ancestors(block)}
    return [block for block in blocks if block.mem_id not in outer]


def _ancestors(node: LexborNode) -> Iterator[int]:
    parent = node.parent
    while parent is not None:
        yield parent.mem_id
        parent = parent.parent


def _by_sequence(tree: LexborHTMLParser, layout: VendorLayout) -> Iterator[RecordField]:
    heading, lines = None, list[str]()
    headings = {node.mem_id for node in tree.css(", ".join(layout.heading))}
    both = f"{', '.join(layout.heading)}, {layout.body}"
    for node in tree.css(both)[: 2 * MAX_BLOCKS]:
        if node.mem_id not in headings:
            lines.extend(_lines(node))
            continue
        yield from _finished(heading, lines)
        heading, lines = _text(node), []
    yield from _finished(heading, lines)


def _finished(heading: str | None, lines: list[str]) -> Iterator[RecordField]:
    if heading is not None:
        found = course_found(Slots(heading=heading), lines, confidence=CONFIDENCE)
        if found is not None:
            yield found


def _by_block(block: LexborNode, layout: VendorLayout) -> RecordField | None:
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
    return course_found(slots, lines, confidence=CONFIDENCE, otherwise=described.credits)


def _heading(block: LexborNode, layout: VendorLayout, used: set[int]) -> str | None:
    """The first heading that begins with a code, else the first that there is."""
    nodes = [node for css in layout.heading for node in block.css(css)]
    named = next((node for node in nodes if read_heading(_text(node))), None)
    chosen = named or next((node for node in nodes if _text(node)), None)
    if chosen is None:
        return None
    used.add(chosen.mem_id)
    return _text(chosen)


def _first(block: LexborNode, selectors: tuple[str, ...], used: set[int]) -> str | None:
    for css in selectors:
        for node in block.css(css):
            if text := _text(node):
                used.add(node.mem_id)
                return text
    return None


def _description(block: LexborNode, layout: VendorLayout, used: set[int]) -> Parts:
    """What the element for descriptions says, prerequisites and credits among it."""
    for css in layout.description:
        for node in block.css(css):
            if node.mem_id in used:
                continue
            lines = _lines(node)
            parts = read_parts(lines)
            is_labelled = bool(lines) and label_of(lines[0])[0] is not None
            if parts.text() and not is_labelled:
                used.add(node.mem_id)
                return parts
    return Parts()


def _lines(node: LexborNode) -> list[str]:
    return [labelled_text(line) for line in lines_of(node)]


def _text(node: LexborNode) -> str:
    return " ".join(fragment_text(node.html or "").split())
