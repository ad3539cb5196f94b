"""One source's declaration, checked again: its file if it has one, else its row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ingestion_pipeline.sources.changes import declaration
from ingestion_pipeline.sources.definition import definition_of
from ingestion_pipeline.sources.files import Check, read_file
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.source import BY_HAND, Source
from ingestion_pipeline.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """The source as it stands, and what is wrong with its declaration."""

    source: Source
    problems: Sequence[str]


def refresh_source(store: Store, source_id: str, *, folder: Path, check: Check) -> Refreshed:
    """The row says what the declaration says; a declaration with a problem changes nothing."""
    with store.begin() as connection:
        found = sources_by_id(connection, [source_id]).get(source_id)
        if found is None:
            raise UnknownSource(source_id)
        path = folder / found.origin
        problems: list[str] = []
        if found.origin != BY_HAND and path.is_file():
            file = read_file(path, check=check)
            problems = [str(problem) for problem in file.problems]
            mine = [one for one in file.definitions if one.id == source_id]
            register(connection, mine, now=store.clock.now(connection))
        else:
            problems = _problems(found, check)
        current = sources_by_id(connection, [source_id])[source_id]
    return Refreshed(source=current, problems=problems)


def _problems(source: Source, check: Check) -> list[str]:
    definition, bad = definition_of(declaration(source))
    found = [*bad, *check(definition)] if definition is not None else bad
    return [f"{one.field}: {one.message}" for one in found]
