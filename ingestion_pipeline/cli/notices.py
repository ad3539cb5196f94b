"""`ingest notices`: list notices with their recipients, status and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import Column, echo, print_json, print_table, shortened
from ingestion_pipeline.cli.session import json_option, opened

if TYPE_CHECKING:
    from sqlalchemy import RowMapping


@click.group()
def notices() -> None:
    """Show notices and their delivery."""


@notices.command("list")
@click.option("--status", type=click.Choice(["pending", "sent", "failed", "muted"]), help="Only those in this state.")
@click.option("--recipient", metavar="ID", help="Only those for this recipient.")
@json_option
def list_(*, status: str | None, recipient: str | None, as_json: bool) -> None:
    """Show the newest notices."""
    from ingestion_pipeline.notices.queries import LISTED, list_notices

    with opened() as (_, store), store.read() as connection:
        rows = list_notices(connection, status=status, recipient=recipient)
    if as_json:
        print_json([dict(row) for row in rows])
    elif not rows:
        echo("no notices" + (f" are {status}" if status else ""))
    else:
        _print_notices(rows)
        if len(rows) == LISTED:
            echo(f"(the newest {LISTED}; --status and --recipient show others)")


def _print_notices(notices_found: Sequence[RowMapping]) -> None:
    columns = [
        Column("id", is_number=True),
        Column("recipient"),
        Column("status"),
        Column("subject", is_flexible=True),
        Column("sent"),
        Column("error", is_flexible=True),
    ]
    rows = [
        [
            row["id"],
            row["recipient"],
            row["status"],
            _subject(row["payload"]),
            row["sent_at"],
            shortened(row["error"] or "", 120),
        ]
        for row in notices_found
    ]
    print_table(columns, rows)


def _subject(payload: dict[str, Any]) -> str:
    if "series_title" not in payload:
        return shortened(payload.get("title") or "", 120)
    return f"{payload['series_title']} {payload['number'] or payload['title'] or ''}".strip()
