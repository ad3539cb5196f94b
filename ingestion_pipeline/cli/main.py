"""The `ingest` command group: loading of commands, examples, and errors as messages."""

import errno
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from ingestion_pipeline.cli.output import CommandFailed, CommandRefused, Interrupted
from ingestion_pipeline.extras import missing_extra
from ingestion_pipeline.gc_thresholds import fewer_collections, skip_collection_at_exit


@cache
def example_lines() -> list[str]:
    """Return all example lines."""
    return Path(__file__).with_name("examples.txt").read_text("utf-8").splitlines()


def examples(path: str) -> list[str]:
    """Return the example lines of a command, by the words typed after `ingest`."""
    return [line for line in example_lines() if f"ingest {path} " in f"{line} "]


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
        lines = (f"  {line}" for line in examples(inner_path))
        # `\b`: click leaves the lines as they are.
        inner.epilog = "\n".join(["\b", "Examples:", *lines])


# Where each command is; its module is read when the command is typed, or listed with its summary.
COMMANDS = {
    "changes": "rows:changes",
    "companies": "companies",
    "dead-letters": "dead_letters",
    "demo": "ingestion_pipeline.demo.commands:demo",
    "dev": "installation:dev",
    "doctor": "doctor",
    "eval": "evaluation:eval_",
    "explain": "rows:explain",
    "export": "rows:export",
    "extractions": "extractions",
    "feed": "feed",
    "follow": "recipients:follow",
    "golden": "evaluation:golden",
    "identity": "identity",
    "init": "installation:init",
    "listings": "listings",
    "matches": "listings:matches",
    "mcp": "mcp",
    "metrics": "metrics",
    "notices": "recipients:notices",
    "profile": "listings:profile",
    "read": "read",
    "recipients": "recipients",
    "run": "run",
    "series": "series",
    "settings": "settings",
    "shadow": "shadow",
    "simulate": "simulate",
    "sources": "sources",
    "status": "status",
    "try": "first_look:try_",
    "unfollow": "recipients:unfollow",
    "websites": "websites",
}
COMMAND_GROUP = "ingestion_pipeline.commands"  # entry points of packages that bring commands of their own
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
        return sorted({*COMMANDS, *_installed_commands(), *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command; its module is imported on first use."""
        if cmd_name not in self.commands and (cmd_name in COMMANDS or cmd_name in _installed_commands()):
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
        except click.UsageError as error:
            help_of = error.ctx.command_path if error.ctx else "ingest"
            message = f"{error.format_message()}\n`{help_of} --help` shows the usage"
            raise CommandRefused(message, code="usage") from error
        except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
            raise
        except (KeyboardInterrupt, click.Abort) as error:
            raise Interrupted from error
        except Exception as error:
            explained = explain(error)
            if explained is None:
                raise
            raise explained from error


@cache
def _installed_commands() -> Mapping[str, str]:
    """Return where each command of another package is; none replaces one of ours."""
    from importlib.metadata import entry_points

    return {command.name: command.value for command in entry_points(group=COMMAND_GROUP)}


def load(group: click.Group, name: str) -> click.Command:
    """Import the command, add it to the group with its examples, and return it."""
    module, _, attribute = (COMMANDS.get(name) or _installed_commands()[name]).partition(":")
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
        return CommandRefused(str(error), code=error_code(type(error).__name__))
    if (cure := missing_extra(error)) is not None:
        return CommandRefused(cure, code="missing_extra")
    if isinstance(error, DBAPIError):
        message = str(error.orig).strip()
        cure = "; another process writes: wait for it, or stop it" if "locked" in message else ""
        return CommandFailed(f"database error: {message}{cure}", code="database")
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return CommandFailed(f"{where}{error.strerror or error}{CURES.get(error.errno or 0, '')}", code="os")
    return None


def error_code(class_name: str) -> str:
    """Return the stable code of a class of errors: its name in words, `unknown_source`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


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
