"""The Dagster definitions: assets, checks, jobs, schedules, sensors and resources."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from ingestion_pipeline.engine.context import Names
from ingestion_pipeline.orchestration.assets import source_definitions
from ingestion_pipeline.orchestration.automation import schedules, sensors
from ingestion_pipeline.orchestration.checks import health_definitions, run_context_resource
from ingestion_pipeline.orchestration.jobs import job_definitions
from ingestion_pipeline.orchestration.mount import OWNERS, RESOURCE, Mount
from ingestion_pipeline.orchestration.rows import rows_io_manager


def build_definitions(
    *,
    key_prefix: Sequence[str] = (),
    job_prefix: str = "",
    group: str | None = None,
    owners: Sequence[str] | None = None,
    sources: str | Path | None = None,
    database_url: str | None = None,
    home: str | Path | None = None,
    resource_key: str = RESOURCE,
) -> dg.Definitions:
    """Return assets, checks, jobs, schedules and sensors over one store, to merge with other definitions.

    `key_prefix` is that of the assets, `job_prefix` that of jobs, schedules, sensors, partition sets and shards. What
    is not given comes from the environment: `sources` from INGESTION_SOURCES, `database_url` from
    INGESTION_DATABASE_URL, `home` from INGESTION_HOME. A second mount in the same code location needs other prefixes
    and another `resource_key`.
    """
    given = {"INGESTION_SOURCES": sources, "INGESTION_DATABASE_URL": database_url, "INGESTION_HOME": home}
    mount = Mount(
        names=Names(key_prefix=tuple(key_prefix), job_prefix=job_prefix),
        resource_key=resource_key,
        group=group,
        owners=OWNERS if owners is None else owners,
        environment={name: str(value) for name, value in given.items() if value is not None},
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Parameter `backfill_policy`", category=dg.BetaWarning)
        return _definitions(mount)


def _definitions(mount: Mount) -> dg.Definitions:
    parts = [source_definitions(mount), health_definitions(mount), job_definitions(mount)]
    jobs = [job for part in parts for job in part.jobs or ()]
    by_name = {job.name.removeprefix(mount.names.job_prefix): job for job in jobs}
    return dg.Definitions(
        assets=[asset for part in parts for asset in part.assets or ()],
        asset_checks=[check for part in parts for check in part.asset_checks or ()],
        jobs=jobs,
        schedules=schedules(mount, by_name),
        sensors=sensors(mount, by_name),
        resources={mount.resource_key: run_context_resource(mount), mount.io_key: rows_io_manager(mount)},
    )


# Materializing assets in the UI, too, takes the run's own process: another one costs three seconds a step.
defs = dg.Definitions.merge(build_definitions(), dg.Definitions(executor=dg.in_process_executor))
