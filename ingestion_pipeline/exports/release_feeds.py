"""Files of new and of expected releases: an Atom feed for readers, an iCalendar for calendars."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from xml.etree import ElementTree

from sqlalchemy import Connection, column, func, select, table

from ingestion_pipeline.notices.message import CONTROLS
from ingestion_pipeline.store.tables import chapter_sources, chapters, series, sources
from ingestion_pipeline.store.types import UtcDateTime
from ingestion_pipeline.urls import without_secrets

MOST = 100  # releases in a file, and as many expected ones
EXPECTED = table(
    "v_expected",
    *map(column, ("source_id", "name", "series_id", "url", "changes_per_day")),
    column("last_new_at", UtcDateTime),
    column("expected_at", UtcDateTime),
)
_ATOM = "http://www.w3.org/2005/Atom"
_FOLDED_OCTETS = 75  # RFC 5545
_LENGTH = timedelta(hours=1)  # of an event


class FeedFormat(StrEnum):
    """The format of the file."""

    ATOM = "atom"
    ICAL = "ical"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseEntry:
    """A new or an expected release; `id` stays the same."""

    id: str
    title: str
    at: datetime
    url: str | None
    is_expected: bool = False


def releases(connection: Connection, *, source_id: str | None = None, now: datetime) -> list[ReleaseEntry]:
    """Return the newest releases, then those that are expected by the change model, of a source or of all.

    What is overdue is expected now.
    """
    return [*_new(connection, source_id), *_expected(connection, source_id, now)]


def _new(connection: Connection, source_id: str | None) -> Iterator[ReleaseEntry]:
    links = chapter_sources.alias("links")
    first = select(func.min(links.c.id)).where(links.c.chapter_id == chapters.c.id)
    if source_id is not None:
        first = first.where(links.c.source_id == source_id)
    query = (
        select(chapters, series.c.title.label("series_title"), chapter_sources.c.url)
        .join(series, series.c.id == chapters.c.series_id)
        .join(chapter_sources, chapter_sources.c.id == first.correlate(chapters).scalar_subquery())
        .where(chapters.c.rejected_at.is_(None))
        .order_by(chapters.c.first_detected_at.desc(), chapters.c.id.desc())
        .limit(MOST)
    )
    for row in connection.execute(query):
        number = "" if row.number is None else f" {row.number:f}"
        title = f"{row.series_title}{number}{f': {row.title}' if row.title else ''}"
        yield ReleaseEntry(id=f"chapter:{row.id}", title=title, at=row.first_detected_at, url=row.url)


def _expected(connection: Connection, source_id: str | None, now: datetime) -> Iterator[ReleaseEntry]:
    query = select(EXPECTED, sources.c.kind).join(sources, sources.c.id == EXPECTED.c.source_id)
    query = query.where(sources.c.kind == "series")
    if source_id is not None:
        query = query.where(EXPECTED.c.source_id == source_id)
    for row in connection.execute(query.order_by(EXPECTED.c.expected_at).limit(MOST)):
        yield ReleaseEntry(
            id=f"expected:{row.source_id}",
            title=f"{row.name or row.series_id or row.source_id}: expected",
            at=max(row.expected_at, now),
            url=row.url,
            is_expected=True,
        )


def write_feed(form: FeedFormat, listed: Sequence[ReleaseEntry], *, now: datetime) -> str:
    """Return the file; an Atom feed has no expected releases, as none of them can be read yet."""
    return _atom(listed, now) if form is FeedFormat.ATOM else _ical(listed, now)


def _atom(listed: Sequence[ReleaseEntry], now: datetime) -> str:
    ElementTree.register_namespace("", _ATOM)
    feed = ElementTree.Element(f"{{{_ATOM}}}feed")

    def add(parent: ElementTree.Element, name: str, text: str | None = None, **attributes: str) -> ElementTree.Element:
        element = ElementTree.SubElement(parent, f"{{{_ATOM}}}{name}", attributes)
        element.text = text
        return element

    new = [release for release in listed if not release.is_expected]
    add(feed, "id", "urn:ingestion_pipeline:releases")
    add(feed, "title", "New releases")
    add(feed, "updated", max((release.at for release in new), default=now).isoformat())
    add(add(feed, "author"), "name", "ingestion_pipeline")
    for release in new:
        entry = add(feed, "entry")
        add(entry, "id", f"urn:ingestion_pipeline:{release.id}")
        add(entry, "title", _plain(release.title))
        add(entry, "updated", release.at.isoformat())
        if release.url:
            add(entry, "link", href=without_secrets(_plain(release.url)))
    ElementTree.indent(feed)
    return ElementTree.tostring(feed, encoding="unicode", xml_declaration=True) + "\n"


def _ical(listed: Sequence[ReleaseEntry], now: datetime) -> str:
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//ingestion_pipeline//releases//EN"]
    for release in listed:
        lines += [
            "BEGIN:VEVENT",
            f"UID:{_text(release.id)}@ingestion_pipeline",
            f"DTSTAMP:{_moment(now)}",
            f"DTSTART:{_moment(release.at)}",
            f"DTEND:{_moment(release.at + _LENGTH)}",
            f"SUMMARY:{_text(release.title)}",
            f"STATUS:{'TENTATIVE' if release.is_expected else 'CONFIRMED'}",
            *([f"URL:{without_secrets(_plain(release.url))}"] if release.url else []),
            "END:VEVENT",
        ]
    lines.append("END:VCALENDAR")
    return "".join(f"{part}\r\n" for line in lines for part in _folded(line))


def _plain(text: str) -> str:
    return CONTROLS.sub(" ", text).strip()


def _text(text: str) -> str:
    """Return the text as iCalendar has it: a comma, a semicolon and a backslash are escaped."""
    return "".join(f"\\{character}" if character in "\\;," else character for character in _plain(text))


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def _folded(line: str) -> Iterator[str]:
    """Yield the line in parts of at most 75 octets, no character cut in two; later parts begin with a space."""
    part = ""
    for character in line:
        if len((part + character).encode()) > _FOLDED_OCTETS:
            yield part
            part = " "
        part += character
    yield part
