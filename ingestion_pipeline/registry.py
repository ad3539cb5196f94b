"""The systems: everything that iterates over them starts here.

A system of this package is a line in `OWN_SYSTEMS`. A package of your own registers one through the
entry point group `ingestion_pipeline.systems`, whose value names a `SystemSpec`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from sqlalchemy import Connection

from ingestion_pipeline.engine.context import DeferredSystem, PolledSystem
from ingestion_pipeline.engine.system_spec import KindSpec, SystemSpec
from ingestion_pipeline.notices.queries import DELIVER, requeue_messages
from ingestion_pipeline.sources import Definition, Kind, Source, SourceStatus
from ingestion_pipeline.sources.declarations import BadField, declaration, definition_of
from ingestion_pipeline.sources.lookup import list_sources, sources_by_id
from ingestion_pipeline.sources.platforms import register_kind
from ingestion_pipeline.sources.source import NOTICE_KINDS
from ingestion_pipeline.store import Store, database
from ingestion_pipeline.store.tables import metadata
from ingestion_pipeline.tasks import ended_tasks

# The systems of this package, one line each.
OWN_SYSTEMS = (
    "ingestion_pipeline.series.system:SYSTEM",
    "ingestion_pipeline.catalogs.system:SYSTEM",
    "ingestion_pipeline.companies.system:SYSTEM",
    "ingestion_pipeline.websites.system:SYSTEM",
)
GROUP = "ingestion_pipeline.systems"  # entry points of packages that bring a system of their own


class BadPlugin(ImportError):
    """A system of another package that cannot be used; the message names the package and the cure."""

    def __init__(self, plugin: EntryPoint, problem: str) -> None:
        package = plugin.dist.name if plugin.dist else plugin.module
        cure = f"upgrade the package, or remove it: pip uninstall {package}"
        super().__init__(f"the system {plugin.name!r} of the package {package} {problem}; {cure}")


@cache
def systems() -> tuple[SystemSpec, ...]:
    """Return every system: those of this package, then those of installed packages, by name."""
    specs = [EntryPoint(name="", value=value, group=GROUP).load() for value in OWN_SYSTEMS]
    for plugin in sorted(entry_points(group=GROUP), key=lambda plugin: plugin.name):
        spec = _plugin_system(plugin)
        if clashes := names_of(spec) & {name for other in specs for name in names_of(other)}:
            raise BadPlugin(plugin, f"uses names that another system has: {', '.join(sorted(clashes))}")
        specs.append(spec)
    for kind in (kind for spec in specs for kind in spec.kinds if kind.platforms):
        register_kind(kind.name, kind.platforms)
    NOTICE_KINDS[:] = [kind for spec in specs for kind in spec.notices]
    return tuple(specs)


@cache
def kind_specs() -> dict[Kind, KindSpec]:
    """Return the spec of every kind of source."""
    return {kind.kind: kind for system in systems() for kind in system.kinds}


def system_of(kind: Kind) -> SystemSpec:
    """Return the system that the kind belongs to."""
    return next(system for system in systems() if kind in [spec.kind for spec in system.kinds])


def _plugin_system(plugin: EntryPoint) -> SystemSpec:
    try:
        spec = plugin.load()
    except Exception as error:
        raise BadPlugin(plugin, f"cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(spec, SystemSpec):
        raise BadPlugin(plugin, f"is no SystemSpec: {plugin.value} is of the type {type(spec).__name__}")
    return spec


def names_of(spec: SystemSpec) -> set[str]:
    """Return the names of the system that no other system may use."""
    names = {
        "system": [spec.name],
        "kind": [kind.name for kind in spec.kinds],
        "partition set": [kind.partitions for kind in spec.kinds],
        "table": [table.name for table in spec.tables],
        "sweep": spec.sweeps,
        "task": spec.requeue,
        "work": [work.name for work in spec.work],
        "job": [work.job.name for work in spec.work if work.job is not None],
        "notice": spec.notices,
    }
    return {f"{noun} {name}" for noun, owned in names.items() for name in owned}


def create_tables(store: Store) -> None:
    """Create the tables that systems declare beside those of this package, where they are missing."""
    if own := [table for system in systems() for table in system.tables if table.metadata is not metadata]:
        database.create_missing_tables(store.engine, own)


def polled_systems() -> dict[Kind, PolledSystem]:
    """Return the systems that the poll jobs poll, by kind."""
    return {kind: spec.polled for kind, spec in kind_specs().items() if spec.polled is not None}


def deferred_systems() -> dict[Kind, DeferredSystem]:
    """Return the systems whose polls only start work that other runs do, by kind."""
    return {kind: spec.deferred for kind, spec in kind_specs().items() if spec.deferred is not None}


def ingesting_kinds() -> tuple[str, ...]:
    """Return the kinds of tasks that ingest what was fetched."""
    return tuple(kind for system in systems() for kind in system.ingesting)


def replay(connection: Connection, dead_letter_id: int, *, actor: str, now: datetime) -> str:
    """Requeue the work of the dead letter, due now; return the outcome in a word for people."""
    dead_letter = ended_tasks.find_dead_letter(connection, dead_letter_id)
    by_kind = {DELIVER: requeue_messages} | {kind: fn for system in systems() for kind, fn in system.requeue.items()}
    requeue = None if dead_letter is None else by_kind.get(dead_letter["task_kind"])
    return ended_tasks.replay(connection, dead_letter_id, actor=actor, now=now, requeue=requeue)


def requeue_dead_letters(
    store: Store, dead_letter_ids: Sequence[int], *, actor: str, dry_run: bool = False
) -> Iterator[ended_tasks.ReplayResult]:
    """Requeue each dead letter in its own transaction: a failing one does not stop the others.

    A dry run reports what would become of each, and writes nothing.

    Raises:
        UnknownDeadLetter: nothing was replayed.
    """
    with store.read() as connection:
        ended_tasks.check_dead_letters(connection, dead_letter_ids)
    for dead_letter_id in dict.fromkeys(dead_letter_ids):
        with store.begin() as connection:
            now = store.clock.now(connection)
            outcome = replay(connection, dead_letter_id, actor=actor, now=now)
            if dry_run:
                connection.rollback()
        yield ended_tasks.ReplayResult(dead_letter_id, outcome)


def definition_check(sources: Path) -> Callable[[Definition], Iterable[BadField]]:
    """Return `check_definition` for entity types that stand beside the source files; all kinds are known."""
    systems()
    return partial(check_definition, folder=sources)


def check_definition(definition: Definition, *, folder: Path | None = None) -> Iterable[BadField]:
    """Return what is wrong with a declared source's URL or config, by its system's rules."""
    problems = kind_specs()[definition.kind].problems
    return () if problems is None else problems(definition, folder)


def approval_problems(source: Source, sources: Path) -> list[str]:
    """Return why a source that waits for approval could not be polled; empty for any other.

    A source that discovery was not sure of may lack what its reader needs.
    """
    if source.status is not SourceStatus.PENDING_VALIDATION:
        return []
    _, bad = definition_of(declaration(source), check=definition_check(sources))
    cure = f"`ingest sources update {source.id} --config` fixes it, then it can be enabled"
    return [f"{problem.field}: {problem.message}; {cure}" for problem in bad]


def declared(
    connection: Connection,
    source_ids: Iterable[str] | None = None,
    *,
    now: datetime,
    again: bool = False,
    retries: bool = False,
) -> list[str]:
    """Start what the systems do for declared or changed sources, or for all; return the ids concerned.

    A catalogue without a recipe gets one detected; with `retries` also one whose detection has failed,
    with `again` also one that has a recipe.
    """
    ids = None if source_ids is None else list(source_ids)
    started: list[str] = []
    for system in systems():
        if system.declared is not None:
            if ids is None:
                existing = [source for kind in system.kinds for source in list_sources(connection, kind=kind.kind)]
            else:
                existing = list(sources_by_id(connection, ids).values())
            started += system.declared(connection, existing, now=now, again=again, retries=retries)
    return started
