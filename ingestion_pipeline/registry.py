"""What the systems bring, by kind of source: the one list that jobs and commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from ingestion_pipeline.catalogs.crawling.system import CatalogSystem
from ingestion_pipeline.catalogs.extraction.source_config import ENTITIES, bad_reading
from ingestion_pipeline.catalogs.operations.replay import requeue_page, requeue_reading
from ingestion_pipeline.catalogs.recipes.recipe import config_problems
from ingestion_pipeline.catalogs.recipes.registry import ensure_detection
from ingestion_pipeline.catalogs.states import EXTRACT_PAGE
from ingestion_pipeline.companies.boards.system import BoardSystem
from ingestion_pipeline.companies.matching.replay import requeue_job
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
from ingestion_pipeline.tasks import dead_letters as letters
from ingestion_pipeline.websites.runs.starting import KINDS
from ingestion_pipeline.websites.runs.system import WebsiteSystem, requeue_phase
from ingestion_pipeline.websites.source_config import given_of

POLLED: dict[Kind, PolledSystem] = {
    Kind.SERIES: SeriesSystem(),
    Kind.JOB_BOARD: BoardSystem(),
}
CRAWLED: dict[Kind, CrawledSystem] = {Kind.CATALOG: CatalogSystem()}
BEGUN: dict[Kind, DeferredSystem] = {
    Kind.COMPANY: CompanySystem(),
    Kind.WEBSITE: WebsiteSystem(),
}
# Work that is more than its task, by the task's kind.
REVIVALS: dict[str, letters.Revive] = {
    DELIVER: requeue_messages,
    FETCH_PAGE: requeue_page,
    EXTRACT_PAGE: requeue_reading,
    JOB: requeue_job,
    **dict.fromkeys(KINDS, requeue_phase),
}


def replay(connection: Connection, letter_id: int, *, actor: str, now: datetime) -> str:
    """The dead letter's work is due now; what happened, in a word for people."""
    found = letters.find_dead_letter(connection, letter_id)
    revive = None if found is None else REVIVALS.get(found["task_kind"])
    return letters.replay(connection, letter_id, actor=actor, now=now, revive=revive)


def requeue_dead_letters(
    store: Store, letter_ids: Sequence[int], *, actor: str, dry_run: bool = False
) -> Iterator[letters.Replayed]:
    """Each letter in a transaction of its own: one that cannot run again stops none.

    A dry run tells what would become of each, and leaves no trace.

    Raises:
        UnknownLetter: nothing was replayed.
    """
    with store.read() as connection:
        letters.check_dead_letters(connection, letter_ids)
    for letter_id in dict.fromkeys(letter_ids):
        with store.begin() as connection:
            now = store.clock.now(connection)
            outcome = replay(connection, letter_id, actor=actor, now=now)
            if dry_run:
                connection.rollback()
        yield letters.Replayed(letter_id, outcome)


def definition_check(sources: Path) -> Callable[[Definition], Iterable[BadField]]:
    """`check_definition`, for whoever has entity types of his own beside his source files."""
    return partial(check_definition, entities=sources / ENTITIES)


def check_definition(definition: Definition, *, entities: Path | None = None) -> Iterable[BadField]:
    """What the system of a declared source has against its URL or configuration."""
    if definition.kind is Kind.WEBSITE:
        yield from given_of(definition.config)[1]
    if definition.kind is Kind.CATALOG:
        for problem in _catalog_problems(definition.config, entities):
            yield BadField("config", f"{problem} ({definition.id})")
    elif (configure := _CONFIGURES.get(definition.kind)) is not None:
        try:
            configure(definition)
        except ValueError as error:
            yield BadField("config", str(error))


def approval_problems(source: Source, sources: Path) -> list[str]:
    """Why a source that waits for approval could not be polled; nothing for any other.

    What a discovery was not sure of may lack what its reader needs.
    """
    if source.status is not SourceStatus.PENDING_VALIDATION:
        return []
    definition, bad = definition_of(declaration(source))
    if definition is not None:
        bad = [*bad, *definition_check(sources)(definition)]
    cure = f"`ingest sources update {source.id} --config` mends it, then it can be enabled"
    return [f"{one.field}: {one.message}; {cure}" for one in bad]


def _configure_series(definition: Definition) -> None:
    series_platform(definition.platform or "").configure(definition.url, definition.config)


def _configure_company(definition: Definition) -> None:
    check_config(definition.config)


def _configure_board(definition: Definition) -> None:
    adapter = board_platform(definition.platform or "")
    # The second question is whether anything says whose board it is.
    adapter.configure(definition.url, definition.config).first_request()


# Each raises ValueError where the configuration cannot work.
_CONFIGURES: dict[Kind, Callable[[Definition], None]] = {
    Kind.SERIES: _configure_series,
    Kind.COMPANY: _configure_company,
    Kind.JOB_BOARD: _configure_board,
}


def _catalog_problems(config: Mapping[str, Any], entities: Path | None) -> Iterable[str]:
    """What is wrong with a catalogue's recipe and entity; without a recipe, one is detected."""
    yield from config_problems(config)
    yield from bad_reading(config, entities)


def declared(
    connection: Connection, source_ids: Iterable[str], *, now: datetime, again: bool = False
) -> list[str]:
    """What the systems begin when sources were declared or changed; the ids of those concerned.

    A catalogue without a recipe gets one detected; with `again` also one that has one, or that was
    looked at in vain.
    """
    known = sources_by_id(connection, list(source_ids))
    return ensure_detection(connection, known.values(), now=now, again=again)
