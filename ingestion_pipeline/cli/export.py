"""`ingest export`: rows out of the database, into a file that other tools read."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ingestion_pipeline.cli.output import (
    Column,
    CommandRefused,
    cell,
    say,
    say_facts,
    say_json,
    say_table,
)
from ingestion_pipeline.cli.session import environment, json_option, opened

if TYPE_CHECKING:
    from ingestion_pipeline.exports.exporting import Exported
    from ingestion_pipeline.exports.files import Format
    from ingestion_pipeline.exports.request import ExportRequest

FORMATS = ("csv", "jsonl", "parquet")  # a test compares them with the room's own
READERS = {
    "csv": "pandas.read_csv({path})",
    "jsonl": "pandas.read_json({path}, lines=True)",
    "parquet": "pandas.read_parquet({path})",
}


@click.command()
@click.argument("name")
@click.option("--source", "source_id", metavar="ID", help="Rows of this source alone.")
@click.option("--version", type=click.IntRange(min=1), help="This dataset, published or not.")
@click.option("--dataset", "dataset_id", type=int, metavar="ID", help="The same by its id.")
@click.option("--to", "form", type=click.Choice(FORMATS), help="Else as --out ends, else parquet.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="A file, or a folder; else INGESTION_HOME/exports.",
)
@click.option(
    "--evidence", is_flag=True, help="Columns that say what proves each field, and where."
)
@click.option("--with-flagged", is_flag=True, help="Also items that lack proof, and repeats.")
@click.option(
    "--since-last",
    is_flag=True,
    help="Only what changed since the last time, into a new file in the folder --out.",
)
@click.option(
    "--cursor",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f"]),
    help="The same since a moment (UTC) of your own; nothing is remembered.",
)
@click.option(
    "--columns", is_flag=True, help="Show the columns and what each means; write nothing."
)
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

    wanted = ExportRequest(
        entities=entity_folder(load_settings(environment())),
        name=name,
        source_id=source_id,
        version=version,
        dataset_id=dataset_id,
        evidence=evidence,
        with_flagged=with_flagged,
        since=cursor.replace(tzinfo=UTC) if cursor is not None else None,
    )
    wanted.check()
    if columns:
        _say_columns(wanted, as_json=as_json)
        return
    chosen = _format(form, out)
    if since_last or cursor is not None:
        _export_changes(wanted, chosen, out, since_last=since_last, as_json=as_json)
        return
    with opened() as (settings, store):
        path = _path(out, settings.home / "exports", wanted, chosen)
        exported = export_rows(store, wanted, chosen, path)
    if as_json:
        say_json(_facts(exported, name))
    else:
        _say(exported)


def _say_columns(wanted: ExportRequest, *, as_json: bool) -> None:
    from ingestion_pipeline.exports.exporting import described

    found = [asdict(one) for one in described(wanted)]
    if as_json:
        say_json(found)
    else:
        columns = [Column("column"), Column("holds"), Column("means", is_flexible=True)]
        say_table(columns, [list(one.values()) for one in found])


def _export_changes(
    wanted: ExportRequest, form: Format, out: Path | None, *, since_last: bool, as_json: bool
) -> None:
    from ingestion_pipeline.exports.changes import export_changes

    if since_last and wanted.since is not None:
        raise CommandRefused("--since-last and --cursor are two ways to say it: use one of them")
    if wanted.version is not None or wanted.dataset_id is not None:
        raise CommandRefused(
            "a version is whole: leave --version and --dataset out, or export it whole"
        )
    if out is not None and not out.is_dir():
        raise CommandRefused(
            f"--out {out} is no folder; changes go to new files in one: make it first"
        )
    with opened() as (settings, store):
        folder = out or made(settings.home / "exports")
        done = export_changes(store, wanted, form, folder, since_last=since_last)
    found = done.exported
    if as_json:
        nothing = {"name": wanted.name, "path": None, "format": form.value, "rows": 0}
        facts = _facts(found, wanted.name) if found else nothing
        say_json(facts | {"since": done.since, "cursor": done.until})
    elif found is None:
        say(f"nothing of {wanted.name} has changed since {cell(done.since)}; no file was written")
    else:
        _say(found)


def _format(form: str | None, out: Path | None) -> Format:
    from ingestion_pipeline.exports.files import Format

    if form is not None:
        return Format(form)
    ending = out.suffix.removeprefix(".").lower() if out is not None else ""
    return Format(ending) if ending in FORMATS else Format.PARQUET


def _path(out: Path | None, folder: Path, wanted: ExportRequest, form: Format) -> Path:
    from ingestion_pipeline.exports.exporting import file_name

    if out is not None:
        return out / file_name(wanted, form) if out.is_dir() else out
    return made(folder) / file_name(wanted, form)


def made(folder: Path) -> Path:
    """The folder, which is there now."""
    from ingestion_pipeline.exports.files import private_folder

    try:
        return private_folder(folder)
    except OSError as error:
        raise CommandRefused(
            f"cannot make the folder {folder}: {error.strerror}; use --out"
        ) from error


def _facts(exported: Exported, name: str) -> dict[str, object]:
    return {
        "name": name,
        "path": str(exported.path),
        "format": exported.form.value,
        "rows": exported.rows,
        "bytes": exported.path.stat().st_size,
        "columns": list(exported.columns),
        "datasets": [
            {"source_id": one.source_id, "version": one.version, "status": one.status}
            for one in exported.datasets
        ],
        "query": query(exported),
    }


def query(exported: Exported) -> str:
    """A line for the shell that shows the first rows; it works where it is pasted."""
    # in double quotes, since the shell's are single ones
    reader = READERS[exported.form.value].format(path=json.dumps(str(exported.path)))
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(f'import pandas; print({reader})')}"


def _say(exported: Exported) -> None:
    facts: dict[str, object] = {"file": exported.path, "rows": exported.rows}
    facts |= {
        one.source_id: f"version {one.version}, {one.status}" for one in exported.datasets[:20]
    }
    say_facts(facts)
    say(f"\n{query(exported)}")
