"""Replay recorded changes under the product's scheduling rules: how many requests, and how late. Pure.

The simulated source is polled by `tiers.after_success`, as the real one is; nothing of the rule is repeated here.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.scheduling.change_model import DAY, REMEMBERED_DATES, ChangeModel, with_changes
from ingestion_pipeline.sources.scheduling.tiers import PollState, SchedulingInputs, after_success
from ingestion_pipeline.sources.source import Source, SourceStatus

MOST_TRIES = 8
NEAR = 0.01  # of the requests that are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeHistory:
    """The changes of a source in seconds of the epoch; with `states_dates` its records say when they were published."""

    source: Source
    changes: Sequence[float]
    states_dates: bool
    prior_rate: float


@dataclass(slots=True)
class Replayed:
    """The requests and the delays in seconds that a replay counted."""

    requests: int = 0
    delays: list[float] = field(default_factory=list[float])

    @property
    def mean(self) -> float:
        """Return the mean delay in seconds."""
        return sum(self.delays) / max(len(self.delays), 1)

    @property
    def p90(self) -> float:
        """Return the 90th percentile of the delay in seconds."""
        ordered = sorted(self.delays)
        return ordered[int(len(ordered) * 0.9)] if ordered else 0.0


class SimulatedSource:
    """One source that the product polls: by its tier, or with a change model that it learns and a request cost."""

    def __init__(
        self, source: Source, settings: Settings, *, prior_rate: float, request_cost: float | None = None
    ) -> None:
        self.request_cost = request_cost
        self.state: PollState | None = None
        self._source, self._settings, self._prior_rate = source, settings, prior_rate
        self._last_new = source.created_at
        self._model = ChangeModel()
        self._random = Random(7)  # noqa: S311 - a replay must repeat

    def learn(self, changes: Sequence[float]) -> None:
        """Learn changes of known times from before the replay, as a first sync does."""
        latest = changes[-REMEMBERED_DATES:]
        self._model = with_changes(self._model, [(at, at) for at in latest], prior_rate=self._prior_rate)
        if latest:
            self._last_new = datetime.fromtimestamp(latest[-1], UTC)

    def next(self, detected: Sequence[float], *, since: float, now: float) -> float:
        """Return when the poll's success leads to the next; `detected` is `now` for changes without a date."""
        at = datetime.fromtimestamp(now, UTC)
        if detected:
            self._last_new = at
        self.state = after_success(
            self._source,
            last_new_at=self._last_new,
            now=at,
            settings=self._settings,
            random=self._random,
            inputs=None if self.request_cost is None else self._inputs(self.request_cost, detected, since, now),
        )
        return self.state.next_check_at.timestamp()

    def _inputs(self, cost: float, detected: Sequence[float], since: float, now: float) -> SchedulingInputs:
        if detected:
            changes = [(since, now)] if detected[0] == now else [(at, at) for at in detected]
            self._model = with_changes(self._model, changes, prior_rate=self._prior_rate)
        return SchedulingInputs(change_model=self._model, request_cost=cost, prior_rate=self._prior_rate)


def replay(
    histories: Sequence[ChangeHistory],
    settings: Settings,
    *,
    start: datetime,
    end: datetime,
    request_cost: float | None = None,
) -> Replayed:
    """Replay every history from start to end at a request cost, or by tiers; what is older was learned before."""
    result, begin = Replayed(), start.timestamp()
    for history in histories:
        source = replace(history.source, status=SourceStatus.ACTIVE, failure_count=0)
        simulated = SimulatedSource(source, settings, prior_rate=history.prior_rate, request_cost=request_cost)
        place = bisect_right(history.changes, begin)
        simulated.learn(history.changes[:place])
        since = now = begin
        while now < end.timestamp():
            until = bisect_right(history.changes, now, place)
            new, place = history.changes[place:until], until
            result.requests += 1
            result.delays += [now - at for at in new]
            detected = new if history.states_dates or not new else [now]
            since, now = now, simulated.next(detected, since=since, now=now)
    return result


def at_budget(
    histories: Sequence[ChangeHistory], settings: Settings, *, start: datetime, end: datetime, requests: float
) -> tuple[Replayed, float]:
    """Return the replay that makes about so many requests, and the request cost at which it does."""
    cost = _first_cost(requests / len(histories), end - start)
    result = replay(histories, settings, start=start, end=end, request_cost=cost)
    for _ in range(MOST_TRIES - 1):
        ratio = result.requests / requests
        if abs(ratio - 1) <= NEAR:
            break
        cost *= ratio**2  # checks follow the root of the cost
        result = replay(histories, settings, start=start, end=end, request_cost=cost)
    return result, cost


def _first_cost(checks: float, time: timedelta) -> float:
    """Return the cost of so many checks in that time for a source that changes once a week."""
    interval = time.total_seconds() / checks
    return interval * interval / (2 * 7 * DAY)
