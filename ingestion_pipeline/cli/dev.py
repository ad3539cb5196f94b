"""`ingest dev`: Dagster's UI and daemon, with the demo's site beside them if its sources are registered."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

import click

from ingestion_pipeline.cli.dagster_home import with_dagster_home
from ingestion_pipeline.cli.output import CommandRefused, Interrupted, echo
from ingestion_pipeline.cli.session import environment
from ingestion_pipeline.extras import how_to_install, is_installed

STOP_SECONDS = 10.0  # for runs to release their tasks
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
        raise CommandRefused(how_to_install("dagster_webserver"))
    variables = with_dagster_home(environment(), load_settings(environment()).home)
    echo(f"Dagster's UI: http://localhost:{port} (ready in about ten seconds; Ctrl-C stops it)")
    try:
        with _raised_signals():
            code = _serve(port, variables)
    except _Stopped:
        raise Interrupted from None
    raise SystemExit(code)


def _serve(port: int, variables: Mapping[str, str]) -> int:
    """Run the site and Dagster until Dagster ends; return its exit code. Nothing is left running."""
    # The UI has no login: it is bound to loopback, and ours refuses what other sites' pages send.
    ui = ["ingestion_pipeline.orchestration.ui", "dev", "-m", "ingestion_pipeline", "-h", "127.0.0.1", "-p", str(port)]
    quiet = ["--log-level", "warning", "--code-server-log-level", "warning"]
    site = _started(["ingestion_pipeline", "demo", "serve", "--if-registered"], variables, subprocess.DEVNULL)
    dagster = _started([*ui, *quiet], variables)
    with site, dagster:
        try:
            return dagster.wait()
        finally:
            for stop_signal in STOP_SIGNALS:
                signal.signal(stop_signal, signal.SIG_IGN)
            _end_group(site)
            _end_group(dagster)


def _started(arguments: Sequence[str], variables: Mapping[str, str], out: int | None = None) -> subprocess.Popen[bytes]:
    """Start a module in a process group of its own: a Ctrl-C in the terminal reaches only us."""
    command = [sys.executable, "-m", *arguments]
    return subprocess.Popen(command, env=variables, process_group=0, stdout=out)  # noqa: S603 - our own modules


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
