"""The audit log: operator actions and decisions of the system."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, insert

from ingestion_pipeline.store.tables import audit_log


def audit(
    connection: Connection,
    *,
    actor: str,
    action: str,
    subject: str,
    now: datetime,
    detail: Mapping[str, object] | None = None,
) -> None:
    """Write one line of the audit log, in the transaction of the action."""
    connection.execute(
        insert(audit_log).values(at=now, actor=actor, action=action, subject=subject, detail=dict(detail or {}))
    )
