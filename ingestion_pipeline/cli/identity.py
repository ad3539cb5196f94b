"""`ingest identity`: the key that signs requests, and the directory by which sites recognise it."""

import click

from ingestion_pipeline.cli.output import CommandRefused, echo, is_json, json_option, print_json
from ingestion_pipeline.cli.session import environment


@click.group()
def identity() -> None:
    """Sign requests (Web Bot Auth)."""


@identity.command()
@json_option
def create() -> None:
    """Create the key of this installation; it is stored in INGESTION_HOME."""
    from ingestion_pipeline.pages.http.identity import DIRECTORY_PATH, IdentityExists, create_identity
    from ingestion_pipeline.settings import load_settings

    try:
        created = create_identity(load_settings(environment()).home)
    except IdentityExists as error:
        raise CommandRefused(str(error), code="identity_exists") from error
    if is_json():
        print_json({"key_id": created.key_id, "serve_at": DIRECTORY_PATH})
        return
    echo(f"key {created.key_id} created")
    echo(f"serve what `ingest identity show --json` prints at {DIRECTORY_PATH} of your site, then set")
    echo("identity.agent_url to the site: `ingest settings set identity.agent_url https://bot.example.org`")


@identity.command()
@json_option
def show() -> None:
    """Print the public key; --json prints the directory to serve."""
    from ingestion_pipeline.pages.http.identity import load_identity
    from ingestion_pipeline.settings import load_settings

    settings = load_settings(environment())
    loaded = load_identity(settings.home)
    if loaded is None:
        raise CommandRefused("there is no key; `ingest identity create` makes one", code="no_identity")
    if is_json():
        print_json(loaded.directory)
        return
    echo(f"key {loaded.key_id}")
    agent_url = settings.identity.agent_url
    echo(f"requests are signed for {agent_url}" if agent_url else "requests are not signed: set identity.agent_url")
