"""Failures in four classes, which decide what happens to the work.

- `Transient`: tried again after a backoff, three attempts in all.
- `Permanent`: a dead letter at once; trying again cannot help.
- `Resource`: not the work's fault (rate limit, budget, no model): it waits, no attempt is counted.
- `Fatal`: outside the work (database lost, disk full, a file of ours missing): the run stops and
  the work is released.

`code` is a short slug for people and filters (`http_404`, `blocked_address`, `xml_entity`).
"""

import errno
import sqlite3
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

# A check that keeps robots out is never evaded: its source is disabled at once.
BOT_CHECK = "bot_wall"
FORBIDDEN = "blocked_by_robots"  # no failure of the source, and no retry helps
BLOCKED_CODES = frozenset({BOT_CHECK, "login_wall"})

_PACKAGE = Path(__file__).parent.parent
CODE_LENGTH = 40  # the width of the columns; a longer one would fail a whole batch
TEXT_LENGTH = 2_000


class ErrorClass(StrEnum):
    """What a failure means for the work, stored with every failed task and dead letter."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    RESOURCE = "resource"
    FATAL = "fatal"


class WorkError(Exception):
    """A classified failure; raise one of the four subclasses."""

    error_class: ErrorClass = ErrorClass.TRANSIENT

    def __init__(self, message: str, *, code: str = "error") -> None:
        super().__init__(message)
        self.code = code[:CODE_LENGTH]

    @property
    def text(self) -> str:
        """The message as every database accepts it: cut, without NUL and lone surrogates."""
        return storable(str(self)[:TEXT_LENGTH])


def storable(text: str) -> str:
    """Return the text without NUL and lone surrogates, which make PostgreSQL reject a batch."""
    readable = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return readable.encode(errors="replace").decode()


class Transient(WorkError):
    """A failure that may pass: a timeout, a reset, a 5xx; `retry_after` is the server's own."""

    error_class = ErrorClass.TRANSIENT

    def __init__(self, message: str, *, code: str = "transient", retry_after: timedelta | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class Unreachable(Transient):
    """No connection could be made: the host is down, its name is gone, or our network is down."""


class Permanent(WorkError):
    """A failure that waiting does not cure: a 404, a refused address, an unexpected body."""

    error_class = ErrorClass.PERMANENT


class Resource(WorkError):
    """Something outside the work is used up until `until`; never counted against a source."""

    error_class = ErrorClass.RESOURCE

    def __init__(self, message: str, *, until: datetime, code: str = "resource") -> None:
        super().__init__(message, code=code)
        self.until = until


class Fatal(WorkError):
    """The environment fails (database, disk, memory): the run stops, no attempt is counted."""

    error_class = ErrorClass.FATAL


# Disk, memory and file handles: failures of the environment.
FATAL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
# PostgreSQL, appendix A: connection, resources, system error, operator intervention but for 57014.
_FATAL_SQLSTATES = ("08", "53", "58", "57P")
# "database is locked" is fatal too: it is raised after waiting a minute for another writer.
_FATAL_SQLITE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
}
_SQLSTATE_CODES = {
    "40001": "database_serialization",
    "40P01": "database_deadlock",
    "55P03": "database_lock",
    "57014": "database_cancelled",
}


def classify(error: BaseException) -> WorkError:
    """Return the error as a `WorkError`; an unknown one is transient, and so bounded by retries."""
    if isinstance(error, WorkError):
        return error
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError):
        return Fatal(text, code="out_of_memory")
    if isinstance(error, OSError) and error.errno in FATAL_ERRNOS:
        return Fatal(text, code="storage")
    if _is_installation_damaged(error):
        return Fatal(f"{text}; ingestion_pipeline must be installed again", code="installation")
    if isinstance(error, DBAPIError):
        return _classify_database(error)
    return Transient(text, code=_slug(type(error).__name__))


def _is_installation_damaged(error: BaseException) -> bool:
    """Return whether a module cannot be imported or a file of this package cannot be read."""
    if isinstance(error, ImportError):
        return True
    name = error.filename if isinstance(error, OSError) else None
    return isinstance(name, str | Path) and Path(name).is_relative_to(_PACKAGE)


def _classify_database(error: DBAPIError) -> WorkError:
    # The first line alone: PostgreSQL quotes the row, and the driver the values, further down.
    first_line = str(error.orig).strip().partition("\n")[0]
    text = f"{type(error).__name__}: {first_line}"
    if _is_database_lost(error):
        return Fatal(text, code="database")
    if isinstance(error, IntegrityError):
        return Permanent(text, code="constraint")
    if isinstance(error, OperationalError):
        return Transient(text, code=_SQLSTATE_CODES.get(_sqlstate(error) or "", "database_error"))
    return Transient(text, code=_slug(type(error).__name__))


def _is_database_lost(error: DBAPIError) -> bool:
    """Return whether the database cannot be used any more, whatever the work is."""
    if error.connection_invalidated:
        return True
    if not isinstance(error, OperationalError):
        return False
    if hasattr(error.orig, "pgcode"):
        # No SQLSTATE: the server was not reached, or did not let us in.
        return (_sqlstate(error) or "08").startswith(_FATAL_SQLSTATES)
    extended: int = getattr(error.orig, "sqlite_errorcode", 0)
    return extended & 0xFF in _FATAL_SQLITE  # the low byte is the primary code


def _sqlstate(error: DBAPIError) -> str | None:
    return getattr(error.orig, "pgcode", None)


def _slug(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
