"""Tasks that ask hosts for pages: claimed a few at a time, served host by host, written down.

The loop brings leases, manners, heartbeats and the end of a run; what the work is, its crew knows.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from sqlalchemy import Connection

from ingestion_pipeline.pages.host_visits import HostVisits
from ingestion_pipeline.pages.http_fetcher import HttpFetcher
from ingestion_pipeline.pages.leased_hosts import HostLease, LeasedHosts
from ingestion_pipeline.pages.slice_time import TimeBudget
from ingestion_pipeline.pages.workshop import RunContext
from ingestion_pipeline.sources import Source
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.work.claims import LostClaim
from ingestion_pipeline.work.errors import Fatal, WorkError, classify
from ingestion_pipeline.work.task import Task
from ingestion_pipeline.work.worker import Worker

log = logging.getLogger(__name__)


class HostTask(Protocol):
    """A claimed task, the host it asks first, and the source at whose pace."""

    @property
    def task(self) -> Task:
        """The claim."""
        ...

    @property
    def host(self) -> str:
        """Where its first page is."""
        ...

    @property
    def source(self) -> Source:
        """For whom it is done."""
        ...


Item = TypeVar("Item", bound=HostTask)
Ended = TypeVar("Ended")


class HostTaskHandler(Protocol[Item, Ended]):
    """Who does the work."""

    def claim(self) -> tuple[Sequence[Item], Sequence[Ended]]:
        """A few tasks that are ours now, and what needs no visit to end."""
        ...

    async def serve(self, item: Item, host: HostLease) -> Ended:
        """Do it; whatever goes wrong is raised."""
        ...

    def failed(self, item: Item, error: WorkError, stack: str | None) -> Ended:
        """It was not done, for this reason."""
        ...

    def unwritten(self, ended: Ended, error: WorkError) -> Ended:
        """It was done, and could not be written."""
        ...

    def write(self, connection: Connection, ended: Ended, *, now: datetime) -> datetime | None:
        """What it came to, fenced; when it is due again, if it is."""
        ...


class HostWork(Generic[Item, Ended]):
    """One run's part of such work, under one worker identity."""

    def __init__(
        self,
        shop: RunContext,
        worker: Worker,
        fetcher: HttpFetcher,
        crew: HostTaskHandler[Item, Ended],
        *,
        clock: SteadyClock,
        concurrency: int,
    ) -> None:
        self._shop = shop
        self._worker = worker
        self._clock = clock
        self._crew = crew
        self._hosts = LeasedHosts(shop, worker, fetcher, clock)
        self._time = TimeBudget(
            worker, clock, seconds=shop.settings.polling.slice_seconds, network=self._hosts.network
        )
        self._ended: list[Ended] = []
        self._open: dict[int, Item] = {}
        self._visits: HostVisits[Item] = HostVisits(
            self._hosts,
            concurrency=concurrency,
            serve=self._serve,
            leave=self._leave,
            reason_to_stop=self._time.reason_to_stop,
        )

    async def run(self) -> None:
        """Work as long as there is work and time; a fatal error is raised at the end."""
        alive = asyncio.create_task(self._worker.keep_alive(self._hosts.renew))
        try:
            while self._time.is_left():
                done = await self._round()
                if not done and not await self._time.rest():
                    break
        finally:
            alive.cancel()
            await self._visits.stop()
            for item in list(self._open.values()):
                self._leave(item, self._time.stopped())
            await self._flush()
        if self._time.fatal is not None:
            raise self._time.fatal

    async def _round(self) -> int:
        """Claim a few, serve them side by side, write; how many that were."""
        items, ended = await asyncio.to_thread(self._crew.claim)
        self._ended += ended
        by_host: dict[str, list[Item]] = {}
        for item in items:
            self._open[item.task.id] = item
            by_host.setdefault(item.host, []).append(item)
        await self._visits.assign(by_host, lambda item: item.source)
        while self._visits:
            await self._visits.wait(timeout_seconds=1.0)
            await self._flush()
        await self._flush()
        return len(items) + len(ended)

    async def _serve(self, item: Item, host: HostLease) -> None:
        try:
            ended = await self._crew.serve(item, host)
        except LostClaim:
            self._open.pop(item.task.id, None)  # it is another worker's, and so is its end
        except Exception as error:
            self._leave(item, classify(error), stack=traceback.format_exc(limit=-20))
        else:
            self._open.pop(item.task.id, None)
            self._ended.append(ended)

    def _leave(self, item: Item, why: WorkError, *, stack: str | None = None) -> None:
        self._open.pop(item.task.id, None)
        self._ended.append(self._crew.failed(item, why, stack))
        if isinstance(why, Fatal):
            self._time.fatal = why

    async def _flush(self) -> None:
        ended, self._ended = self._ended, []
        async with self._hosts.letting_go() as left:
            if ended or left:
                await asyncio.to_thread(self._write, ended, left)

    def _write(self, ended: Sequence[Ended], left: Mapping[str, HostLease]) -> None:
        """Each end in a transaction of its own: one that cannot be written spoils no other."""
        for one in ended:
            try:
                self._write_one(one)
            except Exception as error:
                failure = classify(error)
                if isinstance(failure, Fatal):
                    raise
                log.warning("what a task came to could not be written", exc_info=True)
                self._write_one(self._crew.unwritten(one, failure))
        self._hosts.let_go(left)

    def _write_one(self, ended: Ended) -> None:
        def write(connection: Connection) -> datetime | None:
            return self._crew.write(connection, ended, now=self._shop.store.clock.now(connection))

        with suppress(LostClaim):
            again_at = self._shop.store.write(write)
            if again_at is not None:
                self._time.expect([again_at])
