"""What every published column means: what it is, its unit, and when it is null.

A name that means the same everywhere is told once, in `shared`; what a table alone has, or means by
a name of its own, stands with its system and wins. A column that nobody tells of is an error here,
and not a blank in the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping

from ingestion_pipeline.exports.meanings import catalogs, companies, series, sources, websites
from ingestion_pipeline.exports.meanings.shared import SHARED

OWN: Mapping[str, Mapping[str, str]] = {
    **sources.MEANINGS,
    **series.MEANINGS,
    **catalogs.MEANINGS,
    **companies.MEANINGS,
    **websites.MEANINGS,
}


def meaning(export: str, column: str) -> str:
    """What the column of that export means.

    Raises:
        LookupError: nobody has told; `exports/meanings` is the place.
    """
    found = OWN.get(export, {}).get(column) or SHARED.get(column)
    if found is None:
        raise LookupError(f"nobody says what {export}.{column} means: exports/meanings does")
    return found
