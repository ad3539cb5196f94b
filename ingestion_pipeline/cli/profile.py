"""`ingest profile`: is it usable, and what one looks like."""

from __future__ import annotations

import click

from ingestion_pipeline.cli.output import CommandRefused, say, say_json
from ingestion_pipeline.cli.session import json_option, opened


@click.group()
def profile() -> None:
    """Check the profile that listings are matched with."""


@profile.command()
@json_option
def check(*, as_json: bool) -> None:
    """List every mistake of the profile, each with its line; exit 2 if there is one."""
    from ingestion_pipeline.companies.matching.profile import BadProfile, NoProfile
    from ingestion_pipeline.companies.matching.runs import found_profile, profile_path

    with opened() as (settings, _):
        found, path = found_profile(settings), profile_path(settings)
    if as_json:
        is_good = not isinstance(found, BadProfile | NoProfile)
        problems = [] if is_good else str(found).splitlines()
        say_json({"path": str(path), "is_usable": is_good, "problems": problems})
        if not is_good:
            raise click.exceptions.Exit(2)
        return
    if isinstance(found, BadProfile | NoProfile):
        raise CommandRefused(str(found))
    say(f"{path} is in order: {len(found.skills)} skills")


@profile.command()
def example() -> None:
    """Print a profile to begin with."""
    from ingestion_pipeline.companies.matching.profile import example_profile

    say(example_profile().rstrip())
