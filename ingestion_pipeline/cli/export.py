"""`ingest export`: write rows to a CSV, JSON lines or Parquet file."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ingestion_pipeline.cli.output import CommandRefused, cell, echo, print_facts, print_json, print_table
from ingestion_pipeline.cli.session import environment, json_option, opened

if TYPE_CHECKING:
    from ingestion_pipeline.exports.exporting import ExportResult
    from ingestion_pipeline.exports.files import Format
    from ingestion_pipeline.exports.request import ExportRequest

FORMATS = ("csv", "jsonl", "parquet")  # a test compares them with exports.files.Format
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
@click.option("--to", "form", type=click.Choice(FORMATS), help="Default: the suffix of --out, else parquet.")
@click.option("--out", type=click.Path(path_type=Path), help="File or folder; default: INGESTION_HOME/exports.")
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
@click.option("--columns", is_flag=True, help="Show the columns and their meaning; write nothing.")
@json_option
def export(  # noqa: PLR0913 - one for each option
    *,
    name: str,
    source_id: str | None,
    version: int | None,
    dataset_id: int | None,
    form: str | None,
    out: Path | None,
    evidence: bool,
    with_flagged: bool,
    since_last: bool,
    cursor: datetime | None,
    columns: bool,
    as_json: bool,
) -> None:
    """Write rows to a file: CSV, JSON lines or Parquet.

    NAME is a table (sources, series, chapters, chapter_sources, extractions, pages, datasets,
    companies, job_listings, listing_sources, job_matches, businesses, website_analyses,
    website_rankings, website_answers), an entity type (course, learning_program, competency,
    credential, or one of your own), or data_items for the items of all types. Items are those of
    the newest published dataset of each source, each once, and of their values those that are
    proved. A file of the same name is replaced when the new one is whole.
    """
    from ingestion_pipeline.catalogs.extraction.source_config import entity_folder
    from ingestion_pipeline.exports.exporting import export as export_rows
    from ingestion_pipeline.exports.request import ExportRequest
    from ingestion_pipeline.settings import load_settings

    request = ExportRequest(
        entities=entity_folder(load_settings(environment())),
        name=name,
        source_id=source_id,
        version=version,
        dataset_id=dataset_id,
        evidence=evidence,
        with_flagged=with_flagged,
        since=cursor.replace(tzinfo=UTC) if cursor is not None else None,
    )
    request.check()
    if columns:
        _print_columns(request, as_json=as_json)
        return
    chosen = _format(form, out)
    if since_last or cursor is not None:
        _export_changes(request, chosen, out, since_last=since_last, as_json=as_json)
        return
    with opened() as (settings, store):
        path = _path(out, settings.home / "exports", request, chosen)
        exported = export_rows(store, request, chosen, path)
    if as_json:
        print_json(_facts(exported, name))
    else:
        _print(exported)


def _print_columns(request: ExportRequest, *, as_json: bool) -> None:
    from ingestion_pipeline.exports.exporting import describe_columns

    descriptions = [asdict(description) for description in describe_columns(request)]
    if as_json:
        print_json(descriptions)
    else:
        rows = [list(description.values()) for description in descriptions]
        print_table(("column", "type", "meaning"), rows, flexible={"meaning"})


def _export_changes(request: ExportRequest, form: Format, out: Path | None, *, since_last: bool, as_json: bool) -> None:
    from ingestion_pipeline.exports.changes import export_changes

    if since_last and request.since is not None:
        raise CommandRefused("--since-last and --cursor exclude each other: use one of them")
    if request.version is not None or request.dataset_id is not None:
        raise CommandRefused("changes of a version cannot be exported: leave out --version and --dataset")
    if out is not None and not out.is_dir():
        raise CommandRefused(f"--out {out} is no folder; changes go to new files in one: make it first")
    with opened() as (settings, store):
        folder = out or make_folder(settings.home / "exports")
        done = export_changes(store, request, form, folder, since_last=since_last)
    exported = done.exported
    if as_json:
        nothing = {"name": request.name, "path": None, "format": form.value, "rows": 0}
        facts = _facts(exported, request.name) if exported else nothing
        print_json(facts | {"since": done.since, "cursor": done.until})
    elif exported is None:
        echo(f"nothing of {request.name} has changed since {cell(done.since)}; no file was written")
    else:
        _print(exported)


def _format(form: str | None, out: Path | None) -> Format:
    from ingestion_pipeline.exports.files import Format

    if form is not None:
        return Format(form)
    suffix = out.suffix.removeprefix(".").lower() if out is not None else ""
    return Format(suffix) if suffix in FORMATS else Format.PARQUET


def _path(out: Path | None, folder: Path, request: ExportRequest, form: Format) -> Path:
    from ingestion_pipeline.exports.exporting import file_name

    if out is not None:
        return out / file_name(request, form) if out.is_dir() else out
    return make_folder(folder) / file_name(request, form)


def make_folder(folder: Path) -> Path:
    """Create the folder if needed and return it."""
    from ingestion_pipeline.exports.files import private_folder

    try:
        return private_folder(folder)
    except OSError as error:
        raise CommandRefused(f"cannot create the folder {folder}: {error.strerror}; use --out") from error


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
