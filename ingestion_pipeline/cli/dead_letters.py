"""`ingest dead-letters`: work that was given up, and how to try it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.opening import actor, opened
from ingestion_pipeline.cli.options import json_option
from ingestion_pipeline.cli.output import (
    Column,
    Refused,
    say,
    say_facts,
    say_json,
    say_table,
    shortened,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping

    from ingestion_pipeline.store import Store

LISTED = 1_000  # the newest; a filter shows others
REPLAYED_AT_ONCE = 100_000

class_option = click.option(
    "--class",
    "error_class",
    type=click.Choice(["transient", "permanent", "resource", "fatal"]),
    help="Only those of this error class.",
)
source_option = click.option("--source", "source_id", metavar="ID", help="Only those of a source.")


@click.group("dead-letters")
def dead_letters() -> None:
    """Show and replay work that was given up."""


@dead_letters.command("list")
@class_option
@source_option
@click.option("--replayed", is_flag=True, help="Also those that were replayed.")
@json_option
def list_(*, error_class: str | None, source_id: str | None, replayed: bool, as_json: bool) -> None:
    """Show open dead letters, newest first."""
    from ingestion_pipeline.work.dead_letters import list_letters

    with opened() as (_, store), store.read() as connection:
        _check_source(connection, source_id)
        letters = list_letters(
            connection,
            error_class=error_class,
            source_id=source_id,
            replayed=replayed,
            limit=LISTED,
        )
    if as_json:
        say_json([_listed(letter) for letter in letters])
    elif not letters:
        say("no dead letters")
    else:
        _say_letters(letters)
    if len(letters) == LISTED:
        say(f"the newest {LISTED} are shown; --class or --source shows others", is_error=True)


def _listed(letter: RowMapping) -> dict[str, Any]:
    return {str(key): value for key, value in letter.items() if key not in {"stack", "payload"}}


def _say_letters(letters: Sequence[RowMapping]) -> None:
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


@dead_letters.command()
@click.argument("letter_id", metavar="ID", type=int)
@json_option
def show(*, letter_id: int, as_json: bool) -> None:
    """Show all of one: payload, error, stack."""
    from ingestion_pipeline.work.dead_letters import letter

    with opened() as (_, store), store.read() as connection:
        found = letter(connection, letter_id)
    if found is None:
        raise Refused(f"there is no dead letter {letter_id}; `ingest dead-letters list` shows all")
    if as_json:
        say_json(dict(found))
        return
    say_facts({str(key): value for key, value in found.items() if key != "stack"})
    if found["stack"]:
        say("\n" + found["stack"])


@dead_letters.command()
@click.argument("letter_ids", metavar="[ID]...", type=int, nargs=-1)
@class_option
@source_option
@click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing.")
def replay(
    *, letter_ids: tuple[int, ...], error_class: str | None, source_id: str | None, dry_run: bool
) -> None:
    """Try given-up work again.

    By ids, or all open ones of an error class or a source.
    """
    if bool(letter_ids) == bool(error_class or source_id):
        raise Refused("say which: either ids, or --class and/or --source")
    with opened() as (_, store):
        with store.read() as connection:
            _check_source(connection, source_id)
            chosen = letter_ids or _open_ids(connection, error_class, source_id)
            _check_ids(connection, chosen)
        outcomes = [_replay(store, one, dry_run=dry_run) for one in dict.fromkeys(chosen)]
    for letter_id, outcome, _ in outcomes:
        say(f"{letter_id}: {'would be ' if dry_run and outcome == 'queued' else ''}{outcome}")
    left = sum(not is_replayed for *_, is_replayed in outcomes)
    say(f"{len(outcomes) - left} {'to replay' if dry_run else 'replayed'}, {left} left as they are")
    if left:
        raise click.exceptions.Exit(1)


def _replay(store: Store, letter_id: int, *, dry_run: bool) -> tuple[int, str, bool]:
    """The id, what its replay came to, and whether the work runs again."""
    from ingestion_pipeline.systems import replay as replay_letter
    from ingestion_pipeline.work.dead_letters import letter

    with store.begin() as connection:
        now = store.clock.now(connection)
        outcome = replay_letter(connection, letter_id, actor=actor(), now=now)
        after = letter(connection, letter_id)
        if dry_run:
            connection.rollback()
    is_replayed = after is not None and after["replayed_at"] == now
    return letter_id, outcome, is_replayed


def _open_ids(
    connection: Connection, error_class: str | None, source_id: str | None
) -> tuple[int, ...]:
    from ingestion_pipeline.work.dead_letters import list_letters

    letters = list_letters(
        connection, error_class=error_class, source_id=source_id, limit=REPLAYED_AT_ONCE
    )
    return tuple(letter["id"] for letter in letters)


def _check_ids(connection: Connection, letter_ids: Sequence[int]) -> None:
    """Nothing is replayed unless every id exists."""
    from ingestion_pipeline.work.dead_letters import letter

    unknown = [str(one) for one in letter_ids if letter(connection, one) is None]
    if unknown:
        known = "`ingest dead-letters list` shows all; nothing was replayed"
        raise Refused(f"there is no dead letter {', '.join(unknown)}; {known}")


def _check_source(connection: Connection, source_id: str | None) -> None:
    from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id

    if source_id is not None and not sources_by_id(connection, [source_id]):
        raise UnknownSource(source_id)
