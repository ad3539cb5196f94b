"""Optional parts of the installation: which library belongs to which extra, and the command that installs it."""

from importlib.util import find_spec

EXTRAS = {
    "apprise": "notify",
    "cryptography": "identity",
    "dagster_webserver": "ui",
    "deltalake": "lake",
    "dlt": "dlt",
    "matplotlib": "plots",
    "mcp": "mcp",
    "pandas": "frames",
    "playwright": "browser",
    "pyarrow": "frames",
    "pyiceberg": "lake",
}


def is_installed(library: str) -> bool:
    """Return whether the library can be imported, without importing it."""
    return find_spec(library) is not None


def how_to_install(library: str) -> str:
    """Return which library is missing and the command that installs it."""
    return f"{library} is not installed: pip install 'ingestion_pipeline[{EXTRAS[library]}]'"


def missing_extra(error: BaseException) -> str | None:
    """Return how to install the library of an extra whose import failed; None for any other error."""
    library = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return how_to_install(library) if library in EXTRAS else None
