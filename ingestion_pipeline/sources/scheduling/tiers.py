"""When a source is checked next, in which tier, and when it is left alone. Pure.

A tier follows the last *new record*, not the last poll: a healthy source that says nothing new
cools down (HOT for a day, WARM for a week, then COLD), unless many follow it. A source whose tier
is pinned is checked at that tier's interval. One that finds its own is checked when a change is
expected (`next_check.py`): of one that nobody knows yet, as of others of its kind and platform.

A failed poll (all its attempts used up, one strike) moves the next check out; five in a row open
the breaker: one probe after 24 hours, and only a success closes it. A rate limit is never a strike;
it does not come here at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.scheduling.change_model import DAY, ChangeModel, outlook
from ingestion_pipeline.sources.scheduling.next_check import NextCheck, next_check
from ingestion_pipeline.sources.source import Kind, Source, SourceStatus, Tier

_OUR_WORDS = ("disabled, ", "disabled after ")  # how a reason begins that no operator gave
# Whose changes are learned: an analysis of a website or a company is repeated, not watched.
ADAPTIVE = frozenset({Kind.SERIES, Kind.JOB_BOARD, Kind.CATALOG})


@dataclass(frozen=True, slots=True, kw_only=True)
class PollState:
    """What a poll makes of a source: written to its row together with the poll's results."""

    tier: Tier
    status: SourceStatus
    status_reason: str | None
    failure_count: int
    next_check_at: datetime
    urgency: Tier | None = None
    changes_per_day: float | None = None
    checks_per_day: float | None = None

    @property
    def priority(self) -> int:
        """Of its poll: as its tier's, or as that of one that is checked so closely at its time."""
        return min(self.tier.priority, (self.urgency or self.tier).priority)


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What is known of a source's changes, and what a request is worth at this moment."""

    rhythm: ChangeModel
    price: float
    prior_rate: float


def after_success(
    source: Source,
    *,
    last_new_at: datetime | None,
    now: datetime,
    settings: Settings,
    random: Random,
    readers: int = 0,
    habits: Habits | None = None,
) -> PollState:
    """The failures are forgotten, the breaker closes, the tier follows the last new record."""
    newest = last_new_at or source.created_at
    tier = (
        source.tier
        if source.tier_pinned
        else tier_for(newest, now=now, settings=settings, readers=readers)
    )
    standing = PollState(
        tier=tier,
        status=SourceStatus.ACTIVE,
        status_reason=None,
        failure_count=0,
        next_check_at=now + _jittered(_interval(source.kind, tier, settings), settings, random),
    )
    if habits is None or not is_adaptive(source, habits.rhythm, settings):
        return standing
    is_popular = readers > settings.tiers.hot_readers
    return _expecting(source, standing, habits, now, settings, random, is_popular=is_popular)


def is_adaptive(source: Source, rhythm: ChangeModel, settings: Settings) -> bool:
    """Whether its changes decide when it is checked, and not its tier alone."""
    limits = settings.polling
    is_free = limits.adaptive and source.kind in ADAPTIVE and not source.tier_pinned
    return is_free and rhythm.changes >= limits.adaptive_gaps


def _expecting(
    source: Source,
    standing: PollState,
    habits: Habits,
    now: datetime,
    settings: Settings,
    random: Random,
    *,
    is_popular: bool,
) -> PollState:
    """The same, but checked when a change is expected: at the latest as HOT, if many follow it."""
    at, since = now.timestamp(), source.created_at.timestamp()
    ahead = outlook(habits.rhythm, now=at, since=since, prior_rate=habits.prior_rate)
    hot, warm, cold = (settings.interval_seconds(source.kind.value, tier.value) for tier in Tier)
    limits = settings.polling
    least, most = hot * limits.shortest_share, cold * limits.longest_share
    check = next_check(
        ahead, now=at, price=habits.price, least=least, most=hot if is_popular else most
    )
    wait = _moved(check, at, least, limits.jitter_share, random)
    return replace(
        standing,
        next_check_at=now + timedelta(seconds=wait),
        urgency=_urgency(check.spacing, hot, warm, cold),
        changes_per_day=ahead.rate * DAY,
        checks_per_day=DAY / wait,
    )


def _moved(check: NextCheck, now: float, least: float, share: float, random: Random) -> float:
    """Seconds until the check, moved a little: by a share of the wait, or of the next if shorter.

    What is expected on Friday at six must not be looked for half a day off.
    """
    wait = check.at - now
    slack = share * min(wait, max(check.spacing, least))
    return wait + random.uniform(-slack, slack)


def _urgency(spacing: float, hot: float, warm: float, cold: float) -> Tier:
    """The tier whose interval is nearest to how closely the source is checked then."""
    if spacing * spacing <= hot * warm:
        return Tier.HOT
    return Tier.WARM if spacing * spacing <= warm * cold else Tier.COLD


def after_failure(
    source: Source, *, now: datetime, settings: Settings, random: Random
) -> PollState:
    """One strike more; the breaker opens, or stays open, at the limit."""
    failures = source.failure_count + 1
    if failures >= settings.breaker.failures:
        return _open(source, failures, now=now, settings=settings, random=random)
    wait = _interval(source.kind, source.tier, settings) * 2 ** (failures - 1)
    probe = timedelta(seconds=settings.breaker.probe_after_seconds)
    return PollState(
        tier=source.tier,
        status=SourceStatus.ACTIVE,
        status_reason=None,
        failure_count=failures,
        next_check_at=now + _jittered(min(wait, probe), settings, random),
    )


def after_wall(source: Source, why: str, *, now: datetime, settings: Settings) -> PollState:
    """Left alone until somebody enables it: a wall is never evaded, and asking again is no use.

    It is no strike: what counts failures begins where it stood.
    """
    return PollState(
        tier=source.tier,
        status=SourceStatus.DISABLED,
        status_reason=f"{_OUR_WORDS[0]}{why}; `ingest sources enable` ends it",
        failure_count=source.failure_count,
        next_check_at=now + _interval(source.kind, source.tier, settings),
    )


def _open(
    source: Source, failures: int, *, now: datetime, settings: Settings, random: Random
) -> PollState:
    probe = timedelta(seconds=settings.breaker.probe_after_seconds)
    is_board = source.kind is Kind.JOB_BOARD
    return PollState(
        tier=source.tier if source.tier_pinned else Tier.COLD,
        status=SourceStatus.DISABLED if is_board else SourceStatus.OPEN,
        status_reason=(
            f"{_OUR_WORDS[1]}{failures} failed polls in a row; `ingest sources enable` ends it"
            if is_board
            else f"breaker open after {failures} failed polls in a row; one probe at the next check"
        ),
        failure_count=failures,
        # never earlier than the promise: a probe within 24 hours would be one too many
        next_check_at=now + probe + probe * settings.polling.jitter_share * random.random(),
    )


def is_disabled_by_us(reason: str | None) -> bool:
    """Whether failures or a wall disabled the source: an operator's reason begins with a name."""
    return reason is not None and reason.startswith(_OUR_WORDS)


def tier_for(last_new_at: datetime, *, now: datetime, settings: Settings, readers: int = 0) -> Tier:
    """HOT, WARM or COLD by the age of the last new record; HOT if many follow it."""
    age = now - last_new_at
    hot_for = timedelta(seconds=settings.tiers.hot_for_seconds)
    if age <= hot_for or readers > settings.tiers.hot_readers:
        return Tier.HOT
    if age <= hot_for + timedelta(seconds=settings.tiers.warm_for_seconds):
        return Tier.WARM
    return Tier.COLD


def is_stale(source: Source, *, now: datetime, settings: Settings) -> bool:
    """Whether several checks in a row should have succeeded by now and none did."""
    if source.status in {SourceStatus.DISABLED, SourceStatus.PENDING_VALIDATION}:
        return False
    since = source.last_success_at or source.created_at
    interval = _interval(source.kind, source.tier, settings)
    if source.checks_per_day:
        interval = max(interval, timedelta(days=1 / source.checks_per_day))
    return now - since > interval * settings.ingest.stale_factor


def interval(kind: Kind, tier: Tier, settings: Settings) -> timedelta:
    """How long such a source waits for its next check."""
    return _interval(kind, tier, settings)


def _interval(kind: Kind, tier: Tier, settings: Settings) -> timedelta:
    return timedelta(seconds=settings.interval_seconds(kind.value, tier.value))


def _jittered(interval: timedelta, settings: Settings, random: Random) -> timedelta:
    share = settings.polling.jitter_share
    return interval * random.uniform(1 - share, 1 + share)
