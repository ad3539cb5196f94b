"""How visible businesses are, as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestion_pipeline.cli.output import Column, say_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ingestion_pipeline.websites.visibility import VisibilityRow

COLUMNS = (
    Column("provider"),
    Column("answers", is_number=True),
    Column("visible", is_number=True),
    Column("rank", is_number=True),
    Column("score", is_number=True),
    Column("competitors", is_flexible=True),
)


def say_visibility(rows: Sequence[tuple[str, VisibilityRow]]) -> None:
    """One line per business and provider; answers are those that were given, of those wanted."""
    say_table(
        [Column("business"), *COLUMNS], [[name, *visibility_cells(one)] for name, one in rows]
    )


def visibility_cells(row: VisibilityRow) -> list[object]:
    """Provider, answers, share with a mention, mean rank, score, competitors."""
    others = ", ".join(f"{name} {share:.0%}" for name, share in row.competitors.items())
    return [
        row.provider,
        f"{row.answers} of {row.prompts}",
        None if row.visibility is None else f"{row.visibility:.0%}",
        row.mean_rank,
        row.score,
        others,
    ]
