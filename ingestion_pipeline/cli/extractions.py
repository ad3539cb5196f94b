"""`ingest extractions`: start, list, cancel, resume, retry, rerun and publish extractions."""

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import (
    distance,
    echo,
    is_json,
    json_option,
    print_facts,
    print_listing,
    print_result,
)
from ingestion_pipeline.cli.session import actor, environment, reading
from ingestion_pipeline.terminal import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STATES = ("WAITING", "IN_PROGRESS", "COMPLETE", "STALE", "CANCELLED")
PAGE_STATES = (*("WAITING", "IN_PROGRESS", "DOWNLOADED"), *("SUCCESS", "EXTRACTED_NO_DATA", "ERROR"))
id_argument = click.argument("extraction_id", metavar="ID", type=int)


@click.group()
def extractions() -> None:
    """Start, list, cancel, resume and rerun extractions."""


@extractions.command()
@click.argument("source_id", metavar="SOURCE")
@json_option
def start(*, source_id: str) -> None:
    """Start an extraction of SOURCE now, due or not.

    A running one continues, and its waiting pages are due at once.
    """
    _act("start", source=source_id)


def _act(action: str, **options: Any) -> None:  # noqa: ANN401 - those of `run_action`
    """Run an action as the job `control_extraction` does, and print its result."""
    from ingestion_pipeline.bootstrap import open_run_context
    from ingestion_pipeline.catalogs.catalog_runs import run_action

    with open_run_context(environment()) as ctx:
        done = run_action(ctx, action, actor=actor(), **options)
    print_result(done.facts, done.message)


@extractions.command("list")
@click.option("--source", "source_id", metavar="ID", help="Only those of a source.")
@click.option("--status", type=click.Choice(STATES), help="Only those in this state.")
@json_option
def list_(*, source_id: str | None, status: str | None) -> None:
    """Show the newest extractions and the status of their datasets."""
    from ingestion_pipeline.catalogs.extraction_reports import list_extractions

    with reading() as (_, connection, now):
        rows = list_extractions(connection, source_id=source_id, status=status)
    print_listing(
        rows,
        lambda row: {
            "id": row["id"],
            "source": row["source_id"],
            "kind": row["kind"],
            "status": row["status"],
            "pages": _pages(row),
            "items": row["items"],
            "dataset": f"v{row['dataset_version']} {row['dataset_status']}" if row["dataset_version"] else None,
            "changed": distance(row["finished_at"] or row["changed_at"] or row["updated_at"], now),
        },
        empty="no extractions; `ingest extractions start SOURCE` starts one",
        numbers={"id", "pages", "items"},
    )
    if not is_json():
        _print_reasons(rows)


def _print_reasons(rows: "Sequence[Mapping[str, Any]]") -> None:
    """Print under the table why extractions are incomplete or held back."""
    ended = [row for row in rows if row["finished_at"] is not None and row["kind"] != "rerun"]
    newest = {row["source_id"]: row["id"] for row in sorted(ended, key=itemgetter("id"))}
    reasons = {
        f"{row['id']} {row['source_id']}": why for row in rows if (why := _why(row, newest.get(row["source_id"], 0)))
    }
    if reasons:
        echo("")
        print_facts(reasons)


def _why(row: "Mapping[str, Any]", newest: int) -> str:
    after = f"extraction {newest} is newer" if newest > row["id"] else None
    failure: dict[str, Any] = row["failure"] or {}
    if failure.get("message"):
        return f"{row['status']}: {failure['message']}"
    if row["dataset_status"] == "quarantined":
        findings: list[dict[str, str]] = row["findings"] or []
        messages = "; ".join(each["message"] for each in findings)
        cure = f"`ingest extractions publish {row['id']}` publishes it anyway"
        return f"held back: {messages}; {after or cure}"
    summary: dict[str, Any] = row["summary"] or {}
    if kept_items := summary.get("kept"):
        cure = f"`ingest extractions retry {row['id']}` fetches them again"
        return f"{counted(kept_items, 'item')} kept from earlier pages that now failed; {after or cure}"
    waiting: list[dict[str, Any]] = row["waiting"]
    empty: list[dict[str, Any]] = row["no_data"]
    messages = [f"{counted(each['pages'], 'page')} waiting: {each['why']}" for each in waiting]
    messages += [f"{counted(each['pages'], 'page')} without data: {each['why']}" for each in empty]
    return "; ".join(messages)


def _pages(row: "Mapping[str, Any]") -> str:
    """Return `12 of 40` while pages are unfinished, else their number."""
    from ingestion_pipeline.catalogs.states import UNFINISHED_PAGES

    summary: dict[str, Any] = row["summary"] or {}
    counts: dict[str, int] = summary.get("pages", {})
    left = sum(count for state, count in counts.items() if state in UNFINISHED_PAGES)
    return f"{row['page_count'] - left} of {row['page_count']}" if left else str(row["page_count"])


@extractions.command()
@id_argument
@click.option("--status", type=click.Choice(PAGE_STATES), help="Only those in this state.")
@click.option("--limit", default=200, type=click.IntRange(1), show_default=True, help="Maximum number of pages.")
@json_option
def pages(*, extraction_id: int, status: str | None, limit: int) -> None:
    """Show its pages: state, items, reason."""
    from ingestion_pipeline.catalogs.extraction_control import UnknownExtraction
    from ingestion_pipeline.catalogs.extraction_reports import list_pages

    with reading() as (_, connection, _):
        rows = list_pages(connection, extraction_id, status=status, limit=limit)
        if not rows and not list_pages(connection, extraction_id, limit=1):
            raise UnknownExtraction(extraction_id)

    print_listing(
        rows,
        lambda row: {
            "status": row["status"],
            "items": row["item_count"],
            "url": row["url"],
            "reason": row["failure"].get("message") if row["failure"] else None,
        },
        empty=f"no page of extraction {extraction_id} is {status}",
        numbers={"items"},
    )


@extractions.command()
@id_argument
@click.option("--reason", default="", help="Reason, for the audit log and the notice.")
@json_option
def cancel(*, extraction_id: int, reason: str) -> None:
    """Cancel an extraction; workers stop at the next check."""
    _act("cancel", extraction=extraction_id, reason=reason)


@extractions.command()
@id_argument
@json_option
def resume(*, extraction_id: int) -> None:
    """Continue a stale or cancelled extraction.

    Pages without a live task are queued again.
    """
    _act("resume", extraction=extraction_id)


@extractions.command()
@id_argument
@json_option
def retry(*, extraction_id: int) -> None:
    """Fetch failed pages again; re-extract pages without data."""
    _act("retry", extraction=extraction_id)


@extractions.command()
@id_argument
@click.option("--dry-run", is_flag=True, help="Only show pages, model calls and cost.")
@click.option("--publish", is_flag=True, help="Publish it even if a later crawl's dataset is published.")
@json_option
def rerun(*, extraction_id: int, dry_run: bool, publish: bool) -> None:
    """Extract the stored pages again into a new dataset.

    Without a single request; the published dataset stays until the new one is good. A later crawl's
    dataset stays published unless --publish is given.
    """
    _act("rerun", extraction=extraction_id, dry_run=dry_run, publish=publish)


@extractions.command()
@id_argument
@json_option
def publish(*, extraction_id: int) -> None:
    """Publish a held-back dataset (also `accept`)."""
    _act("publish", extraction=extraction_id)


extractions.add_command(publish, "accept")
