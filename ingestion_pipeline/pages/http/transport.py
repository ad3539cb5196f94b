"""The HTTP client, and the only module that knows the HTTP libraries (httpx, aiohttp).

Requests go through `httpx.AsyncClient` over a transport of our own on aiohttp's connections, because httpx's
pool costs five times as much per page (docs/adr). Redirects, decoding and cookies are not left to
either library. There is one small session per host, so that open connections are bounded.

Every address is checked twice: the guard replaces the name server, and no socket is opened to an
address that it did not return for this request.
"""

import logging
import socket
import ssl
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import aiohttp
import httpx
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from ingestion_pipeline.pages.http.guard import Endpoint, Guard
from ingestion_pipeline.tasks.errors import Permanent, Transient, Unreachable, WorkError
from ingestion_pipeline.urls import host_of, without_credentials

MAX_HOSTS = 256  # sessions kept open: the hosts of a run take turns
CONNECTIONS_PER_HOST = 4  # politeness allows one or two at a time; the rest is for unspaced APIs
KEEPALIVE_SECONDS = 20.0  # beyond the longest host delay, below what common servers keep
MAX_ADDRESSES_TRIED = 4
# Security policies of real sites go beyond aiohttp's 8 kB; four megabytes are the worst case.
MAX_HEADERS, MAX_HEADER_BYTES = 128, 32_768
# httpx parses every `Location`, also where it follows none, and fails on a bad one: redirects are the fetcher's.
_LOCATION, _HIDDEN_LOCATION = b"location", b"x-unparsed-location"
_ADDED_BY_AIOHTTP = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
OpenSocket = Callable[[AddressInfo], socket.socket]

logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs whole URLs at INFO, with the secrets in them

# The addresses that the guard returned for the request of this task.
_CHECKED: ContextVar[frozenset[tuple[str, int]]] = ContextVar("checked", default=frozenset())


def open_socket(info: AddressInfo) -> socket.socket:
    """Open the socket; replaced in tests."""
    return socket.socket(info[0], info[1], info[2])


class _GuardedResolver(AbstractResolver):
    """The guard instead of a name server: one lookup, and only checked addresses."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def check(self, host: str, port: int) -> list[Endpoint]:
        """Return the addresses to try, the only ones that this task may connect to."""
        _CHECKED.set(frozenset())
        endpoints = list(await self._guard.endpoints(host, port))[:MAX_ADDRESSES_TRIED]
        _CHECKED.set(frozenset((each.address, each.port) for each in endpoints))
        return endpoints

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=each.address,
                port=each.port,
                family=family,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for each in await self.check(host, port)
        ]

    async def close(self) -> None:
        """Do nothing: nothing is open."""


class _Connector(aiohttp.TCPConnector):
    """Connects as aiohttp does, and stores whether the last attempt succeeded."""

    has_connected = False

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's signature
    ) -> Connection:
        self.has_connected = False
        connection = await super().connect(req, traces, timeout)
        self.has_connected = True
        return connection


class _HostSession:
    """An aiohttp session for one host that only sends and receives."""

    def __init__(self, guard: Guard, tls: ssl.SSLContext, connect_seconds: float, opened: OpenSocket) -> None:
        self._guard = guard
        self._names = _GuardedResolver(guard)
        self.users = 0
        self.connector = _Connector(
            ssl=tls,
            resolver=self._names,
            use_dns_cache=False,  # each connection is looked up and checked
            happy_eyeballs_delay=None,  # in the order of the answers, one at a time
            socket_factory=_checked_sockets(opened),
            limit=CONNECTIONS_PER_HOST,
            keepalive_timeout=KEEPALIVE_SECONDS,
        )
        self._session = aiohttp.ClientSession(
            connector=self.connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_ADDED_BY_AIOHTTP,
            # Reads have no time-out of their own: the deadline is over the whole exchange.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds),
            max_headers=MAX_HEADERS,
            max_field_size=MAX_HEADER_BYTES,
        )
        # aiohttp would repeat a request at once: one turn of a host's pace is one request.
        vars(self._session)["_retry_connection"] = False

    async def send(
        self, method: str, url: str, headers: list[tuple[str, str]], body: bytes | None
    ) -> aiohttp.ClientResponse:
        """Send the request; return status and headers, with the body still on the wire."""
        address = URL(url, encoded=True)
        host, port = address.raw_host or "", address.port or 0
        await self._guard.recheck(host, port)  # a kept connection needs no lookup
        if ":" in host or host.replace(".", "").isdigit():  # aiohttp does not resolve these
            await self._names.check(host, port)
        return await self._session.request(method, address, headers=headers, data=body, allow_redirects=False)

    async def aclose(self) -> None:
        """Close the open connections."""
        await self._session.close()


def _checked_sockets(opened: OpenSocket) -> OpenSocket:
    """Return a socket factory that only opens addresses the guard returned for this request."""

    def factory(info: AddressInfo) -> socket.socket:
        address, port = info[4][:2]
        if (address, port) not in _CHECKED.get():
            raise Permanent(f"{address}:{port} was not checked", code="blocked_address")
        return opened(info)

    return factory


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """Status and headers (lower-case names); the body is still on the wire."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncGenerator[bytes, None]


Exchange = AbstractAsyncContextManager[RawAnswer, bool | None]


class GuardedTransport(httpx.AsyncBaseTransport):
    """httpx's transport: one session per host, the longest unused closed first."""

    def __init__(
        self, guard: Guard, *, connect_seconds: float, ca_file: Path | None, opened: OpenSocket = open_socket
    ) -> None:
        self._new_session = partial(_HostSession, guard, _tls(ca_file), connect_seconds, opened)
        self.sessions: OrderedDict[str, _HostSession] = OrderedDict()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return status and headers; the stream is the raw body."""
        url: str = request.extensions.get("url") or str(request.url)  # as the caller spelled it: httpx quotes anew
        host = host_of(url)
        session = self.sessions.pop(host, None) or self._new_session()
        self.sessions[host] = session  # the last one is the one used last
        session.users += 1
        try:
            await self._close_surplus()
            sent = [(name.decode("ascii"), value.decode("latin-1")) for name, value in request.headers.raw]
            response = await session.send(request.method, url, sent, request.content or None)
        except BaseException:
            session.users -= 1
            raise
        headers = [
            (_HIDDEN_LOCATION if name.lower() == _LOCATION else name, value) for name, value in response.raw_headers
        ]
        return httpx.Response(response.status, headers=headers, stream=_Wire(response, session))

    async def _close_surplus(self) -> None:
        surplus = len(self.sessions) - MAX_HOSTS
        if surplus > 0:
            idle = [host for host, session in self.sessions.items() if not session.users]
            for session in [self.sessions.pop(host) for host in idle[:surplus]]:
                await session.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        while self.sessions:
            await self.sessions.popitem()[1].aclose()


class _Wire(httpx.AsyncByteStream):
    """The raw body of a response; a connection whose body was not read to its end is closed."""

    def __init__(self, response: aiohttp.ClientResponse, session: _HostSession) -> None:
        self._response = response
        self._session: _HostSession | None = session

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._response.content.iter_any()

    async def aclose(self) -> None:
        self._response.close()
        if self._session is not None:
            self._session.users -= 1
            self._session = None


class _NoCookies(httpx.Cookies):
    """Takes no cookie: httpx builds two requests of urllib for each response to look for some."""

    def extract_cookies(self, response: httpx.Response) -> None:
        """Leave them."""


class _Client(httpx.AsyncClient):
    """A client without cookies."""

    @property
    def cookies(self) -> httpx.Cookies:
        """None, whatever was received."""
        return _NO_COOKIES

    @cookies.setter
    def cookies(self, cookies: object) -> None:
        raise NotImplementedError("this client takes no cookies")


_NO_COOKIES = _NoCookies()


class Connections:
    """Sends requests by httpx over kept connections; failures are `WorkError`."""

    def __init__(
        self, guard: Guard, *, connect_seconds: float, ca_file: Path | None, opened: OpenSocket = open_socket
    ) -> None:
        self._transport = GuardedTransport(guard, connect_seconds=connect_seconds, ca_file=ca_file, opened=opened)
        self._client = _Client(transport=self._transport, timeout=None, trust_env=False)

    @asynccontextmanager
    async def exchange(
        self, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncGenerator[RawAnswer, None]:
        """Send one GET, or a POST of the body; the connection is closed on exit unless the response was read."""
        with _classified(url):
            # The client's `build_request` would add its own headers, and parse the address a second time.
            method = "GET" if body is None else "POST"
            request = httpx.Request(method, url, headers=headers, content=body, extensions={"url": url})
            response = await self._client.send(request, stream=True, follow_redirects=False)
        try:
            async with aclosing(_chunks(response, url)) as chunks:
                yield RawAnswer(response.status_code, _headers(response), chunks)
        finally:
            await response.aclose()

    def has_connected(self, host: str) -> bool:
        """Return whether the last request to the host got a connection."""
        session = self._transport.sessions.get(host)
        return session is not None and session.connector.has_connected

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.aclose()


@cache
def _tls(ca_file: Path | None) -> ssl.SSLContext:
    """Return a TLS context with certifi's authorities or `ca_file`; loading takes 20 ms."""
    if ca_file is None:
        return httpx.create_ssl_context(trust_env=False)
    return ssl.create_default_context(cafile=str(ca_file))


async def _chunks(response: httpx.Response, url: str) -> AsyncGenerator[bytes, None]:
    with _classified(url):
        async for chunk in response.aiter_raw():
            yield chunk


def _headers(response: httpx.Response) -> dict[str, str]:
    """Return the headers by lower-case name; repeated ones are joined to a list."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in response.headers.raw:
        name = (_LOCATION if raw_name == _HIDDEN_LOCATION else raw_name).decode("latin-1").lower()
        try:
            value = raw_value.decode()  # an address in UTF-8 is against the rules, and common
        except UnicodeDecodeError:
            value = raw_value.decode("latin-1")
        if name not in headers:
            headers[name] = value
        elif name != "location":  # not joined: the first is followed, as in browsers
            headers[name] += f", {value}"
    return headers


@contextmanager
def _classified(url: str) -> Generator[None, None, None]:
    try:
        yield
    except (aiohttp.ClientError, httpx.InvalidURL, TimeoutError) as error:
        raise _work_error(error, without_credentials(url)) from error


# The first that fits decides, so a class comes before its parents.
_CAUSES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], type[WorkError], str], ...] = (
    (TimeoutError, Unreachable, "timeout"),
    ((httpx.InvalidURL, aiohttp.InvalidURL), Permanent, "bad_url"),
    (aiohttp.ClientConnectorCertificateError, Permanent, "tls"),
    (aiohttp.ClientPayloadError, Transient, "truncated"),
    (aiohttp.ClientSSLError, Transient, "connection"),
    (aiohttp.ClientConnectorError, Unreachable, "connection"),
    (aiohttp.ClientConnectionError, Transient, "connection"),
)
_TEXTS = {"timeout": "no connection in time", "tls": "{}; its certificate must be renewed"}


def _work_error(error: Exception, display_url: str) -> WorkError:
    fitting = ((kind, code) for cause, kind, code in _CAUSES if isinstance(error, cause))
    kind, code = next(fitting, (Transient, "protocol"))
    text = _TEXTS.get(code, "{}").format(str(error) or type(error).__name__)
    return kind(f"{display_url}: {text}", code=code)
