"""The time of a run: until when it may start work, why it stops, and for what it waits."""

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from ingestion_pipeline.pages.politeness.hosts import Network
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline.tasks.errors import Fatal, Resource


class TimeBudget:
    """Starts when it is made; a fatal error, a network outage or an old heartbeat ends it early."""

    def __init__(
        self,
        worker: Worker,
        clock: SteadyClock,
        *,
        seconds: float,
        network: Network | None,
        may_start: Callable[[], bool],
    ) -> None:
        self.fatal: Fatal | None = None
        self._worker = worker
        self._clock = clock
        self._network = network
        self._may_start = may_start
        self._ends = time.monotonic() + seconds
        self._again_at: set[datetime] = set()

    def is_left(self) -> bool:
        """Return whether anything new may be started."""
        is_ended = self.fatal is not None or time.monotonic() >= self._ends or self._is_network_down
        return not is_ended and self._worker.may_start() and self._may_start()

    @property
    def _is_network_down(self) -> bool:
        return self._network is not None and self._network.problem is not None

    def reason_to_stop(self) -> Resource | None:
        """Return the error with which work that was not started is released; None if it may be started."""
        if self.is_left():
            return None
        if self._network is not None and self._is_network_down:
            return self._network.released(self._clock.now())
        return Resource("the run's time budget was used up", until=self._clock.now(), code="slice_over")

    def stopped(self) -> Resource:
        """Return the error with which unfinished work is released when the run ends."""
        return Resource("the run was stopped", until=self._clock.now(), code="stopped")

    def expect(self, times: Iterable[datetime]) -> None:
        """Note times at which work of this run is due again."""
        self._again_at.update(times)

    async def rest(self, longest: timedelta) -> bool:
        """Wait until expected work is due, if that is soon; return whether it is."""
        now = self._clock.now()
        ahead = {at for at in self._again_at if at > now}
        is_due = len(ahead) < len(self._again_at)  # since the last claim
        self._again_at = ahead
        if is_due or not ahead or not self.is_left():
            return is_due and self.is_left()
        if min(ahead) - now > longest:
            return False
        await asyncio.sleep((min(ahead) - now).total_seconds() + 0.01)
        return True
