"""Notices of any change of published rows: who follows which table, source, field and cause, and what they get.

Each follow has a moment up to which its changes are notices. Both are written in one transaction, and a notice is
unique by recipient and change: a killed deliverer writes the rest, and nobody is notified of a change twice.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Row, RowMapping, case, delete, exists, func, insert, literal, select, text, update

from ingestion_pipeline.sources.source import Mode
from ingestion_pipeline.store.changes import Cause
from ingestion_pipeline.store.statements import audit, insert_into
from ingestion_pipeline.store.tables import change_follows, changes, notices, recipients

CHANGE = "change"  # the kind of these notices; their subjects are ids of changes
AT_ONCE = 500  # notices in a statement
SHOWN_FIELDS = 5  # in the text of a notice
VALUE_CHARS = 80
# By which a transaction that is committed later, or a worker's clock, may be behind.
_OVERLAP = timedelta(seconds=1)
_OLDEST_OPEN = text(
    "SELECT min(xact_start) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFollow:
    """Which changes: of a table, or of that only a field, a source or a cause.

    First syncs are left out unless that is the cause. Of a field, only updates of it are followed.
    """

    table_name: str
    field: str | None = None
    source_id: str | None = None
    cause: str | None = None

    def __str__(self) -> str:
        """Return it as it is typed: `job_listings.salary`."""
        more = [f"{name} {value}" for name, value in (("of", self.source_id), ("by", self.cause)) if value]
        return " ".join([self.table_name + (f".{self.field}" if self.field else ""), *more])


def follow_changes(
    connection: Connection, recipient_id: str, requested: ChangeFollow, *, actor: str, now: datetime
) -> bool:
    """Let the recipient follow these changes from now on; return False if they already do."""
    if any(row.requested == requested for row in followed_changes(connection, recipient_id)):
        return False
    values = asdict(requested) | {"recipient_id": recipient_id, "notified_until": now, "created_at": now}
    connection.execute(insert(change_follows).values(values))
    audit(
        connection, actor=actor, action="changes.follow", subject=recipient_id, now=now, detail={"on": str(requested)}
    )
    return True


def unfollow_changes(
    connection: Connection, recipient_id: str, requested: ChangeFollow, *, actor: str, now: datetime
) -> bool:
    """End the follow; return False if there is none. What is a notice already is delivered."""
    ids = [row.id for row in followed_changes(connection, recipient_id) if row.requested == requested]
    connection.execute(delete(change_follows).where(change_follows.c.id.in_(ids)))
    if ids:
        detail = {"on": str(requested)}
        audit(connection, actor=actor, action="changes.unfollow", subject=recipient_id, now=now, detail=detail)
    return bool(ids)


@dataclass(frozen=True, slots=True)
class FollowedChanges:
    """A follow with its id and its recipient."""

    id: int
    recipient_id: str
    requested: ChangeFollow


def followed_changes(connection: Connection, recipient_id: str | None = None) -> list[FollowedChanges]:
    """Return the follows of the recipient, or of all."""
    query = select(change_follows).order_by(change_follows.c.id)
    if recipient_id is not None:
        query = query.where(change_follows.c.recipient_id == recipient_id)
    return [FollowedChanges(row.id, row.recipient_id, _requested(row)) for row in connection.execute(query)]


def _requested(row: Row[Any]) -> ChangeFollow:
    return ChangeFollow(table_name=row.table_name, field=row.field, source_id=row.source_id, cause=row.cause)


def has_unnotified(connection: Connection) -> bool:
    """Return whether something changed since the follows were last served."""
    oldest = select(func.min(change_follows.c.notified_until)).scalar_subquery()
    query = select(changes.c.id).where(exists(select(change_follows.c.id)), changes.c.occurred_at > oldest)
    return connection.execute(query.limit(1)).first() is not None


def expand_changes(connection: Connection, *, now: datetime) -> tuple[set[str], list[str]]:
    """Write a notice of each new change for each follow; return the changes' ids and the modes of new notices."""
    query = (
        select(change_follows, recipients.c.mode)
        .join(recipients, recipients.c.id == change_follows.c.recipient_id)
        .order_by(change_follows.c.id)
        .with_for_update(of=change_follows, skip_locked=True)
    )
    until = _committed_until(connection, now)
    ids: set[str] = set()
    modes: list[str] = []
    for row in connection.execute(query).all():
        for batch in _batches(_matching(connection, row)):
            modes += _insert_notices(connection, row, batch)
            ids |= {str(change["id"]) for change in batch}
        is_it = change_follows.c.id == row.id
        connection.execute(update(change_follows).where(is_it).values(notified_until=max(until, row.notified_until)))
    return ids, modes


def _committed_until(connection: Connection, now: datetime) -> datetime:
    """Return a moment before which all is committed; SQLite has no other writer meanwhile."""
    if connection.dialect.name != "postgresql":
        return now
    oldest: datetime | None = connection.execute(_OLDEST_OPEN).scalar_one()
    return now if oldest is None else min(now, oldest.astimezone(UTC))


def _matching(connection: Connection, row: Row[Any]) -> Iterator[RowMapping]:
    """Yield the changes since the follow was last served, some of them again."""
    is_new = (changes.c.occurred_at >= row.notified_until - _OVERLAP) & (changes.c.occurred_at > row.created_at)
    query = select(changes).where(changes.c.table_name == row.table_name, is_new)
    equal = {changes.c.source_id: row.source_id, changes.c.cause: row.cause}
    query = query.where(*(column == value for column, value in equal.items() if value is not None))
    if row.cause is None:
        query = query.where(changes.c.cause != Cause.FIRST_SYNC.value)
    streamed = query.order_by(changes.c.occurred_at, changes.c.id).execution_options(yield_per=AT_ONCE)
    for change in connection.execute(streamed).mappings():
        if row.field is None or (change["op"] == "update" and row.field in change["after"]):
            yield change


def _batches(rows: Iterator[RowMapping]) -> Iterator[Sequence[RowMapping]]:
    while batch := list(islice(rows, AT_ONCE)):
        yield batch


def _insert_notices(connection: Connection, row: Row[Any], batch: Iterable[RowMapping]) -> Sequence[str]:
    is_muted = literal(row.mode) == Mode.MUTED.value
    rows = [
        {
            "recipient": row.recipient_id,
            "subject_kind": CHANGE,
            "subject_id": str(change["id"]),
            "status": case((is_muted, "muted"), else_="pending"),
            "mode": row.mode,
            "payload": payload_of(change),
            "created_at": change["occurred_at"],
        }
        for change in batch
    ]
    statement = insert_into(connection, notices).values(rows)
    once = statement.on_conflict_do_nothing(index_elements=["recipient", "subject_kind", "subject_id"])
    return connection.execute(once.returning(notices.c.mode)).scalars().all()


def payload_of(change: RowMapping) -> dict[str, Any]:
    """Return the content of a notice: the change as it was recorded, and what differs for people."""
    name = f"{change['table_name']}:{change['row_key']}"
    verbs = {"insert": "new", "update": "changed", "delete": "gone"}
    before: dict[str, Any] = change["before"] or {}
    after: dict[str, Any] = change["after"] or {}
    lines = [f"{field}: {_shown(before.get(field))} -> {_shown(after[field])}" for field in list(after)[:SHOWN_FIELDS]]
    what = "\n".join(lines) if change["op"] == "update" else verbs[change["op"]]
    names = ("id", "table_name", "row_key", "source_id", "op", "before", "after", "cause", "ingestion_id", "run_id")
    return {
        "title": f"{name} {verbs[change['op']]} ({change['cause']})",
        "text": what,
        "source_id": change["source_id"],
        "change": {field: change[field] for field in names},
        "detected_at": change["occurred_at"].isoformat(),
    }


def _shown(value: object) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= VALUE_CHARS else f"{text[: VALUE_CHARS - 1]}…"
