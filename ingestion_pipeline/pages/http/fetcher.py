"""Fetching one page by HTTP: conditional, within limits and a deadline, every hop guarded.

The body is inflated here and not by the HTTP library, so that every limit holds while it grows.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar
from urllib.parse import urljoin

from ingestion_pipeline.pages.http.guard import Guard, exempt_hosts, exempt_only
from ingestion_pipeline.pages.http.request import (
    BLOCKED_FOR,
    NO_SECRETS,
    Answer,
    Fetched,
    Request,
    Secrets,
    Start,
    conditions,
    redacted_errors,
    secret_of,
    status_error,
    unchanged,
    validator,
    with_secret,
    without_secret,
)
from ingestion_pipeline.pages.politeness.rights import header_rights
from ingestion_pipeline.pages.visits.page import (
    BLOCKED_PAGE_BYTES,
    MAY_BE_BLOCKED,
    blocked_header_error,
    blocked_page_error,
)
from ingestion_pipeline.tasks.errors import Permanent, Transient, Unreachable, WorkError
from ingestion_pipeline.urls import BadUrl, has_credentials, host_of, request_url, without_credentials

if TYPE_CHECKING:
    from ingestion_pipeline.pages.http.replay import StoredResponses
    from ingestion_pipeline.pages.http.transport import Exchange, RawAnswer
    from ingestion_pipeline.pages.politeness.hosts import Network
    from ingestion_pipeline.pages.zstd import zstd

CHUNK_BYTES = 65_536
_MAX_MEMBERS = 1000  # block gzip has one per 64 kB; each costs a copy of the chunk
_ZLIB, _RAW, _GZIP = 15, -15, 31  # zlib's own numbers for the three wrappings
_ZSTD_WINDOW_LOG = 23  # 8 MiB: what RFC 8878 asks receivers to support, and browsers do
_FRAME_STARTS = frozenset({0x28, *range(0x50, 0x60)})  # a zstd frame; frames to be skipped


class BadStream(Exception):
    """The bytes do not match their Content-Encoding."""


@contextmanager
def _as_bad_stream(kind: type[Exception]) -> Generator[None]:
    try:
        yield
    except kind as error:
        raise BadStream(str(error)) from error


class Inflater(Protocol):
    """One Content-Encoding."""

    @property
    def is_complete(self) -> bool:
        """Whether the stream has reached its end."""
        ...

    def inflate(self, data: bytes) -> Iterator[bytes]:
        """Yield the inflated data in bounded chunks; raise `BadStream` if they are invalid."""
        ...


class _Zlib:
    """gzip of one or more members, or deflate with and without its header."""

    def __init__(self, *, is_gzip: bool) -> None:
        self._is_gzip = is_gzip
        self._inflate = zlib.decompressobj(_GZIP) if is_gzip else None
        self._head = b""
        self._members = 1

    @property
    def is_complete(self) -> bool:
        return self._inflate is not None and self._inflate.eof

    def inflate(self, data: bytes) -> Iterator[bytes]:
        if self._inflate is None:
            self._head += data
            if len(self._head) < 2:  # noqa: PLR2004 - the length of a zlib header
                return
            # Servers send `deflate` with and without the zlib header.
            is_wrapped = self._head[0] & 0x0F == 8 and int.from_bytes(self._head[:2], "big") % 31 == 0  # noqa: PLR2004
            data, self._inflate = self._head, zlib.decompressobj(_ZLIB if is_wrapped else _RAW)
        while data or not self.is_complete:
            if self._inflate.eof:
                if not (self._is_gzip and data.startswith(b"\x1f")):
                    return  # padding after the end, which browsers ignore too
                self._next_member()
            with _as_bad_stream(zlib.error):
                chunk = self._inflate.decompress(data, CHUNK_BYTES)
            data = self._inflate.unused_data or self._inflate.unconsumed_tail
            if chunk:
                yield chunk
            # A full piece may leave output inside zlib though all input is consumed.
            if not data and len(chunk) < CHUNK_BYTES:
                return

    def _next_member(self) -> None:
        self._members += 1
        if self._members > _MAX_MEMBERS:
            raise BadStream(f"more than {_MAX_MEMBERS} gzip members")
        self._inflate = zlib.decompressobj(_GZIP)


class _Brotli:
    """One brotli stream; its window is 16 MB at the most, larger ones are refused."""

    def __init__(self) -> None:
        brotli: Any = import_module("brotli")  # untyped; imported only when needed
        self._error: type[Exception] = brotli.error
        self._inflate = brotli.Decompressor()
        self.is_complete = False

    def inflate(self, data: bytes) -> Iterator[bytes]:
        while not self.is_complete:
            with _as_bad_stream(self._error):
                chunk: bytes = self._inflate.process(data, output_buffer_limit=CHUNK_BYTES)
                self.is_complete = self._inflate.is_finished()
            if chunk:
                yield chunk
            # Until it accepts more data it holds output, which a call without data returns.
            if self._inflate.can_accept_more_data():
                return
            data = b""


class _Zstd:
    """One zstd frame after another."""

    def __init__(self) -> None:
        from ingestion_pipeline.pages.zstd import zstd  # imported only when needed

        self._zstd = zstd
        self._count = 0
        self._inflate = self._next_frame()

    @property
    def is_complete(self) -> bool:
        return self._inflate.eof

    def inflate(self, data: bytes) -> Iterator[bytes]:
        while data or not self._inflate.needs_input:
            if self.is_complete:
                if not data or data[0] not in _FRAME_STARTS:
                    return  # padding after the end
                self._inflate = self._next_frame()
            with _as_bad_stream(self._zstd.ZstdError):
                chunk = self._inflate.decompress(data, CHUNK_BYTES)
            data = self._inflate.unused_data  # empty until the frame ends
            if chunk:
                yield chunk

    def _next_frame(self) -> zstd.ZstdDecompressor:
        self._count += 1
        if self._count > _MAX_MEMBERS:
            raise BadStream(f"more than {_MAX_MEMBERS} zstd frames")
        return self._zstd.ZstdDecompressor(options={self._zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})


INFLATERS: dict[str, Callable[[], Inflater]] = {
    "gzip": lambda: _Zlib(is_gzip=True),
    "deflate": lambda: _Zlib(is_gzip=False),
    "br": _Brotli,
    "zstd": _Zstd,
}


ACCEPT_ENCODING = ", ".join(INFLATERS)

# Small pages of one repeated row compress better than 1:100; a bomb below this size is harmless.
_RATIO_FLOOR_BYTES = 262_144
# Names that servers send for "no encoding".
_NO_ENCODING = frozenset({"", "identity", "none", "utf-8", "utf8"})
_MAX_LAYERS = 3  # two were seen (a proxy that compresses twice); more is an attack


class LimitedBody:
    """Collects the chunks of one response; `shown_url` is only for the messages."""

    def __init__(self, content_encoding: str, *, max_bytes: int, max_ratio: int, shown_url: str) -> None:
        self._layers = _layers(content_encoding, shown_url)
        self._sizes = [0] * len(self._layers)  # what each of them has inflated
        self._max_bytes = max_bytes
        self._max_ratio = max_ratio
        self._shown_url = shown_url
        self._wire_bytes = 0
        self.inflated_bytes = 0
        self._chunks: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        """Add one chunk from the wire; raise at the first byte beyond a limit."""
        self._wire_bytes += len(chunk)
        self.expect(self._wire_bytes)
        try:
            self._unwrap(chunk)
        except BadStream as error:
            raise Transient(
                f"{self._shown_url} sent a body that its Content-Encoding does not fit: {error}", code="corrupt_body"
            ) from error

    def expect(self, wire_bytes: int) -> None:
        """Refuse at once a body that is announced as too large."""
        if wire_bytes > self._max_bytes:
            raise Permanent(f"{self._shown_url} sends more than {self._max_bytes} bytes", code="too_large")

    def whole(self) -> bytes:
        """Return the inflated body; raise if a compressed stream stopped before its end."""
        if self._wire_bytes and not all(layer.is_complete for layer in self._layers):
            raise Transient(f"{self._shown_url} sent a compressed body that stops early", code="truncated")
        return self.so_far()

    def so_far(self) -> bytes:
        """Return what has been inflated so far."""
        return b"".join(self._chunks)

    def _unwrap(self, data: bytes, depth: int = 0) -> None:
        if depth == len(self._layers):
            self._chunks.append(data)
            self.inflated_bytes += len(data)
            return
        for chunk in self._layers[depth].inflate(data):
            self._sizes[depth] += len(chunk)
            # Checked for every layer: an inner one may discard what an outer one inflates.
            size = self._sizes[depth]
            if size > min(self._max_bytes, max(_RATIO_FLOOR_BYTES, self._max_ratio * self._wire_bytes)):
                raise Permanent(
                    f"{self._shown_url} inflates {self._wire_bytes} bytes to {size} or more", code="decompression_bomb"
                )
            self._unwrap(chunk, depth + 1)


def _layers(content_encoding: str, shown_url: str) -> list[Inflater]:
    """Return the layers, outermost first; the header lists encodings in the applied order."""
    named = [part.strip().lower().removeprefix("x-") for part in content_encoding.split(",")]
    names = [name for name in named if name not in _NO_ENCODING]
    if len(names) > _MAX_LAYERS or not INFLATERS.keys() >= set(names):
        raise Permanent(
            f"{shown_url} answered with Content-Encoding {content_encoding[:100]!r},"
            f" though only {ACCEPT_ENCODING} was offered",
            code="content_encoding",
        )
    return [INFLATERS[name]() for name in reversed(names)]


_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NOT_MODIFIED = 304
_NOT_SENT = frozenset({"bad_url", "blocked_address", "no_secret"})
# The body of an error response is read only to keep the connection, and only if that is cheap.
_DRAIN_BYTES = 16_384
_DRAIN_SECONDS = 0.5
_BLOCKED_PAGE_SECONDS = 2.0

T = TypeVar("T")
Check = Callable[[str], Awaitable[None] | None]
"""Raises a `WorkError` if a redirect to the URL must not be followed; may wait until it may be requested."""


MAX_REDIRECTS = 5  # of one page; refreshes of a page count, too


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Limits of one page; `max_bytes` holds on the wire and again after inflating."""

    max_bytes: int = 10_000_000
    max_ratio: int = 100
    deadline_seconds: float = 30.0
    slow_host_seconds: float = 5.0  # until the first byte, if the host's last request timed out
    max_redirects: int = MAX_REDIRECTS
    connect_seconds: float = 10.0
    blocked_for: timedelta = BLOCKED_FOR


@dataclass(frozen=True, slots=True)
class _Redirect:
    location: str


Hop = Callable[[str], Awaitable[T | _Redirect]]
Signer = Callable[[str], Mapping[str, str]]
"""Returns the headers that sign a request for the URL."""


class HttpFetcher:
    """Fetches pages within one event loop; close it, or use it with `async with`."""

    def __init__(
        self,
        user_agent: str,
        limits: FetchLimits,
        guard: Guard,
        *,
        ca_file: Path | None = None,
        secrets: Secrets = NO_SECRETS,
        responses: StoredResponses | None = None,
        signer: Signer | None = None,
    ) -> None:
        from ingestion_pipeline.pages.http.transport import Connections  # httpx: only who fetches pays

        self.user_agent = user_agent
        self._limits = limits
        self._secrets = secrets
        self._signer = signer
        self.requests = 0  # sent so far, redirects too
        self.slow_hosts: set[str] = set()  # whose last request timed out
        self.network: Network | None = None  # shared by the run, knows its other hosts
        self._connections: Connections | StoredResponses = responses or Connections(
            guard, connect_seconds=limits.connect_seconds, ca_file=ca_file
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every open connection."""
        await self._connections.aclose()

    async def fetch(self, request: Request, *, now: datetime, check_redirect: Check | None = None) -> Answer:
        """Return the whole page, or that it is unchanged; every failure is a `WorkError`.

        The deadline is wall time over everything: names, connections, headers, redirects, body; but
        not the time that `check_redirect` waits, which is not the server's fault.
        """

        async def hop(url: str) -> Answer | _Redirect:
            self.requests += 1
            value = secret_of(request, url, self._secrets, now=now)
            with redacted_errors(value):
                return await self._exchanged(url, request, value, now)

        return await self._with_network(request.url, hop, check_redirect, most=self._limits.max_redirects)

    async def fetch_start(
        self, url: str, *, max_bytes: int, max_redirects: int, check_redirect: Check | None = None
    ) -> Start:
        """Return the response whatever its status; of a success a little over `max_bytes`."""
        hop = partial(self._start, max_bytes=max_bytes)
        return await self._with_network(url, hop, check_redirect, most=max_redirects)

    async def _with_network(self, url: str, hop: Hop[T], check: Check | None, *, most: int) -> T:
        try:
            attempt = nullcontext() if self.network is None else self.network.attempt(host_of(wire_url(url)))
            with exempt_only(exempt_hosts(url)), attempt:
                return await self._before_deadline(url, hop, check, most=most)
        except Unreachable as error:
            if self.network is None:
                raise
            explained = await self.network.explain(host_of(url), error)
            if explained is error:
                raise
            raise explained from error

    async def _before_deadline(self, url: str, hop: Hop[T], check: Check | None, *, most: int) -> T:
        seconds = self._limits.deadline_seconds
        requested = [wire_url(url)]
        try:
            async with asyncio.timeout(seconds) as deadline:
                return await self._follow(requested, hop, check, deadline, most=most)
        except TimeoutError as error:
            host = host_of(requested[-1])
            self.slow_hosts.add(host)
            message = f"{without_credentials(requested[-1])} did not answer within {seconds:g} seconds"
            if self._connections.has_connected(host):
                raise Transient(message, code="timeout") from error
            failure = Unreachable(message, code="timeout")
            self._note(requested[-1], failure)
            raise failure from error

    def _answered(self, url: str, exchange: Exchange) -> Exchange:
        """Send the request; a host whose last request timed out must start to answer sooner."""
        return self._answered_soon(url, exchange) if host_of(url) in self.slow_hosts else exchange

    @asynccontextmanager
    async def _answered_soon(self, url: str, exchange: Exchange) -> AsyncGenerator[RawAnswer]:
        seconds = self._limits.slow_host_seconds
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(seconds):
                    raw = await stack.enter_async_context(exchange)
            except TimeoutError as error:
                message = f"{without_credentials(url)} timed out before and did not answer within {seconds:g} seconds"
                raise Transient(message, code="timeout") from error
            yield raw

    async def _follow(
        self, requested: list[str], hop: Hop[T], check: Check | None, deadline: asyncio.Timeout, *, most: int
    ) -> T:
        """Request the first URL and what it redirects to, each added to `requested`."""
        for _ in range(most + 1):
            url = requested[-1]
            try:
                answer = await hop(url)
            except WorkError as error:
                self._note(url, error)
                raise
            self._note(url)
            self.slow_hosts.discard(host_of(url))
            if not isinstance(answer, _Redirect):
                return answer
            target = next_url(url, answer.location)
            if target in requested:
                raise _bad_redirect(requested[0], f"in a loop, back to {without_credentials(target)}")
            if check is not None and (admission := check(target)) is not None:
                with _deadline_extended(deadline):
                    await admission
            requested.append(target)
        raise _bad_redirect(requested[0], f"more than {most} times")

    def _note(self, url: str, error: WorkError | None = None) -> None:
        """Tell the run's network whether the host was reached."""
        if self.network is None:
            return
        if isinstance(error, Unreachable):
            self.network.failed(host_of(wire_url(url)), error)
        elif error is None or error.code not in _NOT_SENT:
            self.network.reached(host_of(url))

    async def _start(self, url: str, max_bytes: int) -> Start | _Redirect:
        self.requests += 1
        async with self._answered(url, self._connections.exchange(url, self._headers(Request(url=url), url))) as raw:
            if 200 <= raw.status < 300:  # noqa: PLR2004 - the success class of HTTP
                # Twice as much may arrive: what is beyond `max_bytes` is cut without an error.
                body = self._body(url, raw, max_bytes=2 * max_bytes)
                async for chunk in raw.chunks:
                    body.feed(chunk)
                    if body.inflated_bytes > max_bytes:
                        return Start(raw.status, raw.headers, body.so_far())
                return Start(raw.status, raw.headers, body.whole())
            await _drain(raw)
        if raw.status in _REDIRECTS and "location" in raw.headers:
            return _Redirect(raw.headers["location"])
        return Start(raw.status, raw.headers, b"")

    def _body(self, url: str, raw: RawAnswer, *, max_bytes: int) -> LimitedBody:
        return LimitedBody(
            raw.headers.get("content-encoding", ""),
            max_bytes=max_bytes,
            max_ratio=self._limits.max_ratio,
            shown_url=without_credentials(url),
        )

    async def _exchanged(self, url: str, request: Request, secret: str | None, now: datetime) -> Answer | _Redirect:
        # A POST stays a POST on redirects, since it only queries.
        headers = self._headers(request, url) | conditions(request, is_its_own=_is_its_own(url, request))
        secret_url, headers = with_secret(url, headers, request.secret, secret)
        content_type = {} if request.body is None else {"Content-Type": "application/json"}
        exchange = self._connections.exchange(secret_url, headers | content_type, request.body)
        async with self._answered(url, exchange) as raw:
            error = blocked_header_error(url, raw.headers) or status_error(
                raw.status, raw.headers, url, now, blocked_for=self._limits.blocked_for
            )
            if error is None:
                return without_secret(await self._fetched(url, request, raw), secret)
            if raw.status in MAY_BE_BLOCKED:
                error = await self._blocked_error(url, raw) or error
            await _drain(raw)
        if raw.status in _REDIRECTS and "location" in raw.headers:
            return _Redirect(raw.headers["location"])
        if raw.status == _NOT_MODIFIED:
            return unchanged(request, raw.headers, is_its_own=_is_its_own(url, request))
        raise error

    async def _fetched(self, url: str, request: Request, raw: RawAnswer) -> Fetched:
        headers = raw.headers
        body = self._body(url, raw, max_bytes=self._limits.max_bytes)
        body.expect(_content_length(headers) or 0)
        async for chunk in raw.chunks:
            body.feed(chunk)
        return Fetched(
            url=request.url,
            final_url=url,
            status_code=raw.status,
            body=body.whole(),
            content_type=headers.get("content-type"),
            etag=validator(headers.get("etag")),
            last_modified=validator(headers.get("last-modified")),
            rights=header_rights(headers),
        )

    async def _blocked_error(self, url: str, raw: RawAnswer) -> WorkError | None:
        """Return the failure if the start of an error body shows a blocked page; else None."""
        body: LimitedBody | None = None
        with suppress(WorkError, TimeoutError):  # whatever it sends, the error stands
            body = self._body(url, raw, max_bytes=2 * BLOCKED_PAGE_BYTES)
            async with asyncio.timeout(_BLOCKED_PAGE_SECONDS):
                async for chunk in raw.chunks:
                    body.feed(chunk)
                    if body.inflated_bytes > BLOCKED_PAGE_BYTES:
                        break
        seen = b"" if body is None else body.so_far()
        return await asyncio.to_thread(blocked_page_error, url, raw.status, raw.headers, seen)

    def _headers(self, request: Request, url: str) -> dict[str, str]:
        signature: Mapping[str, str] = {} if self._signer is None else self._signer(url)
        return {
            "User-Agent": self.user_agent,
            "Accept": request.accept,
            "Accept-Encoding": ACCEPT_ENCODING,
            **signature,
        }


@contextmanager
def _deadline_extended(deadline: asyncio.Timeout) -> Generator[None]:
    """Extend the deadline by the time that is spent inside."""
    now = asyncio.get_running_loop().time
    left_seconds = (deadline.when() or now()) - now()
    deadline.reschedule(None)
    try:
        yield
    finally:
        deadline.reschedule(now() + left_seconds)


def _is_its_own(url: str, request: Request) -> bool:
    """Return whether this is the hop to which the request's validators belong."""
    return url == wire_url(request.validated_url or request.url)


def wire_url(url: str) -> str:
    """Return the URL as it is sent; one that is invalid or has a password is `Permanent`."""
    try:
        wire = request_url(url)
    except BadUrl as error:
        raise Permanent(str(error), code="bad_url") from error
    if has_credentials(url):
        raise Permanent(
            f"{without_credentials(url)} was given with a user name or password; remove them", code="bad_url"
        )
    return wire


def next_url(url: str, location: str) -> str:
    """Return the target of `location` on the page `url`; never from https to http."""
    joined = location
    with suppress(ValueError):  # brackets that are no IPv6 address
        joined = urljoin(url, location.strip())
    target = wire_url(joined)
    if url.startswith("https:") and target.startswith("http:"):
        raise _bad_redirect(url, "from https to http")
    return target


def _bad_redirect(url: str, how: str) -> Permanent:
    return Permanent(f"{without_credentials(url)} redirects {how}", code="redirects")


def _content_length(headers: Mapping[str, str]) -> int | None:
    value = headers.get("content-length", "")
    return int(value) if value.isdecimal() else None


async def _drain(raw: RawAnswer) -> None:
    length = _content_length(raw.headers)
    if (length is None or length > _DRAIN_BYTES) and raw.status != _NOT_MODIFIED:
        return
    with suppress(WorkError, TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in raw.chunks:
                pass


HopCheck = Callable[[str], None]
"""Raises a `WorkError` if a page must not be requested."""


class Hops:
    """Redirects and refreshes of one page, counted together; each is checked first."""

    def __init__(self, url: str, most: int, check: HopCheck | None) -> None:
        self._url = url
        self._left = most
        self._most = most
        self._check = check
        self.refreshed = False
        self._reloaded = False

    def follow(self, url: str) -> None:
        """Raise if the page must not lead there."""
        self._left -= 1
        if self._left < 0:
            raise _bad_redirect(self._url, f"more than {self._most} times")
        if self._check is not None:
            self._check(url)

    def is_reload(self, page: str, target: str) -> bool:
        """Return whether a page only reloads itself, with another parameter each time.

        It is followed once, since some pages select their content this way.
        """
        here, there = (url.partition("#")[0].partition("?")[0] for url in (page, target))
        is_again, self._reloaded = self._reloaded, here == there
        return is_again and self._reloaded

    def refresh(self, page: str, target: str) -> None:
        """Check a refresh like a redirect; no transport has checked its scheme yet."""
        self.refreshed = True
        if page.startswith("https:") and not target.startswith("https:"):
            raise _bad_redirect(self._url, "from https to http")
        self.follow(target)
