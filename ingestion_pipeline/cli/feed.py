"""`ingest feed`: new and expected releases as a file for feed readers and calendars."""

from pathlib import Path

import click

from ingestion_pipeline.cli.output import CommandRefused, echo
from ingestion_pipeline.cli.session import known_source, reading


@click.command()
@click.option("--to", "form", type=click.Choice(["atom", "ical"]), default="atom", help="Format; default: atom.")
@click.option("--source", "source_id", metavar="ID", help="Only releases of this source.")
@click.option("--out", type=click.Path(path_type=Path), help="File; default: standard output.")
def feed(*, form: str, source_id: str | None, out: Path | None) -> None:
    """Write new and expected releases as a feed or calendar.

    An Atom feed has the new ones. The file is replaced as a whole: write it to where a web server or
    a calendar reads it.
    """
    from ingestion_pipeline.exports.formats import replacing
    from ingestion_pipeline.exports.release_feeds import FeedFormat, releases, write_feed

    with reading() as (_, connection, now):
        listed = releases(connection, source_id=known_source(connection, source_id), now=now)
    document = write_feed(FeedFormat(form), listed, now=now)
    if out is None:
        echo(document.rstrip())
        return
    try:
        with replacing(out.absolute()) as part:
            part.write_text(document, encoding="utf-8", newline="")
    except OSError as error:
        raise CommandRefused(f"cannot write {out}: {error.strerror}", code="bad_path") from error
