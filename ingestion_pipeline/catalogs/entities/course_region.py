"""Where the last course of a page ends: what no other course has around it is the page's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.entities.course_parts import is_prose, label_of
from ingestion_pipeline.catalogs.entities.page_lines import Line

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

ENOUGH_COURSES = 20  # to see how the page sets its courses

_Kind = tuple[str | None, str | None]


def own_lines(courses: Sequence[Sequence[Line]]) -> list[Line]:
    """The lines of the last course that are set as those of the others are.

    A course that stands alone is compared with itself: what is outside the element around its
    first line and its first prose, and has no label, is not its own.
    """
    *others, last = courses
    if len(last) <= 1:
        return list(last)
    return _set_alike(others[:ENOUGH_COURSES], last) if others else _in_one_element(last)


def _set_alike(others: Sequence[Sequence[Line]], last: Sequence[Line]) -> list[Line]:
    starts = [_path(course[0]) for course in (*others, last)]
    depth = _shared(starts)
    shared = starts[0][depth - 1].mem_id if depth else None
    known = {_kind(line, depth, shared) for course in others for line in course}
    kept: list[Line] = []
    for line in last:
        kind = _kind(line, depth, shared)
        if kept and (kind is None or kind not in known):
            break
        kept.append(line)
    return kept


def _in_one_element(last: Sequence[Line]) -> list[Line]:
    prose = next((line for line in last[1:] if is_prose(line.text)), None)
    if prose is None:
        return list(last)
    paths = [_path(last[0]), _path(prose)]
    depth = _shared(paths)
    around = paths[0][depth - 1].mem_id if depth else None
    return [line for line in last if _is_in(line, around) or label_of(line.text)[0] is not None]


def _is_in(line: Line, around: int | None) -> bool:
    return any(node.mem_id == around for node in _upwards(line))


def _kind(line: Line, depth: int, shared: int | None) -> _Kind | None:
    """What the line stands in, of the children of the element around all courses; None: none."""
    path = _path(line)
    if shared is None or len(path) < depth or path[depth - 1].mem_id != shared:
        return None
    return (path[depth].tag, path[depth].attrs.get("class")) if len(path) > depth else ("", None)


def _shared(paths: Sequence[Sequence[LexborNode]]) -> int:
    """How many elements all paths have in common, from the page's root on."""
    levels = zip(*paths, strict=False)
    same = [len({node.mem_id for node in level}) == 1 for level in levels]
    return next((depth for depth, is_same in enumerate(same) if not is_same), len(same))


def _path(line: Line) -> list[LexborNode]:
    return list(_upwards(line))[::-1]


def _upwards(line: Line) -> Iterator[LexborNode]:
    node = line.node
    while node is not None:
        yield node
        node = node.parent
