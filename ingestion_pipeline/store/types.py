"""Column types that mean the same on both databases: exact decimals, UTC times, JSON, ids."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import JSON, TypeDecorator, TypeEngine, UserDefinedType


class UtcDateTime(TypeDecorator[datetime]):
    """Aware UTC in and out; on SQLite text of fixed width, so that it compares as time."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        """Return TIMESTAMPTZ, or text on SQLite."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(sa.String(32))
        return dialect.type_descriptor(sa.DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> Any:  # noqa: ANN401
        """Refuse a naive time."""
        if value is None:
            return None
        moment = aware(value)
        return utc_text(moment) if dialect.name == "sqlite" else moment.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:  # noqa: ANN401, ARG002
        """Return aware UTC."""
        if value is None:
            return None
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment if moment.tzinfo is UTC else moment.astimezone(UTC)


class UtcText(sa.DateTime):
    """The text of `UtcDateTime`, for times that no column gave a type on SQLite."""

    def bind_processor(self, dialect: sa.Dialect) -> Any:  # noqa: ANN401
        """Return the processor of `UtcDateTime`."""
        return partial(UtcDateTime().process_bind_param, dialect=dialect)

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Any:  # noqa: ANN401, ARG002
        """Return the processor of `UtcDateTime`."""
        return partial(UtcDateTime().process_result_value, dialect=dialect)


def aware(value: datetime) -> datetime:
    """Return the time; raise for a naive one, as nobody can tell which moment it means."""
    if value.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone; use datetime(..., tzinfo=UTC)")
    return value


@lru_cache(maxsize=64)  # the rows of a statement are written at the same moment
def utc_text(value: datetime) -> str:
    """Return the text SQLite stores: microseconds and offset always, so that it sorts by time."""
    return value.astimezone(UTC).isoformat(sep=" ", timespec="microseconds")


class _NumericAffinity(UserDefinedType[Any]):
    """A plain NUMERIC column, with no float on the way in or out."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "NUMERIC"


class ExactDecimal(TypeDecorator[Decimal]):
    """A decimal that stays exact: NUMERIC on PostgreSQL, NUMERIC affinity as text on SQLite.

    SQLite turns the text into an integer or a double and keeps 15 significant digits, so what was
    written within them comes back equal, and comparison and maximum are numeric.
    """

    impl = sa.Numeric
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> TypeEngine[Any]:
        """Return NUMERIC on both."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(_NumericAffinity())
        return dialect.type_descriptor(sa.Numeric())

    def process_bind_param(self, value: Decimal | None, dialect: sa.Dialect) -> Any:  # noqa: ANN401
        """Return plain digits, never an exponent."""
        if value is None or dialect.name != "sqlite":
            return value
        return f"{value:f}"

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Decimal | None:  # noqa: ANN401, ARG002
        """Return the shortest decimal of the stored value, without trailing zeros."""
        if value is None:
            return None
        number = Decimal(str(value)).normalize()
        return Decimal(f"{number:f}")


def json_value(document: str) -> Any:  # noqa: ANN401
    """Parse a JSON document; most of those of `tasks` are empty and need no parser."""
    if document == "{}":
        return {}
    return [] if document == "[]" else json.loads(document)


Json = JSON().with_variant(JSONB(), "postgresql")
Kind = TypeEngine[Any] | type[TypeEngine[Any]]
Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


class Moment(FunctionElement[datetime]):
    """The database's time as `UtcDateTime` stores it; on PostgreSQL the transaction's."""

    name = "moment"
    inherit_cache = True
    type = UtcDateTime()


@compiles(Moment)
def _moment(element: Moment, compiler: Any, **_: object) -> str:  # noqa: ANN401, ARG001
    return "now()"


@compiles(Moment, "sqlite")
def _moment_text(element: Moment, compiler: Any, **_: object) -> str:  # noqa: ANN401, ARG001
    # As a query: so it is asked once for a statement, and not for each of its rows.
    return "(SELECT strftime('%Y-%m-%d %H:%M:%f000+00:00', 'now'))"


def required(name: str, kind: Kind, comment: str | None = None, *, references: str | None = None) -> sa.Column[Any]:
    """Return a column that is never null; `references` is the column of another table that it points at."""
    keys = [sa.ForeignKey(references)] if references else []
    return sa.Column(name, kind, *keys, nullable=False, comment=comment)


def optional(name: str, kind: Kind, comment: str | None = None) -> sa.Column[Any]:
    """Return a column that may be null."""
    return sa.Column(name, kind, comment=comment)


def starting(name: str, kind: Kind, start: str, comment: str) -> sa.Column[Any]:
    """Return a column that is never null and starts with a value."""
    return sa.Column(name, kind, nullable=False, server_default=start, comment=comment)


def count(name: str, comment: str, *, start: int = 0) -> sa.Column[int]:
    """Return a column of a number."""
    return starting(name, sa.Integer, str(start), comment)


def flag(name: str, comment: str, *, start: Literal["false", "true"] = "false") -> sa.Column[bool]:
    """Return a column of a flag."""
    return sa.Column(name, sa.Boolean, nullable=False, server_default=sa.text(start), comment=comment)


def partial_index(name: str | None, *columns: str, where: sa.TextClause, unique: bool = False) -> sa.Index:
    """Return an index of the rows that meet the condition.

    Statements repeat the condition literally: SQLite uses a partial index only for those.
    """
    return sa.Index(name, *columns, unique=unique, postgresql_where=where, sqlite_where=where)


def modified_at() -> sa.Column[datetime]:
    """Return a column that every INSERT and UPDATE stamps; only a conflict clause's update has to name it."""
    return sa.Column("modified_at", UtcDateTime, default=Moment(), onupdate=Moment())
