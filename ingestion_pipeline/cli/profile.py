"""`ingest profile`: check the job profile and print an example."""

from __future__ import annotations

import click

from ingestion_pipeline.cli.output import CommandRefused, echo, print_json
from ingestion_pipeline.cli.session import json_option, opened


@click.group()
def profile() -> None:
    """Check the profile that listings are matched with."""


@profile.command()
@json_option
def check(*, as_json: bool) -> None:
    """List every mistake of the profile, each with its line; exit 2 if there is one."""
    from ingestion_pipeline.companies.matching.listing_runs import profile_path, settings_profile
    from ingestion_pipeline.companies.matching.profile import BadProfile, NoProfile

    with opened() as (settings, _):
        profile_found, path = settings_profile(settings), profile_path(settings)
    if as_json:
        is_good = not isinstance(profile_found, BadProfile | NoProfile)
        problems = [] if is_good else str(profile_found).splitlines()
        print_json({"path": str(path), "is_usable": is_good, "problems": problems})
        if not is_good:
            raise click.exceptions.Exit(2)
        return
    if isinstance(profile_found, BadProfile | NoProfile):
        raise CommandRefused(str(profile_found))
    echo(f"{path} is valid: {len(profile_found.skills)} skills")


@profile.command()
def example() -> None:
    """Print an example profile."""
    from ingestion_pipeline.companies.matching.profile import example_profile

    echo(example_profile().rstrip())
