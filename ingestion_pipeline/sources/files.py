"""Source files: YAML in, definitions out; every problem of a file at once, with line and field.

A file with a problem gives nothing: the good entries of a bad file are not half-imported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import yaml

from ingestion_pipeline.sources.definition import BadField, definition_of
from ingestion_pipeline.sources.source import Definition
from ingestion_pipeline.sources.yaml_nodes import compose, construct

MAX_FILE_BYTES = 20_000_000  # ten thousand sources are about 3 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """One mistake in a source file, where an editor can jump to it."""

    path: str
    line: int
    field: str
    message: str

    def __str__(self) -> str:
        """file:line: field: message."""
        return f"{self.path}:{self.line}: {self.field}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file as read: its definitions, or its problems, never both."""

    path: str
    fingerprint: str
    definitions: Sequence[Definition]
    problems: Sequence[FileProblem]
    lines: Mapping[str, int] = field(default_factory=dict[str, int])
    """Where each id is declared."""


Check = Callable[[Definition], Iterable[BadField]]


def read_folder(folder: Path, *, check: Check) -> list[SourceFile]:
    """Every *.yaml and *.yml of the folder; an id that two files declare spoils both."""
    return _without_shared_ids([read_file(path, check=check) for path in _paths(folder)])


def fingerprints(folder: Path) -> dict[str, str]:
    """Each file's name with its size and modification time: cheap to compare at every tick."""
    return {path.name: _fingerprint(path) for path in _paths(folder)}


def _paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.y*ml") if path.suffix in {".yaml", ".yml"})


def _fingerprint(path: Path) -> str:
    try:
        stat = path.stat()
    except OSError as error:  # deleted meanwhile, or a link that leads nowhere
        return error.strerror or "not readable"
    return f"{stat.st_mtime_ns}:{stat.st_size}"


def read_file(path: Path, *, check: Check) -> SourceFile:
    """The file's definitions, or all that is wrong with it."""
    try:
        body = path.read_bytes()
    except OSError as error:
        return _spoiled(path, "", [_problem(path, 1, "file", error.strerror or "not readable")])
    fingerprint = hashlib.sha256(body).hexdigest()
    if len(body) > MAX_FILE_BYTES:
        too_large = f"{len(body)} bytes; split files over {MAX_FILE_BYTES}"
        return _spoiled(path, fingerprint, [_problem(path, 1, "file", too_large)])
    entries, problems = _read_document(path, body)
    if problems:
        return _spoiled(path, fingerprint, problems)
    return _read_entries(path, fingerprint, entries, check)


def _read_document(path: Path, body: bytes) -> tuple[list[yaml.Node], list[FileProblem]]:
    try:
        root = compose(body)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        last = len(body.splitlines()) or 1  # what is cut off is missed after the last line
        line = min(mark.line + 1, last) if mark else 1
        said = getattr(error, "problem", None) or str(error).splitlines()[0]
        return [], [_problem(path, line, "yaml", f"not readable as YAML: {said}")]
    if root is None:
        return [], []
    entries = _entries(root)
    if isinstance(entries, str):
        return [], [_problem(path, root.start_mark.line + 1, "sources", entries)]
    return entries, []


def _entries(root: yaml.Node) -> list[yaml.Node] | str:
    """The nodes of the list under `sources:`, or what is wrong."""
    if not isinstance(root, yaml.MappingNode):
        return "the file must hold a list under `sources:`"
    keys = [key.value for key, _ in root.value]
    if keys != ["sources"]:
        return (
            f"the file must hold one key, `sources:`; found {', '.join(map(str, keys)) or 'none'}"
        )
    listing = root.value[0][1]
    if isinstance(listing, yaml.ScalarNode) and listing.value in {"", "null", "~"}:
        return []
    if not isinstance(listing, yaml.SequenceNode):
        return "`sources:` must be a list"
    return list(listing.value)


def _read_entries(
    path: Path, fingerprint: str, entries: Sequence[yaml.Node], check: Check
) -> SourceFile:
    definitions: list[Definition] = []
    problems: list[FileProblem] = []
    lines: dict[str, int] = {}
    for node in entries:
        definition, found = _read_entry(path, node, check)
        problems += found
        if definition is not None:
            definitions.append(definition)
        for declared, line in _declared_ids(node):
            if declared in lines:
                twice = f"{declared[:130]!r} is declared on line {lines[declared]} already"
                problems.append(_problem(path, line, "id", twice))
            lines.setdefault(declared, line)
    if problems:
        return _spoiled(path, fingerprint, problems)
    return SourceFile(
        path=path.name, fingerprint=fingerprint, definitions=definitions, problems=(), lines=lines
    )


def _declared_ids(node: yaml.Node) -> list[tuple[str, int]]:
    """The entry's id and its line, whatever else is wrong with the entry."""
    if not isinstance(node, yaml.MappingNode):
        return []
    return [
        (value.value, key.start_mark.line + 1)
        for key, value in node.value
        if key.value == "id" and isinstance(value, yaml.ScalarNode) and value.value
    ][:1]


def _read_entry(
    path: Path, node: yaml.Node, check: Check
) -> tuple[Definition | None, list[FileProblem]]:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        return None, [_problem(path, line, "entry", "must be a mapping with id, kind and url")]
    key_lines: dict[str, int] = {}
    repeated: list[FileProblem] = []
    for key, _ in node.value:
        name, key_line = str(key.value), key.start_mark.line + 1
        if name in key_lines:
            repeated.append(_problem(path, key_line, name, "this key stands twice"))
        key_lines[name] = key_line
    try:
        raw: object = construct(node)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        said = getattr(error, "problem", None) or str(error).splitlines()[0]
        return None, [*repeated, _problem(path, line, "entry", said)]
    if not isinstance(raw, dict):  # a tag such as !!set makes other things of a mapping
        return None, [_problem(path, line, "entry", "must be a mapping without a tag")]
    definition, bad = definition_of(cast("dict[str, Any]", raw))
    if definition is not None:
        definition = replace(definition, origin=path.name)
        bad = [*bad, *check(definition)]
    problems = [
        _problem(path, key_lines.get(one.field, line), one.field, one.message) for one in bad
    ]
    return definition, repeated + problems


def _without_shared_ids(files: list[SourceFile]) -> list[SourceFile]:
    owners: dict[str, list[str]] = {}
    for file in files:
        for definition in file.definitions:
            owners.setdefault(definition.id, []).append(file.path)
    shared = {one: paths for one, paths in owners.items() if len(paths) > 1}
    return [_spoil_shared(file, shared) for file in files]


def _spoil_shared(file: SourceFile, shared: dict[str, list[str]]) -> SourceFile:
    clashes = [one.id for one in file.definitions if one.id in shared]
    if not clashes:
        return file
    problems = [
        FileProblem(
            path=file.path,
            line=file.lines.get(one, 1),
            field="id",
            message=f"{one!r} is declared in {' and '.join(shared[one])}",
        )
        for one in clashes
    ]
    return replace(file, definitions=(), problems=problems)


def _spoiled(path: Path, fingerprint: str, problems: Sequence[FileProblem]) -> SourceFile:
    return SourceFile(path=path.name, fingerprint=fingerprint, definitions=(), problems=problems)


def _problem(path: Path, line: int, field: str, message: str) -> FileProblem:
    return FileProblem(path=path.name, line=line, field=field, message=message)
