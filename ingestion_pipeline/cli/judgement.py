"""How a listing was judged, point by point: a part of what `ingest explain` says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingestion_pipeline.cli.output import Column, say, say_table

if TYPE_CHECKING:
    from collections.abc import Mapping


def say_judgement(row: Mapping[str, Any]) -> None:
    """The filter's items and the score's parts; that it was not judged, if so."""
    if row["verdict"] is None:
        say("\nnot judged yet; `ingest dead-letters list` shows whether it failed")
    _say_filter(row["filter_result"] or {})
    _say_match(row["match_result"] or {})


def _say_filter(result: Mapping[str, Any]) -> None:
    if not result:
        return
    passed = "passed" if result["passed"] else f"rejected by {result['rejected_by']}"
    say(f"\nfilter: {passed}, {result.get('strikes', 0)} strikes")
    items: list[dict[str, Any]] = result["items"]
    if items:
        columns = [
            Column("category"),
            Column("name"),
            Column("points", is_number=True),
            Column("reason", is_flexible=True),
            Column("detail", is_flexible=True),
        ]
        shown = ("category", "name", "points", "reason", "detail")
        say_table(columns, [[item.get(name, "") for name in shown] for item in items])


def _say_match(result: Mapping[str, Any]) -> None:
    if not result:
        return
    verdict = "a match" if result["is_match"] else "no match"
    say(f"\nscore: {result['score']} of 100, {verdict} (from {result['threshold']} on)")
    say(result["reason"])
    for one in result["adjustments"]:
        say(f"  {one['points']:+d} {one['name']}: {one['reason']}")
