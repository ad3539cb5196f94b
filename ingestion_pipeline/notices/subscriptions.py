"""Recipients and follows: added by operators (audited), or declared in files.

A declared recipient is updated from its file at every import; what an operator added by hand is
left alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, select, union, update

from ingestion_pipeline.notices import queries
from ingestion_pipeline.notices.channels import new_secret
from ingestion_pipeline.notices.queries import Addressee, addressee, change_notices
from ingestion_pipeline.sources.lookup import canonical_series_ids
from ingestion_pipeline.sources.source import BY_HAND, Follow, Mode, Recipient, is_webhook
from ingestion_pipeline.store.statements import audit, insert_into
from ingestion_pipeline.store.tables import UNSENT, change_follows, follows, notices, recipients, series, sources

_SYSTEM = "system"


class UnknownRecipient(LookupError):
    """No recipient has this id."""

    def __init__(self, recipient_id: str, existing_ids: Iterable[str]) -> None:
        suggestion = _suggestion(recipient_id, existing_ids)
        super().__init__(f"there is no recipient {recipient_id!r}{suggestion}; `ingest recipients list` shows all")


class UnknownFollowedSeries(LookupError):
    """Neither a series nor a source has this name."""

    def __init__(self, series_id: str, existing_ids: Iterable[str]) -> None:
        suggestion = _suggestion(series_id, existing_ids)
        super().__init__(
            f"there is no series {series_id!r}{suggestion}; add a source of it first, or use a name"
            " that `ingest sources list --json` shows"
        )


class RecipientExists(ValueError):
    """A recipient with this id exists already."""


class OwnedByFile(ValueError):
    """What a file declares must be changed in the file."""


def _suggestion(name: str, candidates: Iterable[str]) -> str:
    close = get_close_matches(name, list(candidates), n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def add(
    connection: Connection, recipient: Recipient, *, actor: str, now: datetime, secret: str | None = None
) -> str | None:
    """Add a recipient; return the secret that signs their webhook, None for other addresses."""
    if _origin(connection, recipient.id) is not None:
        raise RecipientExists(f"{recipient.id!r} exists already; `ingest recipients remove {recipient.id}` first")
    if is_webhook(recipient.address):
        secret = secret or new_secret()
    _insert(connection, recipient, secret, now=now)
    detail = {"address": recipient.address, "mode": recipient.mode.value}
    audit(connection, actor=actor, action="recipient.add", subject=recipient.id, now=now, detail=detail)
    return secret


def change_secret(connection: Connection, recipient_id: str, *, actor: str, now: datetime, secret: str | None) -> str:
    """Set the secret that signs the webhook, or a new one, from the next message on."""
    get_addressee(connection, recipient_id)
    secret = secret or new_secret()
    connection.execute(update(recipients).where(recipients.c.id == recipient_id).values(secret=secret, updated_at=now))
    audit(connection, actor=actor, action="recipient.secret", subject=recipient_id, now=now, detail={})
    return secret


def remove(connection: Connection, recipient_id: str, *, actor: str, now: datetime) -> int:
    """Remove the recipient; return how many pending notices were muted. Sent ones stay."""
    get_addressee(connection, recipient_id)
    queries.lock_recipients(connection, [recipient_id])
    queries.cancel(connection, recipient_id, now=now)
    muted = _mute(connection, recipient_id, None, "recipient removed")
    for table in (follows, change_follows):
        connection.execute(delete(table).where(table.c.recipient_id == recipient_id))
    connection.execute(delete(recipients).where(recipients.c.id == recipient_id))
    audit(connection, actor=actor, action="recipient.remove", subject=recipient_id, now=now, detail={"muted": muted})
    return muted


def follow(connection: Connection, recipient_id: str, requested: Follow, *, actor: str, now: datetime) -> bool:
    """Let the recipient follow the series; return False if they already do, in the same way."""
    get_addressee(connection, recipient_id)
    queries.lock_recipients(connection, [recipient_id])
    named = sources.c.series_id
    query = union(select(series.c.id), select(named).where(named.is_not(None)))
    series_names = set(connection.execute(query).scalars())
    if requested.series not in series_names:
        raise UnknownFollowedSeries(requested.series, series_names)
    requested = _canonical_follows(connection, [requested])[0]
    before = _follows_of(connection, recipient_id).get(requested.series)
    if before is not None and before[0] == requested:
        return False
    if before is not None and before[1] != BY_HAND:
        raise OwnedByFile(f"{recipient_id} follows {requested.series} as declared in {before[1]}; change it there")
    _upsert_follow(connection, recipient_id, requested, BY_HAND, now=now)
    _mute_muted_series(connection, recipient_id)
    detail = {"series": requested.series, "mode": requested.mode, "language": requested.language}
    audit(connection, actor=actor, action="recipient.follow", subject=recipient_id, now=now, detail=detail)
    return True


def unfollow(connection: Connection, recipient_id: str, series_id: str, *, actor: str, now: datetime) -> int:
    """End the follow; return how many pending notices were muted."""
    get_addressee(connection, recipient_id)
    queries.lock_recipients(connection, [recipient_id])
    followed = _follows_of(connection, recipient_id)
    if series_id not in followed:
        series_id = _canonical_follows(connection, [Follow(series=series_id)])[0].series
    if series_id not in followed:
        raise LookupError(f"{recipient_id} does not follow {series_id!r}{_suggestion(series_id, followed)}")
    if (origin := followed[series_id][1]) != BY_HAND:
        raise OwnedByFile(f"{recipient_id} follows {series_id} as declared in {origin}; remove it there")
    _delete_follows(connection, recipient_id, [series_id])
    muted = _mute(connection, recipient_id, series_id, "unfollowed")
    detail = {"series": series_id, "muted": muted}
    audit(connection, actor=actor, action="recipient.unfollow", subject=recipient_id, now=now, detail=detail)
    return muted


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRecipients:
    """Counts of an import of declared recipients."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    left_alone: int = 0


def declare(connection: Connection, declared: Sequence[Recipient], *, now: datetime) -> DeclaredRecipients:
    """Make rows agree with the files; recipients that were added by hand are left alone."""
    counts = dict.fromkeys(DeclaredRecipients.__dataclass_fields__, 0)
    queries.lock_recipients(connection, [recipient.id for recipient in declared])
    for recipient in sorted(declared, key=lambda recipient: recipient.id):
        outcome = _declare(connection, recipient, now=now)
        counts[outcome] += 1
        if outcome in {"added", "updated"}:
            detail = {"origin": recipient.origin, "address": recipient.address, "mode": recipient.mode.value}
            action = f"recipient.{outcome}"
            audit(connection, actor=_SYSTEM, action=action, subject=recipient.id, now=now, detail=detail)
    return DeclaredRecipients(**counts)


def _declare(connection: Connection, recipient: Recipient, *, now: datetime) -> str:
    origin = _origin(connection, recipient.id)
    if origin == BY_HAND:
        return "left_alone"
    if origin is None:
        _insert(connection, recipient, new_secret() if is_webhook(recipient.address) else None, now=now)
    changed = origin is not None and _update(connection, recipient, now=now)
    before = _follows_of(connection, recipient.id)
    declared = {entry.series: entry for entry in _canonical_follows(connection, recipient.follows)}
    for name, declared_follow in declared.items():
        current = before.get(name)
        if current is None or (current[1] != BY_HAND and current != (declared_follow, recipient.origin)):
            _upsert_follow(connection, recipient.id, declared_follow, recipient.origin, now=now)
            changed = True
    gone = [name for name, (_, by) in before.items() if by != BY_HAND and name not in declared]
    _delete_follows(connection, recipient.id, gone)
    for name in gone:
        _mute(connection, recipient.id, name, "unfollowed")
    if changed:
        _mute_muted_series(connection, recipient.id)
    if origin is None:
        return "added"
    return "updated" if changed or gone else "unchanged"


def _canonical_follows(connection: Connection, requested: Sequence[Follow]) -> list[Follow]:
    """Replace series that were merged by the series they were merged into."""
    canonical = canonical_series_ids(connection, {entry.series for entry in requested})
    return [replace(entry, series=canonical[entry.series]) for entry in requested]


def _insert(connection: Connection, recipient: Recipient, secret: str | None, *, now: datetime) -> None:
    values = _values(recipient) | {"id": recipient.id, "secret": secret, "created_at": now, "updated_at": now}
    connection.execute(insert(recipients).values(values))


def _update(connection: Connection, recipient: Recipient, *, now: datetime) -> bool:
    """Update the row; return whether it differed. A new address starts without failures."""
    row = connection.execute(select(recipients).where(recipients.c.id == recipient.id)).mappings().one()
    values = _values(recipient)
    if all(row[name] == value for name, value in values.items()):
        return False
    if row["address_url"] != recipient.address:
        queries.make_due(connection, recipient.id, now=now)  # before the row, as deliverers lock them
        values |= {"failures": 0, "not_before": None, "last_error": None}
        if is_webhook(recipient.address) and not row["secret"]:
            values["secret"] = new_secret()
    statement = update(recipients).where(recipients.c.id == recipient.id)
    connection.execute(statement.values(values | {"updated_at": now}))
    return True


def _values(recipient: Recipient) -> dict[str, Any]:
    return {
        "address_url": recipient.address,
        "kinds": list(recipient.kinds),
        "mode": recipient.mode.value,
        "language": recipient.language,
        "origin": recipient.origin,
    }


def _upsert_follow(connection: Connection, recipient_id: str, requested: Follow, origin: str, *, now: datetime) -> None:
    """Insert or update the follow; `created_at` of an existing one stays."""
    values = {
        "mode": None if requested.mode is None else requested.mode.value,
        "language": requested.language,
        "origin": origin,
    }
    statement = insert_into(connection, follows).values(
        recipient_id=recipient_id, series_id=requested.series, created_at=now, **values
    )
    connection.execute(statement.on_conflict_do_update(index_elements=["recipient_id", "series_id"], set_=values))


def _delete_follows(connection: Connection, recipient_id: str, names: Sequence[str]) -> None:
    connection.execute(delete(follows).where(follows.c.recipient_id == recipient_id, follows.c.series_id.in_(names)))


def _mute(connection: Connection, recipient_id: str, series_id: str | None, why: str) -> int:
    """Mute pending notices that are in no message yet, of one series or of all."""
    is_theirs = notices.c.recipient == recipient_id
    if series_id is not None:
        is_theirs &= (notices.c.series_id == series_id) & notices.c.delivery_id.is_(None)
    return change_notices(connection, UNSENT, is_theirs, status="muted", error=why)


def _mute_muted_series(connection: Connection, recipient_id: str) -> None:
    """Mute pending notices that are in no message yet, of series that are muted now."""
    mode = func.coalesce(follows.c.mode, recipients.c.mode)
    muted = (
        select(follows.c.series_id)
        .join(recipients, recipients.c.id == follows.c.recipient_id)
        .where(follows.c.recipient_id == recipient_id, mode == Mode.MUTED.value)
    )
    in_muted_series = and_(
        notices.c.recipient == recipient_id, notices.c.series_id.in_(muted), notices.c.delivery_id.is_(None)
    )
    change_notices(connection, UNSENT, in_muted_series, status="muted", error="muted since")


def _origin(connection: Connection, recipient_id: str) -> str | None:
    query = select(recipients.c.origin).where(recipients.c.id == recipient_id)
    return connection.execute(query).scalar_one_or_none()


def get_addressee(connection: Connection, recipient_id: str) -> Addressee:
    """Return where the recipient's messages go; raise if there is no such recipient."""
    to = addressee(connection, recipient_id)
    if to is None:
        raise UnknownRecipient(recipient_id, connection.execute(select(recipients.c.id)).scalars())
    return to


def _follows_of(connection: Connection, recipient_id: str) -> dict[str, tuple[Follow, str]]:
    """Return the recipient's follows by series, each with its origin."""
    query = select(follows).where(follows.c.recipient_id == recipient_id)
    return {
        row.series_id: (Follow(series=row.series_id, mode=row.mode, language=row.language), row.origin)
        for row in connection.execute(query)
    }


def as_counts(declared: DeclaredRecipients) -> str:
    """Return the counts as text: `1 added, 0 updated, ...`."""
    words = {"left_alone": "left alone (added by hand)"}
    counts = asdict(declared)
    return ", ".join(
        f"{count} {words.get(name, name)}" for name, count in counts.items() if count or name != "left_alone"
    )
