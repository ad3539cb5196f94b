"""The only module that knows httpx: one small connection pool per host, each connection guarded.

No `httpx.AsyncClient`: it would keep cookies, read the environment, follow redirects and decode
bodies, and we want none of it. One pool per host because httpx's pool is quadratic in its
connections (design section 7).
"""

from __future__ import annotations

import ssl
from collections import OrderedDict
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

import httpcore
import httpx

from ingestion_pipeline.pages.guard import Guard
from ingestion_pipeline.urls import host_of, without_credentials
from ingestion_pipeline.work.errors import Permanent, Transient, WorkError

MAX_HOSTS = 64  # pools kept open; a slice of 500 items rarely has more hosts at once
CONNECTIONS_PER_HOST = 4  # politeness allows one or two at a time; the rest is for unspaced APIs
KEEPALIVE_SECONDS = 20.0  # beyond the longest host delay, below what common servers keep
MAX_ADDRESSES_TRIED = 4

SocketOption = (
    tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]
)


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses that the guard has checked; Host header and SNI keep the name."""

    def __init__(self, guard: Guard, inner: httpcore.AsyncNetworkBackend | None = None) -> None:
        self._guard = guard
        # httpcore's type for it also names a stand-in for a missing anyio.
        self._inner = inner or cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's own signature
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """The first checked address that answers; the name itself is never handed on."""
        failure: Exception | None = None
        for endpoint in (await self._guard.endpoints(host, port))[:MAX_ADDRESSES_TRIED]:
            try:
                stream = await self._inner.connect_tcp(
                    endpoint.address, endpoint.port, timeout, local_address, socket_options
                )
                return _Stream(stream)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure or httpcore.ConnectError(f"{host} has no address")

    async def sleep(self, seconds: float) -> None:
        """As the inner backend sleeps."""
        await self._inner.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    """A stream that closes when its TLS handshake is cancelled; httpcore's own would stay open."""

    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's own signature
    ) -> httpcore.AsyncNetworkStream:
        try:
            return await self._inner.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            await self._inner.aclose()
            raise

    def get_extra_info(self, info: str) -> object:
        return self._inner.get_extra_info(info)


class _GuardedTransport(httpx.AsyncHTTPTransport):
    """httpx's transport over a pool of ours: its constructor takes no network backend."""

    def __init__(self, backend: GuardedBackend, tls: ssl.SSLContext) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=CONNECTIONS_PER_HOST,
            max_keepalive_connections=CONNECTIONS_PER_HOST,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=backend,
        )
        self.users = 0


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """Status and headers (lower-case names) have arrived; the body is still on the wire."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncGenerator[bytes, None]


class Connections:
    """Open connections by host, the longest unused closed first; failures leave as `WorkError`."""

    def __init__(self, guard: Guard, *, connect_seconds: float, ca_file: Path | None) -> None:
        self._backend = GuardedBackend(guard)
        self._timeout = {"connect": connect_seconds}  # reads: the deadline of the whole exchange
        self._tls = _tls(ca_file)
        self._transports: OrderedDict[str, _GuardedTransport] = OrderedDict()

    @asynccontextmanager
    async def get(self, url: str, headers: Mapping[str, str]) -> AsyncGenerator[RawAnswer, None]:
        """Send one GET; the connection is closed on leaving unless the body was read to its end."""
        async with self._exchange("GET", url, headers, None) as answer:
            yield answer

    @asynccontextmanager
    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[RawAnswer, None]:
        """Send one POST; the connection is closed on leaving as after `get`."""
        async with self._exchange("POST", url, headers, body) as answer:
            yield answer

    @asynccontextmanager
    async def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> AsyncGenerator[RawAnswer, None]:
        async with self._transport(host_of(url)) as transport:
            with _classified(url):
                request = httpx.Request(
                    method,
                    url,
                    headers=headers,
                    content=body,
                    extensions={"timeout": self._timeout},
                )
                response = await transport.handle_async_request(request)
            try:
                async with aclosing(_chunks(response, url)) as chunks:
                    yield RawAnswer(response.status_code, dict(response.headers.items()), chunks)
            finally:
                await response.aclose()

    @asynccontextmanager
    async def _transport(self, host: str) -> AsyncGenerator[_GuardedTransport, None]:
        transport = self._transports.pop(host, None) or _GuardedTransport(self._backend, self._tls)
        self._transports[host] = transport
        transport.users += 1
        try:
            await self._close_surplus()
            yield transport
        finally:
            transport.users -= 1

    async def _close_surplus(self) -> None:
        surplus = len(self._transports) - MAX_HOSTS
        if surplus > 0:
            idle = [host for host, transport in self._transports.items() if not transport.users]
            for transport in [self._transports.pop(host) for host in idle[:surplus]]:
                await transport.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        while self._transports:
            await self._transports.popitem()[1].aclose()


@cache
def _tls(ca_file: Path | None) -> ssl.SSLContext:
    """Verifies by certifi's authorities or by those of `ca_file`; loading them takes 20 ms."""
    if ca_file is None:
        return httpx.create_ssl_context(trust_env=False)
    return ssl.create_default_context(cafile=str(ca_file))


async def _chunks(response: httpx.Response, url: str) -> AsyncGenerator[bytes, None]:
    with _classified(url):
        async for chunk in response.aiter_raw():
            yield chunk


@contextmanager
def _classified(url: str) -> Generator[None, None, None]:
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        raise _work_error(error, without_credentials(url)) from error


def _work_error(error: Exception, shown: str) -> WorkError:
    text = f"{shown}: {str(error) or type(error).__name__}"
    match error:
        case httpx.InvalidURL() | httpx.UnsupportedProtocol():
            return Permanent(text, code="bad_url")
        case httpx.TimeoutException():
            return Transient(f"{shown}: no connection in time", code="timeout")
        case httpx.NetworkError():
            return _network_error(error, text)
        case httpx.RemoteProtocolError() if "peer closed connection" in str(error):
            return Transient(text, code="truncated")
        case httpx.RemoteProtocolError() if "Server disconnected" in str(error):
            return Transient(text, code="connection")
        case _:
            return Transient(text, code="protocol")


def _network_error(error: BaseException, text: str) -> WorkError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Permanent(f"{text}; its certificate must be renewed", code="tls")
        cause = cause.__cause__ or cause.__context__
    return Transient(text, code="connection")
