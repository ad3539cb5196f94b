"""`ingest init`: create or migrate the database, and write the files that a new project starts with."""

from pathlib import Path

import click

from ingestion_pipeline.cli.dagster_home import template
from ingestion_pipeline.cli.output import echo, print_facts
from ingestion_pipeline.cli.session import opened, shown_database

FIRST_STEPS = """\
Next: `ingest demo run` shows everything on the bundled site;
      `ingest sources add URL --id series:NAME --kind series` adds a source of your own,
      or write YAML files into the sources folder and run `ingest sources import`;
      `ingest profile example > profile.yaml` creates a profile to match jobs with;
      `ingest dev` polls them and opens the UI; `ingest doctor` checks the installation."""


@click.command()
def init() -> None:
    """Create or migrate the database.

    Writes dagster.yaml, workspace.yaml and an example source with its schema where they are missing; no file is
    replaced.
    """
    from ingestion_pipeline.registry import create_tables
    from ingestion_pipeline.sources.lookup import list_sources

    with opened(migrate=True) as (settings, store):
        create_tables(store)
        with store.read() as connection:
            count = len(list_sources(connection))
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = settings.sources.absolute()
    written = _write_templates(folder)
    print_facts(
        {
            "database": shown_database(settings.store_url),
            "home": settings.home.absolute(),
            "sources folder": folder,
            "sources": count,
            "files written": ", ".join(written) or "none, they exist",
        }
    )
    echo("")
    echo("Next: `ingest status` shows them, `ingest dev` polls them." if count else FIRST_STEPS)


def _write_templates(folder: Path) -> list[str]:
    """Write the files that are missing; return their names."""
    targets = {"dagster.yaml": Path("dagster.yaml"), "workspace.yaml": Path("workspace.yaml")}
    if not folder.exists():
        targets |= {name: folder / name for name in ("example.yaml", "schema.json")}
    missing = {name: path for name, path in targets.items() if not path.exists()}
    for name, path in missing.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(template(name))
    return [str(path) for path in missing.values()]
