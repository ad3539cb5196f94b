"""ingestion_pipeline keeps structured data from the web fresh.

The path of the data: `sources` declares what is watched and when it is due, `pages` fetches
politely, `reading` turns bodies into records, each system (`series`, ...) interprets records and
ingests them once, `notices` notifies followers. `tasks` and `engine` run the work, `store` holds
the rows; `orchestration` exposes it all in Dagster and decides nothing.
"""

import sys
from typing import Any

_LAZY = ("defs", "WebSources")  # Dagster's: the definitions, and the component type


def __getattr__(name: str) -> Any:  # noqa: ANN401 - what Dagster looks for; loaded on demand
    """Return what is Dagster's or dlt's lazily: importing a package must not cost the two seconds Dagster takes."""
    if name in _LAZY:
        return getattr(_definitions(), name)
    if name == "dlt_source":
        from ingestion_pipeline.exports.dlt import dlt_source

        return dlt_source
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _definitions() -> Any:  # noqa: ANN401 - Dagster's, which is not named here
    """Import the module of definitions once."""
    from ingestion_pipeline.gc_thresholds import fewer_collections

    with fewer_collections(freeze="ingestion_pipeline.definitions" not in sys.modules):
        from ingestion_pipeline import definitions
    return definitions


def __dir__() -> list[str]:
    """Return the names of the module, with those that are loaded on demand."""
    return [*globals(), *_LAZY, "dlt_source"]
