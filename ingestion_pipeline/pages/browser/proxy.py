"""The browser's only way to the network: a loopback proxy that connects to checked addresses.

Routes inside the browser do not see what a name resolves to; the proxy does. Each page has credentials of its own
(`Pass`): without them nothing is forwarded, so other users of the machine gain nothing from the port. They also let the
proxy count the bytes of a page and end its connections together.
"""

import asyncio
import base64
import re
import secrets
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from ingestion_pipeline.pages.http.guard import Guard, exempt_only
from ingestion_pipeline.tasks.errors import Transient, WorkError

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "te", "trailer", "upgrade", "http2-settings"}
    | {"proxy-authenticate", "proxy-authorization", "proxy-connection"}
)
_REQUEST_LINE = re.compile(r"([A-Z]{3,16}) (\S+) HTTP/1\.[01]")
_STATUS_LINE = re.compile(r"HTTP/1\.[01] ([1-5][0-9]{2})(?: .*)?")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):([0-9]{1,5})")
_LAST_PORT = 65_535


class BadHead(ValueError):
    """A message that a proxy does not forward."""


class Target(NamedTuple):
    """Where a request goes to; `host` without brackets."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A first line and its headers, in order."""

    line: str
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Parse a message head, blank line included."""
        line, *rest = data.decode("latin-1").rstrip("\r\n").split("\r\n")
        if any(":" not in header_line or header_line[0] in " \t:" for header_line in rest):
            raise BadHead("a header without a name")
        pairs = (header_line.partition(":") for header_line in rest)
        return cls(line=line, headers=tuple((name, value.strip()) for name, _, value in pairs))

    def header(self, name: str) -> str | None:
        """Return the first value of the header `name`, which is lower case."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def status(self) -> int:
        """The status code of a response."""
        match = _STATUS_LINE.fullmatch(self.line)
        if match is None:
            raise BadHead("not the status line of HTTP/1")
        return int(match[1])

    @property
    def body_bytes(self) -> int:
        """Length of a request's body; over HTTP/1 a browser knows it beforehand."""
        if self.header("transfer-encoding") is not None:
            raise BadHead("a request of unknown length")
        length = self.header("content-length") or "0"
        if not re.fullmatch("[0-9]{1,12}", length):
            raise BadHead("a length that is no number")
        return int(length)

    @property
    def is_tunnel(self) -> bool:
        """Whether a request asks for a tunnel, as TLS and web sockets do."""
        return self.line.startswith("CONNECT ")

    def target(self) -> Target:
        """Return where a request goes to, by its first line; the Host header is ignored."""
        match = _REQUEST_LINE.fullmatch(self.line)
        if match is None:
            raise BadHead("not a request line of HTTP/1")
        if match[1] == "CONNECT":
            return _target(match[2])
        try:
            url = urlsplit(match[2])
        except ValueError:
            raise BadHead("no URL") from None
        if url.scheme != "http" or "@" in url.netloc:
            raise BadHead("only plain http:// is asked for like this")
        return _target(url.netloc if _AUTHORITY.fullmatch(url.netloc) else f"{url.netloc}:80")

    def forwarded(self) -> bytes:
        """Return the request for its server: the path only, and one exchange per connection."""
        method, url, _ = self.line.split(" ")
        parts = urlsplit(url)
        path = "/" + url[len(f"{parts.scheme}://{parts.netloc}") :].removeprefix("/")
        headers = [(k, v) for k, v in self._kept() if k.lower() != "host"]
        return _wire(f"{method} {path} HTTP/1.1", [("Host", parts.netloc), *headers])

    def returned(self) -> bytes:
        """Return the response for the browser, which must not reuse the connection."""
        return _wire(self.line, self._kept())

    def _kept(self) -> list[tuple[str, str]]:
        named = (self.header("connection") or "").lower()
        gone = _HOP_BY_HOP | {part.strip() for part in named.split(",")}
        return [(name, value) for name, value in self.headers if name.lower() not in gone]


def _target(authority: str) -> Target:
    match = _AUTHORITY.fullmatch(authority)
    if match is None or not 0 < int(match[2]) <= _LAST_PORT:
        raise BadHead("no host and port")
    return Target(match[1].strip("[]").lower(), int(match[2]))


def _wire(line: str, headers: list[tuple[str, str]]) -> bytes:
    lines = [line, *map(": ".join, headers), "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1")


LOOPBACK = "127.0.0.1"
IDLE_SECONDS = 30.0  # a connection on which nothing moves; the page's own deadline ends the rest
MAX_HEAD_BYTES = 262_144
MAX_ADDRESSES_TRIED = 4
_CHUNK_BYTES = 65_536
_INTERIM_ANSWERS = 5  # 100 Continue, 103 Early Hints: more of them is an attack

_NO_PASS = (
    b"HTTP/1.1 407 Proxy Authentication Required\r\n"
    b'Proxy-Authenticate: Basic realm="page"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'
)
_CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_REFUSED = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Pass:
    """A page's proxy credentials and byte budget; `on_too_much` is called when it is used up."""

    def __init__(
        self, *, max_bytes: int, on_too_much: Callable[[], None], exempt: frozenset[str] | None = None
    ) -> None:
        self.name = secrets.token_hex(8)
        self.password = secrets.token_urlsafe(24)
        self.bytes = 0
        self.is_open = True
        self.exempt = exempt  # stored here, since the proxy serves in tasks of its own
        self._failures: dict[Target, WorkError] = {}
        self._max_bytes = max_bytes
        self._on_too_much = on_too_much
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def authorization(self) -> str:
        """The header that the browser sends to the proxy only."""
        return "Basic " + base64.b64encode(f"{self.name}:{self.password}".encode()).decode()

    def failure(self, host: str, port: int) -> WorkError | None:
        """Return why the last connection to this host failed; None if it did not."""
        return self._failures.get(Target(host.strip("[]").lower(), port))

    def note(self, target: Target, error: WorkError | None) -> None:
        """Store the result of connecting to this host."""
        if error is None:
            self._failures.pop(target, None)
        else:
            self._failures[target] = error

    def count(self, size: int) -> None:
        """Count `size` bytes; close every connection once the budget is used up."""
        self.bytes += size
        if self.bytes > self._max_bytes and self.is_open:
            self.close()
            self._on_too_much()

    def close(self) -> None:
        """Close every connection, and allow no other."""
        self.is_open = False
        for task in self._connections:
            task.cancel()

    @contextmanager
    def connection(self) -> Generator[None]:
        """Register the current task as a connection of this page while inside."""
        task = asyncio.current_task()
        if task is None or not self.is_open:
            raise ConnectionAbortedError
        self._connections.add(task)
        try:
            yield
        finally:
            self._connections.discard(task)


class GuardedProxy:
    """Listens on loopback between `start` and `aclose`."""

    def __init__(self, guard: Guard, *, connect_seconds: float = 10.0) -> None:
        self._guard = guard
        self._connect_seconds = connect_seconds
        self._passes: dict[str, Pass] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """The proxy's URL for the browser."""
        return f"http://{LOOPBACK}:{self.port}"

    async def start(self) -> None:
        """Listen on a port that the system chooses."""
        self._server = await asyncio.start_server(self._connected, LOOPBACK, 0, limit=MAX_HEAD_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def aclose(self) -> None:
        """Stop listening and close every connection."""
        for entry in self._passes.values():
            entry.close()
        self._passes.clear()
        if self._server is not None:
            self._server.close()
        self.port = 0
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextmanager
    def admitting(self, entry: Pass) -> Generator[None]:
        """Accept the credentials while inside."""
        self._passes[entry.authorization] = entry
        try:
            yield
        finally:
            self._passes.pop(entry.authorization, None)
            entry.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            # The browser sees any failure of a connection as its end.
            with suppress(OSError, TimeoutError, EOFError, BadHead, asyncio.LimitOverrunError):
                await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the page has ended; asyncio would log the cancellation as an error
        finally:
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await _read_head(reader)
        entry = self._passes.get(head.header("proxy-authorization") or "")
        if entry is None:
            await _write(writer, _NO_PASS)
            return
        with entry.connection():
            target = head.target()
            try:
                with exempt_only(entry.exempt):
                    far = await self._connect(target)
            except WorkError as error:
                entry.note(target, error)
                # A plain request gets no response, which would look like the site's own.
                await _write(writer, _REFUSED if head.is_tunnel else b"")
                return
            entry.note(target, None)
            try:
                exchange = _tunnel if head.is_tunnel else _forward
                await exchange(head, (reader, writer), far, entry)
            except BadHead as error:
                entry.note(target, Transient(f"{target.host}: {error}", code="protocol"))
            finally:
                far[1].transport.abort()

    async def _connect(self, target: Target) -> Streams:
        """Connect to the first checked address that answers; every failure is a `WorkError`."""
        failure: Exception | None = None
        for endpoint in (await self._guard.endpoints(*target))[:MAX_ADDRESSES_TRIED]:
            try:
                async with asyncio.timeout(self._connect_seconds):
                    return await asyncio.open_connection(endpoint.address, endpoint.port, limit=MAX_HEAD_BYTES)
            except (OSError, TimeoutError) as error:
                failure = error
        if isinstance(failure, TimeoutError):
            raise Transient(f"{target.host}: no connection in time", code="timeout")
        raise Transient(f"{target.host}: {failure}", code="connection")


class _Activity:
    """When data last moved on a connection, in either direction."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self.touch()

    def touch(self) -> None:
        self._at = self._clock()

    @property
    def is_idle(self) -> bool:
        return self._clock() - self._at >= IDLE_SECONDS


async def _tunnel(_: Head, near: Streams, far: Streams, entry: Pass) -> None:
    """Copy bytes both ways until one side ends."""
    await _write(near[1], _CONNECTED)
    activity = _Activity()
    await _until_first_ends(_pump(near[0], far[1], entry, activity), _pump(far[0], near[1], entry, activity))


async def _forward(head: Head, near: Streams, far: Streams, entry: Pass) -> None:
    """Forward one request and its response; further data of the browser are dropped."""
    data, body_bytes = head.forwarded(), head.body_bytes
    entry.count(len(data))
    await _write(far[1], data)
    await _copy(near[0], far[1], entry, body_bytes)
    for _ in range(_INTERIM_ANSWERS):
        answer = await _read_head(far[0])
        if answer.status >= 200:  # noqa: PLR2004 - what follows the interim ones
            break
    else:
        raise BadHead("no end of interim answers")
    await _write(near[1], answer.returned())
    activity = _Activity()
    await _until_first_ends(_pump(far[0], near[1], entry, activity), _next(near[0], activity))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, entry: Pass, activity: _Activity) -> None:
    while data := await _next(reader, activity):
        activity.touch()
        entry.count(len(data))
        if not entry.is_open:
            return
        await _write(writer, data)


async def _next(reader: asyncio.StreamReader, activity: _Activity) -> bytes:
    """Return the next bytes; none at the end, or when the whole connection is idle."""
    while True:
        try:
            return await _read(reader)
        except TimeoutError:
            if activity.is_idle:
                return b""


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, entry: Pass, size: int) -> None:
    while size > 0:
        if not (data := await _read(reader, min(size, _CHUNK_BYTES))):
            raise EOFError
        size -= len(data)
        entry.count(len(data))
        await _write(writer, data)


async def _until_first_ends(*coroutines: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read_head(reader: asyncio.StreamReader) -> Head:
    async with asyncio.timeout(IDLE_SECONDS):
        return Head.parse(await reader.readuntil(b"\r\n\r\n"))


async def _read(reader: asyncio.StreamReader, size: int = _CHUNK_BYTES) -> bytes:
    async with asyncio.timeout(IDLE_SECONDS):
        return await reader.read(size)


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(IDLE_SECONDS):
        await writer.drain()
