"""Who does what, once: tasks, claims, leases, retries, dead letters, and what may spawn what.

New tasks enter from sources and from other tasks; finished ones leave with the results they belong
to, in one transaction. What a task means is not known here: each system brings its own work.
"""

from ingestion_pipeline.tasks.claims import ClaimFilter, LostClaim
from ingestion_pipeline.tasks.errors import (
    ErrorClass,
    Fatal,
    Permanent,
    Resource,
    Transient,
    WorkError,
    classify,
)
from ingestion_pipeline.tasks.task import Move, NewTask, Task, TaskStatus
from ingestion_pipeline.tasks.worker import Worker

__all__ = [
    "ClaimFilter",
    "ErrorClass",
    "Fatal",
    "LostClaim",
    "Move",
    "NewTask",
    "Permanent",
    "Resource",
    "Task",
    "TaskStatus",
    "Transient",
    "WorkError",
    "Worker",
    "classify",
]
