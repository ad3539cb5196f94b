"""The demo's providers, and how visible they make its businesses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestion_pipeline.cli.output import say, shortened
from ingestion_pipeline.cli.visibility import say_visibility

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from ingestion_pipeline.demo.model_server import ScriptedModel

LONGEST_REASON = 200


def say_businesses(connection: Connection, source_ids: Sequence[str]) -> None:
    """What each provider makes of each business, and what went wrong on the way."""
    from ingestion_pipeline.websites.reporting import latest_reports
    from ingestion_pipeline.websites.visibility import visibility_rows

    found = latest_reports(connection, source_ids)
    reports = [found[one] for one in source_ids if one in found]
    shown = [(one, row) for one in reports for row in visibility_rows(one)]
    say_visibility([(str(report.info.get("name")), row) for report, row in shown])
    for report, row in shown:
        if row.failure:
            said = shortened(row.failure, LONGEST_REASON)
            say(f"{report.source_id}: {row.provider} left {said}")
    for one in reports:
        if not one.analysis:
            said = one.failure or one.progress_message
            say(f"{one.source_id} is {one.status.value}: {said}")


def say_providers(running: Mapping[str, ScriptedModel]) -> None:
    """Who is asked about the demo's websites, and by whom."""
    names = " and ".join(running)
    say(f"its providers {names} are asked about its websites, by runs that have no other provider")
