"""A dataset that the quality gates held back, accepted by name: it is shown from then on."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, func, select, update

from ingestion_pipeline.catalogs.completing.publishing import Built, fill_incomplete
from ingestion_pipeline.catalogs.operating.control import Unfit, find
from ingestion_pipeline.catalogs.states import DatasetStatus
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.tables import datasets

_HELD = (DatasetStatus.QUARANTINED.value, DatasetStatus.INCOMPLETE.value)


def publish(connection: Connection, extraction_id: int, *, actor: str, now: datetime) -> int:
    """The extraction's quarantined or incomplete dataset is shown all the same; its version.

    Of pages that an incomplete one did not get to, it shows what was known before.
    """
    row = find(connection, extraction_id)
    query = select(datasets).where(datasets.c.id == row.dataset_id)
    found = connection.execute(query.with_for_update()).one_or_none()
    if found is None or found.status not in _HELD:
        state = "has no dataset" if found is None else f"has a dataset that is {found.status}"
        raise Unfit(
            f"extraction {extraction_id} {state}; only a quarantined or incomplete one can be"
            " published, and `ingest extractions list` shows which are"
        )
    _refuse_hidden(connection, extraction_id, found)
    values: dict[str, object] = {"status": DatasetStatus.PUBLISHED.value, "published_at": now}
    if found.status == DatasetStatus.INCOMPLETE.value:
        counts = fill_incomplete(connection, found.id, _built(row), now=now)
        values |= {"item_count": counts.items, "flagged_count": counts.flagged}
    connection.execute(update(datasets).where(datasets.c.id == found.id).values(**values))
    detail = {"source": row.source_id, "version": found.version, "findings": found.findings}
    subject = f"extraction:{extraction_id}"
    audit(
        connection,
        actor=actor,
        action="dataset.publish",
        subject=subject,
        now=now,
        detail=detail,
    )
    return found.version


def _built(row: Row[Any]) -> Built:
    return Built(
        extraction_id=row.id,
        source_id=row.source_id,
        entity_type=row.entity_type,
        base_id=row.base_dataset_id,
    )


def _refuse_hidden(connection: Connection, extraction_id: int, found: Row[Any]) -> None:
    """Raise if a newer version is shown: to publish this one would change nothing."""
    newest = connection.execute(
        select(func.max(datasets.c.version)).where(
            datasets.c.source_id == found.source_id,
            datasets.c.status == DatasetStatus.PUBLISHED.value,
        )
    ).scalar_one()
    if newest is not None and newest > found.version:
        raise Unfit(
            f"version {newest} is shown, and version {found.version} of extraction {extraction_id}"
            f" is older; `ingest extractions rerun {extraction_id} --publish` makes a newer one"
        )
