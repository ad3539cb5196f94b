"""Where a page's clickable things lead, for sites whose links are no links.

No document is opened for it: where a click wants to go is written down, and the page stays. Only
scripts that change the address by themselves change the page; then it is put back.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from ingestion_pipeline.pages.browser.stage import Stage
from ingestion_pipeline.pages.http_fetcher import wire_url
from ingestion_pipeline.pages.rendering import ClickDiscovery
from ingestion_pipeline.work.errors import Permanent, WorkError

if TYPE_CHECKING:
    from playwright.async_api import ElementHandle

_KEY = "click_discovery.selector"
_NOTHING_SECONDS = 1.0  # after a click without any effect; a slower one shows by its requests
_LOOK_EVERY_SECONDS = 0.02
_CLICK_SECONDS = 2.0

# What a person would take for clickable, innermost first; what is not shown does not count.
_CLICKABLES = """container => {
    const named = "a, button, summary, [role=button], [role=link], [role=tab], [onclick]," +
        " input[type=button], input[type=submit]";
    const isShown = one => one.checkVisibility({visibilityProperty: true}) &&
        !one.disabled && one.getAttribute("aria-disabled") !== "true";
    const isHand = one => getComputedStyle(one).cursor === "pointer" &&
        getComputedStyle(one.parentElement).cursor !== "pointer";
    const found = [...container.querySelectorAll("*")].filter(
        one => isShown(one) && (one.matches(named) || isHand(one)));
    const all = new Set(found);
    return found.filter(one => {
        for (let up = one.parentElement; up && up !== container; up = up.parentElement)
            if (all.has(up) && up.matches("a, button")) return false;
        return true;
    });
}"""


async def discover(stage: Stage, asked: ClickDiscovery) -> tuple[str, ...]:
    """Every address that a click inside the container leads to, once, in page order."""
    start = stage.page.url
    count = await _count(stage, asked)
    found: dict[str, None] = {}
    stage.traffic.led_to = []
    for index in range(count):
        element = await _clickable(stage, asked, index)
        if element is None:  # fewer than before: the last click has changed the page
            await _restore(stage, asked, start, count)
            element = await _clickable(stage, asked, index)
        if element is None:
            continue
        for url in await _click(stage, element, asked.wait_seconds, start):
            found[url] = None
        if stage.page.url != start and index + 1 < count:
            await _restore(stage, asked, start, count)
    found.pop(start, None)
    return tuple(found)


async def _count(stage: Stage, asked: ClickDiscovery) -> int:
    count = await _count_now(stage, asked)
    if count > asked.limit:
        raise Permanent(
            f"{stage.shown_url}: {asked.selector!r} holds {count} clickable elements, more than"
            f" {asked.limit}; narrow {_KEY}, or raise click_discovery.limit",
            code="too_many_clickables",
        )
    if count == 0:
        said = f"nothing inside {asked.selector!r} can be clicked"
        raise stage.wrong(said, _KEY, "selector")
    return count


async def _count_now(stage: Stage, asked: ClickDiscovery) -> int:
    container = await stage.find(asked.selector, _KEY)
    return int(await container.evaluate(f"one => ({_CLICKABLES})(one).length"))


async def _clickable(stage: Stage, asked: ClickDiscovery, index: int) -> ElementHandle | None:
    container = await stage.find(asked.selector, _KEY)
    handle = await container.evaluate_handle(f"(one, index) => ({_CLICKABLES})(one)[index]", index)
    return handle.as_element()


async def _click(
    stage: Stage, element: ElementHandle, wait_seconds: float, start: str
) -> list[str]:
    """Where the click leads: a document, another window, or another address of this page."""
    from playwright.async_api import Error

    led_to = stage.traffic.led_to = []
    try:
        await element.click(timeout=_CLICK_SECONDS * 1_000, no_wait_after=True)
    except Error:  # covered by something: the page's own listeners hear this one all the same
        with suppress(Error):
            await element.evaluate("one => one.click()")
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_seconds):
            await _something(stage, led_to, start)
    wanted = [*led_to, stage.page.url]
    return [url for one in wanted if (url := _usable(start, one)) is not None]


async def _something(stage: Stage, led_to: list[str], start: str) -> None:
    """Return when the click has led somewhere, or when nothing is on its way that could."""
    now = asyncio.get_running_loop().time
    since = now()
    while not led_to and stage.page.url == start:
        if now() - since >= _NOTHING_SECONDS and stage.traffic.is_quiet:
            return
        await asyncio.sleep(_LOOK_EVERY_SECONDS)


async def _restore(stage: Stage, asked: ClickDiscovery, start: str, count: int) -> None:
    """The page as it was before the clicks: by going back, else by opening it again."""
    from playwright.async_api import Error

    if stage.page.url != start:
        with suppress(Error, TimeoutError):
            async with asyncio.timeout(_CLICK_SECONDS):
                await stage.page.evaluate("() => history.back()")
                while stage.page.url != start:  # noqa: ASYNC110 - playwright has no event of it
                    await asyncio.sleep(_LOOK_EVERY_SECONDS)
                await stage.traffic.quiet()
        if stage.page.url == start and await _count_now(stage, asked) == count:
            return
    stage.traffic.led_to = None
    await stage.show()
    stage.traffic.led_to = []


def _usable(start: str, url: str) -> str | None:
    """An address that can be fetched; `mailto:` and the like lead nowhere."""
    try:
        wire_url(url)
    except WorkError:
        return None
    return urljoin(start, url)
