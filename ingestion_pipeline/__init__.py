"""ingestion_pipeline keeps structured data from the web fresh.

The data's way: `sources` says what is watched and when it is due, `pages` fetches politely,
`reading` turns bodies into records, each system (`series`, ...) says what records mean and ingests
them once, `notices` tells whoever follows. `work` decides who does what, once; `store` keeps the
rows; `orchestration` carries it all in Dagster and decides nothing.
"""

import gc
import sys
from typing import Any


def __getattr__(name: str) -> Any:  # noqa: ANN401 - what Dagster looks for; loaded on demand
    """Hand out `defs` lazily: importing a room must not cost the two seconds Dagster takes."""
    if name == "defs":
        return _definitions()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _definitions() -> Any:  # noqa: ANN401 - Dagster's, which is not named here
    """Loaded once, and no garbage looked for meanwhile: all of it stays; that took a quarter."""
    is_first, was_on = "ingestion_pipeline.definitions" not in sys.modules, gc.isenabled()
    gc.disable()
    try:
        from ingestion_pipeline.definitions import defs
    finally:
        if was_on:
            gc.enable()
    if is_first:
        gc.freeze()
    return defs


def __dir__() -> list[str]:
    """Dagster finds `defs` among these."""
    return [*globals(), "defs"]
