"""What every published column means: its content, unit, and when it is null.

Columns that mean the same everywhere are in `shared`; a table's own are in the module of its system
and take precedence. A column without a meaning is an error.
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
    """Return what the column of that export means.

    Raises LookupError if `exports/meanings` does not describe it.
    """
    text = OWN.get(export, {}).get(column) or SHARED.get(column)
    if text is None:
        raise LookupError(f"no meaning of {export}.{column}: add it to exports/meanings")
    return text
