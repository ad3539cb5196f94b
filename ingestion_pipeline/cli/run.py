"""`ingest run`: process sources now, to the end; and how commands run Dagster jobs: with progress, without a log."""

import logging
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import click

from ingestion_pipeline.cli.output import cell, echo, is_json, json_option, print_json, print_table, progress, shortened
from ingestion_pipeline.cli.session import environment, opened, variables_set, verbose_option
from ingestion_pipeline.sources.source import QUARANTINED, Kind
from ingestion_pipeline.terminal import counted

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ingestion_pipeline.engine.system_spec import WorkJob
    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.sources import Source
    from ingestion_pipeline.store import Store

LONGEST_WAIT_SECONDS = 60.0  # for a retry or a host's delay; what waits longer is reported instead
LOG_LEVEL = "INGESTION_LOG_LEVEL"
LONGEST_ERROR = 500


@contextmanager
def running_jobs(*, is_verbose: bool, lists_jobs: bool = False) -> Generator[Callable[..., bool]]:
    """Yield what runs a job, of a partition if one is named, and returns whether it succeeded.

    Only errors are logged, unless it `is_verbose` or the environment sets a level: the report states what warnings
    would repeat. Without a terminal `lists_jobs` prints the names on stderr instead of a progress bar.
    """
    from ingestion_pipeline import defs
    from ingestion_pipeline.orchestration.runs import run_job

    def run(name: str, partition_key: str | None = None) -> bool:
        advance(name)
        if lists_jobs and not sys.stderr.isatty():
            echo(f"{name} ...", is_error=True)
        has_succeeded, errors = run_job(defs, name, partition_key=partition_key)
        for error in errors:
            echo(f"{name} failed: {shortened(error, LONGEST_ERROR)}", is_error=True)
        return has_succeeded

    level = logging.getLogger("ingestion_pipeline").level
    is_quiet = not is_verbose and not environment().get(LOG_LEVEL)
    with variables_set({LOG_LEVEL: "ERROR"} if is_quiet else {}), progress() as advance:
        try:
            yield run
        finally:
            logging.getLogger("ingestion_pipeline").setLevel(level)


@click.command()
@click.argument("source_ids", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--minutes", default=30.0, show_default=True, type=click.FloatRange(min=0), help="Stop after this time.")
@verbose_option
@json_option
def run(*, source_ids: tuple[str, ...], minutes: float, verbose: bool) -> None:
    """Poll, crawl, read and publish each SOURCE now, to the end.

    For a first look, and for CI: exits with 0 only if rows of every source are published.
    """
    from ingestion_pipeline.cli.installation import with_dagster_home

    with opened() as (settings, store):
        _import_declared(store, settings)
        home = with_dagster_home(environment(), settings.home)["DAGSTER_HOME"]
        with variables_set({"DAGSTER_HOME": home}), running_jobs(is_verbose=verbose, lists_jobs=True) as run_job:
            work = partial(processed, store, settings, run_job, seconds=minutes * 60)
            results = [work(source_id) for source_id in dict.fromkeys(source_ids)]
    if is_json():
        print_json([result.facts() for result in results])
    else:
        rows = [[r.source.id, r.source.record_count, "yes" if r.is_published else "no", r.outcome()] for r in results]
        print_table(("source", "records", "published", "result"), rows, flexible={"result"})
    if not all(result.is_published for result in results):
        raise click.exceptions.Exit(1)


def _import_declared(store: "Store", settings: "Settings") -> None:
    """Register what the source files declare; mistakes are printed, and the good files are registered."""
    from ingestion_pipeline.registry import declared, definition_check
    from ingestion_pipeline.sources.files import import_files

    if not settings.sources.is_dir():
        return
    imported = import_files(store, settings.sources, check=definition_check(settings.sources))
    for problem in imported.problems:
        echo(str(problem), is_error=True)
    with store.begin() as connection:
        declared(connection, now=store.clock.now(connection))


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """A source after it was processed; `waiting` are tasks that were left, the first due at `waits_until`."""

    source: "Source"
    since: datetime
    waiting: int
    waits_until: datetime | None
    is_held_back: bool

    @property
    def is_published(self) -> bool:
        """Whether the source was read successfully, and what was read is published."""
        at = self.source.last_success_at
        return self.source.record_count > 0 and at is not None and at >= self.since and not self.is_held_back

    def outcome(self) -> str:
        """Return the result in words: the source's last outcome and what is left."""
        left = f"; {counted(self.waiting, 'task')} left, next at {cell(self.waits_until)}" if self.waiting else ""
        return (self.source.status_reason or self.source.last_outcome or "not read yet") + left

    def facts(self) -> dict[str, object]:
        """Return the result under stable keys."""
        return {
            "source": self.source.id,
            "published": self.is_published,
            "records": self.source.record_count,
            "status": self.source.status,
            "result": self.outcome(),
            "waiting": self.waiting,
        }


def processed(
    store: "Store", settings: "Settings", run_job: Callable[..., bool], source_id: str, *, seconds: float
) -> Processed:
    """Run the jobs of the source's kind until nothing of it waits, or the time is over."""
    from ingestion_pipeline.registry import declared
    from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id

    until = time.monotonic() + seconds
    with store.begin() as connection:
        since = store.clock.now(connection)
        source = sources_by_id(connection, [source_id]).get(source_id)
        if source is None:
            raise UnknownSource(source_id)
        declared(connection, [source_id], now=since, retries=True)
    jobs = _draining_jobs(source.kind)
    if source.kind is Kind.CATALOG:
        run_job("detect_recipes")
    run_job(f"ingest_{source.kind}", source_id)
    _drain(store, settings, run_job, jobs, source_id, until)
    with store.read() as connection:
        waiting, next_at = _waiting(connection, source_id)
        source = sources_by_id(connection, [source_id])[source_id]
        return Processed(
            source=source,
            since=since,
            waiting=waiting,
            waits_until=next_at,
            is_held_back=_is_held_back(connection, source),
        )


def _is_held_back(connection: "Connection", source: "Source") -> bool:
    """Return whether the last feed, or the newest dataset, is quarantined."""
    from sqlalchemy import select

    from ingestion_pipeline.store.tables import datasets

    newest = select(datasets.c.status).where(datasets.c.source_id == source.id).order_by(datasets.c.version.desc())
    is_dataset_held = connection.scalar(newest.limit(1)) == QUARANTINED
    return is_dataset_held or (source.last_outcome or "").startswith(QUARANTINED)


def _draining_jobs(kind: Kind) -> "list[WorkJob]":
    """Return the jobs that drain the tasks of the kind, in the order in which work passes through them."""
    from ingestion_pipeline.registry import systems

    specs = [spec for system in systems() for spec in system.work]
    return [spec.job for spec in specs if spec.kind == kind.value and spec.job is not None]


def _drain(
    store: "Store",
    settings: "Settings",
    run_job: Callable[..., bool],
    jobs: "Sequence[WorkJob]",
    source_id: str,
    until: float,
) -> None:
    """Run the draining jobs until no task of the source waits that is due soon."""
    while time.monotonic() < until:
        for job in jobs:
            with store.read() as connection:
                has_work = bool(job.pending(connection, settings, store.clock.now(connection)))
            if has_work:
                run_job(job.name)
        if source_id.partition(":")[0] == Kind.CATALOG.value:
            run_job("complete_extractions")
        with store.read() as connection:
            waiting, next_at = _waiting(connection, source_id)
            now = store.clock.now(connection)
        if not waiting or next_at is None:
            return
        wait = (next_at - now).total_seconds()
        if wait > LONGEST_WAIT_SECONDS or time.monotonic() + wait > until:
            return
        time.sleep(max(wait, 0.0))


def _waiting(connection: "Connection", source_id: str) -> tuple[int, datetime | None]:
    """Return how many tasks of the source wait besides its next poll, and when the first is due."""
    from sqlalchemy import func, select

    from ingestion_pipeline.sources.poll_tasks import POLL
    from ingestion_pipeline.store.tables import ACTIVE, tasks

    query = select(func.count(), func.min(tasks.c.not_before)).where(
        tasks.c.source_id == source_id, tasks.c.kind != POLL, ACTIVE
    )
    count, first = connection.execute(query).one()
    return count, first
