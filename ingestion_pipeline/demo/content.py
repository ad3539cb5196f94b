"""What the demo serves: the state of its site, its series, responses as pure functions of it, and loopback servers.

Two series come from a MangaDex-like API and from a feed each, one from a feed that is often overloaded, and one URL
has nothing but an error page; the fourth series has web pages, which `site.py` writes.
"""

import hashlib
import json
import os
import socketserver
import tempfile
import threading
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import yaml
from pydantic import ConfigDict, NonNegativeInt, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

# What the sites publish, besides what a mutation adds.
PUBLISHED: dict[str, Any] = yaml.safe_load(files("ingestion_pipeline.demo").joinpath("content.yaml").read_text("utf-8"))


class DemoStateError(ValueError):
    """A stored state that cannot be read; the message names the file and the cure."""


@pydantic_dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True))
class DemoState:
    """Everything the site's content depends on; the default is the site as shipped."""

    new_chapters: NonNegativeInt = 0  # of The Lighthouse Keeper and The Clockmaker's Map, beyond the shipped
    is_broken: bool = False  # see `break_site`


def mutate(state: DemoState) -> DemoState:
    """Add a chapter to two series, a course to each catalogue, change one, and other jobs."""
    return replace(state, new_chapters=state.new_chapters + 1)


def break_site(state: DemoState) -> DemoState:
    """Break the site: error pages, an empty listing, lost pages, a 503, and renamed fields of a job board's API."""
    return replace(state, is_broken=True)


def repair(state: DemoState) -> DemoState:
    """End all failures; chapters that came out meanwhile stay."""
    return replace(state, is_broken=False)


def state_file(home: Path) -> Path:
    """Return where the state of the site in `home` is stored."""
    return home / "demo" / "state.json"


def read_state(home: Path) -> DemoState:
    """Return the stored state, or the shipped one if there is none; a damaged file is an error."""
    path = state_file(home)
    try:
        return TypeAdapter(DemoState).validate_json(path.read_bytes())
    except FileNotFoundError:
        return DemoState()
    except ValidationError as error:
        why = "; ".join(": ".join([*map(str, problem["loc"]), problem["msg"]]) for problem in error.errors())
        raise DemoStateError(f"{path} does not hold a demo state ({why}); delete it to restart the demo") from error


def write_state(home: Path, state: DemoState) -> None:
    """Store the state atomically."""
    write_atomically(state_file(home), json.dumps(asdict(state), indent=2) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` atomically; create its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    draft = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


LOOPBACK = "127.0.0.1"


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for answers under way, so that no socket is left open
    request_queue_size = 1_024  # clients that are killed leave theirs in it

    def server_bind(self) -> None:
        """Bind without HTTPServer's reverse lookup of the address, which may ask a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, self.socket.getsockname()[1]


class LoopbackHandler(BaseHTTPRequestHandler):
    """A request handler without an access log, which ignores clients that hang up."""

    protocol_version = "HTTP/1.1"
    sys_version = ""
    timeout = 5.0  # a client that connects and sends nothing may delay closing this long

    def handle(self) -> None:
        """Answer the request."""
        with suppress(ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
        """Log nothing: the servers themselves record their requests."""


@contextmanager
def serving(port: int, handler: Callable[..., BaseHTTPRequestHandler], *, name: str) -> Generator[int]:
    """Serve during the block, on `port` (0: any free one); yield the port."""
    with _Server((LOOPBACK, port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), name=name)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


LIGHTHOUSE_ID = "5b0f6c1e-6d0e-4a53-9c5e-1f7a2d9c4e10"
SALT_ID = "c2a7e9d4-30b8-4f6a-8e21-7d5f0b9a6c33"

HARBOUR, NORTHERN = "Harbour Light Scans", "Northern Ferry"
EXTERNAL_NUMBER = "16"
WEEK, DAY, HOUR = timedelta(weeks=1), timedelta(days=1), timedelta(hours=1)

LIGHTHOUSE_ENDS_AT = datetime(2026, 10, 1, 12, tzinfo=UTC)
LAST_LIGHTHOUSE_NUMBER = 22
SECOND_GROUP_ENDS_AT = LIGHTHOUSE_ENDS_AT - 2 * WEEK  # it is slow, and never has the newest two
NEW_TITLES = ("A Ship Without a Name", "The Other Shore", "Mist", "Signal Fires")

SALT_ENDS_AT = datetime(2026, 9, 20, 9, tzinfo=UTC)
ORCHARD_ENDS_AT = datetime(2026, 9, 26, 20, tzinfo=UTC)
CLOCKMAKER_ENDS_AT = datetime(2026, 9, 28, 7, tzinfo=UTC)
LAST_CLOCKMAKER_NUMBER = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoChapter:
    """A chapter of a series; an unnumbered one is a oneshot."""

    number: str | None
    title: str
    published_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoUpload:
    """A release of a chapter, as the API lists it."""

    manga_id: str
    chapter: DemoChapter
    language: str
    group: str | None
    uploaded_at: datetime
    external_url: str | None = None

    @property
    def id(self) -> str:
        """Return the API's id of this release, derived from its content, hence stable."""
        return stable_uuid(self.manga_id, self.chapter.number, self.language, self.group)


def lighthouse_chapters(state: DemoState) -> list[DemoChapter]:
    """Return The Lighthouse Keeper, oldest first: shipped numbers, then one per mutation."""
    shipped = _weekly("lighthouse", LIGHTHOUSE_ENDS_AT)
    return shipped + _mutated(state, after=LAST_LIGHTHOUSE_NUMBER, since=LIGHTHOUSE_ENDS_AT)


def clockmaker_chapters(state: DemoState) -> list[DemoChapter]:
    """Return The Clockmaker's Map, oldest first: shipped numbers, then one per mutation."""
    shipped = _weekly("clockmaker", CLOCKMAKER_ENDS_AT)
    return shipped + _mutated(state, after=LAST_CLOCKMAKER_NUMBER, since=CLOCKMAKER_ENDS_AT)


def lighthouse_uploads(state: DemoState) -> list[DemoUpload]:
    """Return every release of The Lighthouse Keeper, oldest first; most have two or three."""
    chapters = lighthouse_chapters(state)
    oneshot = DemoChapter(number=None, title="Before the Light", published_at=chapters[0].published_at - WEEK)
    uploads = [_upload(LIGHTHOUSE_ID, oneshot)]
    for chapter in chapters:
        uploads += _lighthouse_uploads_of(chapter)
    return sorted(uploads, key=lambda upload: (upload.uploaded_at, upload.id))


def salt_uploads(state: DemoState) -> list[DemoUpload]:
    """Return Salt and Iron, one release per number; nothing while the site is broken."""
    if state.is_broken:
        return []
    return [_upload(SALT_ID, chapter) for chapter in salt_chapters()]


def salt_chapters() -> list[DemoChapter]:
    """Return Salt and Iron, oldest first."""
    return _weekly("salt", SALT_ENDS_AT)


def _mutated(state: DemoState, *, after: int, since: datetime) -> list[DemoChapter]:
    return [
        DemoChapter(
            number=str(after + nth),
            title=NEW_TITLES[(nth - 1) % len(NEW_TITLES)],
            # an hour apart, not a week: no mutation may date a chapter into the reader's future
            published_at=since + nth * HOUR,
        )
        for nth in range(1, state.new_chapters + 1)
    ]


def _weekly(series: str, ends_at: datetime) -> list[DemoChapter]:
    titles: dict[str, str] = PUBLISHED["chapters"][series]
    return [
        DemoChapter(number=number, title=title, published_at=ends_at - weeks_before * WEEK)
        for weeks_before, (number, title) in zip(reversed(range(len(titles))), titles.items(), strict=True)
    ]


def _lighthouse_uploads_of(chapter: DemoChapter) -> list[DemoUpload]:
    if chapter.number == EXTERNAL_NUMBER:
        return [_external_upload(chapter)]
    uploads = [_upload(LIGHTHOUSE_ID, chapter)]
    if chapter.published_at <= SECOND_GROUP_ENDS_AT:
        uploads.append(_upload(LIGHTHOUSE_ID, chapter, language="es", group=NORTHERN, late=DAY))
        if len(chapter.title) % 2 == 0:  # any fixed choice of about half the numbers will do
            uploads.append(_upload(LIGHTHOUSE_ID, chapter, group=NORTHERN, late=2 * DAY))
    return uploads


def _upload(
    manga_id: str, chapter: DemoChapter, *, language: str = "en", group: str = HARBOUR, late: timedelta = timedelta(0)
) -> DemoUpload:
    return DemoUpload(
        manga_id=manga_id, chapter=chapter, language=language, group=group, uploaded_at=chapter.published_at + late
    )


def _external_upload(chapter: DemoChapter) -> DemoUpload:
    """Return a release on its publisher's site: no group, no pages, an external URL."""
    return DemoUpload(
        manga_id=LIGHTHOUSE_ID,
        chapter=chapter,
        language="en",
        group=None,
        uploaded_at=chapter.published_at,
        external_url=f"https://publisher.demo.test/lighthouse/{chapter.number}",
    )


def stable_uuid(*parts: str | None) -> str:
    """Return the same id for the same parts, in every process."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(parts)))


API_HOST = "api.mangadex.demo.test"
FEEDS_HOST = "feeds.demo.test"
FLAKY_HOST = "flaky.demo.test"
BROKEN_HOST = "broken.demo.test"

NEWEST_IN_FEED = 10
DEFAULT_LIMIT = 100  # this and the next are MangaDex's own
MAX_LIMIT = 500
LAST_NUMBER_IN_A_VOLUME = 20
LONGEST_NUMBER = 9

ERROR_PAGE = b"""<!DOCTYPE html>
<html lang="en"><head><title>Something went wrong</title></head>
<body><h1>Something went wrong</h1><p>Please come back later.</p></body></html>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoContent:
    """A response of the site; only one with `last_modified` supports conditional requests."""

    body: bytes
    content_type: str
    status_code: int = 200
    last_modified: datetime | None = None
    location: str | None = None
    content_encoding: str | None = None
    delay_seconds: float = 0.0

    @property
    def etag(self) -> str:
        """Return the same tag for the same body, also after a restart."""
        return f'"{hashlib.sha256(self.body).hexdigest()[:32]}"'


def manga_feed(state: DemoState, manga_id: str, query: Mapping[str, Sequence[str]]) -> DemoContent:
    """Return the API's response to `/manga/<id>/feed`: a slice of the releases, or an error."""
    series = {LIGHTHOUSE_ID: lighthouse_uploads, SALT_ID: salt_uploads}
    if manga_id not in series:
        return api_error(404, "not_found_http_exception", f"Manga with ID {manga_id} not found")
    limit = natural(query.get("limit", [str(DEFAULT_LIMIT)])[-1])
    offset = natural(query.get("offset", ["0"])[-1])
    if not limit or limit > MAX_LIMIT or offset is None:
        return api_error(400, "validation_exception", "Error validating /limit or /offset")
    uploads = series[manga_id](state)
    if languages := query.get("translatedLanguage[]"):
        uploads = [upload for upload in uploads if upload.language in languages]
    return json_page(
        {
            "result": "ok",
            "response": "collection",
            "data": [_item(upload) for upload in uploads[offset : offset + limit]],
            "limit": limit,
            "offset": offset,
            "total": len(uploads),
        }
    )


def api_error(status_code: int, title: str, detail: str) -> DemoContent:
    """Return an error in the format of the API."""
    error = {"id": stable_uuid(title), "status": status_code, "title": title, "detail": detail}
    return json_page({"result": "error", "errors": [error]}, status_code)


def lighthouse_rss(state: DemoState) -> DemoContent:
    """Return the newest numbers of The Lighthouse Keeper, newest first, as a second source."""
    newest = lighthouse_chapters(state)[-NEWEST_IN_FEED:]
    return _rss("The Lighthouse Keeper", f"http://{FEEDS_HOST}/lighthouse", newest)


def salt_atom(_state: DemoState) -> DemoContent:
    """Return all of Salt and Iron, newest first; this feed works when the API is empty."""
    return _atom("Salt and Iron", f"http://{FEEDS_HOST}/salt", salt_chapters())


def orchard_rss(state: DemoState) -> DemoContent:
    """Return all of The Orchard at Night; an error page when broken."""
    if state.is_broken:
        return error_page(state)
    return _rss("The Orchard at Night", f"http://{FLAKY_HOST}/orchard", _weekly("orchard", ORCHARD_ENDS_AT))


def error_page(_state: DemoState) -> DemoContent:
    """Return an error page with status 200, as real sites do."""
    return DemoContent(body=ERROR_PAGE, content_type="text/html; charset=utf-8")


def overloaded() -> DemoContent:
    """Return a 503 without a Retry-After header."""
    return plain(503, "Service Unavailable")


def plain(status_code: int, text: str) -> DemoContent:
    """Return a plain text response."""
    return DemoContent(body=f"{text}\n".encode(), content_type="text/plain; charset=utf-8", status_code=status_code)


def json_page(document: object, status_code: int = 200) -> DemoContent:
    """Return a JSON response."""
    body = json.dumps(document, ensure_ascii=False).encode()
    return DemoContent(body=body, content_type="application/json", status_code=status_code)


def natural(text: str) -> int | None:
    """Return the text as a natural number; None if it is none, or too long."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER
    return int(text) if is_number else None


def _item(upload: DemoUpload) -> dict[str, object]:
    uploaded_at = upload.uploaded_at.isoformat()
    attributes = {
        "volume": _volume(upload.chapter.number),
        "chapter": upload.chapter.number,
        "title": upload.chapter.title,
        "translatedLanguage": upload.language,
        "externalUrl": upload.external_url,
        "publishAt": uploaded_at,
        "readableAt": uploaded_at,
        "createdAt": uploaded_at,
        "updatedAt": uploaded_at,
        "pages": 0 if upload.external_url else 18 + len(upload.chapter.title) % 7,
        "version": 1,
    }
    relationships = _relationships(upload)
    return {"id": upload.id, "type": "chapter", "attributes": attributes, "relationships": relationships}


def _relationships(upload: DemoUpload) -> list[dict[str, object]]:
    manga: dict[str, object] = {"id": upload.manga_id, "type": "manga"}
    if upload.group is None:
        return [manga]
    attributes = {"name": upload.group}
    return [{"id": stable_uuid(upload.group), "type": "scanlation_group", "attributes": attributes}, manga]


def _volume(number: str | None) -> str | None:
    """Return the volume, eight numbers each; the newest chapters have none yet."""
    if number is None or float(number) > LAST_NUMBER_IN_A_VOLUME:
        return None
    return str((int(float(number)) - 1) // 8 + 1)


def _rss(title: str, link: str, chapters: Sequence[DemoChapter]) -> DemoContent:
    root = ET.Element("rss", version="2.0")
    channel = ET.SubElement(root, "channel")
    _texts(channel, title=title, link=link, description=f"New chapters of {title}")
    for chapter in reversed(chapters):
        address = f"{link}/{chapter.number}"
        _texts(
            ET.SubElement(channel, "item"),
            title=f"{title} Chapter {chapter.number}: {chapter.title}",
            link=address,
            guid=address,
            pubDate=format_datetime(chapter.published_at, usegmt=True),
        )
    return _feed(root, "application/rss+xml", chapters)


def _atom(title: str, link: str, chapters: Sequence[DemoChapter]) -> DemoContent:
    root = ET.Element("feed", xmlns="http://www.w3.org/2005/Atom")
    _texts(root, id=link, title=title, updated=chapters[-1].published_at.isoformat())
    for chapter in reversed(chapters):
        address = f"{link}/{chapter.number}"
        published_at = chapter.published_at.isoformat()
        entry = ET.SubElement(root, "entry")
        ET.SubElement(entry, "link", rel="alternate", href=address)
        label = f"{title} Ch. {chapter.number}: {chapter.title}"
        _texts(entry, id=address, title=label, published=published_at, updated=published_at)
    return _feed(root, "application/atom+xml", chapters)


def _texts(parent: ET.Element, **texts: str) -> None:
    for tag, text in texts.items():
        ET.SubElement(parent, tag).text = text


def _feed(root: ET.Element, media_type: str, chapters: Sequence[DemoChapter]) -> DemoContent:
    ET.indent(root)
    return DemoContent(
        body=ET.tostring(root, encoding="utf-8", xml_declaration=True),
        content_type=f"{media_type}; charset=utf-8",
        last_modified=chapters[-1].published_at,
    )


HTML = "text/html; charset=utf-8"
Query = Mapping[str, Sequence[str]]


def html_page(title: str, body: str, *, footer: str, head: str = "") -> DemoContent:
    """Return a page in English and UTF-8; title, body, footer and head are markup already."""
    text = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>{head}</head>'
        f"<body>{body}<footer>{footer}</footer></body></html>\n"
    )
    return DemoContent(body=text.encode(), content_type=HTML)


def moved(location: str) -> DemoContent:
    """Return a temporary redirect."""
    return DemoContent(body=b"", content_type=HTML, status_code=302, location=location)


def int_parameter(query: Query, name: str, default: int) -> int | None:
    """Return a number of the query or the default; None if it is no natural number."""
    return natural(query.get(name, [str(default)])[-1])
