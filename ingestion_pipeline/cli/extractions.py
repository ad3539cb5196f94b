"""`ingest extractions`: begin, watch, stop, go on, read again."""

from __future__ import annotations

from dataclasses import asdict
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import (
    Column,
    counted,
    distance,
    say,
    say_facts,
    say_json,
    say_table,
)
from ingestion_pipeline.cli.session import actor, environment, json_option, opened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

STATES = ("WAITING", "IN_PROGRESS", "COMPLETE", "STALE", "CANCELLED")
PAGE_STATES = (
    *("WAITING", "IN_PROGRESS", "DOWNLOADED"),
    *("SUCCESS", "EXTRACTED_NO_DATA", "ERROR"),
)
id_argument = click.argument("extraction_id", metavar="ID", type=int)


@click.group()
def extractions() -> None:
    """Begin, watch, stop and repeat extractions."""


@extractions.command()
@click.argument("source_id", metavar="SOURCE")
@json_option
def start(*, source_id: str, as_json: bool) -> None:
    """Begin an extraction of SOURCE now, due or not.

    One that is under way goes on, and what waits of it is due at once.
    """
    from ingestion_pipeline.bootstrap import open_run_context
    from ingestion_pipeline.catalogs.crawling.runs import ask_for

    with open_run_context(environment()) as shop:
        said = ask_for(shop, [source_id])[source_id]
    _say({"source": source_id, "done": said}, f"{source_id}: {said}", as_json=as_json)


@extractions.command("list")
@click.option("--source", "source_id", metavar="ID", help="Only those of a source.")
@click.option("--status", type=click.Choice(STATES), help="Only those in this state.")
@json_option
def list_(*, source_id: str | None, status: str | None, as_json: bool) -> None:
    """Show the newest extractions and what became of their datasets."""
    from ingestion_pipeline.catalogs.operations.listing import list_extractions

    with opened() as (_, store), store.read() as connection:
        now = store.clock.now(connection)
        found = list_extractions(connection, source_id=source_id, status=status)
    if as_json:
        say_json(found)
    elif not found:
        say("no extractions; `ingest extractions start SOURCE` begins one")
    else:
        columns = [
            Column("id", is_number=True),
            Column("source"),
            Column("kind"),
            Column("status"),
            Column("pages", is_number=True),
            Column("items", is_number=True),
            Column("dataset"),
            Column("changed"),
        ]
        say_table(columns, [_row(one, now) for one in found])
        _say_reasons(found)


def _row(one: Mapping[str, Any], now: datetime) -> list[object]:
    version, state = one["dataset_version"], one["dataset_status"]
    return [
        one["id"],
        one["source_id"],
        one["kind"],
        one["status"],
        _pages(one),
        one["items"],
        f"v{version} {state}" if version else "-",
        distance(one["finished_at"] or one["changed_at"] or one["updated_at"], now),
    ]


def _say_reasons(found: Sequence[Mapping[str, Any]]) -> None:
    """Why some of them are not as one would wish; under the table, where a sentence has room."""
    newest = _newest_crawls(found)
    reasons = {
        f"{one['id']} {one['source_id']}": why
        for one in found
        if (why := _why(one, newest.get(one["source_id"], 0)))
    }
    if reasons:
        say("")
        say_facts(reasons)


def _newest_crawls(found: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the last extraction of each source that asked its site and has ended."""
    ended = [one for one in found if one["finished_at"] is not None and one["kind"] != "rerun"]
    return {one["source_id"]: one["id"] for one in sorted(ended, key=itemgetter("id"))}


def _why(one: Mapping[str, Any], newest: int) -> str:
    after = f"extraction {newest} came after it" if newest > one["id"] else None
    failure: dict[str, Any] = one["failure"] or {}
    if failure.get("message"):
        return f"{one['status']}: {failure['message']}"
    if one["dataset_status"] == "quarantined":
        findings: list[dict[str, str]] = one["findings"] or []
        said = "; ".join(each["message"] for each in findings)
        cure = f"`ingest extractions publish {one['id']}` shows it all the same"
        return f"held back: {said}; {after or cure}"
    summary: dict[str, Any] = one["summary"] or {}
    if kept := summary.get("kept"):
        cure = f"`ingest extractions retry {one['id']}` visits them again"
        return (
            f"{counted(kept, 'item')} kept of the time before, whose pages failed; {after or cure}"
        )
    waiting: list[dict[str, Any]] = one["waiting"]
    empty: list[dict[str, Any]] = one["no_data"]
    said = [f"{counted(each['pages'], 'page')} waiting: {each['why']}" for each in waiting]
    said += [f"{counted(each['pages'], 'page')} without data: {each['why']}" for each in empty]
    return "; ".join(said)


def _pages(one: Mapping[str, Any]) -> str:
    """`12 of 40` while it goes on."""
    from ingestion_pipeline.catalogs.states import UNFINISHED_PAGES

    summary: dict[str, Any] = one["summary"] or {}
    counts: dict[str, int] = summary.get("pages", {})
    left = sum(count for state, count in counts.items() if state in UNFINISHED_PAGES)
    return f"{one['page_count'] - left} of {one['page_count']}" if left else str(one["page_count"])


@extractions.command()
@id_argument
@click.option("--status", type=click.Choice(PAGE_STATES), help="Only those in this state.")
@click.option("--limit", default=200, type=click.IntRange(1), show_default=True, help="At most.")
@json_option
def pages(*, extraction_id: int, status: str | None, limit: int, as_json: bool) -> None:
    """Show its pages: state, items, and why one failed or gave no data."""
    from ingestion_pipeline.catalogs.operations.control import UnknownExtraction
    from ingestion_pipeline.catalogs.operations.listing import list_pages

    with opened() as (_, store), store.read() as connection:
        found = list_pages(connection, extraction_id, status=status, limit=limit)
        if not found and not list_pages(connection, extraction_id, limit=1):
            raise UnknownExtraction(extraction_id)
    if as_json:
        say_json(found)
    elif not found:
        say(f"no page of extraction {extraction_id} is {status}")
    else:
        columns = [Column("status"), Column("items", is_number=True), Column("url"), Column("why")]
        say_table(columns, [_page_row(one) for one in found])


def _page_row(one: Mapping[str, Any]) -> list[object]:
    failure: dict[str, Any] = one["failure"] or {}
    return [one["status"], one["item_count"], one["url"], failure.get("message")]


@extractions.command()
@id_argument
@click.option("--reason", default="", help="Why, for the audit log and the notice.")
@json_option
def cancel(*, extraction_id: int, reason: str, as_json: bool) -> None:
    """End it where it is; whoever works on it stops at the next check."""
    from random import Random

    from ingestion_pipeline.catalogs.operations import control

    with opened() as (settings, store), store.begin() as connection:
        ended = control.cancel(
            connection,
            extraction_id,
            actor=actor(),
            now=store.clock.now(connection),
            settings=settings,
            random=Random(),  # noqa: S311 - it spreads due times
            reason=reason,
        )
    facts = {"extraction": ended.id, "source": ended.source_id, "status": ended.status.value}
    cure = f"`ingest extractions resume {ended.id}` goes on with it"
    _say(facts, f"extraction {ended.id} of {ended.source_id} is cancelled; {cure}", as_json=as_json)


@extractions.command()
@id_argument
@json_option
def resume(*, extraction_id: int, as_json: bool) -> None:
    """Go on with a stale or cancelled one where it was.

    Pages without a live task have one again.
    """
    _requeue(extraction_id, "resume", as_json=as_json)


@extractions.command()
@id_argument
@json_option
def retry(*, extraction_id: int, as_json: bool) -> None:
    """Fetch failed pages again, and read those again that gave no data."""
    _requeue(extraction_id, "retry", as_json=as_json)


def _requeue(extraction_id: int, action: str, *, as_json: bool) -> None:
    from ingestion_pipeline.catalogs.operations import control

    act = control.resume if action == "resume" else control.retry
    with opened() as (_, store), store.begin() as connection:
        now = store.clock.now(connection)
        done = act(connection, extraction_id, actor=actor(), now=now)
    said = f"{counted(done.fetched, 'page')} to fetch, {done.read} to read"
    facts = {"extraction": extraction_id, "to_fetch": done.fetched, "to_read": done.read}
    _say(facts, f"extraction {extraction_id} goes on: {said}", as_json=as_json)


@extractions.command()
@id_argument
@click.option("--dry-run", is_flag=True, help="Only tell pages, model calls and cost.")
@click.option("--publish", is_flag=True, help="Show it though a later crawl's dataset is shown.")
@json_option
def rerun(*, extraction_id: int, dry_run: bool, publish: bool, as_json: bool) -> None:
    """Read the stored pages again into a new dataset.

    Without a single request; the dataset that is shown stays until the new one is good. What is of
    a later crawl stays shown, unless --publish says otherwise.
    """
    from ingestion_pipeline.bootstrap import open_run_context
    from ingestion_pipeline.catalogs.operations import rerun

    with open_run_context(environment()) as shop:
        if dry_run:
            with shop.store.read() as connection:
                found = rerun.predict_rerun(
                    connection, extraction_id, settings=shop.settings, content=shop.content
                )
            cost = "no price is known" if found.cost_usd is None else f"{found.cost_usd:f} dollars"
            calls = f"{counted(found.calls, 'model call')} at most"
            said = f"{counted(found.pages, 'stored page')}, {calls}, {cost}"
            note = f" ({found.note})" if found.note else ""
            _say(asdict(found), f"a rerun would take: {said}{note}", as_json=as_json)
            return
        with shop.store.begin() as connection:
            now = shop.store.clock.now(connection)
            made = rerun.rerun(connection, extraction_id, actor=actor(), now=now, publish=publish)
    read = counted(made.pages, "stored page")
    said = f"extraction {made.extraction_id} reads {read} of {extraction_id} again"
    _say(asdict(made), f"{said}, into a new dataset: {made.outlook}", as_json=as_json)


@extractions.command()
@id_argument
@json_option
def publish(*, extraction_id: int, as_json: bool) -> None:
    """Accept the dataset that was held back, and publish it; `accept` is the same command."""
    from ingestion_pipeline.catalogs.operations import control

    with opened() as (_, store), store.begin() as connection:
        now = store.clock.now(connection)
        version = control.publish(connection, extraction_id, actor=actor(), now=now)
    facts = {"extraction": extraction_id, "version": version, "status": "published"}
    _say(facts, f"version {version} of extraction {extraction_id} is published", as_json=as_json)


extractions.add_command(publish, "accept")


def _say(facts: dict[str, Any], said: str, *, as_json: bool) -> None:
    if as_json:
        say_json(facts)
    else:
        say(said)
