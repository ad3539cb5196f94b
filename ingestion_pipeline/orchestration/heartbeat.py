"""A run that lives says so, and a run that fails gives back what it held."""

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy.exc import SQLAlchemyError

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.politeness import hosts
from ingestion_pipeline.pages.politeness.hosts import mend_clock_step
from ingestion_pipeline.settings.logs import logging_for
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks import claims, heartbeats
from ingestion_pipeline.tasks.worker import Worker

log = logging.getLogger(__name__)


@contextmanager
def working(
    shop: RunContext, *, run_id: str, job: str, owner: str | None = None
) -> Generator[Worker]:
    """The worker of this step; while it works, run and claims are kept alive by a thread."""
    worker = Worker(shop.store, lease_seconds=shop.settings.work.lease_seconds, owner=owner)
    lease = timedelta(seconds=shop.settings.runs.lease_seconds)
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        mend_clock_step(connection, now=now, longest_lease=max(worker.lease, lease))
        heartbeats.begin_run(
            connection, run_id=run_id, owner=worker.owner, job=job, now=now, lease=lease
        )
    stop = threading.Event()
    thread = threading.Thread(target=_beat, args=(shop, worker, run_id, stop), daemon=True)
    thread.start()
    try:
        try:
            with logging_for(run=run_id, job=job):
                yield worker
        finally:  # before anything is given back: a late heartbeat would take it again
            stop.set()
            thread.join()
    except BaseException:
        give_back(shop.store, run_id=run_id)
        raise


@contextmanager
def whole_run(shop: RunContext, *, run_id: str, job: str) -> Generator[None]:
    """The same for a run of one step."""
    with working(shop, run_id=run_id, job=job):
        yield
    end(shop.store, run_id=run_id)


def _beat(shop: RunContext, worker: Worker, run_id: str, stop: threading.Event) -> None:
    lease = timedelta(seconds=shop.settings.runs.lease_seconds)
    while not stop.wait(min(lease.total_seconds(), worker.lease.total_seconds()) / 3):
        try:
            with shop.store.begin() as connection:
                now = shop.store.clock.now(connection)
                heartbeats.beat_run(connection, run_id=run_id, now=now, lease=lease)
            worker.renew()
        except SQLAlchemyError:  # the next beat may get through; without a thread none would
            log.warning("heartbeat failed; the lease goes on until it expires", exc_info=True)


def end(store: Store, *, run_id: str) -> None:
    """The run is over and holds nothing."""
    with store.begin() as connection:
        heartbeats.end_run(connection, run_id=run_id, now=store.clock.now(connection))


def give_back(store: Store, *, run_id: str) -> int:
    """A dead run's claims and hosts are free at once; how many claims it still had."""
    with store.begin() as connection:
        now = store.clock.now(connection)
        owner = heartbeats.end_run(connection, run_id=run_id, now=now)
        if owner is None:
            return 0
        freed = claims.expire(connection, owner=owner, now=now)  # tasks before hosts, as all do it
        hosts.release_owner(connection, owner=owner, now=now)
        return freed
