"""Read YAML that people wrote: safely, with the line of every key and value, and mistakes an editor can jump to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.composer import ComposerError

from ingestion_pipeline.sources.file_model import BadField

# pyright: basic
# PyYAML's stubs leave its loader untyped; no other module uses it.

# libyaml's loader where PyYAML was built with it: ten times faster, at every sensor tick.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MAX_DEPTH = 50  # a source's config is three or four levels deep; libyaml recurses without a limit
_LAST_PART = re.compile(r"[.\[]?[^.\[]*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """One mistake in a file, where an editor can jump to it."""

    path: str
    line: int
    field: str
    message: str

    def __str__(self) -> str:
        """file:line: field: message."""
        return f"{self.path}:{self.line}: {self.field}: {self.message}"


def compose(body: bytes) -> yaml.Node | None:
    """Return the document's root node; None for an empty one."""
    _refuse_traps(body)
    return yaml.compose(body, Loader=_LOADER)


def construct(node: yaml.Node) -> Any:  # noqa: ANN401 - whatever the file says
    """Return the data of a node."""
    loader = _LOADER("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _refuse_traps(body: bytes) -> None:
    """Refuse aliases, which can expand to gigabytes, and deep nesting, which can crash."""
    depth = 0
    for event in yaml.parse(body, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            message = "aliases (*name) are not accepted; write the value out"
            raise ComposerError(None, None, message, event.start_mark)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ComposerError(None, None, "nested too deeply", event.start_mark)


def unreadable(path: str, body: bytes, error: Exception) -> FileProblem:
    """Return the problem of a document that is no YAML, or holds values that YAML cannot make."""
    mark = getattr(error, "problem_mark", None)
    last = len(body.splitlines()) or 1  # what is cut off is missed after the last line
    line = min(mark.line + 1, last) if mark else 1
    message = getattr(error, "problem", None) or str(error).partition("\n")[0]
    cure = "quote what holds : or #"
    return FileProblem(path=path, line=line, field="yaml", message=f"not readable as YAML: {message}; {cure}")


def located(path: str, node: yaml.Node, bad: Iterable[BadField]) -> list[FileProblem]:
    """Return the problems with their lines: of the field itself, or of the nearest part that was written."""
    lines: dict[str, int] = {"": node.start_mark.line + 1}
    for place, line in _places(node):
        lines.setdefault(place, line)
    return [
        FileProblem(path=path, line=_line(lines, problem.field), field=problem.field, message=problem.message)
        for problem in bad
    ]


def repeated_keys(node: yaml.Node) -> Iterator[tuple[str, int]]:
    """Yield each key that its mapping states twice, at any depth, with the line of the second."""
    seen: set[str] = set()
    for place, line in _places(node):
        if place in seen and not place.endswith("]"):
            yield place, line
        seen.add(place)


def _line(lines: dict[str, int], field: str) -> int:
    while field not in lines:
        field = _LAST_PART.sub("", field, count=1)
    return lines[field]


def _places(node: yaml.Node, path: str = "") -> Iterator[tuple[str, int]]:
    """Yield the path and the line of every key and every item of a list."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = f"{path}.{key.value}" if path else str(key.value)
            yield name, key.start_mark.line + 1
            yield from _places(value, name)
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield f"{path}[{number}]", item.start_mark.line + 1
            yield from _places(item, f"{path}[{number}]")
