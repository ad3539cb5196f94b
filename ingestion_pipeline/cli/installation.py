"""`ingest init` and `ingest dev`: create an installation with its Dagster home, and run Dagster in it.

`dev` serves the demo's site beside Dagster's UI and daemon if its sources are registered.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from types import FrameType

import click

from ingestion_pipeline.cli.output import CommandRefused, Interrupted, cell, echo, json_option, print_result, progress
from ingestion_pipeline.cli.session import environment, opened, shown_database
from ingestion_pipeline.extras import how_to_install, is_installed

PYTHONWARNINGS = "ignore::UserWarning,ignore::FutureWarning"  # Dagster announces its next command line at every start


def with_dagster_home(variables: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the environment with a DAGSTER_HOME that persists, created if it is missing.

    `INGESTION_HOME/dagster` gets this project's limits: the `dagster.yaml` of the working directory, else ours. A
    DAGSTER_HOME that is set already stays its owner's.
    """
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    own = home.absolute() / "dagster"
    dagster_home = Path(variables.get("DAGSTER_HOME") or own).absolute()
    dagster_home.mkdir(parents=True, exist_ok=True)
    limits = own / "dagster.yaml"
    if dagster_home == own and not limits.exists():
        limits.unlink(missing_ok=True)  # a link to a folder that has gone
        local = Path("dagster.yaml").absolute()
        if local.is_file():
            limits.symlink_to(local)
        else:
            limits.write_text(template("dagster.yaml"))
    defaults = {"PYTHONWARNINGS": PYTHONWARNINGS}
    return defaults | dict(variables) | {"INGESTION_HOME": str(home.absolute()), "DAGSTER_HOME": str(dagster_home)}


def template(name: str) -> str:
    """Return a file that a new project starts with."""
    return files("ingestion_pipeline.cli").joinpath("templates", name).read_text()


FIRST_STEPS = """\
Next: `ingest demo run` shows everything on the bundled site;
      `ingest sources add URL --id series:NAME --kind series` adds a source of your own,
      or write YAML files into the sources folder and run `ingest sources import`;
      `ingest profile example > profile.yaml` creates a profile to match jobs with;
      `ingest dev` polls them and opens the UI; `ingest doctor` checks the installation."""


@click.command()
@json_option
def init() -> None:
    """Create or migrate the database.

    Writes dagster.yaml, workspace.yaml and an example source with its schema where they are missing; no file is
    replaced.
    """
    from ingestion_pipeline.registry import create_tables
    from ingestion_pipeline.sources.lookup import list_sources

    with progress() as advance, opened(migrate=True) as (settings, store):
        advance("database")
        create_tables(store)
        with store.read() as connection:
            count = len(list_sources(connection))
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = settings.sources.absolute()
    written = _write_templates(folder)
    facts = {
        "database": shown_database(settings.store_url),
        "home": str(settings.home.absolute()),
        "sources_folder": str(folder),
        "sources": count,
        "files_written": written,
    }
    next_steps = "Next: `ingest status` shows them, `ingest dev` polls them." if count else FIRST_STEPS
    rows = facts | {"files_written": ", ".join(written) or "none, they exist"}
    lines = [f"{name.replace('_', ' '):16}{cell(value)}" for name, value in rows.items()]
    print_result(facts, "\n".join([*lines, "", next_steps]))


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


STOP_SECONDS = 10.0  # for runs to release their tasks
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


# What Dagster's processes print beside warnings: lines of runs, and that `dagster.yaml` of the working directory is not
# the one in use (a new DAGSTER_HOME links to it).
_NOISE = re.compile(rb" - dagster\S* - (\x1b\[\d+m)?(DEBUG|INFO)\b|Found a dagster instance configuration value")


def is_noise(line: bytes) -> bool:
    """Return whether a line that Dagster prints tells a user nothing."""
    return _NOISE.search(line) is not None


_STDERR = {subprocess.PIPE: subprocess.STDOUT, subprocess.DEVNULL: None}


class _Stopped(BaseException):
    """A signal asked us to stop."""


@click.command()
@click.option(
    "--port", default=3000, envvar="PORT", type=click.IntRange(1, 65_535), help="Port of the UI on localhost."
)
def dev(*, port: int) -> None:
    """Start Dagster's UI and daemon until Ctrl-C.

    The daemon runs all schedules and sensors. The demo's site is served beside them if its sources are registered.
    """
    from ingestion_pipeline.settings import load_settings

    if not is_installed("dagster_webserver"):
        raise CommandRefused(how_to_install("dagster_webserver"), code="missing_extra")
    variables = with_dagster_home(environment(), load_settings(environment()).home)
    echo(f"Dagster's UI: http://localhost:{port} (ready in about ten seconds; Ctrl-C stops it)")
    try:
        with _raised_signals():
            code = _serve(port, variables)
    except _Stopped:
        raise Interrupted("stopped") from None
    raise SystemExit(code)


def _serve(port: int, variables: Mapping[str, str]) -> int:
    """Run the site and Dagster until Dagster ends; return its exit code. Nothing is left running."""
    # The UI has no login: it is bound to loopback, and ours refuses what other sites' pages send.
    ui = ["ingestion_pipeline.orchestration.ui", "dev", "-m", "ingestion_pipeline", "-h", "127.0.0.1", "-p", str(port)]
    quiet = ["--log-level", "warning", "--code-server-log-level", "warning"]
    site = _started(["ingestion_pipeline", "demo", "serve", "--if-registered"], variables, subprocess.DEVNULL)
    dagster = _started([*ui, *quiet], variables, subprocess.PIPE)
    with site, dagster:
        try:
            for line in dagster.stdout or ():
                if not is_noise(line):
                    echo(click.unstyle(line.decode(errors="replace").rstrip()), is_error=True)
            return dagster.wait()
        finally:
            for stop_signal in STOP_SIGNALS:
                signal.signal(stop_signal, signal.SIG_IGN)
            _end_group(site)
            _end_group(dagster)


def _started(arguments: Sequence[str], variables: Mapping[str, str], out: int) -> subprocess.Popen[bytes]:
    """Start a module in a process group of its own: a Ctrl-C in the terminal reaches only us."""
    command = [sys.executable, "-m", *arguments]
    return subprocess.Popen(command, env=variables, process_group=0, stdout=out, stderr=_STDERR[out])  # noqa: S603 - ours


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ask the process and what it has started to stop; kill what is left: runs outlive the server that started them."""
    deadline = time.monotonic() + STOP_SECONDS
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _raised_signals() -> Generator[None]:
    """Raise `_Stopped` on the signals that stop a program, also where a script made us ignore them."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _Stopped

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
