"""What people are told of besides chapters: extractions, recipes, jobs that fit, alerts.

Whoever names the kind among their `kinds` is told; nobody has to follow anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, String, Text, case, cast, select

from ingestion_pipeline.sources.recipient import ALERTS, OF_THE_HOUSE, Mode
from ingestion_pipeline.store.insert import insert_into
from ingestion_pipeline.store.rows import row_source
from ingestion_pipeline.store.tables import notices, outbox, recipients
from ingestion_pipeline.store.types import Json, UtcDateTime

EXTRACTION = "extraction"
RECIPE = "recipe"
JOB_MATCH = "job_match"
BUDGET, RUN_FAILURES, DAEMON_SILENT = OF_THE_HOUSE
KINDS = (EXTRACTION, RECIPE, JOB_MATCH, *ALERTS)


def write_notice(
    connection: Connection,
    kind: str,
    subject_id: str,
    payload: Mapping[str, Any],
    *,
    now: datetime,
) -> bool:
    """Whoever wants to hear of the kind will be told, in the transaction of what it tells of.

    Once for a subject: False if it was told already. `payload` has `title` and `text` for people,
    `source_id` unless it is of the whole house, and whatever programs may want; it stays as it is
    in the webhook's JSON.
    """
    return write_notices(connection, kind, {subject_id: payload}, now=now) > 0


def write_notices(
    connection: Connection, kind: str, payloads: Mapping[str, Mapping[str, Any]], *, now: datetime
) -> int:
    """The same for many subjects, by one statement; how many had not been told."""
    keys = ("title", "text") if kind in OF_THE_HOUSE else ("source_id", "title", "text")
    missing = sorted({key for one in payloads.values() for key in keys if not one.get(key)})
    if kind not in KINDS or missing:
        raise ValueError(f"no notice of kind {kind!r} without {', '.join(missing) or 'its kind'}")
    if not payloads:
        return 0
    statement = insert_into(connection, outbox).values(
        [
            {
                "subject_kind": kind,
                "subject_id": subject_id,
                "payload": {**payload, "detected_at": now.isoformat()},
                "created_at": now,
            }
            for subject_id, payload in payloads.items()
        ]
    )
    once = statement.on_conflict_do_nothing(index_elements=["subject_kind", "subject_id"])
    return len(connection.execute(once.returning(outbox.c.id)).all())


_GIVEN = {
    "kind": String(40),
    "subject_id": Text(),
    "announced_at": UtcDateTime(),
    "payload": Json,
}


def tell_subjects(connection: Connection, rows: Sequence[RowMapping]) -> list[str]:
    """One notice for each recipient who wants the kind and has none; the modes of the new ones.

    Whoever was added later is not told of what was before.
    """
    told = [row for row in rows if row["subject_kind"] in KINDS]
    if not told:
        return []
    given_rows = [
        (row["subject_kind"], row["subject_id"], row["created_at"], row["payload"]) for row in told
    ]
    given = row_source(connection, _GIVEN, given_rows, "given")
    mode = recipients.c.mode
    columns = {
        "recipient": recipients.c.id,
        "subject_kind": given.c.kind,
        "subject_id": given.c.subject_id,
        "status": case((mode == Mode.MUTED.value, "muted"), else_="pending"),
        "mode": mode,
        "payload": given.c.payload,
        "created_at": given.c.announced_at,
    }
    wants = cast(recipients.c.kinds, Text).like('%"' + given.c.kind + '"%')
    reached = (
        select(*(value.label(name) for name, value in columns.items()))
        .select_from(given)
        .join(recipients, recipients.c.created_at <= given.c.announced_at)
        .where(wants)
        .order_by(recipients.c.id, given.c.subject_id)  # as chapters: no two wait for each other
    )
    statement = (
        insert_into(connection, notices)
        .from_select(list(columns), reached)
        .on_conflict_do_nothing(index_elements=["recipient", "subject_kind", "subject_id"])
        .returning(notices.c.mode)
    )
    return list(connection.execute(statement).scalars())
