"""The `ingest` command group: loading of commands, examples, and errors as messages."""

import errno
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import click

from ingestion_pipeline.cli.output import CommandFailed, CommandRefused, Interrupted
from ingestion_pipeline.extras import missing_extra
from ingestion_pipeline.gc_thresholds import fewer_collections, skip_collection_at_exit

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "init": ("ingest init",),
    "companies list": ("ingest companies list --tier S", "ingest companies list --status active --json"),
    "companies show": ("ingest companies show company:acme",),
    "dead-letters discard": (
        "ingest dead-letters discard 7 --reason 'the page is gone for good'",
        "ingest dead-letters discard --source catalog:old --reason 'site closed' --dry-run",
    ),
    "dead-letters list": (
        "ingest dead-letters list --grouped",
        "ingest dead-letters list --class transient --source series:solo",
    ),
    "dead-letters replay": ("ingest dead-letters replay --class transient --dry-run", "ingest dead-letters replay 7 8"),
    "dead-letters show": ("ingest dead-letters show 7", "ingest dead-letters show 7 --body > body.html"),
    "demo break": ("ingest demo break", "ingest demo break --repair"),
    "demo mutate": ("ingest demo mutate",),
    "demo run": ("ingest demo run", "ingest demo run --model"),
    "demo serve": ("ingest demo serve --port 8400",),
    "dev": ("ingest dev", "ingest dev --port 3001"),
    "doctor": ("ingest doctor", "ingest doctor --offline --json"),
    "export": (
        "ingest export job_listings --to parquet",
        "ingest export course --source catalog:college --to csv --out courses.csv --evidence",
        "ingest export chapters --to jsonl --since-last",
    ),
    "explain": ("ingest explain chapters:12", "ingest explain job_matches:3 --json"),
    "extractions accept": ("ingest extractions accept 3",),
    "extractions cancel": ("ingest extractions cancel 3 --reason 'wrong recipe'",),
    "extractions list": ("ingest extractions list --source catalog:college --status COMPLETE",),
    "extractions pages": ("ingest extractions pages 3 --status ERROR",),
    "extractions publish": ("ingest extractions publish 3",),
    "extractions rerun": ("ingest extractions rerun 3 --dry-run", "ingest extractions rerun 3"),
    "extractions resume": ("ingest extractions resume 3",),
    "extractions retry": ("ingest extractions retry 3",),
    "extractions start": ("ingest extractions start catalog:college",),
    "follow": ("ingest follow ann lighthouse --mode digest --language en",),
    "try": ("ingest try https://college.example/courses", "ingest try https://jobs.lever.co/acme --add"),
    "unfollow": ("ingest unfollow ann lighthouse",),
    "listings list": (
        "ingest listings list --source job_board:acme --decision filtered",
        "ingest listings list --company Acme --status open --json",
    ),
    "listings show": ("ingest listings show 12",),
    "matches explain": ("ingest matches explain 12",),
    "matches list": ("ingest matches list --source job_board:acme --limit 20",),
    "metrics": (
        "ingest metrics",
        "ingest metrics --out /var/lib/node_exporter/ingestion.prom",
        "ingest metrics --serve 9464",
    ),
    "notices list": ("ingest notices list --status failed --recipient ann",),
    "profile check": ("ingest profile check",),
    "profile example": ("ingest profile example > profile.yaml",),
    "read": (
        "ingest read feed.xml --platform rss --kind series --json",
        "ingest read jobs.json --platform greenhouse --json",
        "curl -s https://college.example/courses | ingest read - --platform catalog --json",
    ),
    "recipients add": (
        "ingest recipients add ann https://hooks.example/ann --mode immediate",
        "ingest recipients add bob mailto:bob@example.org --mode digest --kinds chapter",
    ),
    "recipients list": ("ingest recipients list --json",),
    "recipients remove": ("ingest recipients remove ann",),
    "recipients secret": ("ingest recipients secret ann",),
    "run": ("ingest run series:solo", "ingest run catalog:college job_board:acme --minutes 10 --json"),
    "recipients test": ("ingest recipients test ann",),
    "series list": ("ingest series list --json",),
    "series merge": ("ingest series merge solo-levelling solo-leveling --dry-run",),
    "series restore": ("ingest series restore solo 12.5",),
    "series show": ("ingest series show solo",),
    "series split": ("ingest series split solo --source series:solo-es --into solo-es",),
    "series withdraw": ("ingest series withdraw solo 12.5 --reason 'never published'",),
    "settings list": ("ingest settings list", "ingest settings list --json"),
    "settings set": ("ingest settings set hosts.delay_seconds 2",),
    "settings unset": ("ingest settings unset hosts.delay_seconds",),
    "sources add": (
        "ingest sources add https://a.example/feed.xml --id series:solo --kind series",
        "ingest sources add https://boards.greenhouse.io/acme --id job_board:acme --kind job_board --tier hot",
        "ingest sources add acme.example --kind website",
    ),
    "sources disable": ("ingest sources disable series:solo --reason 'moved'",),
    "sources enable": ("ingest sources enable series:solo",),
    "sources import": ("ingest sources import sources/mine.yaml",),
    "sources list": ("ingest sources list --kind job_board --json",),
    "sources remove": ("ingest sources remove series:solo",),
    "sources schema": ("ingest sources schema > sources/schema.json",),
    "sources scrape": ("ingest sources scrape --target-matches 5 --max-sources 10",),
    "sources show": ("ingest sources show series:solo",),
    "sources update": (
        "ingest sources update series:solo --tier hot",
        "ingest sources update catalog:college --detect",
    ),
    "status": (
        "ingest status",
        "ingest status --json",
        "ingest status --workers",
        "ingest status --fail-on daemon --fail-on sources",
    ),
    "websites list": ("ingest websites list", "ingest websites list --status failed --json"),
    "websites show": ("ingest websites show website:acme", "ingest websites show website:acme --json"),
}


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield the command, or each of its subcommands, with the words typed after `ingest`."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name, inner in sorted(command.commands.items()):
        yield from commands(inner, f"{path} {name}")


def show_examples(path: str, command: click.Command) -> None:
    """Add the examples to the help of the command, or of each of its subcommands."""
    for inner_path, inner in commands(command, path):
        lines = (f"  {line}" for line in EXAMPLES.get(inner_path, ()))
        # `\b`: click leaves the lines as they are.
        inner.epilog = "\n".join(["\b", "Examples:", *lines])


# Where each command is; its module is read when the command is typed, or listed with its summary.
COMMANDS = {
    "companies": "companies",
    "dead-letters": "dead_letters",
    "demo": "ingestion_pipeline.demo.commands:demo",
    "dev": "installation:dev",
    "doctor": "doctor",
    "explain": "rows:explain",
    "export": "rows:export",
    "extractions": "extractions",
    "follow": "recipients:follow",
    "init": "installation:init",
    "listings": "listings",
    "matches": "listings:matches",
    "metrics": "metrics",
    "notices": "recipients:notices",
    "profile": "listings:profile",
    "read": "read",
    "recipients": "recipients",
    "run": "first_look:run",
    "series": "series",
    "settings": "settings",
    "sources": "sources",
    "status": "status",
    "try": "first_look:try_",
    "unfollow": "recipients:unfollow",
    "websites": "websites",
}
_CHOOSE_WRITABLE = "; choose a path that you can write to"
CURES = {
    errno.ENOSPC: "; free some space, then run the command again",
    errno.EACCES: _CHOOSE_WRITABLE,
    errno.EPERM: _CHOOSE_WRITABLE,
    errno.EROFS: _CHOOSE_WRITABLE,
}


class _Ingest(click.Group):
    """The command group; it loads commands lazily and turns errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all command names, sorted."""
        return sorted({*COMMANDS, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command; its module is imported on first use."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            load(self, cmd_name)
        return super().get_command(ctx, cmd_name)

    def main(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - click's own signature
        """Run the command line with fewer garbage collections."""
        skip_collection_at_exit()
        with fewer_collections():
            return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
            raise
        except (KeyboardInterrupt, click.Abort) as error:
            raise Interrupted from error
        except Exception as error:
            explained = explain(error)
            if explained is None:
                raise
            raise explained from error


def load(group: click.Group, name: str) -> click.Command:
    """Import the command, add it to the group with its examples, and return it."""
    module, _, attribute = COMMANDS[name].partition(":")
    path = module if "." in module else f"ingestion_pipeline.cli.{module}"
    command: click.Command = getattr(import_module(path), attribute or module)
    group.add_command(command, name)
    show_examples(name, command)
    return command


def every_command() -> Mapping[str, click.Command]:
    """Import and return all commands."""
    return {name: load(main, name) for name in COMMANDS}


def explain(error: Exception) -> click.ClickException | None:
    """Return the error to show; None for a bug of ours, which keeps its traceback."""
    from sqlalchemy.exc import DBAPIError

    from ingestion_pipeline.store import SchemaMismatch

    if isinstance(error, SchemaMismatch) or _is_bad_input(error):
        return CommandRefused(str(error))
    if (cure := missing_extra(error)) is not None:
        return CommandRefused(cure)
    if isinstance(error, DBAPIError):
        message = str(error.orig).strip()
        cure = "; another process writes: wait for it, or stop it" if "locked" in message else ""
        return CommandFailed(f"database error: {message}{cure}")
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return CommandFailed(f"{where}{error.strerror or error}{CURES.get(error.errno or 0, '')}")
    return None


def _is_bad_input(error: Exception) -> bool:
    """Return whether it is our own ValueError or LookupError; a plain LookupError is only ours, a KeyError a bug."""
    if type(error) is LookupError:
        return True
    is_ours = type(error).__module__.startswith("ingestion_pipeline.")
    return is_ours and isinstance(error, ValueError | LookupError)


@click.group(
    cls=_Ingest,
    name="ingest",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped by Ctrl-C.",
)
@click.version_option(package_name="ingestion_pipeline", prog_name="ingest")
def main() -> None:
    """Keep structured data from the web fresh: sources, their state, and failures."""
