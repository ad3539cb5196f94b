"""`ingest recipients`, `follow`, `unfollow`: who is told of new chapters, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import (
    Column,
    CommandFailed,
    CommandRefused,
    distance,
    say,
    say_json,
    say_table,
)
from ingestion_pipeline.cli.session import actor, json_option, opened
from ingestion_pipeline.sources.recipients import Mode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from ingestion_pipeline.notices.rows import Addressee
    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.sources.definition import BadField

mode_option = click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    help="When they are told: at once (the default), in a daily digest, or never.",
)
language_option = click.option(
    "--language", help="Told when a release in it is there: en, pt-br, ...; any by default."
)


@click.group()
def recipients() -> None:
    """Add, list, test and remove those who are told."""


@recipients.command()
@click.argument("recipient_id", metavar="ID")
@click.argument("address")
@mode_option
@language_option
@click.option(
    "--kinds",
    help=(
        "Of what they are told, a comma list: chapter (the default), extraction, recipe, job_match,"
        " source_degraded, source_recovered, breaker_opened, source_disabled, budget,"
        " run_failures, daemon_silent; alerts is the last seven."
    ),
)
@click.option("--secret", help="Signs the webhook: whsec_...; one is made by default.")
def add(*, recipient_id: str, address: str, secret: str | None, **given: Any) -> None:  # noqa: ANN401
    """Tell somebody, from now on.

    ADDRESS is https://... (a signed webhook), mailto:name@host, or notify: for your own services.
    """
    from ingestion_pipeline.notices import registry
    from ingestion_pipeline.sources.recipients import bad_secret, is_webhook, recipient_of

    kinds = given.pop("kinds")
    raw = {"id": recipient_id, "address": address, **given}
    if kinds is not None:
        raw["kinds"] = [kind.strip() for kind in kinds.split(",")]
    recipient, bad = recipient_of({key: value for key, value in raw.items() if value is not None})
    if secret is not None:
        bad = [*bad, *bad_secret(secret)]
    _refuse(bad)
    if secret is not None and not is_webhook(address):
        raise CommandRefused(f"secret: only a webhook is signed, and {address} is none")
    assert recipient is not None  # noqa: S101 - nothing was bad
    with opened() as (_, store), store.begin() as connection:
        now = store.clock.now(connection)
        made = registry.add(connection, recipient, actor=actor(), now=now, secret=secret)
    hears = f"`ingest follow {recipient_id} SERIES` says of what they hear"
    of_all = f"they hear of every {' and '.join(recipient.kinds)}"
    say(f"added {recipient_id}; {hears if 'chapter' in recipient.kinds else of_all}")
    if made is not None and secret is None:
        _say_secret(made)


def _refuse(bad: Sequence[BadField]) -> None:
    if bad:
        raise CommandRefused("\n".join(f"{one.field}: {one.message}" for one in bad))


def _say_secret(secret: str) -> None:
    say(f"its messages are signed with {secret}")
    say("(shown this once: `ingest recipients secret ID` makes another)")


@recipients.command()
@click.argument("recipient_id", metavar="ID")
@click.option("--secret", help="The key to use: whsec_...; a fresh one is made by default.")
def secret(*, recipient_id: str, secret: str | None) -> None:
    """Sign a webhook with another key from the next message on."""
    from ingestion_pipeline.notices import registry
    from ingestion_pipeline.sources.recipients import bad_secret

    _refuse(bad_secret(secret) if secret is not None else [])
    with opened() as (_, store), store.begin() as connection:
        now = store.clock.now(connection)
        made = registry.change_secret(
            connection, recipient_id, actor=actor(), now=now, secret=secret
        )
    say(f"{recipient_id} has another key from the next message on")
    if secret is None:
        _say_secret(made)


@recipients.command("list")
@json_option
def list_(*, as_json: bool) -> None:
    """Show everybody, what they follow and how their messages fare."""
    from ingestion_pipeline.notices.status import list_recipients

    with opened() as (_, store), store.read() as connection:
        now = store.clock.now(connection)
        found = list_recipients(connection)
    if as_json:
        say_json(found)
    elif not found:
        say("nobody; `ingest recipients add ID ADDRESS` adds somebody")
    else:
        _say_recipients(found, now)


def _say_recipients(found: Sequence[dict[str, Any]], now: datetime) -> None:
    columns = [
        Column("recipient"),
        Column("mode"),
        *(Column(name, is_number=True) for name in ("follows", "pending", "sent", "failed")),
        Column("paused"),
        Column("address", is_flexible=True),
        Column("last error", is_flexible=True),
    ]
    rows = [
        [
            one["id"],
            one["mode"] + (f" ({one['language']})" if one["language"] else ""),
            len(one["follows"]),
            *(one[name] for name in ("pending", "sent", "failed")),
            _pause(one["not_before"], now),
            one["address"],
            one["last_error"],
        ]
        for one in found
    ]
    say_table(columns, rows)


def _pause(until: datetime | None, now: datetime) -> str:
    """Until when a dead endpoint is left alone; a pause that is over is none."""
    return distance(until, now) if until is not None and until > now else "-"


@recipients.command()
@click.argument("recipient_id", metavar="ID")
def remove(*, recipient_id: str) -> None:
    """Tell somebody nothing any more; what they were told stays known."""
    from ingestion_pipeline.notices import registry

    with opened() as (_, store), store.begin() as connection:
        now = store.clock.now(connection)
        muted = registry.remove(connection, recipient_id, actor=actor(), now=now)
    say(f"{recipient_id} is removed; {muted} pending notices were muted")


@recipients.command()
@click.argument("recipient_id", metavar="ID")
def test(*, recipient_id: str) -> None:
    """Send a test message now, and say what came back."""
    import asyncio

    from ingestion_pipeline.notices.registry import known_addressee
    from ingestion_pipeline.tasks.errors import WorkError

    with opened() as (settings, store), store.read() as connection:
        to = known_addressee(connection, recipient_id)
        now = store.clock.now(connection)
    try:
        said = asyncio.run(_send_example(settings, to, now))
    except WorkError as error:
        raise CommandFailed(f"{recipient_id}: {error.text}") from error
    say(f"{recipient_id}: {to.address} {said}")


async def _send_example(settings: Settings, to: Addressee, now: datetime) -> str:
    from uuid import uuid4

    from ingestion_pipeline.bootstrap import open_channels
    from ingestion_pipeline.notices.message import example_message

    async with open_channels(settings) as channels:
        return await channels.send(to, example_message(f"test-{uuid4()}", to.id), now=now)


@click.command()
@click.argument("recipient_id", metavar="RECIPIENT")
@click.argument("series_id", metavar="SERIES")
@mode_option
@language_option
def follow(*, recipient_id: str, series_id: str, mode: str | None, language: str | None) -> None:
    """Tell RECIPIENT of new chapters of SERIES.

    Mode and language are the recipient's own unless they are given here.
    """
    from ingestion_pipeline.notices import registry
    from ingestion_pipeline.sources.recipients import Follow, bad_language

    _refuse(bad_language(language))
    wanted = Follow(
        series=series_id,
        mode=Mode(mode) if mode else None,
        language=language.lower() if language else None,
    )
    with opened() as (_, store), store.begin() as connection:
        now = store.clock.now(connection)
        is_new = registry.follow(connection, recipient_id, wanted, actor=actor(), now=now)
    told = "hears of new chapters of" if is_new else "already followed, just so,"
    say(f"{recipient_id} {told} {series_id}")


@click.command()
@click.argument("recipient_id", metavar="RECIPIENT")
@click.argument("series_id", metavar="SERIES")
def unfollow(*, recipient_id: str, series_id: str) -> None:
    """Tell RECIPIENT of SERIES no more."""
    from ingestion_pipeline.notices import registry

    with opened() as (_, store), store.begin() as connection:
        now = store.clock.now(connection)
        muted = registry.unfollow(connection, recipient_id, series_id, actor=actor(), now=now)
    say(f"{recipient_id} follows {series_id} no more; {muted} pending notices were muted")
