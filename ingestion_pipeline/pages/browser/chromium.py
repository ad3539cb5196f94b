"""Starting, finding and reliably ending a Chromium without background traffic."""

import asyncio
import os
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from ingestion_pipeline.settings import Settings

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


class Session(Protocol):
    """Playwright's CDP session, with the types that it leaves out."""

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer to one command."""
        ...

    async def detach(self) -> None:
        """End the session."""
        ...

    def on(self, event: str, f: Callable[[dict[str, Any]], None]) -> None:
        """Call `f` for every event of the name."""
        ...


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
                session = cast("Session", await self.browser.new_browser_cdp_session())
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
    """Return whether it ended in time by itself."""
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
CURE = (
    "`make system` installs it as root, `.venv/bin/playwright install chromium` without,"
    " or name one by INGESTION_BROWSER"
)
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
