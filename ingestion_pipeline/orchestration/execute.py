"""A job in this process, for commands: on the instance of DAGSTER_HOME, else on a temporary one."""

import dagster as dg
from dagster._core.errors import DagsterHomeNotSetError

QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}


def run_job(definitions: dg.Definitions, name: str) -> bool:
    """Whether the job's run succeeded."""
    try:
        instance = dg.DagsterInstance.get()
    except DagsterHomeNotSetError:
        instance = dg.DagsterInstance.ephemeral()
    with instance:
        job = definitions.resolve_job_def(name)
        return job.execute_in_process(
            instance=instance, run_config=QUIET, raise_on_error=False
        ).success
