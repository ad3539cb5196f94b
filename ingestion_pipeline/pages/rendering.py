"""How a page is made to show itself in a browser, and what the browser then holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ingestion_pipeline.pages.request import Fetched


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
