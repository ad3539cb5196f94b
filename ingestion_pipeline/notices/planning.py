"""What a recipient is sent now, and when to look again: a pure decision from what waits and went.

Chapters of one series go together, once their oldest has waited for the grouping window; a series
is named at most once in `per_series`. The caps are sliding windows over the messages that went.
When more messages are ready than the caps leave, all of it goes out as one that names everything:
what was held back is never lost, and never a flood. Only what is longer than any receiver takes is
cut, and the rest goes next time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ingestion_pipeline.settings import Notices
from ingestion_pipeline.sources.recipients import Mode

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
LONGEST_MESSAGE = 1_000  # chapters: some 300 KB of JSON; many receivers take no more than 1 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A notice that is not sent yet and belongs to no message."""

    id: int
    series_id: str | None
    mode: Mode
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Went:
    """A message that went out, and the series it named."""

    at: datetime
    series: frozenset[str | None]
    is_digest: bool = False


@dataclass(frozen=True, slots=True)
class Send:
    """One message of these notices, now."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Nothing yet; look again then."""

    until: datetime


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to tell."""


Plan = Send | WaitUntil | Nothing


@dataclass(frozen=True, slots=True)
class _Group:
    ready_at: datetime
    ids: tuple[int, ...]


def plan(
    waiting: Sequence[Waiting], went: Sequence[Went], *, limits: Notices, now: datetime
) -> Plan:
    """The next message, or when there may be one; `went` covers at least `memory(limits)`."""
    if not waiting:
        return Nothing()
    groups = sorted(_groups(waiting, went, limits, now), key=lambda one: (one.ready_at, one.ids))
    left, free_at = _room([one.at for one in went], limits, now)
    ready = [one for one in groups if one.ready_at <= now]
    if not left:
        return WaitUntil(max(free_at, groups[0].ready_at))
    if not ready:
        return WaitUntil(groups[0].ready_at)
    together = ready if len(ready) > left else ready[:1]
    ids = sorted(id_ for one in together for id_ in one.ids)
    return Send(tuple(ids[:LONGEST_MESSAGE]))


def memory(limits: Notices) -> timedelta:
    """How far back a message that went out still matters."""
    return max(
        DAY,
        timedelta(seconds=limits.series_seconds),
        timedelta(seconds=limits.digest_seconds),
    )


def _groups(
    waiting: Sequence[Waiting], went: Sequence[Went], limits: Notices, now: datetime
) -> list[_Group]:
    free = {one.series_id: _series_free_at(one.series_id, went, limits) for one in waiting}
    at_once: dict[str | None, list[Waiting]] = {}
    later: list[Waiting] = []
    for one in waiting:
        if one.mode is Mode.DIGEST:
            later.append(one)
        else:
            at_once.setdefault(one.series_id, []).append(one)
    window = timedelta(seconds=limits.grouping_seconds)
    groups = [
        _Group(_latest(_oldest(some) + window, free[series]), tuple(one.id for one in some))
        for series, some in at_once.items()
    ]
    if later:
        groups.append(_digest(later, went, free, limits, now))
    return groups


def _digest(
    later: Sequence[Waiting],
    went: Sequence[Went],
    free: dict[str | None, datetime | None],
    limits: Notices,
    now: datetime,
) -> _Group:
    """All that waits for the digest, but for series that were named a moment ago."""
    due = _digest_due(_oldest(later), went, limits)
    named = [one for one in later if (at := free[one.series_id]) is None or at <= now]
    if named:
        return _Group(due, tuple(one.id for one in named))
    first = min(at for one in later if (at := free[one.series_id]) is not None)
    return _Group(max(due, first), ())


def _digest_due(oldest: datetime, went: Sequence[Went], limits: Notices) -> datetime:
    """A period after the last digest; after a longer silence, a period after the first news."""
    period = timedelta(seconds=limits.digest_seconds)
    last = max((one.at for one in went if one.is_digest), default=None)
    if last is not None and last + period > oldest:
        return last + period
    return oldest + period


def _series_free_at(
    series_id: str | None, went: Sequence[Went], limits: Notices
) -> datetime | None:
    """When the series may be named again; None if it was not of late, or is none at all."""
    named = [one.at for one in went if series_id is not None and series_id in one.series]
    return max(named) + timedelta(seconds=limits.series_seconds) if named else None


def _room(times: Sequence[datetime], limits: Notices, now: datetime) -> tuple[int, datetime]:
    """How many messages the caps leave at this moment, and when they leave one."""
    hour, day = (
        _window(times, HOUR, limits.per_hour, now),
        _window(times, DAY, limits.per_day, now),
    )
    return min(hour[0], day[0]), max(hour[1], day[1])


def _window(
    times: Sequence[datetime], length: timedelta, cap: int, now: datetime
) -> tuple[int, datetime]:
    recent = sorted(at for at in times if at > now - length)
    if len(recent) < cap:
        return cap - len(recent), now
    return 0, recent[len(recent) - cap] + length


def _oldest(some: Sequence[Waiting]) -> datetime:
    return min(one.created_at for one in some)


def _latest(moment: datetime, other: datetime | None) -> datetime:
    return moment if other is None else max(moment, other)
