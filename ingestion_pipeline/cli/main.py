"""The `ingest` command: its groups, and what becomes of a mistake (a sentence, never a trace)."""

from __future__ import annotations

from typing import Any

import click

from ingestion_pipeline.cli.companies import companies
from ingestion_pipeline.cli.dead_letters import dead_letters
from ingestion_pipeline.cli.demo import demo
from ingestion_pipeline.cli.doctor import doctor
from ingestion_pipeline.cli.examples import show_examples
from ingestion_pipeline.cli.explain import explain as explain_row
from ingestion_pipeline.cli.export import export
from ingestion_pipeline.cli.extractions import extractions
from ingestion_pipeline.cli.init import init
from ingestion_pipeline.cli.listings import listings
from ingestion_pipeline.cli.matches import matches
from ingestion_pipeline.cli.metrics import metrics
from ingestion_pipeline.cli.notices import notices
from ingestion_pipeline.cli.output import Failed, Refused
from ingestion_pipeline.cli.profile import profile
from ingestion_pipeline.cli.read import read
from ingestion_pipeline.cli.recipients import follow, recipients, unfollow
from ingestion_pipeline.cli.scrape import scrape
from ingestion_pipeline.cli.series import series
from ingestion_pipeline.cli.settings import settings
from ingestion_pipeline.cli.source_updates import update
from ingestion_pipeline.cli.sources import sources
from ingestion_pipeline.cli.status import status
from ingestion_pipeline.cli.websites import websites


class _Ingest(click.Group):
    """Runs a command; an error that a person can cure becomes its message and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            explained = explain(error)
            if explained is None:
                raise
            raise explained from error


def explain(error: Exception) -> click.ClickException | None:
    """What to tell about the error; None for one of our own making, which keeps its trace."""
    from sqlalchemy.exc import DBAPIError

    from ingestion_pipeline.store import SchemaMismatch

    if isinstance(error, SchemaMismatch) or _is_bad_input(error):
        return Refused(str(error))
    if isinstance(error, DBAPIError):
        return Failed(f"the database gave up: {str(error.orig).strip()}")
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return Failed(f"{where}{error.strerror or error}")
    return None


def _is_bad_input(error: Exception) -> bool:
    """Whether we raised it to say so: our own class of ValueError or LookupError, or a plain one.

    A plain LookupError is raised by nobody but us; KeyError and IndexError are mistakes of ours.
    """
    if type(error) is LookupError:
        return True
    is_ours = type(error).__module__.startswith("ingestion_pipeline.")
    return is_ours and isinstance(error, ValueError | LookupError)


@click.group(
    cls=_Ingest,
    name="ingest",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 bad input.",
)
@click.version_option(package_name="ingestion_pipeline", prog_name="ingest")
def main() -> None:
    """Keep structured data from the web fresh: sources, their state, and what went wrong."""


sources.add_command(update)
sources.add_command(scrape)
for command in (
    *(init, sources, extractions, series, companies, recipients, follow, unfollow, notices),
    *(websites, profile, listings, matches, settings, status, metrics, dead_letters, export),
    *(explain_row, read),
    *(doctor, demo),
):
    main.add_command(command)
show_examples(main)
