"""Run Dagster jobs from a command: one after the other in this process, with progress and without their log."""

import logging
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from ingestion_pipeline.cli.output import echo, progress, shortened
from ingestion_pipeline.cli.session import environment, variables_set

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
