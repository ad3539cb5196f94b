"""The browser's only way out: a proxy on loopback that connects to checked addresses alone.

Routes inside the browser do not see what a name resolves to; this does. Each page has a pass of its
own: without one nothing is forwarded, so other users of the machine gain nothing by the port, and
with it the bytes of a page are counted and its connections end together.
"""

from __future__ import annotations

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
    """Not a message that a proxy forwards."""


class Target(NamedTuple):
    """Where a request wants to go; `host` without brackets."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A first line and its headers, in order."""

    line: str
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The head that `data` is, blank line included."""
        line, *rest = data.decode("latin-1").rstrip("\r\n").split("\r\n")
        if any(":" not in one or one[0] in " \t:" for one in rest):
            raise BadHead("a header without a name")
        pairs = (one.partition(":") for one in rest)
        return cls(line=line, headers=tuple((name, value.strip()) for name, _, value in pairs))

    def header(self, name: str) -> str | None:
        """The first value under `name`, which is lower case."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def status(self) -> int:
        """The status code of an answer."""
        found = _STATUS_LINE.fullmatch(self.line)
        if found is None:
            raise BadHead("not the status line of HTTP/1")
        return int(found[1])

    @property
    def body_bytes(self) -> int:
        """How long a request's body is; a browser knows it beforehand over HTTP/1."""
        if self.header("transfer-encoding") is not None:
            raise BadHead("a request of unknown length")
        length = self.header("content-length") or "0"
        if not re.fullmatch("[0-9]{1,12}", length):
            raise BadHead("a length that is no number")
        return int(length)

    @property
    def is_tunnel(self) -> bool:
        """Whether a request asks for a connection of its own: TLS and web sockets do."""
        return self.line.startswith("CONNECT ")

    def target(self) -> Target:
        """Where a request goes to, by its first line; the Host header has no say."""
        found = _REQUEST_LINE.fullmatch(self.line)
        if found is None:
            raise BadHead("not a request line of HTTP/1")
        if found[1] == "CONNECT":
            return _target(found[2])
        try:
            url = urlsplit(found[2])
        except ValueError:
            raise BadHead("no URL") from None
        if url.scheme != "http" or "@" in url.netloc:
            raise BadHead("only plain http:// is asked for like this")
        return _target(url.netloc if _AUTHORITY.fullmatch(url.netloc) else f"{url.netloc}:80")

    def forwarded(self) -> bytes:
        """The request as its server wants it: the path alone, and one exchange per connection."""
        method, url, _ = self.line.split(" ")
        parts = urlsplit(url)
        path = url[len(f"{parts.scheme}://{parts.netloc}") :] or "/"
        path = path if path.startswith("/") else f"/{path}"
        kept = [(k, v) for k, v in self._kept() if k.lower() != "host"]
        return _wire(f"{method} {path} HTTP/1.1", [("Host", parts.netloc), *kept])

    def returned(self) -> bytes:
        """The answer as the browser gets it: it must not reuse the connection."""
        return _wire(self.line, self._kept())

    def _kept(self) -> list[tuple[str, str]]:
        named = (self.header("connection") or "").lower()
        gone = _HOP_BY_HOP | {part.strip() for part in named.split(",")}
        return [(name, value) for name, value in self.headers if name.lower() not in gone]


def _target(authority: str) -> Target:
    found = _AUTHORITY.fullmatch(authority)
    if found is None or not 0 < int(found[2]) <= _LAST_PORT:
        raise BadHead("no host and port")
    return Target(found[1].strip("[]").lower(), int(found[2]))


def _wire(line: str, headers: list[tuple[str, str]]) -> bytes:
    lines = [line, *(f"{name}: {value}" for name, value in headers), "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1")


LOOPBACK = "127.0.0.1"
IDLE_SECONDS = 30.0  # a connection on which nothing moves; the page's own deadline ends the rest
MAX_HEAD_BYTES = 262_144
MAX_ADDRESSES_TRIED = 4
_PIECE_BYTES = 65_536
_INTERIM_ANSWERS = 5  # 100 Continue, 103 Early Hints: more of them is a game

_NO_PASS = (
    b"HTTP/1.1 407 Proxy Authentication Required\r\n"
    b'Proxy-Authenticate: Basic realm="page"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'
)
_CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_REFUSED = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Pass:
    """One page's way through the proxy; `on_too_much` is called when its bytes are used up."""

    def __init__(
        self,
        *,
        max_bytes: int,
        on_too_much: Callable[[], None],
        exempt: frozenset[str] | None = None,
    ) -> None:
        self.name = secrets.token_hex(8)
        self.password = secrets.token_urlsafe(24)
        self.bytes = 0
        self.is_open = True
        self.exempt = exempt  # said here, since the proxy serves in tasks of its own
        self._failures: dict[Target, WorkError] = {}
        self._max_bytes = max_bytes
        self._on_too_much = on_too_much
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def authorization(self) -> str:
        """What the browser sends to the proxy, and the proxy to nobody."""
        return "Basic " + base64.b64encode(f"{self.name}:{self.password}".encode()).decode()

    def failure(self, host: str, port: int) -> WorkError | None:
        """Why the last try to reach this host failed; None if it did not."""
        return self._failures.get(Target(host.strip("[]").lower(), port))

    def note(self, target: Target, error: WorkError | None) -> None:
        """Remember how it went with this host."""
        if error is None:
            self._failures.pop(target, None)
        else:
            self._failures[target] = error

    def count(self, size: int) -> None:
        """Take `size` bytes from what the page may use; its connections end with the last."""
        self.bytes += size
        if self.bytes > self._max_bytes and self.is_open:
            self.close()
            self._on_too_much()

    def close(self) -> None:
        """End every connection; no other one begins."""
        self.is_open = False
        for task in self._connections:
            task.cancel()

    @contextmanager
    def connection(self) -> Generator[None]:
        """The running task is a connection of this page while inside."""
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

    def __init__(self, guard: Guard, *, connect_seconds: float) -> None:
        self._guard = guard
        self._connect_seconds = connect_seconds
        self._passes: dict[str, Pass] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Where the browser finds it."""
        return f"http://{LOOPBACK}:{self.port}"

    async def start(self) -> None:
        """Listen on a port that the system chooses."""
        self._server = await asyncio.start_server(
            self._connected, LOOPBACK, 0, limit=MAX_HEAD_BYTES
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def aclose(self) -> None:
        """Stop listening, and end every connection."""
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
        """The pass is good while inside."""
        self._passes[entry.authorization] = entry
        try:
            yield
        finally:
            self._passes.pop(entry.authorization, None)
            entry.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            # Whatever goes wrong with one connection is seen by the browser as its end.
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
                # A plain request gets no answer, lest it be taken for the site's own.
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
        """The first checked address that answers; every failure is a `WorkError`."""
        failure: Exception | None = None
        for endpoint in (await self._guard.endpoints(*target))[:MAX_ADDRESSES_TRIED]:
            try:
                async with asyncio.timeout(self._connect_seconds):
                    return await asyncio.open_connection(
                        endpoint.address, endpoint.port, limit=MAX_HEAD_BYTES
                    )
            except (OSError, TimeoutError) as error:
                failure = error
        if isinstance(failure, TimeoutError):
            raise Transient(f"{target.host}: no connection in time", code="timeout")
        raise Transient(f"{target.host}: {failure}", code="connection")


class _Pulse:
    """When something last moved on a connection, either way."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self.beat()

    def beat(self) -> None:
        self._at = self._clock()

    @property
    def has_stopped(self) -> bool:
        return self._clock() - self._at >= IDLE_SECONDS


async def _tunnel(_: Head, near: Streams, far: Streams, entry: Pass) -> None:
    """Bytes both ways, unread, until one side ends."""
    await _write(near[1], _CONNECTED)
    pulse = _Pulse()
    await _first_ends(_pump(near[0], far[1], entry, pulse), _pump(far[0], near[1], entry, pulse))


async def _forward(head: Head, near: Streams, far: Streams, entry: Pass) -> None:
    """One request and its answer; what the browser says besides goes nowhere."""
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
    pulse = _Pulse()
    await _first_ends(_pump(far[0], near[1], entry, pulse), _next(near[0], pulse))


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, entry: Pass, pulse: _Pulse
) -> None:
    while data := await _next(reader, pulse):
        pulse.beat()
        entry.count(len(data))
        if not entry.is_open:
            return
        await _write(writer, data)


async def _next(reader: asyncio.StreamReader, pulse: _Pulse) -> bytes:
    """What comes next; nothing at the end, and when the whole connection has stood still."""
    while True:
        try:
            return await _read(reader)
        except TimeoutError:
            if pulse.has_stopped:
                return b""


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, entry: Pass, size: int
) -> None:
    while size > 0:
        data = await _read(reader, min(size, _PIECE_BYTES))
        if not data:
            raise EOFError
        size -= len(data)
        entry.count(len(data))
        await _write(writer, data)


async def _first_ends(*both: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(one) for one in both]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read_head(reader: asyncio.StreamReader) -> Head:
    async with asyncio.timeout(IDLE_SECONDS):
        return Head.parse(await reader.readuntil(b"\r\n\r\n"))


async def _read(reader: asyncio.StreamReader, size: int = _PIECE_BYTES) -> bytes:
    async with asyncio.timeout(IDLE_SECONDS):
        return await reader.read(size)


async def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(IDLE_SECONDS):
        await writer.drain()
