"""The configs of series platforms as pydantic models; imported only when a source is configured."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.structured.items import FieldSelector, JsonPath, checked_css
from ingestion_pipeline.series.platforms.chapter_lists import FIELDS, NAMING_FIELDS, THEMES
from ingestion_pipeline.series.platforms.mangadex import API_BASE, CONTENT_RATINGS, MAX_LIMIT
from ingestion_pipeline.sources import platform_config
from ingestion_pipeline.sources.declarations import BadField, as_mapping
from ingestion_pipeline.sources.source import BadConfig


class FeedConfig(platform_config.PlatformConfig):
    """The defaults that a source's config sets for all its releases, and its addresses."""

    series_title: platform_config.Text = None
    language: platform_config.Text = None
    scanlation_group: platform_config.Text = None
    complete: platform_config.TrueOrFalse = False

    @property
    def day_first(self) -> bool:
        """Return whether 02/10/2014 is in October, as in every language but English."""
        language = (self.language or "en").lower()
        return language.partition("-")[0] != "en"

    def first_request(self, accept: str) -> Request:
        """Return the request of the first page."""
        if not self.requested_url:
            raise BadConfig("a list of chapters needs an address; without one it reads saved bodies only")
        return Request(url=self.requested_url, accept=accept)


def _unnamed(fields: object, *further: str) -> Iterator[BadField]:
    """Yield the problem of fields without one that names a chapter."""
    if not {*further, *as_mapping(fields)} & {*NAMING_FIELDS}:
        yield BadField("fields", f"needed: at least one of {', '.join(NAMING_FIELDS)}")


class JsonConfig(FeedConfig):
    """Paths of the chapters, and of the fields in each."""

    items: Annotated[JsonPath | None, platform_config.parsed_by(JsonPath.of)] = None
    fields: Annotated[Mapping[str, Sequence[JsonPath]], platform_config.field_map(FIELDS, JsonPath.of)] = {}
    next: Annotated[JsonPath | None, platform_config.parsed_by(JsonPath.of)] = None

    @classmethod
    def mistakes(cls, values: Mapping[str, Any]) -> Iterator[BadField]:
        """Yield the problem of chapters without a name."""
        return _unnamed(values.get("fields"))


_Css = Annotated[str | None, platform_config.parsed_by(checked_css)]


class HtmlConfig(FeedConfig):
    """Selectors of the chapters, and of the fields in each; a theme fills in what is left out."""

    theme: platform_config.Text = None
    items: _Css = None
    fields: Annotated[Mapping[str, Sequence[FieldSelector]], platform_config.field_map(FIELDS, FieldSelector.of)] = {}
    next: _Css = None
    may_be_empty: platform_config.TrueOrFalse = False

    @classmethod
    def mistakes(cls, values: Mapping[str, Any]) -> Iterator[BadField]:
        """Yield the problems of an unknown theme, and of selectors that neither the config nor its theme has."""
        name, fields = values.get("theme"), values.get("fields")
        if not (name or fields or values.get("items")):
            return
        theme = THEMES.get(str(name).strip())
        if name and theme is None:
            yield BadField("theme", platform_config.refusal("theme", name, ", ".join(THEMES)))
        if not values.get("items") and not (theme and theme.items):
            yield BadField("items", "needed beside fields: a CSS selector, or a theme that has one")
        yield from _unnamed(fields, *(theme.fields if theme else ()))


_ID = re.compile(r"[0-9A-Za-z-]{1,64}")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"/(?:manga|title)/([0-9A-Za-z-]{1,64})(?=[/?#]|$)")


def _ratings(words: Sequence[str]) -> Sequence[str]:
    if not set(words) <= set(CONTENT_RATINGS):
        raise ValueError
    return words


_Words = Annotated[tuple[platform_config.Word, ...], AfterValidator(lambda words: tuple(dict.fromkeys(words)))]


class MangaDexConfig(platform_config.PlatformConfig):
    """The manga, and which of its chapters to list."""

    manga_id: platform_config.Text = Field(default=None, validate_default=True)
    languages: Annotated[_Words, platform_config.accepted("a list of words")] = ()
    limit: Annotated[int, platform_config.whole(1, MAX_LIMIT)] = MAX_LIMIT
    content_ratings: Annotated[
        _Words, AfterValidator(_ratings), platform_config.accepted(f"a list of {', '.join(CONTENT_RATINGS)}")
    ] = CONTENT_RATINGS[:3]
    include_external: platform_config.TrueOrFalse = True

    @field_validator("manga_id")
    @classmethod
    def _find_id(cls, stated: str | None, info: ValidationInfo) -> str | None:
        """Return the id that the config or the URL states."""
        url = info.data.get("url", "")
        is_public_api = (info.data.get("api_base") or API_BASE).rstrip("/") == API_BASE
        pattern = _UUID if is_public_api else _ID
        needed = "the UUID of a manga" if is_public_api else "an id of letters, digits and hyphens"
        match = _IN_ADDRESS.search(url)
        if stated and not pattern.fullmatch(stated):
            raise ValueError(platform_config.refusal("manga_id", stated, needed))
        if url and not stated and (match is None or not pattern.fullmatch(match[1])):
            wrong = platform_config.refusal("url", url, f"an address with /title/ or /manga/ and {needed}")
            raise ValueError(f"is left out, and url {wrong}")
        return stated or (match[1] if match else None)
