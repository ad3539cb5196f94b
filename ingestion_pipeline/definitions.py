"""The Dagster definitions: assets, checks, jobs, schedules, sensors and resources."""

import dagster as dg

from ingestion_pipeline.orchestration.assets import (
    DRAINING_JOBS,
    INGEST_JOBS,
    POLL_JOBS,
    POLLED_ASSETS,
    POLLED_JOBS,
    WORK_ASSETS,
    sources,
)
from ingestion_pipeline.orchestration.automation import SCHEDULES, SENSORS
from ingestion_pipeline.orchestration.checks import ASSET_CHECKS, CONTRACT_CHECKS, run_context, source_health
from ingestion_pipeline.orchestration.jobs import EXTRACTION_JOBS, JOBS, notices


def build_definitions() -> dg.Definitions:
    """Return assets, checks, jobs, schedules and sensors over one run context.

    Steps run in the run's own process (another one costs three seconds each), and what passes
    between them are ids, which stay in memory: nothing is pickled.
    """
    return dg.Definitions(
        assets=[sources, *POLLED_ASSETS, *WORK_ASSETS, notices, source_health],
        asset_checks=[*ASSET_CHECKS, *CONTRACT_CHECKS],
        jobs=[*POLL_JOBS.values(), *POLLED_JOBS, *DRAINING_JOBS.values(), *INGEST_JOBS, *JOBS, *EXTRACTION_JOBS],
        schedules=SCHEDULES,
        sensors=SENSORS,
        resources={"run_context": run_context, "io_manager": dg.mem_io_manager},
        executor=dg.in_process_executor,
    )


defs = build_definitions()
