"""Rendering options of a page, their parsing from a config, and the rendered page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from ingestion_pipeline.pages.http.request import Fetched
from ingestion_pipeline.sources.definition import BadField


@dataclass(frozen=True, slots=True, kw_only=True)
class Click:
    """Click the first matching element."""

    selector: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderWait:
    """Wait for so many seconds."""

    seconds: float


SetupStep = Click | RenderWait


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickDiscovery:
    """Click everything clickable inside `selector`, to find where it leads.

    More clickable elements than `limit` are an error: half of a catalogue looks like a whole one.
    """

    selector: str
    limit: int = 300
    wait_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderingOptions:
    """The steps after the page has loaded, in this order; none by default."""

    load_wait_seconds: float = 0.0
    setup: tuple[SetupStep, ...] = ()
    content_selector: str | None = None
    discovery: ClickDiscovery | None = None
    screenshot: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A rendered page: its DOM as UTF-8 HTML, and a screenshot."""

    page: Fetched
    screenshot: bytes | None = None
    discovered: tuple[str, ...] = ()


class Renderer(Protocol):
    """A browser; every failure is a classified `WorkError`."""

    async def render(
        self, url: str, rendering: RenderingOptions, *, check_url: Callable[[str], None] | None = None
    ) -> Rendered:
        """Return the page after its setup; `check_url` may refuse every document it leads to."""
        ...


KEYS = ("setup", "load_wait_seconds", "content_selector", "click_discovery", "screenshot")
"""The config keys that are parsed here; the other keys belong to the caller."""

LONGEST_WAIT_SECONDS = 600.0
MOST_STEPS = 100
DISCOVERY_KEYS = ("selector", "limit", "wait_seconds")
MOST_CLICKABLES = 10_000
LONGEST_CLICK_SECONDS = 60.0
MOST_SELECTOR_CHARS = 1_000


def rendering_of(config: Mapping[str, Any]) -> tuple[RenderingOptions | None, list[BadField]]:
    """Return the rendering options of the config, or all its problems; other keys are ignored."""
    bad: list[BadField] = []
    rendering = RenderingOptions(
        setup=_setup(config.get("setup"), bad),
        load_wait_seconds=_seconds(
            config.get("load_wait_seconds", 0), "load_wait_seconds", LONGEST_WAIT_SECONDS, bad, least=0
        ),
        content_selector=_optional_selector(config.get("content_selector"), bad),
        discovery=_discovery(config.get("click_discovery"), bad),
        screenshot=_flag(config.get("screenshot", RenderingOptions().screenshot), bad),
    )
    return (None, bad) if bad else (rendering, [])


def _setup(value: object, bad: list[BadField]) -> tuple[SetupStep, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        problem = 'must be a list of steps: [{click: "SELECTOR"}, {wait_seconds: 2}]'
        bad.append(BadField("setup", problem))
        return ()
    steps = cast("list[object]", value)
    if len(steps) > MOST_STEPS:
        bad.append(BadField("setup", f"has {len(steps)} steps; {MOST_STEPS} are the most"))
        return ()
    made = (_step(step, f"setup[{number}]", bad) for number, step in enumerate(steps))
    return tuple(step for step in made if step is not None)


def _step(value: object, key: str, bad: list[BadField]) -> SetupStep | None:
    match cast("dict[str, object]", value):  # whatever it is, the last case takes it
        case {"click": selector, **rest} if not rest:
            return Click(selector=_selector(selector, f"{key}.click", bad))
        case {"wait_seconds": seconds, **rest} if not rest:
            name = f"{key}.wait_seconds"
            return RenderWait(seconds=_seconds(seconds, name, LONGEST_WAIT_SECONDS, bad))
        case _:
            problem = 'must be one step, {click: "SELECTOR"} or {wait_seconds: 2}'
            bad.append(BadField(key, problem))
            return None


def _discovery(value: object, bad: list[BadField]) -> ClickDiscovery | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        problem = f"must be a mapping of {', '.join(DISCOVERY_KEYS)}"
        bad.append(BadField("click_discovery", problem))
        return None
    options = cast("dict[str, object]", value)
    for key in options.keys() - set(DISCOVERY_KEYS):
        problem = f"unknown key; there are: {', '.join(DISCOVERY_KEYS)}"
        bad.append(BadField(f"click_discovery.{key}", problem))
    return ClickDiscovery(
        selector=_selector(options.get("selector"), "click_discovery.selector", bad),
        limit=_limit(options.get("limit", ClickDiscovery(selector="").limit), bad),
        wait_seconds=_seconds(
            options.get("wait_seconds", ClickDiscovery(selector="").wait_seconds),
            "click_discovery.wait_seconds",
            LONGEST_CLICK_SECONDS,
            bad,
        ),
    )


def _limit(value: object, bad: list[BadField]) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_CLICKABLES:
        return value
    problem = f"must be a whole number from 1 to {MOST_CLICKABLES}, not {_shown(value)}"
    bad.append(BadField("click_discovery.limit", problem))
    return 1


def _seconds(value: object, key: str, most: float, bad: list[BadField], *, least: float | None = None) -> float:
    """Return a number of seconds; above 0 unless `least` allows it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        is_enough = value > 0 if least is None else value >= least
        if is_enough and value <= most:
            return float(value)
    beyond = "above 0" if least is None else f"from {least:g}"
    bad.append(BadField(key, f"must be seconds {beyond} to {most:g}, not {_shown(value)}"))
    return 0.0


def _optional_selector(value: object, bad: list[BadField]) -> str | None:
    return None if value is None else _selector(value, "content_selector", bad)


def _selector(value: object, key: str, bad: list[BadField]) -> str:
    """Return a CSS selector; only a browser can tell whether it is valid."""
    if isinstance(value, str) and value.strip() and len(value) <= MOST_SELECTOR_CHARS:
        return value.strip()
    problem = f'must be a CSS selector such as "#list", at most {MOST_SELECTOR_CHARS} characters'
    bad.append(BadField(key, f"{problem}, not {_shown(value)}"))
    return ""


def _flag(value: object, bad: list[BadField]) -> bool:
    if isinstance(value, bool):
        return value
    bad.append(BadField("screenshot", f"must be true or false, not {_shown(value)}"))
    return False


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    return repr(value)[:130]
