"""The rows of `recipients` and `follows`: by hand, audited, or as a file declares them.

A file's recipient follows the file at every import; what an operator added by hand is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, select, union, update

from ingestion_pipeline.notices import tasks
from ingestion_pipeline.notices.channels import new_secret
from ingestion_pipeline.notices.rows import Addressee, addressee, lock_notices
from ingestion_pipeline.sources.canonical_series import meanings
from ingestion_pipeline.sources.recipients import Follow, Mode, Recipient, is_webhook
from ingestion_pipeline.sources.source import BY_HAND
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import UNSENT, follows, notices, recipients, series, sources

_SYSTEM = "system"


class UnknownRecipient(LookupError):
    """Nobody has this id."""

    def __init__(self, recipient_id: str, known: Iterable[str] = ()) -> None:
        shown = _meant(recipient_id, known)
        super().__init__(
            f"there is no recipient {recipient_id!r}{shown}; `ingest recipients list` shows all"
        )


class UnknownFollowedSeries(LookupError):
    """Neither a series nor a source has this name."""

    def __init__(self, series_id: str, known: Iterable[str] = ()) -> None:
        shown = _meant(series_id, known)
        super().__init__(
            f"there is no series {series_id!r}{shown}; add a source of it first, or take a name"
            " that `ingest sources list --json` shows"
        )


class RecipientExists(ValueError):
    """A recipient with this id stands already."""


class OwnedByFile(ValueError):
    """What a file declares is changed in the file."""


def _meant(given: str, known: Iterable[str]) -> str:
    close = get_close_matches(given, list(known), n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def add(
    connection: Connection,
    recipient: Recipient,
    *,
    actor: str,
    now: datetime,
    secret: str | None = None,
) -> str | None:
    """One new recipient, audited; the secret that signs their webhook, if it is one."""
    if _origin(connection, recipient.id) is not None:
        raise RecipientExists(
            f"{recipient.id!r} exists already; `ingest recipients remove {recipient.id}` first"
        )
    if is_webhook(recipient.address):
        secret = secret or new_secret()
    _insert(connection, recipient, secret, now=now)
    detail = {"address": recipient.address, "mode": recipient.mode.value}
    _audit(connection, actor, "recipient.add", recipient.id, now, detail)
    return secret


def change_secret(
    connection: Connection, recipient_id: str, *, actor: str, now: datetime, secret: str | None
) -> str:
    """The webhook is signed with the given key, or a fresh one, from the next message on."""
    _require(connection, recipient_id)
    secret = secret or new_secret()
    connection.execute(
        update(recipients)
        .where(recipients.c.id == recipient_id)
        .values(secret=secret, updated_at=now)
    )
    _audit(connection, actor, "recipient.secret", recipient_id, now, {})
    return secret


def remove(connection: Connection, recipient_id: str, *, actor: str, now: datetime) -> int:
    """Told nothing any more; how many pending notices were muted. What they were told stays."""
    _require(connection, recipient_id)
    tasks.lock_recipients(connection, [recipient_id])
    tasks.cancel(connection, recipient_id, now=now)
    muted = _mute(connection, recipient_id, None, "recipient removed")
    connection.execute(delete(follows).where(follows.c.recipient_id == recipient_id))
    connection.execute(delete(recipients).where(recipients.c.id == recipient_id))
    _audit(connection, actor, "recipient.remove", recipient_id, now, {"muted": muted})
    return muted


def follow(
    connection: Connection, recipient_id: str, wanted: Follow, *, actor: str, now: datetime
) -> bool:
    """The recipient hears of the series from now on; False if they did, and so, already."""
    _require(connection, recipient_id)
    tasks.lock_recipients(connection, [recipient_id])
    known = _known_series(connection)
    if wanted.series not in known:
        raise UnknownFollowedSeries(wanted.series, known)
    wanted = _at_home(connection, [wanted])[0]
    before = _follows_of(connection, recipient_id).get(wanted.series)
    if before is not None and before[0] == wanted:
        return False
    if before is not None and before[1] != BY_HAND:
        raise OwnedByFile(f"{recipient_id} follows {wanted.series} by {before[1]}; change it there")
    _upsert_follow(connection, recipient_id, wanted, BY_HAND, now=now)
    _mute_unwanted(connection, recipient_id)
    detail = {"series": wanted.series, "mode": wanted.mode, "language": wanted.language}
    _audit(connection, actor, "recipient.follow", recipient_id, now, detail)
    return True


def unfollow(
    connection: Connection, recipient_id: str, series_id: str, *, actor: str, now: datetime
) -> int:
    """The recipient hears of the series no more; how many pending notices were muted."""
    _require(connection, recipient_id)
    tasks.lock_recipients(connection, [recipient_id])
    followed = _follows_of(connection, recipient_id)
    if series_id not in followed:
        series_id = _at_home(connection, [Follow(series=series_id)])[0].series
    if series_id not in followed:
        shown = _meant(series_id, followed)
        raise LookupError(f"{recipient_id} does not follow {series_id!r}{shown}")
    if (origin := followed[series_id][1]) != BY_HAND:
        raise OwnedByFile(f"{recipient_id} follows {series_id} by {origin}; take it out there")
    _delete_follows(connection, recipient_id, [series_id])
    muted = _mute(connection, recipient_id, series_id, "unfollowed")
    detail = {"series": series_id, "muted": muted}
    _audit(connection, actor, "recipient.unfollow", recipient_id, now, detail)
    return muted


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRecipients:
    """What the recipients of a file came to."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    left_alone: int = 0


def declare(
    connection: Connection, declared: Sequence[Recipient], *, now: datetime
) -> DeclaredRecipients:
    """Rows say what the files say; those that were added by hand are left alone."""
    counts = dict.fromkeys(DeclaredRecipients.__dataclass_fields__, 0)
    tasks.lock_recipients(connection, [one.id for one in declared])
    for one in sorted(declared, key=lambda one: one.id):
        outcome = _declare(connection, one, now=now)
        counts[outcome] += 1
        if outcome in {"added", "updated"}:
            detail = {"origin": one.origin, "address": one.address, "mode": one.mode.value}
            _audit(connection, _SYSTEM, f"recipient.{outcome}", one.id, now, detail)
    return DeclaredRecipients(**counts)


def _declare(connection: Connection, one: Recipient, *, now: datetime) -> str:
    origin = _origin(connection, one.id)
    if origin == BY_HAND:
        return "left_alone"
    if origin is None:
        _insert(connection, one, new_secret() if is_webhook(one.address) else None, now=now)
    changed = origin is not None and _update(connection, one, now=now)
    before = _follows_of(connection, one.id)
    wanted = {each.series: each for each in _at_home(connection, one.follows)}
    for name, each in wanted.items():
        stands = before.get(name)
        if stands is None or (stands[1] != BY_HAND and stands != (each, one.origin)):
            _upsert_follow(connection, one.id, each, one.origin, now=now)
            changed = True
    gone = [name for name, (_, by) in before.items() if by != BY_HAND and name not in wanted]
    _delete_follows(connection, one.id, gone)
    for name in gone:
        _mute(connection, one.id, name, "unfollowed")
    if changed:
        _mute_unwanted(connection, one.id)
    if origin is None:
        return "added"
    return "updated" if changed or gone else "unchanged"


def _at_home(connection: Connection, wanted: Sequence[Follow]) -> list[Follow]:
    """Whoever names a series that was merged follows the one it became, as a merge leaves it."""
    meant = meanings(connection, {one.series for one in wanted})
    return [replace(one, series=meant[one.series]) for one in wanted]


def _insert(connection: Connection, one: Recipient, secret: str | None, *, now: datetime) -> None:
    values = _values(one) | {"id": one.id, "secret": secret, "created_at": now, "updated_at": now}
    connection.execute(insert(recipients).values(values))


def _update(connection: Connection, one: Recipient, *, now: datetime) -> bool:
    """Whether the row said something else before; a new address begins without failures."""
    query = select(recipients).where(recipients.c.id == one.id)
    row = connection.execute(query).mappings().one()
    values = _values(one)
    if all(row[name] == value for name, value in values.items()):
        return False
    if row["address_url"] != one.address:
        tasks.make_due(connection, one.id, now=now)  # before the row, as deliverers lock them
        values |= {"failures": 0, "not_before": None, "last_error": None}
        if is_webhook(one.address) and not row["secret"]:
            values["secret"] = new_secret()
    statement = update(recipients).where(recipients.c.id == one.id)
    connection.execute(statement.values(values | {"updated_at": now}))
    return True


def _values(one: Recipient) -> dict[str, Any]:
    return {
        "address_url": one.address,
        "kinds": list(one.kinds),
        "mode": one.mode.value,
        "language": one.language,
        "origin": one.origin,
    }


def _upsert_follow(
    connection: Connection, recipient_id: str, wanted: Follow, origin: str, *, now: datetime
) -> None:
    """Since when they follow stays as it was."""
    values = {
        "mode": None if wanted.mode is None else wanted.mode.value,
        "language": wanted.language,
        "origin": origin,
    }
    statement = insert_into(connection, follows).values(
        recipient_id=recipient_id, series_id=wanted.series, created_at=now, **values
    )
    connection.execute(
        statement.on_conflict_do_update(index_elements=["recipient_id", "series_id"], set_=values)
    )


def _delete_follows(connection: Connection, recipient_id: str, names: Sequence[str]) -> None:
    connection.execute(
        delete(follows).where(
            follows.c.recipient_id == recipient_id, follows.c.series_id.in_(names)
        )
    )


def _mute(connection: Connection, recipient_id: str, series_id: str | None, why: str) -> int:
    """Pending notices that are in no message yet, of one series or of all."""
    is_theirs = notices.c.recipient == recipient_id
    if series_id is not None:
        is_theirs &= (notices.c.series_id == series_id) & notices.c.delivery_id.is_(None)
    lock_notices(connection, UNSENT, is_theirs)
    statement = update(notices).where(UNSENT, is_theirs)
    return connection.execute(statement.values(status="muted", error=why)).rowcount


def _mute_unwanted(connection: Connection, recipient_id: str) -> None:
    """Pending notices that are in no message yet, of series that are muted now."""
    mode = func.coalesce(follows.c.mode, recipients.c.mode)
    muted = (
        select(follows.c.series_id)
        .join(recipients, recipients.c.id == follows.c.recipient_id)
        .where(follows.c.recipient_id == recipient_id, mode == Mode.MUTED.value)
    )
    unwanted = and_(
        notices.c.recipient == recipient_id,
        notices.c.series_id.in_(muted),
        notices.c.delivery_id.is_(None),
    )
    lock_notices(connection, UNSENT, unwanted)
    statement = update(notices).where(UNSENT, unwanted)
    connection.execute(statement.values(status="muted", error="muted since"))


def _origin(connection: Connection, recipient_id: str) -> str | None:
    query = select(recipients.c.origin).where(recipients.c.id == recipient_id)
    return connection.execute(query).scalar_one_or_none()


def known_addressee(connection: Connection, recipient_id: str) -> Addressee:
    """Where the recipient's messages go."""
    _require(connection, recipient_id)
    found = addressee(connection, recipient_id)
    assert found is not None  # noqa: S101 - it was required
    return found


def _require(connection: Connection, recipient_id: str) -> None:
    if _origin(connection, recipient_id) is None:
        known = connection.execute(select(recipients.c.id)).scalars()
        raise UnknownRecipient(recipient_id, known)


def _follows_of(connection: Connection, recipient_id: str) -> dict[str, tuple[Follow, str]]:
    """What they follow, each with who declared it."""
    query = select(follows).where(follows.c.recipient_id == recipient_id)
    return {
        row.series_id: (
            Follow(series=row.series_id, mode=row.mode, language=row.language),
            row.origin,
        )
        for row in connection.execute(query)
    }


def _known_series(connection: Connection) -> set[str]:
    """Every name that a series or a source gives."""
    named = sources.c.series_id
    query = union(select(series.c.id), select(named).where(named.is_not(None)))
    return set(connection.execute(query).scalars())


def _audit(
    connection: Connection,
    actor: str,
    action: str,
    recipient_id: str,
    now: datetime,
    detail: dict[str, Any],
) -> None:
    audit(connection, actor=actor, action=action, subject=recipient_id, now=now, detail=detail)


def as_counts(declared: DeclaredRecipients) -> str:
    """For people: `1 added, 0 updated, ...`."""
    words = {"left_alone": "left alone (added by hand)"}
    found = asdict(declared)
    return ", ".join(
        f"{count} {words.get(name, name)}"
        for name, count in found.items()
        if count or name != "left_alone"
    )
