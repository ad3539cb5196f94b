"""When a source is checked next, and why: in the metadata of every event that tells of it."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import dagster as dg
from sqlalchemy import Connection

from ingestion_pipeline.orchestration.events import expected
from ingestion_pipeline.pages.workshop import RunContext
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.expectation import expectation
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.polling import ADAPTIVE
from ingestion_pipeline.sources.price import PollingBudget, market


def with_expectations(
    connection: Connection,
    events: Iterable[dg.AssetMaterialization],
    *,
    now: datetime,
    settings: Settings,
) -> list[dg.AssetMaterialization]:
    """The events, each with when its source is checked, and why; a source that is gone has none."""
    events, prices = list(events), market(connection, settings)
    known = sources_by_id(connection, [one.partition or "" for one in events])
    return [
        one.with_metadata({**one.metadata, **expected(_facts(source, prices, now))})
        if (source := known.get(one.partition or ""))
        else one
        for one in events
    ]


def expecting(
    shop: RunContext, events: Iterable[dg.AssetMaterialization]
) -> list[dg.AssetMaterialization]:
    """The same, as it stands now."""
    with shop.store.read() as connection:
        now = shop.store.clock.now(connection)
        return with_expectations(connection, events, now=now, settings=shop.settings)


def _facts(source: Source, prices: PollingBudget, now: datetime) -> Mapping[str, Any]:
    """Of a kind whose changes are not learned there is no estimate, only the reason."""
    facts = expectation(source, prices, now=now)
    if source.kind in ADAPTIVE:
        return facts
    return {"checked_when": facts["checked_when"]}
