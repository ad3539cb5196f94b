"""The Dagster home of this installation: where runs, schedules and events are stored, and its limits."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

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
