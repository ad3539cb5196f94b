"""`ingest read`: parse a saved body with a platform's reader, without network or database."""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import IO, TYPE_CHECKING, Any, cast

import click

from ingestion_pipeline.cli.output import CommandRefused, echo, is_json, json_option, print_json, print_table
from ingestion_pipeline.cli.session import KindType, MomentType, config_option, environment
from ingestion_pipeline.sources.source import Kind

if TYPE_CHECKING:
    from ingestion_pipeline.reading.structured.items import SavedBody, SavedBodyResult

    Reader = Callable[[str, Kind, SavedBody, Mapping[str, Any]], SavedBodyResult]

# Formats that do not determine the kind: --kind is required.
FORMATS = ("rss", "json", "html")
COLUMNS = {
    Kind.SERIES: ("number", "volume", "title", "language", "scanlation_group", "published_at", "url"),
    Kind.CATALOG: ("course_id", "course_name", "course_credits_min", "course_credits_max", "extraction_method"),
    Kind.WEBSITE: ("title", "canonical_url", "language", "links"),
    Kind.JOB_BOARD: ("external_id", "title", "location", "remote", "posted_at", "url"),
}
# Kinds with a reader for saved bodies besides those of polled platforms.
SAVED_ONLY = {Kind.WEBSITE: ("page",), Kind.COMPANY: ("page",), Kind.CATALOG: ("page", "catalog", "jsonld")}
FLEXIBLE = {"title", "url", "scanlation_group", "canonical_url", "course_name", "location"}
# A JSON-LD page that contains this is read as a job board.
JOB_POSTING = b"JobPosting"


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--platform", required=True, help="Platform whose reader parses the body: mangadex, rss, ...")
@click.option("--kind", type=KindType(), help="Required if the platform is a format: rss, json, html.")
@click.option("--entity", help="Entity type to extract from a catalogue; default: course.")
@config_option
@click.option("--url", default="", help="Address of the body; relative links need it.")
@click.option(
    "--fetched-at",
    type=MomentType(),
    help="When the body was fetched, for dates such as '2 days ago'. Default: the file's own time.",
)
@json_option
def read(
    *,
    file: IO[bytes],
    platform: str,
    kind: str | None,
    entity: str | None,
    config: dict[str, Any] | None,
    url: str,
    fetched_at: datetime | None,
) -> None:
    """Show what a reader extracts from a saved body.

    The first thing to try when a source looks empty: no network, no database. FILE may be `-`.
    """
    from ingestion_pipeline.reading.structured.items import SavedBody

    body = file.read()
    if platform == "jsonld" and kind is None and entity is None and JOB_POSTING in body:
        kind = Kind.JOB_BOARD.value
    record_kind = kind_for(platform, Kind(kind) if kind else None)
    if entity is not None and record_kind is not Kind.CATALOG:
        raise CommandRefused(f"--entity belongs to catalogues; this is {record_kind}", code="conflicting_options")
    saved = SavedBody(body=body, url=url, fetched_at=fetched_at or _written_at(file))
    result = reader_of(platform, record_kind, entity)(platform, record_kind, saved, config or {})
    if is_json():
        print_json({"records": result.records, "problems": result.problems})
    else:
        _print_reading(Kind.WEBSITE if platform == "page" else record_kind, result)
    for note in result.notes:
        echo(f"note: {note}", is_error=True)
    if result.problems and not result.records:
        raise click.exceptions.Exit(1)


def kind_for(platform: str, kind: Kind | None) -> Kind:
    """Return the kind to parse: the requested one if the platform has it, else its default."""
    from ingestion_pipeline.registry import systems
    from ingestion_pipeline.sources.platforms import READERS

    systems()  # adds the platforms of installed packages
    polled = [(candidate, names) for candidate, names in READERS.items() if candidate not in SAVED_ONLY]
    readers = [*SAVED_ONLY.items(), *polled]
    kinds = [candidate for candidate, names in readers if platform in names]
    if not kinds:
        names_known = sorted({name for _, names in readers for name in names})
        raise CommandRefused(f"no reader for {platform!r}; available: {', '.join(names_known)}", code="no_reader")
    if kind is None and platform in FORMATS:
        raise CommandRefused(f"{platform} fits several kinds: add --kind {'|'.join(kinds)}", code="no_reader")
    if kind is not None and kind not in kinds:
        raise CommandRefused(f"{platform} is not read as {kind}; it is read as: {', '.join(kinds)}", code="no_reader")
    return kind or kinds[0]


def reader_of(platform: str, kind: Kind, entity: str | None) -> "Reader":
    """Return the platform's reader of saved bodies of this kind."""
    from ingestion_pipeline.registry import kind_specs

    if kind is Kind.CATALOG and platform != "page":
        from ingestion_pipeline.catalogs.extraction.pipeline import read_saved as read_saved_catalog
        from ingestion_pipeline.catalogs.extraction.source_selectors import entity_folder
        from ingestion_pipeline.settings import load_settings

        folder = entity_folder(load_settings(environment()))
        return partial(read_saved_catalog, entity=entity, entities=folder)
    if (read_saved := kind_specs()[kind].read_saved) is not None:
        return read_saved
    if kind in SAVED_ONLY:
        from ingestion_pipeline.pages.visits.polite_visits import read_saved as read_saved_page

        return read_saved_page
    raise CommandRefused(f"no reader for a saved {kind} yet", code="no_reader")


def _written_at(file: IO[bytes]) -> datetime:
    """Return when the file was last modified; the current time for a pipe."""
    from ingestion_pipeline.store.database import system_clock

    try:
        return datetime.fromtimestamp(os.stat(file.name).st_mtime, UTC)  # noqa: PTH116  - may be named by a number
    except (OSError, AttributeError):
        return system_clock()


def _print_reading(kind: Kind, result: "SavedBodyResult") -> None:
    records, problems = result.records, result.problems
    names = [name for name in _columns(kind, records) if any(record[name] for record in records)]
    if names:  # a page may have nothing that fits a column
        print_table(names, [[_cell(record[name]) for name in names] for record in records], flexible=FLEXIBLE)
        echo("")
    if len(records) == 1 and records[0].get("markdown"):
        echo(records[0]["markdown"])
        echo("")
    for problem in problems:
        code = f" ({problem['code']})" if problem["code"] else ""
        echo(f"problem at {problem['where']}{code}: {problem['message']}", is_error=True)
    echo(f"{len(records)} records, {len(problems)} problems")


def _columns(kind: Kind, records: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Return the columns of the kind; of an entity that is no course, the fields of its records."""
    held = records[0].keys() if records else ()
    if kind in COLUMNS and set(COLUMNS[kind]) <= set(held):
        return COLUMNS[kind]
    return [name for name in held if name not in {"evidence", "confidence"}]


def _cell(value: Any) -> Any:  # noqa: ANN401 - whatever a record holds
    return len(cast("list[object]", value)) if isinstance(value, list) else value
