"""Planning of a recipient's next message: what to send now, or when to check again. Pure.

Chapters of one series are sent together, once the oldest has waited for the grouping window; a
series is sent at most once in `series_seconds`. The caps are sliding windows over sent messages.
When more messages are ready than the caps allow, everything is sent as one message: nothing is
lost, and nobody is flooded. Only what is longer than receivers accept is cut, and the rest is
sent next time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ingestion_pipeline.settings import Notices
from ingestion_pipeline.sources.recipients import Mode

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
LONGEST_MESSAGE = 1_000  # chapters, about 300 KB of JSON; many receivers accept at most 1 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingNotice:
    """A notice that is not sent yet and belongs to no message."""

    id: int
    series_id: str | None
    mode: Mode
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message that was sent, and the series it named."""

    at: datetime
    series: frozenset[str | None]
    is_digest: bool = False


@dataclass(frozen=True, slots=True)
class Send:
    """Decision: send one message of these notices now."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Decision: send nothing yet; check again then."""

    until: datetime


@dataclass(frozen=True, slots=True)
class Nothing:
    """Decision: there is nothing to send."""


Plan = Send | WaitUntil | Nothing


@dataclass(frozen=True, slots=True)
class _Group:
    ready_at: datetime
    ids: tuple[int, ...]


def plan(pending: Sequence[PendingNotice], sent: Sequence[SentMessage], *, limits: Notices, now: datetime) -> Plan:
    """Return the next message, or when there may be one; `sent` covers `memory(limits)` or more."""
    if not pending:
        return Nothing()
    groups = sorted(_groups(pending, sent, limits, now), key=lambda group: (group.ready_at, group.ids))
    times = [message.at for message in sent]
    caps = (_window(times, HOUR, limits.per_hour, now), _window(times, DAY, limits.per_day, now))
    left, free_at = min(room for room, _ in caps), max(at for _, at in caps)
    ready = [group for group in groups if group.ready_at <= now]
    if not left:
        return WaitUntil(max(free_at, groups[0].ready_at))
    if not ready:
        return WaitUntil(groups[0].ready_at)
    together = ready if len(ready) > left else ready[:1]
    ids = sorted(id_ for group in together for id_ in group.ids)
    return Send(tuple(ids[:LONGEST_MESSAGE]))


def memory(limits: Notices) -> timedelta:
    """Return how far back a sent message still matters."""
    return max(DAY, timedelta(seconds=limits.series_seconds), timedelta(seconds=limits.digest_seconds))


def _groups(
    pending: Sequence[PendingNotice], sent: Sequence[SentMessage], limits: Notices, now: datetime
) -> list[_Group]:
    free = {notice.series_id: _series_free_at(notice.series_id, sent, limits) for notice in pending}
    at_once: dict[str | None, list[PendingNotice]] = {}
    later: list[PendingNotice] = []
    for notice in pending:
        if notice.mode is Mode.DIGEST:
            later.append(notice)
        else:
            at_once.setdefault(notice.series_id, []).append(notice)
    window = timedelta(seconds=limits.grouping_seconds)
    groups = [
        _Group(max(_oldest(notices) + window, free[series]), tuple(notice.id for notice in notices))
        for series, notices in at_once.items()
    ]
    if later:
        groups.append(_digest(later, sent, free, limits, now))
    return groups


def _digest(
    later: Sequence[PendingNotice],
    sent: Sequence[SentMessage],
    free: dict[str | None, datetime],
    limits: Notices,
    now: datetime,
) -> _Group:
    """Return the digest of all that waits for it, without series that were sent a moment ago."""
    due = _digest_due(_oldest(later), sent, limits)
    named = [notice for notice in later if free[notice.series_id] <= now]
    if named:
        return _Group(due, tuple(notice.id for notice in named))
    return _Group(max(due, min(free[notice.series_id] for notice in later)), ())


def _digest_due(oldest: datetime, sent: Sequence[SentMessage], limits: Notices) -> datetime:
    """Return a period after the last digest; after the oldest notice if that digest is long ago."""
    period = timedelta(seconds=limits.digest_seconds)
    last = max((message.at for message in sent if message.is_digest), default=None)
    if last is not None and last + period > oldest:
        return last + period
    return oldest + period


def _series_free_at(series_id: str | None, sent: Sequence[SentMessage], limits: Notices) -> datetime:
    """Return when the series may be sent again; long ago if it was not sent lately."""
    named = [message.at for message in sent if series_id is not None and series_id in message.series]
    return max(named) + timedelta(seconds=limits.series_seconds) if named else _LONG_AGO


def _window(times: Sequence[datetime], length: timedelta, cap: int, now: datetime) -> tuple[int, datetime]:
    """Return how many messages the cap allows now, and when it allows the next one."""
    recent = sorted(at for at in times if at > now - length)
    if len(recent) < cap:
        return cap - len(recent), now
    return 0, recent[len(recent) - cap] + length


def _oldest(notices: Sequence[PendingNotice]) -> datetime:
    return min(notice.created_at for notice in notices)
