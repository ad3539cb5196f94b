"""The clocks: the database's time on PostgreSQL, the process's on SQLite, fixed in tests."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from sqlalchemy import Connection


class Clock(Protocol):
    """The time by which leases, due dates and histories are decided."""

    def now(self, connection: Connection) -> datetime:
        """Return the present moment in UTC, never ahead of the database."""
        ...

    def latest(self, connection: Connection) -> datetime:
        """Return the present moment or slightly later, so that it is not too early for others."""
        ...


RESYNC_SECONDS = 1.0  # until then the monotonic clock advances the database's time


class DatabaseClock:
    """The database's clock, so that workers whose clocks differ agree; SQLite has the process's."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._answer: tuple[datetime, float] | None = None
        self._round_trip = timedelta()

    def now(self, connection: Connection) -> datetime:
        """Return the present moment in UTC; on PostgreSQL it advances inside a transaction too."""
        if connection.dialect.name != "postgresql":
            return datetime.now(UTC)
        if self._answer is not None:
            answered, answered_at = self._answer
            passed = self._monotonic() - answered_at
            if passed < RESYNC_SECONDS:
                return answered + timedelta(seconds=passed)
        asked_at = self._monotonic()
        answered = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one().astimezone(UTC)
        answered_at = self._monotonic()  # after the answer: never ahead of the database
        self._answer, self._round_trip = ((answered, answered_at), timedelta(seconds=answered_at - asked_at))
        return answered

    def latest(self, connection: Connection) -> datetime:
        """Return `now` plus the whole round trip, so that it is never behind the database."""
        return self.now(connection) + self._round_trip


def system_clock() -> datetime:
    """Return the present moment by the process's clock, where no database is available."""
    return datetime.now(UTC)


class SteadyClock:
    """A clock that advances from a database time by the monotonic clock, without queries."""

    def __init__(self, at: datetime, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._at = at
        self._monotonic = monotonic
        self._started = monotonic()

    def now(self) -> datetime:
        """Return the present moment, in UTC."""
        return self._at + timedelta(seconds=self._monotonic() - self._started)


class FixedClock:
    """A clock that stands still until it is set, for tests and simulations."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def now(self, connection: Connection) -> datetime:  # noqa: ARG002 - the Clock protocol
        """Return the moment it was set to."""
        return self.at

    def latest(self, connection: Connection) -> datetime:  # noqa: ARG002 - the Clock protocol
        """Return the moment it was set to: there is no delay."""
        return self.at

    def advance(self, **units: float) -> datetime:
        """Move on by a timedelta's units; the new moment."""
        self.at += timedelta(**units)
        return self.at
