"""Heartbeats of runs: keep a run and its claims alive, and release them when it fails."""

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.politeness import hosts
from ingestion_pipeline.pages.politeness.hosts import repair_clock_step
from ingestion_pipeline.settings.logs import logging_for
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks import claims, run_heartbeats
from ingestion_pipeline.tasks.worker import Worker

log = logging.getLogger(__name__)


@contextmanager
def working(ctx: RunContext, *, run_id: str, job: str, owner: str | None = None) -> Generator[Worker]:
    """Yield the worker of this step; a thread renews the run and its claims meanwhile."""
    worker = Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds, owner=owner)
    lease = timedelta(seconds=ctx.settings.runs.lease_seconds)
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        repair_clock_step(connection, now=now, longest_lease=max(worker.lease, lease))
        run_heartbeats.begin_run(connection, run_id=run_id, owner=worker.owner, job=job, now=now, lease=lease)
    stop = threading.Event()
    thread = threading.Thread(target=_send_heartbeats, args=(ctx, worker, run_id, stop), daemon=True)
    thread.start()
    try:
        try:
            with logging_for(run=run_id, job=job):
                yield worker
        finally:  # before claims are released: a late heartbeat would renew them
            stop.set()
            thread.join()
    except BaseException:
        release_run(ctx.store, run_id=run_id)
        raise


@contextmanager
def whole_run(ctx: RunContext, *, run_id: str, job: str) -> Generator[None]:
    """Keep a run of one step alive, and end it."""
    with working(ctx, run_id=run_id, job=job):
        yield
    end_run(ctx.store, run_id=run_id)


def _send_heartbeats(ctx: RunContext, worker: Worker, run_id: str, stop: threading.Event) -> None:
    lease = timedelta(seconds=ctx.settings.runs.lease_seconds)
    while not stop.wait(min(lease.total_seconds(), worker.lease.total_seconds()) / 3):
        try:
            with ctx.store.begin() as connection:
                now = ctx.store.clock.now(connection)
                run_heartbeats.beat_run(connection, run_id=run_id, now=now, lease=lease)
            worker.renew()
        except SQLAlchemyError:  # the next heartbeat may succeed
            log.warning("heartbeat failed; the lease stays until it expires", exc_info=True)


def end_run(store: Store, *, run_id: str) -> None:
    """Mark the run as ended; it holds nothing."""
    with store.begin() as connection:
        run_heartbeats.end_run(connection, run_id=run_id, now=store.clock.now(connection))


def release_run(store: Store, *, run_id: str) -> int:
    """Free the claims and hosts of a dead run; return how many claims it still had."""
    with store.begin() as connection:
        now = store.clock.now(connection)
        owner = run_heartbeats.end_run(connection, run_id=run_id, now=now)
        if owner is None:
            return 0
        freed = claims.expire(connection, owner=owner, now=now)  # tasks before hosts: the lock order
        hosts.release_owner(connection, owner=owner, now=now)
        return freed
