"""`ingest dead-letters`: list, show, replay and discard work that failed for good."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ingestion_pipeline.cli.output import (
    CommandFailed,
    CommandRefused,
    cell,
    counting,
    echo,
    is_json,
    json_option,
    print_facts,
    print_json,
    print_listing,
    print_result,
    shortened,
)
from ingestion_pipeline.cli.session import actor, known_source, opened, reading

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping

    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.store import Store
    from ingestion_pipeline.tasks.ended_tasks import DeadLetterFilter

LISTED = 1_000  # the newest; a filter shows others

class_option = click.option(
    "--class",
    "error_class",
    type=click.Choice(["transient", "permanent", "resource", "fatal"]),
    help="Only those of this error class.",
)
source_option = click.option("--source", "source_id", metavar="ID", help="Only those of a source.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would happen; change nothing.")
ids_argument = click.argument("dead_letter_ids", metavar="[ID]...", type=int, nargs=-1)


@click.group("dead-letters")
def dead_letters() -> None:
    """Show, replay and discard failed work."""


@dead_letters.command("list")
@class_option
@source_option
@click.option("--grouped", is_flag=True, help="One line for each class, source and error.")
@click.option("--decided", "--replayed", is_flag=True, help="Also those replayed or discarded.")
@json_option
def list_(*, error_class: str | None, source_id: str | None, grouped: bool, decided: bool) -> None:
    """Show open dead letters, newest first."""
    from ingestion_pipeline.tasks.ended_tasks import dead_letter_groups, list_dead_letters

    if grouped and decided:
        raise CommandRefused("--grouped shows open dead letters only; leave out --decided", code="conflicting_options")
    with reading() as (_, connection, _):
        chosen = _chosen(connection, error_class, source_id)
        if grouped:
            _print_groups(dead_letter_groups(connection, chosen))
            return
        rows = list_dead_letters(connection, chosen, decided=decided, limit=LISTED)
    print_listing(
        [{key: value for key, value in row.items() if key not in {"stack", "payload"}} for row in rows],
        lambda row: {
            "id": row["id"],
            "failed at": f"{row['failed_at']:%Y-%m-%d %H:%M}",
            "source": row["source_id"],
            "class": row["error_class"],
            "error": f"{row['error_code']}: {shortened(row['error'], 120)}",
        },
        empty="no dead letters",
        numbers={"id"},
        flexible={"error"},
    )
    if rows and not is_json():
        echo("\n`ingest dead-letters show ID` shows one, `replay ID` queues it again (UTC)")
    if len(rows) == LISTED:
        echo(f"the newest {LISTED} are shown; --class or --source shows others", is_error=True)


def _print_groups(groups: Sequence[RowMapping]) -> None:
    print_listing(
        groups,
        lambda group: {
            "class": group["error_class"],
            "source": group["source_id"],
            "error": group["error_code"],
            "dead letters": group["dead_letters"],
            "occurrences": group["occurrences"],
            "newest": group["newest"],
            "failed at": f"{group['failed_at']:%Y-%m-%d %H:%M}",
        },
        empty="no dead letters",
        numbers={"dead letters", "occurrences", "newest"},
    )
    if groups and not is_json():
        echo("\n`ingest dead-letters replay --class C --source ID` queues a group again (times: UTC)")


@dead_letters.command()
@click.argument("dead_letter_id", metavar="ID", type=int)
@click.option("--body", is_flag=True, help="Print only the stored response body, unchanged.")
@json_option
def show(*, dead_letter_id: int, body: bool) -> None:
    """Show one dead letter: payload, error, stack, snapshots."""
    from ingestion_pipeline.pages.content.snapshots import dead_letter_snapshots
    from ingestion_pipeline.tasks.ended_tasks import UnknownDeadLetter, find_dead_letter, state_of

    with reading() as (settings, connection, _):
        dead_letter = find_dead_letter(connection, dead_letter_id)
        if dead_letter is None:
            raise UnknownDeadLetter([dead_letter_id])
        snapshots = dead_letter_snapshots(connection, dead_letter)
    if body:
        _print_body(settings, dead_letter_id, snapshots)
        return
    facts = {str(key): value for key, value in dead_letter.items()} | {"state": state_of(dead_letter)}
    if is_json():
        print_json(facts | {"snapshots": [dict(snapshot) for snapshot in snapshots]})
        return
    stack = facts.pop("stack")
    print_facts(facts)
    for snapshot in snapshots:
        kind = snapshot["content_type"] or "no content type"
        summary = f"status {snapshot['status_code']}, {snapshot['size_bytes']} bytes, {kind}"
        echo(f"\nsnapshot {snapshot['id']} of {cell(snapshot['fetched_at'])}: {summary}\n  {snapshot['url']}")
    if snapshots:
        echo(f"  `ingest dead-letters show {dead_letter_id} --body` prints it")
    if stack:
        echo("\n" + stack)


def _print_body(settings: Settings, dead_letter_id: int, snapshots: Sequence[RowMapping]) -> None:
    from ingestion_pipeline.pages.content.store import ContentStore
    from ingestion_pipeline.reading.text.plain_text import decode
    from ingestion_pipeline.tasks.errors import WorkError

    if not snapshots:
        problem = f"no response of dead letter {dead_letter_id} is stored, or it was deleted"
        raise CommandFailed(
            f"{problem}; `ingest dead-letters show {dead_letter_id}` shows its URL", code="unreadable_body"
        )
    try:
        served = ContentStore(settings.home / "content").get(snapshots[0]["body_hash"])
    except WorkError as error:
        raise CommandFailed(f"snapshot {snapshots[0]['id']} cannot be read: {error}", code="unreadable_body") from error
    if sys.stdout.isatty():
        echo(decode(served, snapshots[0]["content_type"]))  # a page may hold commands for terminals
    else:
        click.echo(served, nl=False)


@dead_letters.command()
@ids_argument
@class_option
@source_option
@dry_run_option
@json_option
def replay(*, dead_letter_ids: tuple[int, ...], error_class: str | None, source_id: str | None, dry_run: bool) -> None:
    """Queue failed work again.

    By ids, or all open dead letters of an error class or a source.
    """
    from ingestion_pipeline.registry import requeue_dead_letters

    with opened() as (_, store):
        chosen = _ids(store, dead_letter_ids, error_class, source_id)
        requeued = requeue_dead_letters(store, chosen, actor=actor(), dry_run=dry_run)
        outcomes = list(counting(requeued, total=len(chosen), noun="dead letter"))
    would_be = "would be " if dry_run else ""
    lines = [f"{done.dead_letter_id}: {would_be * (done.outcome == 'queued')}{done.outcome}" for done in outcomes]
    left = sum(not outcome.runs_again for outcome in outcomes)
    lines.append(f"{len(outcomes) - left} {'to replay' if dry_run else 'replayed'}, {left} unchanged")
    results = {done.dead_letter_id: done.outcome for done in outcomes}
    print_result({"dry_run": dry_run, "outcomes": results, "unchanged": left}, "\n".join(lines))
    if left:
        raise click.exceptions.Exit(1)


@dead_letters.command()
@ids_argument
@class_option
@source_option
@click.option("--reason", required=True, help="Why they need no attention; stored with them.")
@dry_run_option
@json_option
def discard(
    *, dead_letter_ids: tuple[int, ...], error_class: str | None, source_id: str | None, reason: str, dry_run: bool
) -> None:
    """Close dead letters that need no attention.

    By ids, or all open ones of an error class or a source. The tasks stay as they are; work that
    fails again writes a new dead letter.
    """
    from ingestion_pipeline.tasks import ended_tasks as letters

    with opened() as (_, store):
        chosen = _ids(store, dead_letter_ids, error_class, source_id)
        with store.begin() as connection:
            now = store.clock.now(connection)
            try:
                closed = letters.discard(connection, chosen, reason=reason, actor=actor(), now=now)
            except ValueError as error:
                raise CommandRefused(str(error), code="no_reason") from error
            if dry_run:
                connection.rollback()
    left = len(set(chosen)) - len(closed)
    message = f"{len(closed)} {'to discard' if dry_run else 'discarded'}, {left} skipped: no longer open"
    print_result({"dry_run": dry_run, "discarded": list(closed), "skipped": left}, message)


def _ids(store: Store, dead_letter_ids: Sequence[int], error_class: str | None, source_id: str | None) -> Sequence[int]:
    """Return the dead letters the command selects; each exists."""
    from ingestion_pipeline.tasks.ended_tasks import check_dead_letters, open_ids

    if bool(dead_letter_ids) == bool(error_class or source_id):
        raise CommandRefused("select dead letters: either ids, or --class and/or --source", code="no_selection")
    with store.read() as connection:
        chosen = _chosen(connection, error_class, source_id)
        ids = dead_letter_ids or open_ids(connection, chosen)
        check_dead_letters(connection, ids)
    return ids


def _chosen(connection: Connection, error_class: str | None, source_id: str | None) -> DeadLetterFilter:
    from ingestion_pipeline.tasks.ended_tasks import DeadLetterFilter

    return DeadLetterFilter(error_class=error_class, source_id=known_source(connection, source_id))
