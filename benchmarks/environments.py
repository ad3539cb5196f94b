"""Environments for peers that do not fit into ours: made once, when they are first measured."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path("build") / "benchmarks"
PATIENCE_SECONDS = 900


class NoEnvironment(Exception):
    """The peer could not be installed; the message says why."""


def python_with(requirement: str) -> Path:
    """A Python that has the peer, in versions that our constraints allow."""
    folder = FOLDER / requirement
    python, is_ready = folder / "bin" / "python", folder / "ready"
    if not is_ready.exists():
        print(f"installing {requirement} into {folder} ...", file=sys.stderr)
        pip = (str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check")
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        _run(*pip, "-c", "constraints.txt", requirement)
        is_ready.touch()
    return python


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise NoEnvironment(f"not installed within {PATIENCE_SECONDS} seconds") from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NoEnvironment(f"it does not install: {(said or ['no reason given'])[-1]}")
