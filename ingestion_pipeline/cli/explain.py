"""`ingest explain`: where a row comes from, hop by hop."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import Column, cell, say, say_json, say_table, shortened
from ingestion_pipeline.cli.session import json_option, opened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestion_pipeline.exports.explaining import Field, Lineage


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


BY_VALUE = "value"  # the quote words it otherwise
SHOWN = 60  # characters of a value


@click.command()
@click.argument("row", metavar="ROW")
@json_option
def explain(*, row: str, as_json: bool) -> None:
    """Show where ROW comes from, hop by hop.

    And how a listing was judged. ROW is chapters:ID, chapter_sources:ID, job_listings:ID,
    job_matches:ID or data_items:ID, with the id that exports and lists show (item_id of an item).
    A hop that is not known says why.
    """
    explain_row(row, as_json=as_json)


def explain_row(row: str, *, as_json: bool) -> None:
    """Print all that is known of the row."""
    from ingestion_pipeline.exports import explaining
    from ingestion_pipeline.pages.content.store import ContentStore

    with opened() as (settings, store), store.read() as connection:
        found = explaining.explain_row(connection, ContentStore(settings.home / "content"), row)
    if as_json:
        say_json(asdict(found))
    else:
        _say(found)


def _say(found: Lineage) -> None:
    facts = ", ".join(f"{name} {cell(value)}" for name, value in found.facts.items())
    say(f"{found.row}: {shortened(facts, 400)}")
    if found.fields:
        columns = [Column("field"), Column("value", is_flexible=True)]
        columns += [Column("stated at", is_flexible=True), Column("quote", is_flexible=True)]
        say_table(columns, [_cells(one) for one in found.fields])
    for hop in found.hops:
        known = {name: value for name, value in hop.facts.items() if value is not None}
        said = ", ".join(f"{name} {cell(value)}" for name, value in known.items())
        mark = "" if hop.is_known else "not known: "
        say(f"-> {hop.name}: {mark}{hop.said}{f' ({said})' if said else ''}")
    if found.judgement is not None:
        say_judgement(found.judgement)


def _cells(one: Field) -> list[str]:
    value = shortened(cell(one.value), SHOWN)
    if one.place is None:
        return [one.name, value, one.why or "-", "-"]
    place = one.place
    span = f"{place['start']}-{place['end']}" if place.get("start") is not None else ""
    by = "by its value" if place.get("by") == BY_VALUE else None
    of = f"of snapshot {place['snapshot']}" if "snapshot" in place else f"of {place['of']}"
    where = " ".join(str(part) for part in (place.get("path"), span, of, by) if part)
    return [one.name, value, where, shortened(cell(place.get("quote")), SHOWN)]
