"""`ingest notices`: list notices with their recipients, status and errors."""

from __future__ import annotations

from typing import Any

import click

from ingestion_pipeline.cli.output import echo, print_listing, shortened
from ingestion_pipeline.cli.session import json_option, reading


@click.group()
def notices() -> None:
    """Show notices and their delivery."""


@notices.command("list")
@click.option("--status", type=click.Choice(["pending", "sent", "failed", "muted"]), help="Only those in this state.")
@click.option("--recipient", metavar="ID", help="Only those for this recipient.")
@json_option
def list_(*, status: str | None, recipient: str | None, as_json: bool) -> None:
    """Show the newest notices."""
    from ingestion_pipeline.notices.status import LISTED, list_notices

    with reading() as (_, connection, _):
        rows = list_notices(connection, status=status, recipient=recipient)
    print_listing(
        rows,
        lambda row: {
            "id": row["id"],
            "recipient": row["recipient"],
            "status": row["status"],
            "subject": _subject(row["payload"]),
            "sent": row["sent_at"],
            "error": shortened(row["error"] or "", 120),
        },
        as_json=as_json,
        empty="no notices" + (f" are {status}" if status else ""),
        numbers={"id"},
        flexible={"subject", "error"},
    )
    if len(rows) == LISTED and not as_json:
        echo(f"(the newest {LISTED}; --status and --recipient show others)")


def _subject(payload: dict[str, Any]) -> str:
    if "series_title" not in payload:
        return shortened(payload.get("title") or "", 120)
    return f"{payload['series_title']} {payload['number'] or payload['title'] or ''}".strip()
