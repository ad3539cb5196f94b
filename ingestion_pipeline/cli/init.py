"""`ingest init`: create the database or migrate it to this version's schema."""

from __future__ import annotations

import click

from ingestion_pipeline.cli.output import echo, print_facts
from ingestion_pipeline.cli.session import opened, shown_database

FIRST_STEPS = """\
Next: `ingest demo run` shows everything on the bundled site;
      `ingest sources add URL --id series:NAME --kind series` adds a source of your own,
      or write YAML files into the sources folder and run `ingest sources import`;
      `ingest profile example > profile.yaml` creates a profile to match jobs with;
      `make dev` polls them and opens the UI; `ingest doctor` checks the installation."""


@click.command()
def init() -> None:
    """Create or migrate the database."""
    from ingestion_pipeline.registry import create_tables
    from ingestion_pipeline.sources.lookup import list_sources

    with opened(migrate=True) as (settings, store):
        create_tables(store)
        with store.read() as connection:
            count = len(list_sources(connection))
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = settings.sources.absolute()
    print_facts(
        {
            "database": shown_database(settings.store_url),
            "home": settings.home.absolute(),
            "sources folder": f"{folder}{'' if folder.is_dir() else ' (does not exist yet)'}",
            "sources": count,
        }
    )
    echo("")
    echo("Next: `ingest status` shows them, `make dev` polls them." if count else FIRST_STEPS)
