"""Source files: read YAML to definitions, with every problem by line and field; import them; refresh one source.

`sources:` lists what is watched, `recipients:` who is notified; both are read alike. Loading is safe,
and keeps the line of every key and value, so that an editor can jump to a mistake.

A file with a problem yields nothing: the good entries of a bad file are not half-imported. What operators change
without a file, and the partition keys of the sources, are here as well.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import yaml
from pydantic import Field, create_model
from sqlalchemy import Connection, and_, false, func, select, update
from yaml.composer import ComposerError

from ingestion_pipeline.sources import declarations
from ingestion_pipeline.sources.lookup import UnknownSource, series_assignments, sources_by_id
from ingestion_pipeline.sources.registry import BY_FILE, REMOVED, Registered, register
from ingestion_pipeline.sources.source import BY_HAND, Definition, Kind, Recipient, Source
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.statements import audit
from ingestion_pipeline.store.tables import sources

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


def located(path: str, node: yaml.Node, bad: Iterable[declarations.BadField]) -> list[FileProblem]:
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


SECTIONS = ("sources", "recipients")
MAX_FILE_BYTES = 20_000_000  # ten thousand sources are about 3 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file as read: its definitions, or its problems, never both."""

    path: str
    fingerprint: str
    definitions: Sequence[Definition]
    problems: Sequence[FileProblem]
    recipients: Sequence[Recipient] = ()
    lines: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Where each id is declared, by section."""


Declared = TypeVar("Declared", Definition, Recipient)
Build = Callable[[Mapping[str, Any]], tuple[Declared | None, list[declarations.BadField]]]


def file_schema() -> dict[str, Any]:
    """Return the JSON schema of a source file, for editors; what depends on the platform is not in it."""
    entries: dict[str, Any] = {
        "sources": (list[declarations.SourceEntry], Field(default=[])),
        "recipients": (list[declarations.RecipientEntry], Field(default=[])),
    }
    return create_model("SourceFile", __base__=declarations.FileModel, **entries).model_json_schema()


def read_folder(folder: Path, *, check: declarations.Check) -> list[SourceFile]:
    """Read every *.yaml and *.yml of the folder; an id that two files declare invalidates both."""
    return _without_shared_ids([read_file(path, check=check) for path in _paths(folder)])


def declare_in(folder: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Write these declarations as the source file of the folder, unless it has them already."""
    body = yaml.safe_dump({"sources": [dict(entry) for entry in entries]}, sort_keys=False, allow_unicode=True)
    file = folder / "sources.yaml"
    if not file.exists() or file.read_text() != body:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = folder / ".sources.yaml.part"
        part.write_text(body)
        part.replace(file)


def fingerprints(folder: Path) -> dict[str, str]:
    """Return each file's name with its size and modification time, cheap to compare every tick."""
    return {path.name: _fingerprint(path) for path in _paths(folder)}


def _paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.y*ml") if path.suffix in {".yaml", ".yml"})


def _fingerprint(path: Path) -> str:
    try:
        stat = path.stat()
    except OSError as error:  # deleted meanwhile, or a broken link
        return error.strerror or "not readable"
    return f"{stat.st_mtime_ns}:{stat.st_size}"


def read_file(path: Path, *, check: declarations.Check) -> SourceFile:
    """Read the file's definitions, or all that is wrong with it."""
    try:
        body = path.read_bytes()
    except OSError as error:
        return _spoiled(path, "", [_problem(path, 1, "file", error.strerror or "not readable")])
    fingerprint = hashlib.sha256(body).hexdigest()
    if len(body) > MAX_FILE_BYTES:
        too_large = f"{len(body)} bytes; split files over {MAX_FILE_BYTES}"
        return _spoiled(path, fingerprint, [_problem(path, 1, "file", too_large)])
    sections, problems = _read_document(path, body)
    sources = _read_entries(path, sections.get("sources", ()), partial(declarations.definition_of, check=check))
    recipients = _read_entries(path, sections.get("recipients", ()), declarations.recipient_of)
    problems = [*problems, *sources.problems, *recipients.problems]
    if problems:
        return _spoiled(path, fingerprint, problems)
    return SourceFile(
        path=path.name,
        fingerprint=fingerprint,
        definitions=[replace(entry, origin=path.name) for entry in sources.declared],
        problems=(),
        recipients=[replace(entry, origin=path.name) for entry in recipients.declared],
        lines={
            **{("sources", id_): line for id_, line in sources.lines.items()},
            **{("recipients", id_): line for id_, line in recipients.lines.items()},
        },
    )


_Sections = dict[str, list[yaml.Node]]


def _read_document(path: Path, body: bytes) -> tuple[_Sections, list[FileProblem]]:
    try:
        root = compose(body)
    except yaml.YAMLError as error:
        return {}, [unreadable(path.name, body, error)]
    if root is None:
        return {}, []
    line = root.start_mark.line + 1
    if not isinstance(root, yaml.MappingNode):
        return {}, [_problem(path, line, "sources", "the file must hold a list under `sources:`")]
    problems: list[str] = []
    keys = [str(key.value) for key, _ in root.value]
    if not keys or len(set(keys)) < len(keys) or not set(keys) <= set(SECTIONS):
        names = ", ".join(keys) or "none"
        problems.append(f"the file must hold `sources:` or `recipients:`, each once; found {names}")
    sections: _Sections = {}
    for key, entries in root.value:
        if isinstance(entries, yaml.SequenceNode):
            sections[str(key.value)] = list(entries.value)
        elif key.value in SECTIONS and entries.value not in ("", "null", "~"):
            problems.append(f"`{key.value}:` must be a list")
    return sections, [_problem(path, line, "sources", problem) for problem in problems]


@dataclass(frozen=True, slots=True)
class _Entries(Generic[Declared]):
    declared: list[Declared]
    problems: list[FileProblem]
    lines: dict[str, int]


def _read_entries(path: Path, entries: Sequence[yaml.Node], build: Build[Declared]) -> _Entries[Declared]:
    read: _Entries[Declared] = _Entries([], [], {})
    for node in entries:
        declared, problems = _read_entry(path, node, build)
        read.problems.extend(problems)
        if declared is not None:
            read.declared.append(declared)
        for id_, line in _declared_ids(node):
            if id_ in read.lines:
                twice = f"{id_[:130]!r} is declared on line {read.lines[id_]} already"
                read.problems.append(_problem(path, line, "id", twice))
            read.lines.setdefault(id_, line)
    return read


def _declared_ids(node: yaml.Node) -> list[tuple[str, int]]:
    """Return the entry's id and its line, whatever else is wrong with the entry."""
    if not isinstance(node, yaml.MappingNode):
        return []
    return [
        (value.value, key.start_mark.line + 1)
        for key, value in node.value
        if key.value == "id" and isinstance(value, yaml.ScalarNode) and value.value
    ][:1]


def _read_entry(path: Path, node: yaml.Node, build: Build[Declared]) -> tuple[Declared | None, list[FileProblem]]:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        needed = "id and address" if build is declarations.recipient_of else "id, kind and url"
        return None, [_problem(path, line, "entry", f"must be a mapping with {needed}")]
    repeated = [_problem(path, line, key, "this key is repeated") for key, line in repeated_keys(node)]
    try:
        raw: object = construct(node)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        message = getattr(error, "problem", None) or str(error).splitlines()[0]
        return None, [*repeated, _problem(path, line, "entry", message)]
    if not isinstance(raw, dict):  # a tag such as !!set turns a mapping into another type
        return None, [_problem(path, line, "entry", "must be a mapping without a tag")]
    declared, bad = build(cast("dict[str, Any]", raw))
    return declared, repeated + (located(path.name, node, bad) if bad else [])


def _without_shared_ids(files: list[SourceFile]) -> list[SourceFile]:
    """Invalidate every file with an id that another file declares too: neither can be trusted."""
    owners: dict[tuple[str, str], list[str]] = {}
    for file in files:
        for key in file.lines:
            owners.setdefault(key, []).append(file.path)
    return [_spoil_shared(file, owners) for file in files]


def _spoil_shared(file: SourceFile, owners: dict[tuple[str, str], list[str]]) -> SourceFile:
    problems = [
        FileProblem(
            path=file.path, line=line, field="id", message=f"{key[1]!r} is declared in {' and '.join(owners[key])}"
        )
        for key, line in file.lines.items()
        if len(owners[key]) > 1
    ]
    return replace(file, definitions=(), recipients=(), problems=problems) if problems else file


def _spoiled(path: Path, fingerprint: str, problems: Sequence[FileProblem]) -> SourceFile:
    return SourceFile(path=path.name, fingerprint=fingerprint, definitions=(), problems=problems)


def _problem(path: Path, line: int, field: str, message: str) -> FileProblem:
    return FileProblem(path=path.name, line=line, field=field, message=message)


class SeriesAssigned(ValueError):
    """An operator has assigned the series, and a declaration would not change it."""


def redeclare(connection: Connection, source: Source, definition: Definition, *, actor: str, now: datetime) -> bool:
    """Update the source to the definition, with an audit line; return False if nothing changed."""
    declared = replace(definition, origin=source.origin)
    home = series_assignments(connection, [source.id])[source.id]
    if declared.series != source.series_id and home.is_assigned:
        cure = f"`ingest series split {home.series_id} --source {source.id} --into NEW` moves it"
        raise SeriesAssigned(f"series: {source.id} is assigned to {home.series_id!r} by an operator; {cure}")
    if not register(connection, [declared], now=now, actor=actor).updated:
        return False
    detail = _difference(source, declared)
    audit(connection, actor=actor, action="source.update", subject=source.id, now=now, detail=detail)
    return True


def _difference(source: Source, definition: Definition) -> dict[str, object]:
    before = declarations.declaration(source)
    after: dict[str, object] = {
        "url": definition.url,
        "name": definition.name,
        "platform": definition.platform,
        "tier": definition.tier.value if definition.tier else "auto",
        "config": dict(definition.config),
        "series": definition.series,
    }
    return {key: {"from": before.get(key), "to": value} for key, value in after.items() if before.get(key) != value}


def accept_drop(connection: Connection, source_id: str, *, actor: str, now: datetime) -> None:
    """Accept the source's next feed however many records it has lost; once."""
    statement = update(sources).where(sources.c.id == source_id)
    if not connection.execute(statement.values(accepts_drop=True, updated_at=now)).rowcount:
        raise UnknownSource(source_id)
    audit(connection, actor=actor, action="source.accept_drop", subject=source_id, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """The source as stored, and what is wrong with its declaration."""

    source: Source
    problems: Sequence[str]


def refresh_source(store: Store, source_id: str, *, folder: Path, check: declarations.Check) -> Refreshed:
    """Update the row from its declaration; a declaration with a problem changes nothing."""
    with store.begin() as connection:
        source = sources_by_id(connection, [source_id]).get(source_id)
        if source is None:
            raise UnknownSource(source_id)
        path = folder / source.origin
        if source.origin != BY_HAND and path.is_file():
            file = read_file(path, check=check)
            problems = [str(problem) for problem in file.problems]
            mine = [definition for definition in file.definitions if definition.id == source_id]
            register(connection, mine, now=store.clock.now(connection))
        else:
            _, bad = declarations.definition_of(declarations.declaration(source), check=check)
            problems = [f"{problem.field}: {problem.message}" for problem in bad]
        current = sources_by_id(connection, [source_id])[source_id]
    return Refreshed(source=current, problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The result of importing a folder of source files."""

    registered: Registered
    problems: Sequence[FileProblem]
    recipients: Sequence[Recipient] = ()
    """Who the good files say is to be told; `notices` registers them."""


def import_files(store: Store, folder: Path, *, check: declarations.Check) -> Imported:
    """Register the good files of the folder, and return every problem of the others."""
    files = read_folder(folder, check=check)
    definitions = [entry for file in files for entry in file.definitions]
    with store.begin() as connection:
        registered = register(connection, definitions, now=store.clock.now(connection))
    return Imported(
        registered=registered,
        problems=[entry for file in files for entry in file.problems],
        recipients=[entry for file in files for entry in file.recipients],
    )


def partition_keys(connection: Connection, *, limit: int) -> dict[Kind, list[str]]:
    """Return each kind's source ids, oldest first, at most `limit` each; none that was removed or never enabled."""
    was_never_on = and_(sources.c.status_reason == BY_FILE, sources.c.last_checked_at.is_(None))
    query = (
        select(sources.c.kind, sources.c.id)
        .where(sources.c.status_reason.is_distinct_from(REMOVED), ~func.coalesce(was_never_on, false()))
        .order_by(sources.c.created_at, sources.c.id)
    )
    keys_by_kind: dict[Kind, list[str]] = {}
    for kind, source_id in connection.execute(query):
        keys = keys_by_kind.setdefault(Kind(kind), [])
        if len(keys) < limit:
            keys.append(source_id)
    return keys_by_kind
