"""How a page is made to show itself in a browser, and what the browser then holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from ingestion_pipeline.pages.http.request import Fetched
from ingestion_pipeline.sources.definition import BadField


@dataclass(frozen=True, slots=True, kw_only=True)
class Click:
    """Click the first element that matches."""

    selector: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderWait:
    """Let the page work for a while."""

    seconds: float


SetupStep = Click | RenderWait


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickDiscovery:
    """Click everything clickable inside `selector`, to learn where it leads.

    More clickable elements than `limit` are an error: half of a catalogue looks like a whole one.
    """

    selector: str
    limit: int = 300
    wait_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderingOptions:
    """What is done once the page has loaded, in this order; nothing by default."""

    load_wait_seconds: float = 0.0
    setup: tuple[SetupStep, ...] = ()
    content_selector: str | None = None
    discovery: ClickDiscovery | None = None
    screenshot: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """The page as a person would see it: its DOM as UTF-8 HTML, and a picture of it."""

    page: Fetched
    screenshot: bytes | None = None
    discovered: tuple[str, ...] = ()


class Renderer(Protocol):
    """A browser: whatever it cannot show leaves as a classified `WorkError`."""

    async def render(
        self,
        url: str,
        rendering: RenderingOptions,
        *,
        check_url: Callable[[str], None] | None = None,
    ) -> Rendered:
        """The page after its setup; `check_url` has a say in every document it is led to."""
        ...


KEYS = ("setup", "load_wait_seconds", "content_selector", "click_discovery", "screenshot")
"""The keys that are read here; whoever owns the rest of a config knows the others."""

LONGEST_WAIT_SECONDS = 600.0
MOST_STEPS = 100
DISCOVERY_KEYS = ("selector", "limit", "wait_seconds")
MOST_CLICKABLES = 10_000
LONGEST_CLICK_SECONDS = 60.0
MOST_SELECTOR_CHARS = 1_000


def rendering_of(config: Mapping[str, Any]) -> tuple[RenderingOptions | None, list[BadField]]:
    """What the config asks of a browser, or all that is wrong with it; other keys are ignored."""
    bad: list[BadField] = []
    rendering = RenderingOptions(
        setup=_setup(config.get("setup"), bad),
        load_wait_seconds=_seconds(
            config.get("load_wait_seconds", 0),
            "load_wait_seconds",
            LONGEST_WAIT_SECONDS,
            bad,
            least=0,
        ),
        content_selector=_optional_selector(config.get("content_selector"), bad),
        discovery=_discovery(config.get("click_discovery"), bad),
        screenshot=_flag(config.get("screenshot", RenderingOptions().screenshot), bad),
    )
    return (None, bad) if bad else (rendering, [])


def _setup(given: object, bad: list[BadField]) -> tuple[SetupStep, ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        said = 'must be a list of steps: [{click: "SELECTOR"}, {wait_seconds: 2}]'
        bad.append(BadField("setup", said))
        return ()
    steps = cast("list[object]", given)
    if len(steps) > MOST_STEPS:
        bad.append(BadField("setup", f"has {len(steps)} steps; {MOST_STEPS} are the most"))
        return ()
    made = (_step(step, f"setup[{number}]", bad) for number, step in enumerate(steps))
    return tuple(step for step in made if step is not None)


def _step(given: object, key: str, bad: list[BadField]) -> SetupStep | None:
    match cast("dict[str, object]", given):  # whatever it is, the last case takes it
        case {"click": selector, **rest} if not rest:
            return Click(selector=_selector(selector, f"{key}.click", bad))
        case {"wait_seconds": seconds, **rest} if not rest:
            name = f"{key}.wait_seconds"
            return RenderWait(seconds=_seconds(seconds, name, LONGEST_WAIT_SECONDS, bad))
        case _:
            said = 'must be one step, {click: "SELECTOR"} or {wait_seconds: 2}'
            bad.append(BadField(key, said))
            return None


def _discovery(given: object, bad: list[BadField]) -> ClickDiscovery | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        said = f"must be a mapping of {', '.join(DISCOVERY_KEYS)}"
        bad.append(BadField("click_discovery", said))
        return None
    asked = cast("dict[str, object]", given)
    for key in asked.keys() - set(DISCOVERY_KEYS):
        said = f"unknown key; there are: {', '.join(DISCOVERY_KEYS)}"
        bad.append(BadField(f"click_discovery.{key}", said))
    return ClickDiscovery(
        selector=_selector(asked.get("selector"), "click_discovery.selector", bad),
        limit=_limit(asked.get("limit", ClickDiscovery(selector="").limit), bad),
        wait_seconds=_seconds(
            asked.get("wait_seconds", ClickDiscovery(selector="").wait_seconds),
            "click_discovery.wait_seconds",
            LONGEST_CLICK_SECONDS,
            bad,
        ),
    )


def _limit(given: object, bad: list[BadField]) -> int:
    if isinstance(given, int) and not isinstance(given, bool) and 0 < given <= MOST_CLICKABLES:
        return given
    said = f"must be a whole number from 1 to {MOST_CLICKABLES}, not {_shown(given)}"
    bad.append(BadField("click_discovery.limit", said))
    return 1


def _seconds(
    given: object, key: str, most: float, bad: list[BadField], *, least: float | None = None
) -> float:
    """A time; more than nothing unless `least` allows that."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        is_enough = given > 0 if least is None else given >= least
        if is_enough and given <= most:
            return float(given)
    beyond = "above 0" if least is None else f"from {least:g}"
    bad.append(BadField(key, f"must be seconds {beyond} to {most:g}, not {_shown(given)}"))
    return 0.0


def _optional_selector(given: object, bad: list[BadField]) -> str | None:
    return None if given is None else _selector(given, "content_selector", bad)


def _selector(given: object, key: str, bad: list[BadField]) -> str:
    """A CSS selector; whether it is one, only a browser can say."""
    if isinstance(given, str) and given.strip() and len(given) <= MOST_SELECTOR_CHARS:
        return given.strip()
    said = f'must be a CSS selector such as "#list", at most {MOST_SELECTOR_CHARS} characters'
    bad.append(BadField(key, f"{said}, not {_shown(given)}"))
    return ""


def _flag(given: object, bad: list[BadField]) -> bool:
    if isinstance(given, bool):
        return given
    bad.append(BadField("screenshot", f"must be true or false, not {_shown(given)}"))
    return False


def _shown(given: object) -> str:
    if isinstance(given, list):
        return "a list"
    return repr(given)[:130]
