"""The events of the kinds that poll runs ingest: by kind, what Dagster is told of a source."""

from collections.abc import Callable, Collection, Iterable

import dagster as dg
from sqlalchemy import Connection

from ingestion_pipeline.companies.boards.reporting import board_reports
from ingestion_pipeline.orchestration.board_events import board_materialization
from ingestion_pipeline.orchestration.events import materialization
from ingestion_pipeline.series.reporting import reports
from ingestion_pipeline.sources import Kind

Events = Callable[[Connection, Collection[str]], list[dg.AssetMaterialization]]


def _of_series(connection: Connection, ids: Collection[str]) -> list[dg.AssetMaterialization]:
    return [materialization(one) for one in reports(connection, ids)]


def _of_boards(connection: Connection, ids: Collection[str]) -> list[dg.AssetMaterialization]:
    return [board_materialization(one) for one in board_reports(connection, ids)]


POLLED_EVENTS: dict[Kind, Events] = {Kind.SERIES: _of_series, Kind.JOB_BOARD: _of_boards}


def polled_events(source_ids: Iterable[str]) -> list[tuple[Kind, list[str]]]:
    """The ids by their kind, which each begins with."""
    ids = list(source_ids)
    by_kind = [
        (kind, [one for one in ids if one.startswith(f"{kind.value}:")]) for kind in POLLED_EVENTS
    ]
    return [(kind, some) for kind, some in by_kind if some]
