"""ingestion_pipeline keeps structured data from the web fresh.

The path of the data: `sources` declares what is watched and when it is due, `pages` fetches
politely, `reading` turns bodies into records, each system (`series`, ...) interprets records and
ingests them once, `notices` notifies followers. `tasks` and `engine` run the work, `store` holds
the rows; `orchestration` exposes it all in Dagster and decides nothing.
"""

import sys
from typing import Any


def __getattr__(name: str) -> Any:  # noqa: ANN401 - what Dagster looks for; loaded on demand
    """Return `defs` lazily: importing a package must not cost the two seconds Dagster takes."""
    if name == "defs":
        return _definitions()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _definitions() -> Any:  # noqa: ANN401 - Dagster's, which is not named here
    """Import the definitions once."""
    from ingestion_pipeline.gc_thresholds import fewer_collections

    with fewer_collections(freeze="ingestion_pipeline.definitions" not in sys.modules):
        from ingestion_pipeline.definitions import defs
    return defs


def __dir__() -> list[str]:
    """Return the names of the module, with `defs`, which Dagster looks for."""
    return [*globals(), "defs"]
