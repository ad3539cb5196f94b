"""`ingest export`, `explain` and `changes`: rows to a file, the lineage of one row, and how rows changed."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import (
    CommandRefused,
    cell,
    echo,
    is_json,
    json_option,
    print_facts,
    print_json,
    print_json_line,
    print_result,
    print_table,
    progress,
    shortened,
)
from ingestion_pipeline.cli.session import CAUSES, MomentType, environment, known_source, opened, reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ingestion_pipeline.engine.lineage import Field, Lineage
    from ingestion_pipeline.exports.export_request import ExportRequest
    from ingestion_pipeline.exports.exporting import ExportResult
    from ingestion_pipeline.exports.formats import Format

STANDARD_OUTPUT = Path("-")
FORMATS = ("csv", "jsonl", "parquet")  # a test compares them with exports.formats.Format
TABLE_FORMATS = ("delta", "iceberg")  # and these with exports.lake.TableFormat
DBT_SOURCES = "dbt-sources"  # not a table, but the sources.yml of a dbt project
READERS = {
    "csv": "pandas.read_csv({path})",
    "jsonl": "pandas.read_json({path}, lines=True)",
    "parquet": "pandas.read_parquet({path})",
}


@click.command()
@click.argument("name")
@click.option("--source", "source_id", metavar="ID", help="Only rows of this source.")
@click.option("--version", type=click.IntRange(min=1), help="Version of the dataset, published or not.")
@click.option("--dataset", "dataset_id", type=int, metavar="ID", help="A dataset by its id.")
@click.option(
    "--to",
    "form",
    type=click.Choice((*FORMATS, *TABLE_FORMATS)),
    help="Default: the suffix of --out, csv for -, else parquet.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File, folder, or - for standard output; default: INGESTION_HOME/exports.",
)
@click.option("--evidence", is_flag=True, help="Add columns with the evidence of each field.")
@click.option("--with-flagged", is_flag=True, help="Include ungrounded and repeated items.")
@click.option(
    "--since-last", is_flag=True, help="Only changes since the last export, into a new file in the folder --out."
)
@click.option(
    "--cursor",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f"]),
    help="Changes since this moment (UTC); no cursor is stored.",
)
@click.option("--as-of", type=MomentType(), help="The rows that there were at this moment, by the recorded changes.")
@click.option("--columns", is_flag=True, help="Show the columns and their meaning; write nothing.")
@json_option
def export(
    *,
    form: str | None,
    out: Path | None,
    since_last: bool,
    cursor: datetime | None,
    columns: bool,
    **selection: Any,  # noqa: ANN401 - the fields of an ExportRequest
) -> None:
    """Write rows to a file, or keep a copy up to date.

    Files are CSV, JSON lines or Parquet; copies are tables of Delta Lake or Iceberg. NAME is a table
    (sources, series, chapters, chapter_sources, extractions, pages, datasets, companies,
    job_listings, listing_sources, job_matches, businesses, website_analyses, website_rankings,
    website_answers), an entity type (course, learning_program, competency, credential, or one of
    your own), data_items for the items of all types, or dbt-sources for the sources.yml of a dbt
    project. Items are those of the newest published dataset of each source, each once, and of their
    values those that are proved. A file of the same name is replaced when the new one is whole.
    """
    from ingestion_pipeline.catalogs.extraction.source_selectors import entity_folder
    from ingestion_pipeline.exports.export_request import ExportRequest
    from ingestion_pipeline.settings import load_settings

    settings = load_settings(environment())
    if selection["name"] == DBT_SOURCES:
        _write_dbt_sources(entity_folder(settings), out)
        return
    since = cursor.replace(tzinfo=UTC) if cursor is not None else None
    honours_rights = settings.rights.honour
    request = ExportRequest(entities=entity_folder(settings), since=since, honours_rights=honours_rights, **selection)
    request.check()
    has_changes = since_last or cursor is not None
    if columns:
        _print_columns(request)
    elif form in TABLE_FORMATS:
        _export_to_table(request, form, out)
    elif has_changes and out != STANDARD_OUTPUT:
        _export_changes(request, _format(form, out), out, since_last=since_last)
    else:
        _export_rows(request, _format(form, out), out, has_changes=has_changes)


def _export_rows(request: ExportRequest, form: Format, out: Path | None, *, has_changes: bool) -> None:
    from ingestion_pipeline.exports.change_history import check_moment
    from ingestion_pipeline.exports.exporting import export as export_rows

    if to_output := out == STANDARD_OUTPUT:
        _check_standard_output(has_changes=has_changes)
    with opened() as (settings, store), TemporaryDirectory() as scratch, progress() as advance:
        if request.as_of is not None:
            check_moment(request.as_of, settings, now=store.now())
        path = Path(scratch) / "rows" if to_output else _path(out, settings.home / "exports", request, form)
        exported = export_rows(store, request, form, path, on_rows=lambda rows: advance(request.name, rows))
        if to_output:
            with path.open("rb") as rows:
                copyfileobj(rows, sys.stdout.buffer)
            return
    if is_json():
        print_json(_facts(exported, request.name))
    else:
        _print(exported)


def _write_dbt_sources(entities: Path, out: Path | None) -> None:
    from ingestion_pipeline.exports.dbt import dbt_sources

    document = dbt_sources(entities)
    if out is None or out == STANDARD_OUTPUT:
        echo(document.rstrip())
        return
    try:
        out.write_text(document, encoding="utf-8")
    except OSError as error:
        raise CommandRefused(f"cannot write {out}: {error.strerror}", code="bad_path") from error
    print_result({"path": str(out)}, f"{out}: sources of a dbt project")


def _export_to_table(request: ExportRequest, form: str, out: Path | None) -> None:
    from ingestion_pipeline.exports.export_request import ExportRequest
    from ingestion_pipeline.exports.lake import TableFormat, export_to_table

    if request != replace(ExportRequest(name=request.name, source_id=request.source_id), entities=request.entities):
        raise CommandRefused(
            f"--to {form} keeps a table of the rows as they are now, with the changes since the last export:"
            " leave out the other options but --source and --out",
            code="conflicting_options",
        )
    with opened() as (settings, store), progress() as advance:
        folder = out or make_folder(settings.home / "exports")
        done = export_to_table(
            store, request, TableFormat(form), folder, on_rows=lambda rows: advance(request.name, rows)
        )
    facts = {"name": request.name, "path": str(done.path), "format": form, "rows": done.rows, "deleted": done.deleted}
    if is_json():
        print_json(facts)
    else:
        print_facts(facts)


def _check_standard_output(*, has_changes: bool) -> None:
    """Refuse what cannot be written beside the rows, or needs a file."""
    if has_changes:
        raise CommandRefused(
            "--out - writes all rows; changes go to new files: give --out a folder, or leave it out",
            code="conflicting_options",
        )
    if is_json():
        raise CommandRefused(
            "--out - writes the rows themselves, so --json has no room for its facts: leave out one of them",
            code="conflicting_options",
        )


def _print_columns(request: ExportRequest) -> None:
    from ingestion_pipeline.exports.exporting import describe_columns

    descriptions = [asdict(description) for description in describe_columns(request)]
    if is_json():
        print_json(descriptions)
    else:
        rows = [list(description.values()) for description in descriptions]
        print_table(("column", "type", "meaning"), rows, flexible={"meaning"})


def _export_changes(request: ExportRequest, form: Format, out: Path | None, *, since_last: bool) -> None:
    from ingestion_pipeline.exports.exporting import export_changes

    if since_last and request.since is not None:
        raise CommandRefused(
            "--since-last and --cursor exclude each other: use one of them", code="conflicting_options"
        )
    if request.version is not None or request.dataset_id is not None:
        raise CommandRefused(
            "changes of a version cannot be exported: leave out --version and --dataset", code="conflicting_options"
        )
    if out is not None and not out.is_dir():
        raise CommandRefused(
            f"--out {out} is no folder; changes go to new files in one: make it first", code="no_folder"
        )
    with opened() as (settings, store), progress() as advance:
        folder = out or make_folder(settings.home / "exports")

        def show(rows: int) -> None:
            advance(request.name, rows)

        done = export_changes(store, request, form, folder, since_last=since_last, on_rows=show)
    exported = done.exported
    if is_json():
        nothing = {"name": request.name, "path": None, "format": form.value, "rows": 0}
        facts = _facts(exported, request.name) if exported else nothing
        print_json(facts | {"since": done.since, "cursor": done.until})
    elif exported is None:
        echo(f"nothing of {request.name} has changed since {cell(done.since)}; no file was written")
    else:
        _print(exported)


def _format(form: str | None, out: Path | None) -> Format:
    from ingestion_pipeline.exports.formats import Format

    if form is not None:
        return Format(form)
    if out == STANDARD_OUTPUT:
        return Format.CSV
    suffix = out.suffix.removeprefix(".").lower() if out is not None else ""
    return Format(suffix) if suffix in FORMATS else Format.PARQUET


def _path(out: Path | None, folder: Path, request: ExportRequest, form: Format) -> Path:
    from ingestion_pipeline.exports.exporting import file_name

    if out is not None:
        return out / file_name(request, form) if out.is_dir() else out
    return make_folder(folder) / file_name(request, form)


def make_folder(folder: Path) -> Path:
    """Create the folder if needed and return it."""
    from ingestion_pipeline.exports.formats import private_folder

    try:
        return private_folder(folder)
    except OSError as error:
        raise CommandRefused(
            f"cannot create the folder {folder}: {error.strerror}; use --out", code="no_folder"
        ) from error


def _facts(exported: ExportResult, name: str) -> dict[str, object]:
    return {
        "name": name,
        "path": str(exported.path),
        "format": exported.form.value,
        "rows": exported.rows,
        "bytes": exported.path.stat().st_size,
        "columns": list(exported.columns),
        "datasets": [
            {"source_id": dataset.source_id, "version": dataset.version, "status": dataset.status}
            for dataset in exported.datasets
        ],
        "query": query(exported),
    }


def query(exported: ExportResult) -> str:
    """Return a shell command that prints the first rows of the file."""
    # in double quotes, since the shell's are single
    reader = READERS[exported.form.value].format(path=json.dumps(str(exported.path)))
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(f'import pandas; print({reader})')}"


def _print(exported: ExportResult) -> None:
    facts: dict[str, object] = {"file": exported.path, "rows": exported.rows}
    facts |= {dataset.source_id: f"version {dataset.version}, {dataset.status}" for dataset in exported.datasets[:20]}
    print_facts(facts)
    echo(f"\n{query(exported)}")


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
def explain(*, row: str) -> None:
    """Show the lineage of ROW, hop by hop.

    And its recorded changes, and how a listing was evaluated. ROW is chapters:ID, chapter_sources:ID, job_listings:ID,
    job_matches:ID or data_items:ID, with the id that exports and lists show (item_id of an item). A
    hop that is not known says why.
    """
    explain_row(row)


def explain_row(row: str) -> None:
    """Print the lineage of the row."""
    from ingestion_pipeline.exports import explaining
    from ingestion_pipeline.pages.content.store import ContentStore

    with reading() as (settings, connection, _):
        lineage = explaining.explain_row(connection, ContentStore(settings.home / "content"), row)
    if is_json():
        print_json(asdict(lineage))
    else:
        _print_lineage(lineage)


def _print_lineage(lineage: Lineage) -> None:
    facts = ", ".join(f"{name} {cell(value)}" for name, value in lineage.facts.items())
    echo(f"{lineage.row}: {shortened(facts, 400)}")
    if lineage.fields:
        headings = ("field", "value", "location", "quote")
        print_table(headings, [_field_cells(field) for field in lineage.fields], flexible=headings[1:])
    for hop in lineage.hops:
        facts_known = {name: value for name, value in hop.facts.items() if value is not None}
        hop_facts = ", ".join(f"{name} {cell(value)}" for name, value in facts_known.items())
        mark = "" if hop.is_known else "unknown: "
        echo(f"-> {hop.name}: {mark}{hop.message}{f' ({hop_facts})' if hop_facts else ''}")
    for change in lineage.history:
        bodies = change["snapshots"] or [change["snapshot_id"]]
        by = f"{change['cause']} {cell(change['source_id'])}, run {cell(change['run_id'])}"
        by += f", snapshots {', '.join(map(str, bodies))}" if any(bodies) else ""
        echo(f"{cell(change['occurred_at'])} {change['op']} ({by}): {difference(change)}")
    if lineage.evaluation is not None:
        print_evaluation(lineage.evaluation)


def _field_cells(field: Field) -> list[str]:
    value = shortened(cell(field.value), SHOWN)
    if field.place is None:
        return [field.name, value, field.why or "-", "-"]
    place = field.place
    span = f"{place['start']}-{place['end']}" if place.get("start") is not None else ""
    by = "by its value" if place.get("by") == BY_VALUE else None
    of = f"of snapshot {place['snapshot']}" if "snapshot" in place else f"of {place['of']}"
    where = " ".join(str(part) for part in (place.get("path"), span, of, by) if part)
    return [field.name, value, where, shortened(cell(place.get("quote")), SHOWN)]


DIFFERENCE = 100  # characters
SCREEN = 50  # changes in a table


@click.command()
@click.option("--since", type=MomentType(), help="Only changes from this time on.")
@click.option("--table", help="Only rows of this table, or items of this type, such as course.")
@click.option("--source", "source_id", metavar="ID", help="Only changes by this source.")
@click.option("--cause", type=click.Choice(CAUSES), help="Only changes with this cause.")
@json_option
def changes(*, since: datetime | None, table: str | None, source_id: str | None, cause: str | None) -> None:
    """List changes of published rows, oldest first.

    What changed, from what to what, when and why. With --json one change a line, as it is read.
    Covered are the tables of published data and the items of datasets; docs/operating/changes.md explains the fields.
    """
    from ingestion_pipeline.catalogs.extraction.source_selectors import entity_folder
    from ingestion_pipeline.exports.change_history import ChangeFilter, changes_of, check_name

    with reading() as (settings, connection, _):
        check_name(table, entity_folder(settings))
        known_source(connection, source_id)
        rows = changes_of(connection, ChangeFilter(since=since, table=table, source_id=source_id, cause=cause))
        if is_json():
            for row in rows:
                print_json_line(row)
        else:
            _print_changes(rows)


def _print_changes(rows: Iterator[Mapping[str, Any]]) -> None:
    names = ("time", "row", "op", "cause", "source", "difference")
    first = True
    while page := list(islice(rows, SCREEN)):
        first = False
        cells = [
            (
                cell(row["occurred_at"]),
                f"{row['table_name']}:{row['row_key']}",
                row["op"],
                row["cause"],
                cell(row["source_id"]),
                difference(row),
            )
            for row in page
        ]
        print_table(names, cells, flexible={"difference"})
    if first:
        echo("no changes")


def difference(change: Mapping[str, Any]) -> str:
    """Return what differs, for people: `title: One -> First`; of a row that was inserted or deleted, nothing."""
    if change["op"] != "update":
        return "-"
    before, after = change["before"], change["after"]
    parts = (f"{name}: {cell(before[name])} -> {cell(after[name])}" for name in after)
    return shortened(", ".join(parts), DIFFERENCE)
