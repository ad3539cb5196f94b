"""`ingest dead-letters`: work that was given up, to be tried again or to be let go."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import (
    Column,
    CommandFailed,
    CommandRefused,
    cell,
    counting,
    say,
    say_facts,
    say_json,
    say_table,
    shortened,
)
from ingestion_pipeline.cli.session import actor, json_option, opened

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping

    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.store import Store
    from ingestion_pipeline.tasks.dead_letters import Chosen

LISTED = 1_000  # the newest; a filter shows others

class_option = click.option(
    "--class",
    "error_class",
    type=click.Choice(["transient", "permanent", "resource", "fatal"]),
    help="Only those of this error class.",
)
source_option = click.option("--source", "source_id", metavar="ID", help="Only those of a source.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Say what would happen, and change nothing."
)
ids_argument = click.argument("letter_ids", metavar="[ID]...", type=int, nargs=-1)


@click.group("dead-letters")
def dead_letters() -> None:
    """Show, replay and discard work that was given up."""


@dead_letters.command("list")
@class_option
@source_option
@click.option("--grouped", is_flag=True, help="One line for each class, source and error.")
@click.option("--decided", "--replayed", is_flag=True, help="Also those replayed or discarded.")
@json_option
def list_(
    *,
    error_class: str | None,
    source_id: str | None,
    grouped: bool,
    decided: bool,
    as_json: bool,
) -> None:
    """Show open dead letters, newest first."""
    from ingestion_pipeline.tasks.dead_letters import dead_letter_groups, list_dead_letters

    if grouped and decided:
        raise CommandRefused("--grouped shows what is open; leave out --decided")
    with opened() as (_, store), store.read() as connection:
        chosen = _chosen(connection, error_class, source_id)
        if grouped:
            _say_groups(dead_letter_groups(connection, chosen), as_json=as_json)
            return
        letters = list_dead_letters(connection, chosen, decided=decided, limit=LISTED)
    if as_json:
        say_json([_listed(letter) for letter in letters])
    elif not letters:
        say("no dead letters")
    else:
        _print_dead_letters(letters)
    if len(letters) == LISTED:
        say(f"the newest {LISTED} are shown; --class or --source shows others", is_error=True)


def _listed(letter: RowMapping) -> dict[str, Any]:
    return {str(key): value for key, value in letter.items() if key not in {"stack", "payload"}}


def _print_dead_letters(letters: Sequence[RowMapping]) -> None:
    columns = [
        Column("id", is_number=True),
        Column("failed at"),
        Column("source"),
        Column("class"),
        Column("error", is_flexible=True),
    ]
    say_table(
        columns,
        [
            [
                letter["id"],
                f"{letter['failed_at']:%Y-%m-%d %H:%M}",
                letter["source_id"],
                letter["error_class"],
                f"{letter['error_code']}: {shortened(letter['error'], 120)}",
            ]
            for letter in letters
        ],
    )
    say("\n`ingest dead-letters show ID` tells all of one, `replay ID` tries it again (times: UTC)")


def _say_groups(groups: Sequence[RowMapping], *, as_json: bool) -> None:
    if as_json:
        say_json([dict(one) for one in groups])
        return
    if not groups:
        say("no dead letters")
        return
    numbers = [Column(name, is_number=True) for name in ("letters", "times", "newest")]
    columns = [Column("class"), Column("source"), Column("error"), *numbers, Column("failed at")]
    keys = ("error_class", "source_id", "error_code", "letters", "occurrences", "newest")
    rows = [[*(one[key] for key in keys), f"{one['failed_at']:%Y-%m-%d %H:%M}"] for one in groups]
    say_table(columns, rows)
    say("\n`ingest dead-letters replay --class C --source ID` tries a group again (times: UTC)")


@dead_letters.command()
@click.argument("letter_id", metavar="ID", type=int)
@click.option("--body", is_flag=True, help="Print what was served, as it was, and nothing else.")
@json_option
def show(*, letter_id: int, body: bool, as_json: bool) -> None:
    """Show all of one: payload, error, stack, its snapshots."""
    from ingestion_pipeline.pages.content.archive import dead_letter_snapshots
    from ingestion_pipeline.tasks.dead_letters import UnknownDeadLetter, find_dead_letter, state_of

    with opened() as (settings, store), store.read() as connection:
        found = find_dead_letter(connection, letter_id)
        if found is None:
            raise CommandRefused(str(UnknownDeadLetter([letter_id])))
        kept = dead_letter_snapshots(connection, found)
    if body:
        _print_body(settings, letter_id, kept)
        return
    facts = {str(key): value for key, value in found.items()} | {"state": state_of(found)}
    if as_json:
        say_json(facts | {"snapshots": [dict(one) for one in kept]})
        return
    stack = facts.pop("stack")
    say_facts(facts)
    for one in kept:
        kind = one["content_type"] or "no content type"
        said = f"answered {one['status_code']}, {one['size_bytes']} bytes, {kind}"
        say(f"\nsnapshot {one['id']} of {cell(one['fetched_at'])}: {said}\n  {one['url']}")
    if kept:
        say(f"  `ingest dead-letters show {letter_id} --body` prints it")
    if stack:
        say("\n" + stack)


def _print_body(settings: Settings, letter_id: int, kept: Sequence[RowMapping]) -> None:
    from ingestion_pipeline.pages.content.store import ContentStore
    from ingestion_pipeline.reading.text.decoding import decode
    from ingestion_pipeline.tasks.errors import WorkError

    if not kept:
        said = f"nothing of what dead letter {letter_id} is about was stored, or it is gone"
        raise CommandFailed(f"{said}; `ingest dead-letters show {letter_id}` tells its URL")
    try:
        served = ContentStore(settings.home / "content").get(kept[0]["body_hash"])
    except WorkError as error:
        raise CommandFailed(f"snapshot {kept[0]['id']} cannot be read: {error}") from error
    if sys.stdout.isatty():
        say(decode(served, kept[0]["content_type"]))  # a page may hold commands for terminals
    else:
        click.echo(served, nl=False)


@dead_letters.command()
@ids_argument
@class_option
@source_option
@dry_run_option
def replay(
    *, letter_ids: tuple[int, ...], error_class: str | None, source_id: str | None, dry_run: bool
) -> None:
    """Try given-up work again.

    By ids, or all open ones of an error class or a source.
    """
    from ingestion_pipeline.registry import requeue_dead_letters

    with opened() as (_, store):
        chosen = _ids(store, letter_ids, error_class, source_id)
        outcomes = list(
            counting(
                requeue_dead_letters(store, chosen, actor=actor(), dry_run=dry_run),
                total=len(chosen),
                noun="dead letter",
            )
        )
    for one in outcomes:
        would_be = "would be " if dry_run and one.outcome == "queued" else ""
        say(f"{one.letter_id}: {would_be}{one.outcome}")
    left = sum(not one.runs_again for one in outcomes)
    say(f"{len(outcomes) - left} {'to replay' if dry_run else 'replayed'}, {left} left as they are")
    if left:
        raise click.exceptions.Exit(1)


@dead_letters.command()
@ids_argument
@class_option
@source_option
@click.option("--reason", required=True, help="Why nobody has to look at them; kept with them.")
@dry_run_option
def discard(
    *,
    letter_ids: tuple[int, ...],
    error_class: str | None,
    source_id: str | None,
    reason: str,
    dry_run: bool,
) -> None:
    """Close letters that nobody has to look at any more.

    By ids, or all open ones of an error class or a source. Their work stays as it is: what fails
    again writes a letter again.
    """
    from ingestion_pipeline.tasks import dead_letters as letters

    with opened() as (_, store):
        chosen = _ids(store, letter_ids, error_class, source_id)
        with store.begin() as connection:
            now = store.clock.now(connection)
            try:
                closed = letters.discard(connection, chosen, reason=reason, actor=actor(), now=now)
            except ValueError as error:
                raise CommandRefused(str(error)) from error
            if dry_run:
                connection.rollback()
    left = len(set(chosen)) - len(closed)
    say(f"{len(closed)} {'to discard' if dry_run else 'discarded'}, {left} left: not open any more")


def _ids(
    store: Store, letter_ids: Sequence[int], error_class: str | None, source_id: str | None
) -> Sequence[int]:
    """The letters that the command means; each exists."""
    from ingestion_pipeline.tasks.dead_letters import (
        UnknownDeadLetter,
        check_dead_letters,
        open_ids,
    )

    if bool(letter_ids) == bool(error_class or source_id):
        raise CommandRefused("say which: either ids, or --class and/or --source")
    with store.read() as connection:
        chosen = _chosen(connection, error_class, source_id)
        ids = letter_ids or open_ids(connection, chosen)
        try:
            check_dead_letters(connection, ids)
        except UnknownDeadLetter as error:
            raise CommandRefused(f"{error}; nothing was changed") from error
    return ids


def _chosen(connection: Connection, error_class: str | None, source_id: str | None) -> Chosen:
    from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
    from ingestion_pipeline.tasks.dead_letters import Chosen

    if source_id is not None and not sources_by_id(connection, [source_id]):
        raise UnknownSource(source_id)
    return Chosen(error_class=error_class, source_id=source_id)
