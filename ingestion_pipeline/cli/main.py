"""The `ingest` command: its groups, and what becomes of a mistake (a sentence, never a trace)."""

from __future__ import annotations

import atexit
import errno
import gc
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import click

from ingestion_pipeline.cli.examples import show_examples
from ingestion_pipeline.cli.output import CommandFailed, CommandRefused, Interrupted

# Where each command is; its module is read when the command is typed, or listed with its summary.
COMMANDS = {
    "companies": "companies",
    "dead-letters": "dead_letters",
    "demo": "demo",
    "doctor": "doctor",
    "explain": "explain",
    "export": "export",
    "extractions": "extractions",
    "follow": "recipients:follow",
    "init": "init",
    "listings": "listings",
    "matches": "matches",
    "metrics": "metrics",
    "notices": "notices",
    "profile": "profile",
    "read": "read",
    "recipients": "recipients",
    "series": "series",
    "settings": "settings",
    "sources": "sources",
    "status": "status",
    "unfollow": "recipients:unfollow",
    "websites": "websites",
}
# Modules with further commands of a group.
PARTS = {"sources": ("source_updates", "scrape")}
_ELSEWHERE = "; choose a place where you may write"
CURES = {
    errno.ENOSPC: "; make room, then type it again",
    errno.EACCES: _ELSEWHERE,
    errno.EPERM: _ELSEWHERE,
    errno.EROFS: _ELSEWHERE,
}
FEW_COLLECTIONS = (50_000, 20, 100)  # Python's own took a fifth of a short command's time


class _Ingest(click.Group):
    """Runs a command; an error that a person can cure becomes its message and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All there are, by name."""
        return sorted({*COMMANDS, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, read from its module the first time it is asked for."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            load(self, cmd_name)
        return super().get_command(ctx, cmd_name)

    def main(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - click's own signature
        """Run the command line; what a command imports and builds is searched for garbage less."""
        with few_collections():
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
    """The command of that name, now one of the group's, with its examples."""
    module, _, attribute = COMMANDS[name].partition(":")
    command: click.Command = getattr(_module(module), attribute or module)
    for part in PARTS.get(name, ()):
        _module(part)
    group.add_command(command, name)
    show_examples(name, command)
    return command


def _module(name: str) -> ModuleType:
    return import_module(f"ingestion_pipeline.cli.{name}")


def every_command() -> Mapping[str, click.Command]:
    """All of them, read from their modules."""
    return {name: load(main, name) for name in COMMANDS}


@contextmanager
def few_collections() -> Generator[None]:
    """Garbage is looked for seldom, as nearly all that is made at the start stays.

    At the end of the process nobody looks for it: that took as long again.
    """
    before = gc.get_threshold()
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
    gc.set_threshold(*FEW_COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def explain(error: Exception) -> click.ClickException | None:
    """What to tell about the error; None for one of our own making, which keeps its trace."""
    from sqlalchemy.exc import DBAPIError

    from ingestion_pipeline.store import SchemaMismatch

    if isinstance(error, SchemaMismatch) or _is_bad_input(error):
        return CommandRefused(str(error))
    if isinstance(error, DBAPIError):
        said = str(error.orig).strip()
        cure = "; another process writes: wait for it, or stop it" if "locked" in said else ""
        return CommandFailed(f"the database gave up: {said}{cure}")
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return CommandFailed(f"{where}{error.strerror or error}{CURES.get(error.errno or 0, '')}")
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
