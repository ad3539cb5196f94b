"""Rendering options of a page, their parsing from a config, and the rendered page."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, cast

from pydantic import BeforeValidator, Discriminator, Field, Strict, StringConstraints, Tag

from ingestion_pipeline.pages.http.request import Fetched
from ingestion_pipeline.sources.file_model import BadField, FileModel, Flag, Missing, expect, validated

MAX_STEPS = 100

Selector = Annotated[  # only a browser can tell whether it is valid
    str,
    Strict(),
    StringConstraints(strip_whitespace=True, min_length=1, max_length=1_000),
    expect('must be a CSS selector such as "#list", at most 1000 characters, not {value}'),
    Missing('is missing: a CSS selector such as "#list"'),
]
_Wait = Annotated[float, Strict(), Field(gt=0, le=600), expect("must be seconds above 0 to 600, not {value}")]


class Click(FileModel):
    """Click the first matching element."""

    selector: Selector = Field(validation_alias="click")


class RenderWait(FileModel):
    """Wait for so many seconds."""

    seconds: _Wait = Field(validation_alias="wait_seconds")


def _step_tag(step: object) -> str | None:
    if isinstance(step, Click | RenderWait):
        return f"<{type(step).__name__}>"
    keys = list(cast("Mapping[object, object]", step)) if isinstance(step, Mapping) else []
    return {"click": "<Click>", "wait_seconds": "<RenderWait>"}.get(str(keys[0])) if len(keys) == 1 else None


def _steps(value: object) -> object:
    if not isinstance(value, list | tuple):
        raise ValueError('must be a list of steps: [{click: "SELECTOR"}, {wait_seconds: 2}]')  # noqa: TRY004 - pydantic's kind of error
    steps = cast("list[object]", value)
    if len(steps) > MAX_STEPS:
        raise ValueError(f"has {len(steps)} steps; {MAX_STEPS} are the most")
    return steps


SetupStep = Annotated[
    Annotated[Click, Tag("<Click>")] | Annotated[RenderWait, Tag("<RenderWait>")],
    Discriminator(
        _step_tag,
        custom_error_type="step",
        custom_error_message='must be one step, {click: "SELECTOR"} or {wait_seconds: 2}',
    ),
]


class ClickDiscovery(FileModel):
    """Click everything clickable inside `selector`, to find where it leads.

    More clickable elements than `limit` are an error: half of a catalogue looks like a whole one.
    """

    not_a_mapping: ClassVar[str] = "must be a mapping of selector, limit, wait_seconds"

    selector: Selector
    limit: Annotated[
        int, Strict(), Field(gt=0, le=10_000), expect("must be a whole number from 1 to 10000, not {value}")
    ] = 300
    wait_seconds: Annotated[
        float, Strict(), Field(gt=0, le=60), expect("must be seconds above 0 to 60, not {value}")
    ] = 30.0


class RenderingOptions(FileModel):
    """The steps after the page has loaded, in this order; none by default."""

    load_wait_seconds: Annotated[
        float, Strict(), Field(ge=0, le=600), expect("must be seconds from 0 to 600, not {value}")
    ] = 0.0
    setup: Annotated[tuple[SetupStep, ...], BeforeValidator(_steps)] = ()
    content_selector: Selector | None = None
    discovery: ClickDiscovery | None = Field(default=None, validation_alias="click_discovery")
    screenshot: Flag = True


KEYS = tuple(RenderingOptions.file_keys())
"""The config keys that are parsed here; the other keys belong to the caller."""


def rendering_of(config: Mapping[str, Any]) -> tuple[RenderingOptions | None, list[BadField]]:
    """Return the rendering options of the config, or all its problems; other keys are ignored."""
    return validated(RenderingOptions, {key: config[key] for key in KEYS if key in config})


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
