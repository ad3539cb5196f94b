"""Run a job in this process, on the instance of DAGSTER_HOME or else a temporary one."""

import dagster as dg
from dagster._core.errors import DagsterExecutionInterruptedError, DagsterHomeNotSetError
from dagster_shared.error import SerializableErrorInfo

# Errors are returned; Dagster's own log would also show the traceback of Ctrl-C.
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
INTERRUPT = DagsterExecutionInterruptedError.__name__


def run_job(definitions: dg.Definitions, name: str) -> tuple[bool, list[str]]:
    """Run the job; return whether it succeeded, and its errors; raise KeyboardInterrupt after Ctrl-C."""
    try:
        instance = dg.DagsterInstance.get()
    except DagsterHomeNotSetError:
        instance = dg.DagsterInstance.ephemeral()
    with instance:
        job = definitions.resolve_job_def(name)
        result = job.execute_in_process(instance=instance, run_config=QUIET, raise_on_error=False)
    errors = [error for event in result.all_events if (error := _error_of(event)) is not None]
    if any(_is_interrupt(error) for error in errors):
        raise KeyboardInterrupt
    return result.success, [error.to_string() for error in errors]


def _error_of(event: dg.DagsterEvent) -> SerializableErrorInfo | None:
    if event.is_step_failure:
        return event.step_failure_data.error
    return event.job_failure_data.error if event.is_job_failure else None


def _is_interrupt(error: SerializableErrorInfo) -> bool:
    return error.cls_name == INTERRUPT or (error.cause is not None and _is_interrupt(error.cause))
