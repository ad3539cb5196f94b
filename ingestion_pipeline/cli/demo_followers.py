"""Whom a demo run told what: by the tables, and by what the receiver itself remembers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ingestion_pipeline.cli.output import Column, distance, say_table

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ingestion_pipeline.demo.hooks import Inbox
    from ingestion_pipeline.sources.recipient import Recipient

# the first three of this run, the others of all that were ever written
NUMBERS = ("new", "sent", "messages", "waiting", "failed")


def say_followers(
    connection: Connection, followers: Sequence[Recipient], *, since: datetime, now: datetime
) -> None:
    """One line per follower: what this run told them, and what still waits for how long."""
    counts = _counts(connection, since=since)
    due = _due(connection)
    columns = [
        Column("follower"),
        Column("is told"),
        *(Column(name, is_number=True) for name in NUMBERS),
        Column("next message"),
    ]
    rows: list[list[object]] = []
    for one in followers:
        mine = counts.get(one.id, dict.fromkeys(NUMBERS, 0))
        at = due.get(one.id) if mine["waiting"] else None
        rows.append([one.id, _manner(one), *mine.values(), distance(at, now)])
    say_table(columns, rows)


def received(
    before: Mapping[str, Inbox],
    after: Mapping[str, Inbox],
    *,
    otherwise: str,
    besides: Collection[str] = (),
) -> str:
    """What the hooks took since then, message by message.

    `otherwise` if nobody was told anything but those who keep the house (`besides`).
    """
    from ingestion_pipeline.demo.hooks import HOOKS_HOST, Inbox

    taken: list[str] = []
    told: set[str] = set()
    repeats = refused = 0
    for name, inbox in sorted(after.items()):
        known = before.get(name, Inbox())
        new = [title for key, title in inbox.taken.items() if key not in known.taken]
        taken += [f"  {name}: {title}" for title in new]
        told |= {name} if new else set()
        repeats += inbox.repeats - known.repeats
        refused += inbox.refused - known.refused
    if not (taken or repeats or refused):
        return otherwise
    signed = f"{refused} refused as not genuine" if refused else "every signature was valid"
    said = f"{_counted(len(taken), 'message')}, {_counted(repeats, 'repeat')}; {signed}"
    quiet = [] if told - set(besides) or repeats or refused else [otherwise]
    return "\n".join([f"{HOOKS_HOST} took {said}", *taken, *quiet])


def explain_no_notices(connection: Connection, *, since: datetime) -> str:
    """Why no follower got a message of this run."""
    from sqlalchemy import and_, exists, select

    from ingestion_pipeline.sources.recipient import ALERTS
    from ingestion_pipeline.store.tables import chapters, notices

    def is_any(condition: Any) -> bool:  # noqa: ANN401 - a SQL expression
        return bool(connection.execute(select(exists().where(condition))).scalar_one())

    if is_any(and_(notices.c.created_at >= since, notices.c.subject_kind.not_in(ALERTS))):
        return "no message went out yet"
    if is_any(chapters.c.first_detected_at >= since):
        return "nobody is told of a first sync: what was there before is no news"
    return "nobody is told: there is no news"


def _manner(one: Recipient) -> str:
    mode = one.mode.value if one.mode.value != "immediate" else "at once"
    return f"{mode} ({one.language})" if one.language else mode


def _counts(connection: Connection, *, since: datetime) -> dict[str, dict[str, int]]:
    """By follower: new, sent and messages of this run; waiting and failed in all."""
    from sqlalchemy import distinct, func, select

    from ingestion_pipeline.store.tables import GIVEN_UP, UNSENT, notices

    just_sent = notices.c.sent_at >= since
    columns = [
        func.count().filter(notices.c.created_at >= since),
        func.count().filter(just_sent),
        func.count(distinct(notices.c.delivery_id)).filter(just_sent),
        func.count().filter(UNSENT),
        func.count().filter(GIVEN_UP),
    ]
    query = select(notices.c.recipient, *columns).group_by(notices.c.recipient)
    return {
        row[0]: dict(zip(NUMBERS, row[1:], strict=True)) for row in connection.execute(query).all()
    }


def _due(connection: Connection) -> dict[str, datetime]:
    """When each follower who has something coming is looked at next."""
    from sqlalchemy import select

    from ingestion_pipeline.notices.tasks import DELIVER
    from ingestion_pipeline.store.tables import ACTIVE, tasks

    query = select(tasks.c.dedupe_key, tasks.c.not_before).where(ACTIVE, tasks.c.kind == DELIVER)
    return {row.dedupe_key: row.not_before for row in connection.execute(query)}


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
