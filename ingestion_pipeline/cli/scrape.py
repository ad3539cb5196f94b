"""`ingest sources scrape`: job boards ahead of their schedule."""

from __future__ import annotations

import click

from ingestion_pipeline.cli.opening import actor, opened
from ingestion_pipeline.cli.output import CommandRefused, say
from ingestion_pipeline.cli.sources import sources


@sources.command()
@click.argument("source_ids", metavar="[ID]...", nargs=-1)
@click.option("--target-matches", type=click.IntRange(min=1), help="A rotation ends after so many.")
@click.option("--max-sources", type=click.IntRange(min=1), help="Boards it takes at most.")
def scrape(
    *, source_ids: tuple[str, ...], target_matches: int | None, max_sources: int | None
) -> None:
    """Scrape job boards now: these, or by turns.

    Without an ID those scraped longest ago come first, a few at a time, until enough jobs match.
    """
    from ingestion_pipeline.companies.boards.rotation import NotPolled, Wish, ask_scrape
    from ingestion_pipeline.store.audit import audit
    from ingestion_pipeline.work.spawn_guard import Refusal

    if source_ids and (target_matches or max_sources):
        raise CommandRefused(
            "--target-matches and --max-sources belong to a rotation; name no board"
        )
    wish = Wish(source_ids=source_ids, target_matches=target_matches, max_sources=max_sources)
    with opened() as (settings, store), store.begin() as connection:
        now = store.clock.now(connection)
        try:
            made = ask_scrape(connection, wish, now=now, settings=settings)
        except NotPolled as error:
            raise CommandRefused(str(error)) from error
        if isinstance(made, Refusal):
            raise CommandRefused(f"not asked for again ({made.value}): the same wish still waits")
        audit(
            connection,
            actor=actor(),
            action="boards.scrape",
            subject=f"task:{made}",
            now=now,
            detail=wish.payload(),
        )
    what = f"{len(source_ids)} boards" if source_ids else "a rotation of boards"
    say(f"asked for {what}; `make dev`, or the job process_companies, takes it from here")
