"""A Chromium: found, started without background traffic, reliably ended; and its only way to the network.

That is a loopback proxy that connects to checked addresses: routes inside the browser do not see what a name
resolves to. Each page has credentials of its own at the proxy, so that its traffic is counted and ended with it.
"""

import asyncio
import base64
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlsplit

from ingestion_pipeline.pages.http.guard import LOOPBACK, Guard, exempt_only
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.tasks.errors import Transient, WorkError

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

START_SECONDS = 60.0
CLOSE_SECONDS = 5.0
ANSWER_SECONDS = 5.0

# On top of playwright's own, which switch off component updates, sync, first run and the like.
# Names are resolved by the proxy only; WebRTC and QUIC would bypass it over UDP.
QUIET = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--no-pings",
    "--no-service-autorun",
    "--dns-prefetch-disable",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--js-flags=--max-old-space-size=512",
    "--disable-gpu",
)


CdpSession = Any  # playwright's own type leaves out what its methods take and return


class BrowserLost(Exception):
    """The browser, or the process of one page, ended or hangs; the page may not be the cause."""


@dataclass(frozen=True, slots=True)
class Chromium:
    """One browser, its playwright driver, and the process ids to kill if they hang."""

    playwright: "Playwright"
    browser: "Browser"
    process_id: int | None
    driver_id: int | None

    async def answers(self) -> bool:
        """Return whether the browser still responds."""
        if not self.browser.is_connected():
            return False
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                session: CdpSession = await self.browser.new_browser_cdp_session()
                await session.send("Browser.getVersion")
                await session.detach()
        except Exception:  # any error means that it does not respond
            return False
        return True

    async def aclose(self) -> None:
        """End browser and driver; kill them if they do not end by themselves."""
        is_stopped = False
        try:
            await _in_time(self.browser.close())
            self.kill()
            is_stopped = await _in_time(self.playwright.stop())
        finally:
            self.kill()
            if not is_stopped and self.driver_id is not None:
                with suppress(ProcessLookupError):
                    os.kill(self.driver_id, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the browser's processes; nothing happens if it has ended."""
        with suppress(ProcessLookupError, PermissionError):
            if self.process_id is not None and os.getpgid(self.process_id) == self.process_id:
                os.killpg(self.process_id, signal.SIGKILL)


async def start_chromium(program: Path, *, proxy_url: str, sandbox: str) -> Chromium:
    """Start a browser whose traffic ends at the proxy, where only pages have credentials."""
    from playwright.async_api import async_playwright

    mark = f"--ingestion-browser={secrets.token_hex(8)}"
    playwright = await async_playwright().start()
    try:
        browser = await playwright.chromium.launch(
            executable_path=program,
            args=[*QUIET, mark],
            chromium_sandbox=has_sandbox(sandbox),
            proxy={"server": proxy_url, "bypass": "<-loopback>"},
            timeout=START_SECONDS * 1_000,
            handle_sigint=False,  # the run decides when its browser ends
            handle_sigterm=False,
            handle_sighup=False,
        )
    except BaseException:
        await playwright.stop()
        raise
    process_id = _process_id(mark)
    return Chromium(playwright, browser, process_id, _parent_id(process_id))


def has_sandbox(sandbox: str) -> bool:
    """Return whether Chromium's sandbox is used; as root it cannot be."""
    return sandbox != "off" and os.geteuid() != 0


async def _in_time(end: Awaitable[None]) -> bool:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await end
    except Exception:  # a lost connection or driver
        return False
    return True


def _process_id(mark: str) -> int | None:
    """Return the id of the process started with `mark`; None without /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            if mark.encode() in arguments and not any(a.startswith(b"--type=") for a in arguments):
                return int(folder.name)
    return None


def _parent_id(process_id: int | None) -> int | None:
    """Return the id of the browser's parent, playwright's driver."""
    with suppress(OSError, ValueError):
        return int(Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[1])
    return None


NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
CURE = f"install it with `{sys.executable} -m playwright install chromium`, or name one by INGESTION_BROWSER"
_VERSION_SECONDS = 20
_VERSION = re.compile(r"(?<![A-Za-z ])[A-Za-z]++(?: [A-Za-z]++)*+ [0-9]++(?:\.[0-9]++)++")

# Below a folder chromium-REVISION; Linux, then macOS.
_PLAYWRIGHTS_PROGRAMS = (
    "chrome-linux*/chrome",
    "chrome-mac*/Chromium.app/Contents/MacOS/Chromium",
    "chrome-mac*/Google Chrome for Testing.app/Contents/MacOS/Google Chrome for Testing",
)


class NoBrowser(Exception):
    """There is no Chromium to use; the message says how to get one."""


def find_browser(settings: Settings) -> Path:
    """Return the configured program, else playwright's own, else the first on the search path."""
    if settings.browser:
        configured = Path(settings.browser)
        if _is_program(configured):
            return configured
        raise NoBrowser(f"INGESTION_BROWSER={settings.browser!r} is not a program; name a Chromium")
    if (own := _playwrights_own()) is not None:
        return own
    if path := next(filter(None, map(shutil.which, NAMES)), None):
        return Path(path)
    raise NoBrowser(f"no Chromium was found: {CURE}")


def browser_version(program: Path) -> str:
    """Return the version that the program prints, such as `Chromium 156.0.1.2`."""
    try:
        process = subprocess.run(  # noqa: S603 - the operator's own browser
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NoBrowser(f"{program} does not start: {error}; {CURE}") from error
    match = _VERSION.search(process.stdout)
    if process.returncode != 0 or match is None:
        output = (process.stderr or process.stdout).strip()[:200]
        raise NoBrowser(f"{program} does not say its version: {output!r}; {CURE}")
    return match[0]


def _playwrights_own() -> Path | None:
    """Return the newest Chromium that `playwright install` has installed; None if there is none."""
    for folder in _playwrights_folders():
        for installation in sorted(folder.glob("chromium-*"), key=_revision, reverse=True):
            programs = (program for name in _PLAYWRIGHTS_PROGRAMS for program in installation.glob(name))
            if (own := next(filter(_is_program, programs), None)) is not None:
                return own
    return None


def _playwrights_folders() -> list[Path]:
    configured = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")  # noqa: TID251 - playwright's, no setting of ours
    if configured and configured != "0":
        return [Path(configured)]
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home
        return []
    return [home / ".cache" / "ms-playwright", home / "Library" / "Caches" / "ms-playwright"]


def _revision(folder: Path) -> int:
    digits = folder.name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


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
