"""The files of `deploy/`: commands of the units and variables of the example."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = DEPLOY / "systemd"
PROGRAMS = "/opt/ingestion_pipeline/.venv/bin/"
ROLES = {
    "code": "ingestion-code.service",
    "daemon": "ingestion-daemon.service",
    "webserver": "ingestion-webserver.service",
    "worker": "ingestion-worker@.service",
}


def read_unit(unit: str) -> dict[str, str]:
    """Return the assignments of a unit file; the last one of a name wins."""
    lines = [line.strip() for line in (UNITS / unit).read_text().splitlines()]
    pairs = [line.partition("=") for line in lines if line and line[0] not in "#[;"]
    return {name.strip(): value.strip() for name, _, value in pairs}


def unit_command(role: str, variables: Mapping[str, str], *, instance: str = "") -> list[str]:
    """Return the command that systemd would start; a variable that is not set is an error."""
    line = read_unit(ROLES[role])["ExecStart"]
    line = line.replace("%i", instance).replace("%%", "%")
    return shlex.split(re.sub(r"\$\{(\w+)\}", lambda match: variables[match[1]], line))


def example_environment() -> dict[str, str]:
    """Return the variables of the example environment."""
    lines = (DEPLOY / "environment.example").read_text().splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {name: value for name, _, value in pairs}
