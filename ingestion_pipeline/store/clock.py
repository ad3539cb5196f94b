"""The one place that reads the time: the database's on PostgreSQL, the process's on SQLite."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from sqlalchemy import Connection


class Clock(Protocol):
    """Tells the time by which leases, due dates and histories are judged."""

    def now(self, connection: Connection) -> datetime:
        """The present moment, in UTC; or a little before it, while an answer was on its way."""
        ...

    def latest(self, connection: Connection) -> datetime:
        """The present moment, or a little after it: for what must not be too early for others."""
        ...


ASKED_AGAIN_SECONDS = 1.0  # until then the monotonic clock carries on what the database said


class DatabaseClock:
    """The database's own clock, so that workers whose clocks differ agree; SQLite has only ours."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._told: tuple[datetime, float] | None = None
        self._on_its_way = timedelta()

    def now(self, connection: Connection) -> datetime:
        """The present moment, in UTC; on PostgreSQL it moves on inside a transaction too."""
        if connection.dialect.name != "postgresql":
            return datetime.now(UTC)
        if self._told is not None:
            told, heard_at = self._told
            passed = self._monotonic() - heard_at
            if passed < ASKED_AGAIN_SECONDS:
                return told + timedelta(seconds=passed)
        asked_at = self._monotonic()
        told = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one().astimezone(UTC)
        heard_at = self._monotonic()  # after the answer: never ahead of the database
        self._told, self._on_its_way = (told, heard_at), timedelta(seconds=heard_at - asked_at)
        return told

    def latest(self, connection: Connection) -> datetime:
        """The same, never behind the database: as if the answer had been on its way all along."""
        return self.now(connection) + self._on_its_way


def wall_clock() -> datetime:
    """The present moment by the process's own clock, where no database is at hand."""
    return datetime.now(UTC)


class SteadyClock:
    """Goes on from a moment the database told, by the monotonic clock: no query, no wall clock."""

    def __init__(self, at: datetime, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._at = at
        self._monotonic = monotonic
        self._started = monotonic()

    def now(self) -> datetime:
        """The present moment, in UTC."""
        return self._at + timedelta(seconds=self._monotonic() - self._started)


class FixedClock:
    """Stands still until told otherwise, for tests and simulations."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def now(self, connection: Connection) -> datetime:  # noqa: ARG002 - the Clock protocol
        """The moment it was set to."""
        return self.at

    def latest(self, connection: Connection) -> datetime:  # noqa: ARG002 - the Clock protocol
        """The same: it knows no delay."""
        return self.at

    def advance(self, **units: float) -> datetime:
        """Move on by a timedelta's units; the new moment."""
        self.at += timedelta(**units)
        return self.at
