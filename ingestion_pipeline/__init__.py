"""ingestion_pipeline keeps structured data from the web fresh.

The data's way: `sources` says what is watched and when it is due, `pages` fetches politely,
`reading` turns bodies into records, each system (`series`, ...) says what records mean and ingests
them once, `notices` tells whoever follows. `work` decides who does what, once; `store` keeps the
rows; `orchestration` carries it all in Dagster and decides nothing.
"""

from typing import Any


def __getattr__(name: str) -> Any:  # noqa: ANN401 - what Dagster looks for; loaded on demand
    """Hand out `defs` lazily: importing a room must not cost the two seconds Dagster takes."""
    if name == "defs":
        from ingestion_pipeline.definitions import defs

        return defs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Dagster finds `defs` among these."""
    return [*globals(), "defs"]
