"""The responses of the demo site as pure functions of its state: feeds, API and error pages.

Two series come from a MangaDex-like API and from a feed each, one from a feed that is often
overloaded, and one URL has nothing but an error page. The series of `site.py` has web pages.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime
from xml.etree import ElementTree as ET

from ingestion_pipeline.demo.series import (
    LIGHTHOUSE_ID,
    SALT_ID,
    DemoChapter,
    DemoUpload,
    lighthouse_chapters,
    lighthouse_uploads,
    orchard_chapters,
    salt_chapters,
    salt_uploads,
    stable_uuid,
)
from ingestion_pipeline.demo.state import DemoState

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
    """Return all of The Orchard at Night; 503 while overloaded, an error page when broken."""
    if state.is_overloaded:
        return overloaded()
    if state.is_broken:
        return error_page(state)
    return _rss("The Orchard at Night", f"http://{FLAKY_HOST}/orchard", orchard_chapters())


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


def text_page(text: str) -> DemoContent:
    """Return plain text, such as robots.txt."""
    return DemoContent(body=text.encode(), content_type="text/plain; charset=utf-8")


def moved(location: str) -> DemoContent:
    """Return a temporary redirect."""
    return DemoContent(body=b"", content_type=HTML, status_code=302, location=location)


def int_parameter(query: Query, name: str, default: int) -> int | None:
    """Return a number of the query or the default; None if it is no natural number."""
    return natural(query.get(name, [str(default)])[-1])
