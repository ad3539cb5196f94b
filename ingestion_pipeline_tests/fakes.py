"""Fakes at the end of the wire: a web server on loopback and a name server."""

import asyncio
import contextlib
import itertools
import math
import os
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from ingestion_pipeline.pages.http.guard import Endpoint
from ingestion_pipeline.pages.politeness.rights import TDMREP_PATH

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class RecordedRequest:
    """One request as it arrived; `at` is monotonic seconds, header names are lower case."""

    method: str
    path: str
    host: str
    headers: Mapping[str, str]
    at: float
    body: bytes = b""


@dataclass(frozen=True)
class Reply:
    """A well-formed answer; one with an `etag` header answers a matching condition with 304."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


RawAnswer = Callable[[asyncio.StreamWriter], Awaitable[None]]
"""Misbehaviour: writes whatever it likes; the connection is closed afterwards."""

WebAnswer = bytes | str | int | Reply | RawAnswer


def unused_ports() -> Iterator[int]:
    """Yield ports of this test process, below those that the system chooses, from the first to the last and again.

    The system hands the port of a server that stopped to the next one now and then, with the clients that retry it.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 5
    return itertools.cycle(range(10_000 + worker * 4_000, 14_000 + worker * 4_000))


PORTS = unused_ports()


def listener_on_unused_port() -> socket.socket:
    for port in PORTS:
        with contextlib.suppress(OSError):
            return socket.create_server((LOOPBACK, port))
    raise AssertionError("the ports do not end")


class Gate:
    """Lets all answers through, or so many as were allowed; the others wait. It may be used from any thread."""

    def __init__(self) -> None:
        self._left: float = math.inf
        self._lock = threading.Lock()

    @property
    def is_used_up(self) -> bool:
        return self._left <= 0

    def allow(self, count: float) -> None:
        """Let so many answers through from now on; those that were allowed before count no more."""
        with self._lock:
            self._left = count

    def pass_one(self) -> bool:
        with self._lock:
            is_allowed = self._left > 0
            self._left -= is_allowed
            return is_allowed


class FakeWeb:
    """A web server on loopback in its own thread that maps routes to answers and records requests.

    A route is a path (`/jobs`, any host) or a URL without scheme (`a.test/jobs`, that host only).
    A list of answers is served one by one, the last one for ever; `routes` may change at any time.
    Requests for /robots.txt and tdmrep.json are recorded apart, since fetchers send them on their own.
    It runs inside `with` or `async with`; any name reaches it by `FakeResolver` and `web.endpoint`.
    """

    def __init__(
        self, routes: Mapping[str, WebAnswer | Sequence[WebAnswer]] | None = None, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.routes = dict(routes or {})
        self.requests: list[RecordedRequest] = []
        self.robots_requests: list[RecordedRequest] = []
        self.connections = 0
        self.port = 0
        self.gate = Gate()
        self._tls = tls
        self._served: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def host_port(self) -> str:
        """Host and port in the form of INGESTION_ALLOW_HOSTS."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint for a resolver that maps names to this server."""
        return Endpoint(LOOPBACK, self.port, is_exempt=True)

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    def url(self, path: str = "/") -> str:
        return f"{'https' if self._tls else 'http'}://{self.host_port}{path}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10), "the fake web did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive(), "the fake web did not stop"

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        listener = listener_on_unused_port()
        server = await asyncio.start_server(self._connected, sock=listener, ssl=self._tls)
        self.port = listener.getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._answer_one(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort() if self._stop.is_set() else writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = _parsed(await reader.readuntil(b"\r\n\r\n"))
        if length := int(request.headers.get("content-length", "0")):
            request = replace(request, body=await reader.readexactly(length))
        is_of_site = request.path in {"/robots.txt", TDMREP_PATH}
        (self.robots_requests if is_of_site else self.requests).append(request)
        while not self.gate.pass_one():  # noqa: ASYNC110 - it is opened by another thread
            await asyncio.sleep(0.02)
        answer = self._choose_answer(request)
        if callable(answer):
            await answer(writer)
            return False
        writer.write(_wire_form(answer, request))
        await writer.drain()
        return True

    def _choose_answer(self, request: RecordedRequest) -> WebAnswer:
        by_host = request.host.partition(":")[0] + request.path
        route = by_host if by_host in self.routes else request.path
        answers = self.routes.get(route, 404)
        if not isinstance(answers, list | tuple):
            return answers  # pyright: ignore[reportReturnType] - str and bytes are sequences too
        turn = self._served.get(route, 0)
        self._served[route] = turn + 1
        return answers[min(turn, len(answers) - 1)]


class RoutesByFunction(dict[str, WebAnswer | Sequence[WebAnswer]]):
    """Routes of a `FakeWeb` whose answers a function returns by path; None is a 404."""

    def __init__(self, answer: Callable[[str], WebAnswer | None]) -> None:
        super().__init__()
        self._answer = answer

    def get(self, path: str, default: WebAnswer) -> WebAnswer:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the function's answer."""
        answer = self._answer(path) if path != "/robots.txt" else None
        return default if answer is None else answer


def _parsed(head: bytes) -> RecordedRequest:
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    return RecordedRequest(method, path, headers.get("host", ""), headers, time.monotonic())


def _wire_form(answer: bytes | str | int | Reply, request: RecordedRequest) -> bytes:
    reply = _reply(answer)
    etag = {name.lower(): value for name, value in reply.headers.items()}.get("etag")
    if etag is not None and request.headers.get("if-none-match") == etag:
        reply = Reply(b"", 304, reply.headers)
    lines = [f"HTTP/1.1 {reply.status} Fake", *(f"{k}: {v}" for k, v in reply.headers.items())]
    head_only = reply.status in {204, 304}
    if not head_only:
        lines.append(f"Content-Length: {len(reply.body)}")
    body = b"" if head_only else reply.body
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _reply(answer: bytes | str | int | Reply) -> Reply:
    match answer:
        case Reply():
            return answer
        case int():
            return Reply(f"status {answer}".encode(), answer)
        case str():
            return Reply(answer.encode(), headers={"Content-Type": "text/html; charset=utf-8"})
        case bytes():
            return Reply(answer)


def redirect(location: str, status: int = 302) -> Reply:
    return Reply(b"", status, {"Location": location})


async def drop(writer: asyncio.StreamWriter) -> None:
    """Close the connection without an answer."""


async def reset(writer: asyncio.StreamWriter) -> None:
    """Half a status line, then RST instead of FIN."""
    writer.write(b"HTTP/1.1 20")
    await writer.drain()
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def garbage(writer: asyncio.StreamWriter) -> None:
    """Answer as an HTTP/0.9 server, or no web server at all, would."""
    writer.write(b"<html>no status line, no headers</html>\r\n\r\n")
    await writer.drain()


async def endless(writer: asyncio.StreamWriter) -> None:
    """Send chunks for ever, and no length."""
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
        await writer.drain()


async def many_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n" + b"X-Header: value\r\n" * 100_000 + b"\r\n")
    await writer.drain()


def raw_answer(data: bytes) -> RawAnswer:
    """Return an answer of exactly these bytes, after which the connection is closed."""

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return write


class ConcurrencyProbe:
    """An answer that counts concurrent requests.

    It waits until `most` requests are open, and then a little for one too many, so that a client
    that sends more at a time is detected.
    """

    def __init__(self, body: bytes = b"", *, most: int) -> None:
        self.peak = 0
        self._body, self._most, self._here = body, most, 0
        self._full, self._too_many = asyncio.Event(), asyncio.Event()

    async def __call__(self, writer: asyncio.StreamWriter) -> None:
        self._here += 1
        self.peak = max(self.peak, self._here)
        for event, count in ((self._full, self._most), (self._too_many, self._most + 1)):
            if self._here >= count:
                event.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._full.wait(), 20)
            await asyncio.wait_for(self._too_many.wait(), 0.5)
        self._here -= 1
        writer.write(_wire_form(Reply(self._body), _NO_REQUEST))
        await writer.drain()


_NO_REQUEST = RecordedRequest("GET", "/", "", {}, 0.0)


def dripping_answer(head: bytes, *, every_seconds: float) -> RawAnswer:
    """Return an answer of `head` at once, then one byte at a time for ever: every read makes progress."""

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(every_seconds)

    return drip


class FakeResolver:
    """A name server: each name has answers that are served one by one, the last one for ever.

    An address given as text becomes an endpoint at the requested port.
    """

    def __init__(self, names: Mapping[str, Sequence[Sequence[str | Endpoint]]]) -> None:
        self._names = names
        self.lookups: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[Endpoint]:
        turn = self.lookups.count(host)
        self.lookups.append(host)
        if host not in self._names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        answers = self._names[host]
        answer = answers[min(turn, len(answers) - 1)]
        return [Endpoint(endpoint, port) if isinstance(endpoint, str) else endpoint for endpoint in answer]


def closed_port() -> int:
    """Return a loopback port on which nobody listens."""
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        return sock.getsockname()[1]


def a_certificate(folder: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """Return a self-signed certificate: the file that trusts it, and a server's context."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", f"/CN={name}"),
            *("-addext", f"subjectAltName=DNS:{name}", "-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context
