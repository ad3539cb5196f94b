"""Tasks: claims, leases, retries, dead letters and the guard that limits spawning.

New tasks come from sources and from other tasks. Finished tasks are written in one transaction with their results. What
a task means does not belong here and is not known here: each system brings its own work.
"""

# pyright: reportUnusedImport=false

from ingestion_pipeline.tasks.claims import ClaimFilter, LostClaim, Worker
from ingestion_pipeline.tasks.errors import ErrorClass, Fatal, Permanent, Resource, Transient, WorkError, classify
from ingestion_pipeline.tasks.task import Move, NewTask, Task, TaskStatus
