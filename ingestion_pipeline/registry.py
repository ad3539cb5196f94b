"""The systems and their checks by kind of source, shared by jobs and commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from ingestion_pipeline.catalogs.crawling.system import CatalogSystem
from ingestion_pipeline.catalogs.extraction.source_config import ENTITIES, entity_config_problems
from ingestion_pipeline.catalogs.operations.control import requeue_page, requeue_reading
from ingestion_pipeline.catalogs.recipes.recipe import config_problems
from ingestion_pipeline.catalogs.recipes.registry import ensure_detection
from ingestion_pipeline.catalogs.states import EXTRACT_PAGE
from ingestion_pipeline.companies.boards.system import BoardSystem
from ingestion_pipeline.companies.matching.requeue import requeue_job
from ingestion_pipeline.companies.platforms import platform as board_platform
from ingestion_pipeline.companies.states import JOB
from ingestion_pipeline.companies.system import CompanySystem, check_config
from ingestion_pipeline.engine.crawling.protocol import FETCH_PAGE, CrawledSystem, DeferredSystem
from ingestion_pipeline.engine.polling.protocol import PolledSystem
from ingestion_pipeline.notices.tasks import DELIVER, requeue_messages
from ingestion_pipeline.series.platforms import platform as series_platform
from ingestion_pipeline.series.system import SeriesSystem
from ingestion_pipeline.sources import Definition, Kind, Source, SourceStatus
from ingestion_pipeline.sources.definition import BadField, definition_of
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.operator_changes import declaration
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks import dead_letters
from ingestion_pipeline.websites.runs.starting import KINDS
from ingestion_pipeline.websites.runs.system import WebsiteSystem, requeue_phase
from ingestion_pipeline.websites.source_config import parse_website_config

POLLED: dict[Kind, PolledSystem] = {Kind.SERIES: SeriesSystem(), Kind.JOB_BOARD: BoardSystem()}
CRAWLED: dict[Kind, CrawledSystem] = {Kind.CATALOG: CatalogSystem()}
DEFERRED: dict[Kind, DeferredSystem] = {Kind.COMPANY: CompanySystem(), Kind.WEBSITE: WebsiteSystem()}
# Requeue functions of tasks that need more than their own row, by the task's kind.
REQUEUE_BY_KIND: dict[str, dead_letters.Requeue] = {
    DELIVER: requeue_messages,
    FETCH_PAGE: requeue_page,
    EXTRACT_PAGE: requeue_reading,
    JOB: requeue_job,
    **dict.fromkeys(KINDS, requeue_phase),
}


def replay(connection: Connection, dead_letter_id: int, *, actor: str, now: datetime) -> str:
    """Requeue the work of the dead letter, due now; return the outcome in a word for people."""
    dead_letter = dead_letters.find_dead_letter(connection, dead_letter_id)
    requeue = None if dead_letter is None else REQUEUE_BY_KIND.get(dead_letter["task_kind"])
    return dead_letters.replay(connection, dead_letter_id, actor=actor, now=now, requeue=requeue)


def requeue_dead_letters(
    store: Store, dead_letter_ids: Sequence[int], *, actor: str, dry_run: bool = False
) -> Iterator[dead_letters.ReplayResult]:
    """Requeue each dead letter in its own transaction: a failing one does not stop the others.

    A dry run reports what would become of each, and writes nothing.

    Raises:
        UnknownLetter: nothing was replayed.
    """
    with store.read() as connection:
        dead_letters.check_dead_letters(connection, dead_letter_ids)
    for dead_letter_id in dict.fromkeys(dead_letter_ids):
        with store.begin() as connection:
            now = store.clock.now(connection)
            outcome = replay(connection, dead_letter_id, actor=actor, now=now)
            if dry_run:
                connection.rollback()
        yield dead_letters.ReplayResult(dead_letter_id, outcome)


def definition_check(sources: Path) -> Callable[[Definition], Iterable[BadField]]:
    """Return `check_definition` for entity types that stand beside the source files."""
    return partial(check_definition, entities=sources / ENTITIES)


def check_definition(definition: Definition, *, entities: Path | None = None) -> Iterable[BadField]:
    """Yield what is wrong with a declared source's URL or config, by its system's rules."""
    if definition.kind is Kind.WEBSITE:
        yield from parse_website_config(definition.config)[1]
    if definition.kind is Kind.CATALOG:
        for problem in _catalog_problems(definition.config, entities):
            yield BadField("config", f"{problem} ({definition.id})")
    elif (configure := _CONFIGURES.get(definition.kind)) is not None:
        try:
            configure(definition)
        except ValueError as error:
            yield BadField("config", str(error))


def approval_problems(source: Source, sources: Path) -> list[str]:
    """Return why a source that waits for approval could not be polled; empty for any other.

    A source that discovery was not sure of may lack what its reader needs.
    """
    if source.status is not SourceStatus.PENDING_VALIDATION:
        return []
    definition, bad = definition_of(declaration(source))
    if definition is not None:
        bad = [*bad, *definition_check(sources)(definition)]
    cure = f"`ingest sources update {source.id} --config` fixes it, then it can be enabled"
    return [f"{problem.field}: {problem.message}; {cure}" for problem in bad]


def _configure_series(definition: Definition) -> None:
    series_platform(definition.platform or "").configure(definition.url, definition.config)


def _configure_company(definition: Definition) -> None:
    check_config(definition.config)


def _configure_board(definition: Definition) -> None:
    adapter = board_platform(definition.platform or "")
    # `first_request` also raises if nothing names the company of the board.
    adapter.configure(definition.url, definition.config).first_request()


# Each raises ValueError where the configuration cannot work.
_CONFIGURES: dict[Kind, Callable[[Definition], None]] = {
    Kind.SERIES: _configure_series,
    Kind.COMPANY: _configure_company,
    Kind.JOB_BOARD: _configure_board,
}


def _catalog_problems(config: Mapping[str, Any], entities: Path | None) -> Iterable[str]:
    """Yield what is wrong with a catalogue's recipe and entity; a missing recipe is detected."""
    yield from config_problems(config)
    yield from entity_config_problems(config, entities)


def declared(connection: Connection, source_ids: Iterable[str], *, now: datetime, again: bool = False) -> list[str]:
    """Start what the systems do for declared or changed sources; return the ids concerned.

    A catalogue without a recipe gets one detected; with `again` also one that has a recipe or whose
    detection has failed.
    """
    existing = sources_by_id(connection, list(source_ids))
    return ensure_detection(connection, existing.values(), now=now, again=again)
