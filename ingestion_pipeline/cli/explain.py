"""`ingest explain`: print the lineage of a row and how a listing was evaluated."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import cell, echo, print_json, print_table, shortened
from ingestion_pipeline.cli.session import json_option, reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestion_pipeline.exports.explaining import Field, Lineage


def print_evaluation(row: Mapping[str, Any]) -> None:
    """Print the filter's items and the score's parts, or that it was not evaluated."""
    if row["decision"] is None:
        echo("\nnot evaluated yet; `ingest dead-letters list` shows whether it failed")
    _print_filter(row["filter_result"] or {})
    _print_match(row["match_result"] or {})


def _print_filter(result: Mapping[str, Any]) -> None:
    if not result:
        return
    passed = "passed" if result["passed"] else f"rejected by {result['rejected_by']}"
    echo(f"\nfilter: {passed}, {result.get('strikes', 0)} strikes")
    items: list[dict[str, Any]] = result["items"]
    if items:
        names = ("category", "name", "points", "reason", "detail")
        rows = [[item.get(name, "") for name in names] for item in items]
        print_table(names, rows, numbers={"points"}, flexible={"reason", "detail"})


def _print_match(result: Mapping[str, Any]) -> None:
    if not result:
        return
    conclusion = "a match" if result["is_match"] else "no match"
    echo(f"\nscore: {result['score']} of 100, {conclusion} (from {result['threshold']} on)")
    echo(result["reason"])
    for adjustment in result["adjustments"]:
        echo(f"  {adjustment['points']:+d} {adjustment['name']}: {adjustment['reason']}")


BY_VALUE = "value"  # the quote is worded differently
SHOWN = 60  # characters of a value


@click.command()
@click.argument("row", metavar="ROW")
@json_option
def explain(*, row: str, as_json: bool) -> None:
    """Show the lineage of ROW, hop by hop.

    And how a listing was evaluated. ROW is chapters:ID, chapter_sources:ID, job_listings:ID,
    job_matches:ID or data_items:ID, with the id that exports and lists show (item_id of an item). A
    hop that is not known says why.
    """
    explain_row(row, as_json=as_json)


def explain_row(row: str, *, as_json: bool) -> None:
    """Print the lineage of the row."""
    from ingestion_pipeline.exports import explaining
    from ingestion_pipeline.pages.content.store import ContentStore

    with reading() as (settings, connection, _):
        lineage = explaining.explain_row(connection, ContentStore(settings.home / "content"), row)
    if as_json:
        print_json(asdict(lineage))
    else:
        _print(lineage)


def _print(lineage: Lineage) -> None:
    facts = ", ".join(f"{name} {cell(value)}" for name, value in lineage.facts.items())
    echo(f"{lineage.row}: {shortened(facts, 400)}")
    if lineage.fields:
        headings = ("field", "value", "location", "quote")
        print_table(headings, [_cells(field) for field in lineage.fields], flexible=headings[1:])
    for hop in lineage.hops:
        facts_known = {name: value for name, value in hop.facts.items() if value is not None}
        hop_facts = ", ".join(f"{name} {cell(value)}" for name, value in facts_known.items())
        mark = "" if hop.is_known else "unknown: "
        echo(f"-> {hop.name}: {mark}{hop.said}{f' ({hop_facts})' if hop_facts else ''}")
    if lineage.judgement is not None:
        print_evaluation(lineage.judgement)


def _cells(field: Field) -> list[str]:
    value = shortened(cell(field.value), SHOWN)
    if field.place is None:
        return [field.name, value, field.why or "-", "-"]
    place = field.place
    span = f"{place['start']}-{place['end']}" if place.get("start") is not None else ""
    by = "by its value" if place.get("by") == BY_VALUE else None
    of = f"of snapshot {place['snapshot']}" if "snapshot" in place else f"of {place['of']}"
    where = " ".join(str(part) for part in (place.get("path"), span, of, by) if part)
    return [field.name, value, where, shortened(cell(place.get("quote")), SHOWN)]
