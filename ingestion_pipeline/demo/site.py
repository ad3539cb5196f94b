"""The demo site: an HTTP server on loopback that answers for `*.demo.test` names, and receives webhooks.

The webhook receiver accepts only messages signed with the follower's key, each once by its id, and stores what it
accepted across restarts.
"""

import base64
import binascii
import hashlib
import hmac
import json
import re
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from email.message import Message
from email.utils import format_datetime, mktime_tz, parsedate_tz
from functools import partial
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import parse_qs, urlsplit

from ingestion_pipeline.demo import DEMO_SUFFIX, catalog_sites, company_sites, content
from ingestion_pipeline.demo.content import (
    DemoChapter,
    DemoContent,
    DemoState,
    DemoStateError,
    LoopbackHandler,
    clockmaker_chapters,
    plain,
    read_state,
    serving,
    write_atomically,
)
from ingestion_pipeline.demo.model_server import DEMO_PRICES, provider_setting
from ingestion_pipeline.pages.http.guard import publish, withdraw

HOOKS_HOST = "hooks.demo.test"
MAX_MESSAGE_BYTES = 1_000_000  # a message of a thousand chapters has a quarter of it
TOLERANCE_SECONDS = 300  # the Standard Webhooks libraries' own: an older message may be a replay

SecretOf = Callable[[str], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """What a follower's hook received: the title of each message by its id, oldest first."""

    taken: Mapping[str, str] = field(default_factory=dict[str, str])
    repeats: int = 0
    refused: int = 0


class Receiver:
    """The handler for `hooks.demo.test/FOLLOWER`; `secret_of` returns the followers' keys."""

    def __init__(self, home: Path, secret_of: SecretOf, *, now: Callable[[], float] = time.time) -> None:
        self._home = home
        self._secret_of = secret_of
        self._now = now
        self._lock = threading.Lock()

    def receive(self, path: str, headers: Message, body: bytes) -> DemoContent:
        """Accept a genuine message once and store it before the response; a repeat is a success, too."""
        follower = path.removeprefix("/")
        secret = self._secret_of(follower)
        if secret is None:
            return plain(404, f"There is no follower {follower!r} here")
        title = _title(body) if is_genuine(headers, body, secret, now=self._now()) else None
        try:
            with self._lock:
                return self._note(follower, headers["webhook-id"], title)
        except DemoStateError as error:
            return plain(500, str(error))

    def _note(self, follower: str, message_id: str, title: str | None) -> DemoContent:
        inboxes = read_inboxes(self._home)
        before = inboxes.get(follower, Inbox())
        if title is None:
            after, page = replace(before, refused=before.refused + 1), plain(401, "Not genuine")
        elif message_id in before.taken:
            after, page = replace(before, repeats=before.repeats + 1), plain(200, "Taken before")
        else:
            after = replace(before, taken={**before.taken, message_id: title})
            page = plain(200, "Taken")
        document = {name: asdict(inbox) for name, inbox in {**inboxes, follower: after}.items()}
        write_atomically(inbox_file(self._home), json.dumps(document, indent=2) + "\n")
        return page


def is_genuine(headers: Message, body: bytes, secret: str, *, now: float) -> bool:
    """Return whether the message has a recent valid signature (Standard Webhooks, version 1)."""
    message_id, sent_at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not message_id or not sent_at.isdecimal() or abs(now - int(sent_at)) > TOLERANCE_SECONDS:
        return False
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        return False
    signed = f"{message_id}.{sent_at}.".encode() + body
    expected = b"v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256))
    signatures = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(expected, signature.encode()) for signature in signatures)


def inbox_file(home: Path) -> Path:
    """Return where the hooks of the site in `home` store what they received."""
    return home / "demo" / "inboxes.json"


def read_inboxes(home: Path) -> dict[str, Inbox]:
    """Return what every follower's hook received so far; a damaged file is an error."""
    path = inbox_file(home)
    try:
        document = cast("dict[str, dict[str, Any]]", json.loads(path.read_bytes()))
        return {name: Inbox(**inbox) for name, inbox in document.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise DemoStateError(
            f"{path} does not hold the demo's inboxes ({error}); delete it to begin with empty ones"
        ) from error


def _title(body: bytes) -> str:
    """Return the title of the message."""
    try:
        return str(json.loads(body)["title"])
    except (ValueError, TypeError, KeyError):
        return "a message without a title"


LISTS_HOST = "lists.demo.test"
ROWS_ON_A_PAGE = 10
# The newest rows have relative dates, which never change: the site has no clock.
AGO = ("yesterday", "3 days ago", "1 week ago")


def clockmaker_list(state: DemoState, query: Mapping[str, Sequence[str]]) -> DemoContent:
    """Return The Clockmaker's Map, newest first, ten rows a page; 404 past the end."""
    rows = _rows(clockmaker_chapters(state))
    number = query.get("page", ["1"])[-1]
    pages = [rows[start : start + ROWS_ON_A_PAGE] for start in range(0, len(rows), ROWS_ON_A_PAGE)]
    if number not in map(str, range(1, len(pages) + 1)):
        return plain(404, "Not Found")
    older = "" if int(number) == len(pages) else f'<a class="older" href="?page={int(number) + 1}">Older parts</a>'
    lines = "\n".join(pages[int(number) - 1])
    body = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<title>The Clockmaker's Map</title></head>
<body><h1>The Clockmaker's Map</h1><table>
{lines}
</table><p>{older}</p></body></html>
"""
    return DemoContent(body=body.encode(), content_type="text/html; charset=utf-8")


def _rows(chapters: Sequence[DemoChapter]) -> list[str]:
    newest_first = list(reversed(chapters))
    dates = [*AGO, *(f"{chapter.published_at:%B %d, %Y}" for chapter in newest_first[len(AGO) :])]
    return [
        f'<tr class="part" id="part-{chapter.number}"><td class="no">No. {chapter.number}</td>'
        f'<td class="what"><a href="clockmaker/{chapter.number}#top">{escape(chapter.title)}</a>'
        f'</td><td class="when">{date}</td></tr>'
        for chapter, date in zip(newest_first, dates, strict=True)
    ]


FAILURES_AT_START = 2  # one fewer than the attempts of a transient failure: the third one succeeds

ORCHARD_ADDRESS = (content.FLAKY_HOST, "/orchard.xml")
PAGES: dict[tuple[str, str], Callable[[DemoState], DemoContent]] = {
    (content.FEEDS_HOST, "/lighthouse.xml"): content.lighthouse_rss,
    (content.FEEDS_HOST, "/salt.atom"): content.salt_atom,
    ORCHARD_ADDRESS: content.orchard_rss,
    (content.BROKEN_HOST, "/ghost.xml"): content.error_page,
}
CLOCKMAKER_ADDRESS = (LISTS_HOST, "/clockmaker")
Query = Mapping[str, Sequence[str]]
MANGA_FEED = re.compile(r"/manga/([^/]+)/feed")


def demo_profile() -> Path:
    """Return the path of the demo's job profile."""
    return Path(__file__).with_name("profile.yaml")


class DemoSite:
    """A site that runs while the `with` block does, on `port` (0: any), published in `home`.

    It reads the state in `home` at each request, so a change made by another process shows at once.
    Its webhooks look up their followers' keys by `secret_of`; without it they refuse all.
    `providers` run beside it, by name and base URL: they are published with it.
    """

    def __init__(
        self,
        home: Path,
        port: int = 0,
        *,
        secret_of: SecretOf = lambda _follower: None,
        providers: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home
        self.port = port
        self.providers = dict(providers or {})
        self._receiver = Receiver(home, secret_of)
        self._requests: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._running = ExitStack()

    @property
    def requests(self) -> Counter[tuple[str, str]]:
        """Return how often each (host, path) was requested since the site last started."""
        with self._lock:
            return self._requests.copy()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._requests.clear()
            self.port = stack.enter_context(serving(self.port, partial(_Handler, self), name="demo-site"))
            more = {"providers": provider_setting(self.providers), "prices": DEMO_PRICES} if self.providers else {}
            publish(self.home, self.port, suffix=DEMO_SUFFIX, profile=str(demo_profile()), **more)
            stack.callback(withdraw, self.home)
            self._running = stack.pop_all()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._running.close()

    def answer(self, host: str, path: str, query: str) -> DemoContent:
        """Return the response to a GET: a page of the current state, or a scripted failure."""
        nth = self._count(host, path)
        try:
            state = read_state(self.home)
        except DemoStateError as error:
            return content.plain(500, str(error))
        if (host, path) == ORCHARD_ADDRESS and nth <= FAILURES_AT_START:
            return content.overloaded()
        return page_at(state, host, path, query)

    def receive(self, host: str, path: str, headers: Message, body: bytes) -> DemoContent:
        """Return the response to a POST: only the followers' hooks accept any."""
        self._count(host, path)
        if host != HOOKS_HOST:
            return content.plain(405, "Method Not Allowed")
        return self._receiver.receive(path, headers, body)

    def _count(self, host: str, path: str) -> int:
        with self._lock:
            self._requests[host, path] += 1
            return self._requests[host, path]


def page_at(state: DemoState, host: str, path: str, query: str = "") -> DemoContent:
    """Return what the site serves at this address; 404 for an unknown one."""
    if page := PAGES.get((host, path)):
        return page(state)
    if (host, path) == CLOCKMAKER_ADDRESS:
        return content.overloaded() if state.is_broken else clockmaker_list(state, parse_qs(query))
    if site := SITES.get(host):
        return site(state, path, parse_qs(query))
    return content.plain(404, "Not Found")


def _api(state: DemoState, path: str, query: Query) -> DemoContent:
    if match := MANGA_FEED.fullmatch(path):
        return content.manga_feed(state, match[1], query)
    return content.api_error(404, "not_found_http_exception", f"No route found for GET {path}")


SITES: dict[str, Callable[[DemoState, str, Query], DemoContent]] = {
    content.API_HOST: _api,
    catalog_sites.COLLEGE_HOST: catalog_sites.college,
    catalog_sites.ANNEX_HOST: catalog_sites.annex,
    catalog_sites.MEMBERS_HOST: catalog_sites.members,
    catalog_sites.TIDEWATER_HOST: catalog_sites.tidewater,
    catalog_sites.LANTERN_HOST: catalog_sites.lantern,
    catalog_sites.MEADOW_HOST: catalog_sites.meadow,
    company_sites.DRIFTWOOD_HOST: company_sites.driftwood,
    company_sites.BOARDS_HOST: company_sites.boards,
    company_sites.KESTREL_HOST: company_sites.kestrel,
    company_sites.SALTMARSH_HOST: company_sites.saltmarsh,
    company_sites.RADWERFT_HOST: company_sites.radwerft,
}


def is_unchanged(page: DemoContent, headers: Message) -> bool:
    """Return whether the client's copy is current; a tag outweighs a date (RFC 9110, 13.2.2)."""
    if page.last_modified is None:
        return False
    if tags := headers.get("If-None-Match"):
        return tags.strip() == "*" or page.etag in [tag.strip().removeprefix("W/") for tag in tags.split(",")]
    since = parsedate_tz(headers.get("If-Modified-Since", ""))
    return since is not None and mktime_tz(since) >= page.last_modified.timestamp()


class _Handler(LoopbackHandler, BaseHTTPRequestHandler):
    server_version = "DemoSite"

    def __init__(
        self, site: DemoSite, request: socket.socket, address: tuple[str, int], server: socketserver.BaseServer
    ) -> None:
        self._site = site
        super().__init__(request, address, server)  # answers the request, then returns

    def do_GET(self) -> None:
        """Send the page at the address, or 304 if it is unchanged."""
        target = urlsplit(self.path)
        page = self._site.answer(self._host(), target.path, target.query)
        if is_unchanged(page, self.headers):
            self._send_head(HTTPStatus.NOT_MODIFIED, page)
        else:
            self._send(page)

    def do_POST(self) -> None:
        """Accept the message, or refuse it; a body of unknown or great length is not read."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self._send(content.plain(411, "Length Required"))
        elif int(length) > MAX_MESSAGE_BYTES:
            self._send(content.plain(413, "Content Too Large"))
        else:
            body = self.rfile.read(int(length))
            if len(body) == int(length):  # else the sender hung up
                path = urlsplit(self.path).path
                self._send(self._site.receive(self._host(), path, self.headers, body))

    def _host(self) -> str:
        return self.headers.get("Host", "").partition(":")[0].lower().rstrip(".")

    def _send(self, page: DemoContent) -> None:
        time.sleep(page.delay_seconds)
        self._send_head(page.status_code, page, body_length=len(page.body))
        self.wfile.write(page.body)

    def _send_head(self, status_code: int, page: DemoContent, *, body_length: int | None = None) -> None:
        self.send_response(status_code)
        if page.last_modified is not None:
            self.send_header("ETag", page.etag)
            self.send_header("Last-Modified", format_datetime(page.last_modified, usegmt=True))
        if page.location is not None:
            self.send_header("Location", page.location)
        if body_length is not None:
            if page.content_encoding is not None:
                self.send_header("Content-Encoding", page.content_encoding)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(body_length))
        self.send_header("Connection", "close")
        self.end_headers()
