"""A separate installation for each Dagster test: home, source files, and access to its rows."""

import logging
import shutil
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster import AddDynamicPartitionsRequest
from sqlalchemy import delete, func, insert, select, update

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.definitions import defs
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.orchestration.runs import QUIET
from ingestion_pipeline.registry import check_definition
from ingestion_pipeline.sources import Definition, Source
from ingestion_pipeline.sources.files import read_file
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_tasks import make_due
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import tables

DEMO_FILE = Path(__file__).parents[2] / "ingestion_pipeline" / "demo" / "sources.yaml"
LIGHTHOUSE, SALT, BROKEN = "series:lighthouse-feed", "series:salt-mangadex", "series:ghost-broken"
FLAKY = "series:orchard-flaky"
PARTITION = "dagster/partition"


def demo_definitions(*ids: str) -> list[Definition]:
    """Return the demo's sources with these ids."""
    by_id = {definition.id: definition for definition in read_file(DEMO_FILE, check=check_definition).definitions}
    return [by_id[source_id] for source_id in ids]


@dataclass(frozen=True)
class Installation:
    """The folders that INGESTION_HOME and INGESTION_SOURCES name in this test."""

    home: Path
    sources: Path

    @classmethod
    def build(cls, folder: Path, template: Path) -> "Installation":
        """Create an empty database, copied from a migrated one, and an empty folder of source files."""
        installation = cls(home=folder / "home", sources=folder / "sources")
        installation.home.mkdir(mode=0o700)
        installation.sources.mkdir()
        shutil.copy(template, installation.home / "ingestion.db")
        return installation

    @property
    def environment(self) -> dict[str, str]:
        """Return settings without a delay between requests to our own site, and with short retries."""
        return {
            "INGESTION_HOME": str(self.home),
            "INGESTION_SOURCES": str(self.sources),
            "INGESTION_HOSTS__DELAY_SECONDS": "0",
            "INGESTION_WORK__BACKOFF_BASE_SECONDS": "0.05",
            "INGESTION_EXTRACTION__QUIET_SECONDS": "0",
        }

    @cached_property
    def instance(self) -> dg.DagsterInstance:
        """Return the ephemeral Dagster instance of this test."""
        return dg.DagsterInstance.ephemeral()

    def run_job(self, name: str, **options: Any) -> dg.ExecuteInProcessResult:
        return run_job(name, self.instance, **options)

    def tick_sensor(self, name: str, **options: Any) -> Any:
        return tick_sensor(name, self.instance, **options)

    @contextmanager
    def open(self) -> Generator[RunContext]:
        with open_run_context(self.environment) as ctx:
            yield ctx

    def add(self, *definitions: Definition) -> None:
        with self.open() as ctx, ctx.store.begin() as connection:
            register(connection, definitions, now=ctx.store.clock.now(connection))

    def add_demo(self, *ids: str) -> None:
        self.add(*demo_definitions(*ids))

    def make_due(self, *ids: str) -> None:
        with self.open() as ctx, ctx.store.begin() as connection:
            assert make_due(connection, ids, now=ctx.store.clock.now(connection)) == len(ids)

    def source(self, source_id: str) -> Source:
        with self.open() as ctx, ctx.store.read() as connection:
            return sources_by_id(connection, [source_id])[source_id]

    def set_source(self, source_id: str, **values: Any) -> None:
        """Set columns of the source's row, as its history would have."""
        with self.open() as ctx, ctx.store.begin() as connection:
            where = tables.sources.c.id == source_id
            assert connection.execute(update(tables.sources).where(where).values(values)).rowcount

    def poll_task(self, source_id: str) -> dict[str, Any]:
        """Return the row of the source's poll task."""
        query = select(tables.tasks).where(tables.tasks.c.source_id == source_id)
        with self.open() as ctx, ctx.store.read() as connection:
            return dict(connection.execute(query).mappings().one())

    def set_poll_task(self, source_id: str, **values: Any) -> None:
        """Set columns of the source's poll task, as an accident would have."""
        with self.open() as ctx, ctx.store.begin() as connection:
            where = tables.tasks.c.source_id == source_id
            assert connection.execute(update(tables.tasks).where(where).values(values)).rowcount

    def add_waiting_batches(self, count: int) -> None:
        """Add fetched feeds that wait to be ingested."""
        with self.open() as ctx, ctx.store.begin() as connection:
            now = ctx.store.clock.now(connection)
            waiting = {"batch_id": "b", "fence": 1, "source_id": "series:x", "fetched": {}}
            connection.execute(
                insert(tables.batch_items), [waiting | {"task_id": n, "fetched_at": now} for n in range(count)]
            )

    def clear_database(self) -> None:
        """Delete every row."""
        with self.open() as ctx, ctx.store.begin() as connection:
            for table in reversed(tables.metadata.sorted_tables):
                connection.execute(delete(table))

    def rows(self, table: str) -> list[dict[str, Any]]:
        with self.open() as ctx, ctx.store.read() as connection:
            rows = connection.execute(select(tables.metadata.tables[table])).mappings()
            return [dict(row) for row in rows]

    def chapters_of(self, source_id: str) -> int:
        """Return how many chapters of the source are available."""
        links = tables.chapter_sources
        query = select(func.count()).where(links.c.source_id == source_id, links.c.available)
        with self.open() as ctx, ctx.store.read() as connection:
            return connection.execute(query).scalar_one()


def run_job(
    name: str,
    instance: dg.DagsterInstance,
    *,
    tags: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> dg.ExecuteInProcessResult:
    """Run the job in this process, as `dagster job execute` does; a failure is a result."""
    return defs.resolve_job_def(name).execute_in_process(
        instance=instance, run_config={**QUIET, **(config or {})}, tags=dict(tags or {}), raise_on_error=False
    )


def materialized(result: dg.ExecuteInProcessResult, asset: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the metadata of each materialized partition; two events of one partition are an error."""
    by_partition: dict[str, dict[str, Any]] = {}
    for event in result.all_events:
        if event.event_type == dg.DagsterEventType.ASSET_MATERIALIZATION:
            if asset is not None and event.asset_key != dg.AssetKey(asset):
                continue
            assert event.partition is not None
            assert event.partition not in by_partition, f"{event.partition} was materialized twice"
            metadata = event.materialization.metadata
            by_partition[event.partition] = {name: value.value for name, value in metadata.items()}
    return by_partition


def observed(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, dict[str, Any]]:
    """Return the metadata of each partition that was reported without being materialized."""
    observations = [
        event.asset_observation_data.asset_observation
        for event in result.all_events
        if event.event_type == dg.DagsterEventType.ASSET_OBSERVATION
    ]
    return {
        str(observation.partition): {name: value.value for name, value in observation.metadata.items()}
        for observation in observations
        if observation.asset_key == dg.AssetKey(asset)
    }


def details(metadata: Mapping[str, Any], name: str = "details") -> dict[str, Any]:
    """Return the table of details as a dictionary."""
    return {record.data["detail"]: record.data["value"] for record in metadata[name].records}


def check_results(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    """Return whether each check evaluated by the run passed."""
    return {
        event.asset_check_evaluation_data.check_name: event.asset_check_evaluation_data.passed
        for event in result.all_events
        if event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION
    }


def failure_message(result: dg.ExecuteInProcessResult) -> str:
    """Return the messages of the failed step, including its causes."""
    assert not result.success
    messages: list[str] = []
    for event in result.all_events:
        if event.event_type == dg.DagsterEventType.STEP_FAILURE:
            data = event.step_failure_data
            error = data.error
            while error is not None:
                messages.append(error.message)
                error = error.cause
            if data.user_failure_data and data.user_failure_data.description:
                messages.append(data.user_failure_data.description)
    return "\n".join(messages)


def source_file(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a source file."""
    return yaml.safe_dump({"sources": [dict(entry) for entry in entries]}, sort_keys=False)


def an_entry(source_id: str = LIGHTHOUSE, **changes: Any) -> dict[str, Any]:
    """Return an entry of a source file: the demo's lighthouse feed."""
    values = {
        "id": source_id,
        "kind": "series",
        "url": "http://feeds.demo.test/lighthouse.xml",
        "platform": "rss",
        "tier": "hot",
        "series": "lighthouse",
    }
    return values | changes


def tick_sensor(
    name: str, instance: dg.DagsterInstance, *, cursor: str | None = None, log_lines: list[str] | None = None
) -> Any:
    """Evaluate a tick of the sensor; add and remove its partitions, as the daemon does.

    `log_lines` receives the sensor's log records, each with its level.
    """
    repository = defs.get_repository_def()
    with open_run_context() as ctx:
        context = dg.build_sensor_context(
            instance=instance, cursor=cursor, repository_def=repository, resources={"run_context": ctx}
        )
        if log_lines is not None:
            context.log.addHandler(_Listener(log_lines))
        data = repository.get_sensor_def(name).evaluate_tick(context)
    for request in data.dynamic_partitions_requests or []:
        for key in request.partition_keys:
            if isinstance(request, AddDynamicPartitionsRequest):
                instance.add_dynamic_partitions(request.partitions_def_name, [key])
            else:
                instance.delete_dynamic_partition(request.partitions_def_name, key)
    return data


class _Listener(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._heard = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._heard.append(f"{record.levelname}: {record.getMessage()}")
