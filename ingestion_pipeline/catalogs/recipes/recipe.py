"""A catalogue's recipe as `config.recipe` writes it, checked: all problems at once, by key; and its API, Coursedog.

A recipe is a level: the type of its pages, how the list continues (`pagination`), which links are
followed (`link_selector`, `link_pattern`), and in `links` the level they lead to. Coursedog's lists are
requested by `skip` and `limit`, up to the length that the API itself reports; a response of another
shape is an error, never an empty list.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, cast
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, ValidationInfo, field_validator

from ingestion_pipeline.catalogs.recipes.patterns import LinkPattern
from ingestion_pipeline.pages.visits.page import RenderingOptions
from ingestion_pipeline.sources.declarations import (
    BadField,
    FileModel,
    Flag,
    Missing,
    Weight,
    as_mapping,
    expect,
    quoted,
    validated,
)
from ingestion_pipeline.sources.platform_config import whole
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.urls import checked_url

MAX_CHARACTERS = 500  # of a selector or pattern; a longer one is a mistake


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be text, not {quoted(value)}")
    if len(value) > MAX_CHARACTERS:
        raise ValueError(f"has more than {MAX_CHARACTERS} characters")
    return value.strip()


def checked_css(text: str) -> str:
    """Return the selector; raise ValueError if it is none."""
    from selectolax.lexbor import LexborHTMLParser, SelectolaxError  # imported only where it is needed

    try:
        LexborHTMLParser("<p>").css(text)
    except SelectolaxError:
        raise ValueError(f"{text!r} is no CSS selector") from None
    return text


ConfigText = Annotated[str, BeforeValidator(_text)]
_CssSelector = Annotated[ConfigText, AfterValidator(checked_css)]

API_BASE = "https://app.coursedog.com/api/v1"
PAGE_SIZE = 20
MAX_COURSES = 200_000  # of one catalogue: the largest real ones have a tenth of it
MAX_CATALOGS = 100
_SCHOOL = re.compile(r"[A-Za-z0-9_.-]{1,120}")


def _school(text: str) -> str:
    if not _SCHOOL.fullmatch(text):
        raise ValueError(f"{text!r} is no id: letters, digits, _ . and -")
    return text


def _ids(value: object) -> tuple[str, ...]:
    named = cast("list[object]", value) if isinstance(value, list) else []
    ids = [item.strip() for item in named if isinstance(item, str) and item.strip()]
    if len(ids) != len(named) or not 0 < len(ids) <= MAX_CATALOGS:
        raise ValueError(f"must be a list of 1 to {MAX_CATALOGS} ids")
    return tuple(dict.fromkeys(ids))


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError(f"{text!r} is no day; write it as 2026-08-31, in quotes") from None


_Day = Annotated[ConfigText, AfterValidator(_day)]


class CoursedogApi(FileModel):
    """The school, catalogues and server to read."""

    provider: Annotated[
        Literal["coursedog"],
        expect("{value} is none; there are: coursedog"),
        Missing("is missing; there are: coursedog"),
    ]
    school_id: Annotated[
        ConfigText, AfterValidator(_school), Missing("is missing: the school's id in the API's addresses")
    ]
    catalog_ids: Annotated[tuple[str, ...], BeforeValidator(_ids), Missing("is missing: a list of the catalogues' ids")]
    api_base: Annotated[ConfigText, AfterValidator(lambda text: checked_url(text).rstrip("/"))] = API_BASE
    effective_from: _Day | None = None
    effective_until: _Day | None = None

    @property
    def first_url(self) -> str:
        """The URL of the page that all others follow from."""
        return self.page_url(self.catalog_ids[0], 0)

    def page_url(self, catalog_id: str, skip: int) -> str:
        """Return the URL of 20 courses of a catalogue after the first `skip`."""
        query = {"catalogId": catalog_id, "skip": skip, "limit": PAGE_SIZE, "orderBy": "code"}
        if self.effective_from or self.effective_until:
            ends = (self.effective_from or "", self.effective_until or self.effective_from or "")
            query["effectiveDatesRange"] = ",".join(ends)
        school = quote(self.school_id, safe="")
        address = f"{self.api_base}/cm/{school}/courses/search/$filters"
        return f"{address}?{urlencode(query, safe=',')}"

    def following(self, url: str, document: object) -> list[tuple[str, int]]:
        """Return the pages that follow from the page at `url`, each with its number in its list.

        The first page of a list leads to the others; the very first leads to the other lists as well.

        A response that is no list of courses, or is empty where it should not be, is `Permanent`.
        """
        query = parse_qs(urlsplit(url).query)
        catalog_id, skip = query.get("catalogId", [""])[0], int(query.get("skip", ["0"])[0])
        length = _length(document, url, skip)
        if skip:
            return []
        rest = range(PAGE_SIZE, length, PAGE_SIZE)
        pages = [(self.page_url(catalog_id, at), at // PAGE_SIZE + 1) for at in rest]
        if catalog_id == self.catalog_ids[0]:
            pages += [(self.page_url(other, 0), 1) for other in self.catalog_ids[1:]]
        return pages


def catalogs_url(school_id: str, *, api_base: str = API_BASE) -> str:
    """Return the URL of the list of a school's catalogues."""
    return f"{api_base}/ca/{quote(school_id, safe='')}/catalogs"


def catalog_ids(document: object) -> tuple[str, ...]:
    """Return the ids in a list of catalogues; none if it is no such list, or empty."""
    if isinstance(document, Mapping):
        inside = cast("Mapping[str, object]", document)
        listed = inside.get("data", inside.get("catalogs"))
        document = listed if listed is not None else list(inside.values())
    if isinstance(document, Mapping):  # keyed by id, another form of the API
        document = list(cast("Mapping[str, object]", document).values())
    if not isinstance(document, list):
        return ()
    items = [cast("Mapping[str, object]", item) for item in cast("list[object]", document) if isinstance(item, Mapping)]
    ids = (item.get("id", item.get("_id")) for item in items)
    return tuple(dict.fromkeys(id_ for id_ in ids if isinstance(id_, str) and id_.strip()))


def _length(document: object, url: str, skip: int) -> int:
    answer = cast("Mapping[str, object]", document if isinstance(document, Mapping) else {})
    length, items = answer.get("listLength"), answer.get("data")
    if not isinstance(length, int) or isinstance(length, bool) or not isinstance(items, list):
        cure = "check api.school_id, api.catalog_ids and api.api_base of the recipe"
        raise Permanent(f"{url} is no list of courses: it has no listLength or no data; {cure}", code="api_shape")
    if not 0 <= length <= MAX_COURSES:
        raise Permanent(f"{url} reports {length} courses; the limit is {MAX_COURSES}", code="api_shape")
    if not cast("Sequence[object]", items) and skip < length:
        message = f"{url} has no courses, though {length} are reported and {skip} were skipped"
        raise Permanent(message, code="api_empty")
    return length


MAX_LEVELS = 5  # three of categories, then DETAIL_LINKS, then DETAIL
MAX_LIST_PAGES = 10_000  # of one list; a recipe may ask for fewer
DEFAULT_LIST_PAGES = 1_000


class PageType(StrEnum):
    """What a page is for: `DETAIL` and API responses hold records, the others lead on.

    An `EXPLORATORY` page leads on, and may hold records.
    """

    DETAIL = "DETAIL"
    DETAIL_LINKS = "DETAIL_LINKS"
    CATEGORY_LINKS = "CATEGORY_LINKS"
    API_REQUEST = "API_REQUEST"
    EXPLORATORY = "EXPLORATORY"
    SITEMAP = "SITEMAP"


class BadRecipe(ValueError):
    """A recipe that cannot be followed; `problems` names every key with what is wrong with it."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_COUNTING = ("page_num", "offset")


def _url_template(text: str) -> str:
    names = _PLACEHOLDER.findall(text)
    if unknown := [name for name in names if name not in {*_COUNTING, "limit"}]:
        raise ValueError(f"{{{unknown[0]}}} is unknown; there are {{page_num}}, {{offset}}")
    if len([name for name in names if name in _COUNTING]) != 1:
        raise ValueError("must have one {page_num} or one {offset} where the number goes")
    if not text.startswith(("/", "?")):
        checked_url(_PLACEHOLDER.sub("1", text))
    return text


class Numbered(FileModel):
    """The pages of a list by their URLs: `{page_num}`, or `{offset}` with `limit` records each."""

    unknown_key: ClassVar[str] = "no key beside url_pattern"

    url_pattern: Annotated[ConfigText, AfterValidator(_url_template), Missing("name it or next, and not both")]
    total_pages: Annotated[
        int, whole(1, MAX_LIST_PAGES), Missing("is missing: how many pages the list has, as far as known")
    ]
    start_page: Annotated[int, whole(0, 1)] = 1
    limit: Annotated[int, whole(1, 10_000)] | None = None
    max_pages: Annotated[int, whole(1, MAX_LIST_PAGES)] = DEFAULT_LIST_PAGES

    @classmethod
    def mistakes(cls, values: Mapping[str, Any]) -> Iterator[BadField]:
        """Yield the problem of a number of records that is missing or has no use."""
        is_offset = "{offset}" in str(values.get("url_pattern"))
        if is_offset and "limit" not in values:
            yield BadField("limit", "is missing: how many records a page has, for {offset}")
        if not is_offset and "limit" in values:
            yield BadField("limit", "belongs to {offset}; remove it")


class Chained(FileModel):
    """The pages of a list one after the other: by `rel=next` or similar, or by a selector."""

    unknown_key: ClassVar[str] = "no key beside next"

    selector: _CssSelector | None = Field(default=None, validation_alias="next")
    max_pages: Annotated[int, whole(1, MAX_LIST_PAGES)] = DEFAULT_LIST_PAGES

    @field_validator("selector", mode="wrap")
    @classmethod
    def _read_rel(cls, value: object, handler: Any) -> str | None:  # noqa: ANN401
        return None if value == "rel" else handler(value)


def _pagination_tag(value: object) -> str:
    keys = as_mapping(value)
    is_chained = keys.get("next") is not None and keys.get("url_pattern") is None
    return "<Chained>" if is_chained or isinstance(value, Chained) else "<Numbered>"


Pagination = Annotated[
    Annotated[Numbered, Tag("<Numbered>")] | Annotated[Chained, Tag("<Chained>")], Discriminator(_pagination_tag)
]

_NAMING_LINKS = (PageType.DETAIL_LINKS, PageType.CATEGORY_LINKS, PageType.SITEMAP)
_WITH_LINKS = ("link_selector", "link_pattern", "exact_link_match", "links")
_RENDERING = ("render", *RenderingOptions.file_keys())
# The keys that have no meaning for a type of pages, each group with the reason.
_UNFIT: Mapping[PageType, Sequence[tuple[Sequence[str], str]]] = {
    PageType.DETAIL: [(_WITH_LINKS, "DETAIL pages never follow links")],
    PageType.EXPLORATORY: [(("links",), "exploring continues by its own rules")],
    PageType.SITEMAP: [
        (
            ("link_selector", "exact_link_match", "pagination", *_RENDERING),
            "says how a web page is read, and a sitemap is none",
        )
    ],
    PageType.API_REQUEST: [
        (_WITH_LINKS, "API_REQUEST pages never follow links"),
        (("pagination", *_RENDERING), "says how a web page is read, and an API's answer is none"),
    ],
}
_AT_ROOT = {
    PageType.SITEMAP: "a sitemap is read at the root alone; no link leads to one",
    PageType.API_REQUEST: "an API is asked at the root alone; no link leads to one",
}
_BEYOND = object()  # stands for a level too many


def _level(value: object) -> object:
    if value is _BEYOND:
        raise ValueError(f"a recipe has at most {MAX_LEVELS} levels; remove it")
    return value


class Recipe(RenderingOptions):
    """One level of a catalogue; `links` is the level that its links lead to."""

    content_selector: _CssSelector | None = None  # it cuts out the content of pages without a browser, too
    page_type: Annotated[
        PageType,
        expect(f"{{value}} is none; there are: {', '.join(PageType)}"),
        Missing(f"is missing; there are: {', '.join(PageType)}"),
    ]
    pagination: Pagination | None = None
    link_selector: _CssSelector | None = None
    exact_link_match: Flag = False
    link_pattern: LinkPattern | None = None
    links: "Annotated[Recipe, BeforeValidator(_level)] | None" = Field(default=None, validate_default=True)
    api: CoursedogApi | None = None
    render: Flag = Field(default=False, validate_default=True)

    @classmethod
    def mistakes(cls, values: Mapping[str, Any]) -> Iterator[BadField]:
        """Yield the problems of keys that do not fit the type of the pages, or each other."""
        page_type = next((type_ for type_ in PageType if type_ == values.get("page_type")), None)
        for keys, reason in _UNFIT.get(page_type, ()) if page_type else ():
            yield from (BadField(key, f"{reason}; remove it") for key in keys if key in values)
        yield from _links_problems(page_type, values)
        if page_type is not PageType.API_REQUEST and "api" in values:
            yield BadField("api", "belongs to page_type API_REQUEST; remove it")
        if page_type is PageType.API_REQUEST and "api" not in values:
            yield BadField("api", "is missing: name provider, school_id and catalog_ids")
        if values.get("render") is False and (values.get("setup") or "click_discovery" in values):
            yield BadField("render", "setup and click_discovery are done by a browser; remove it")

    @field_validator("link_pattern", mode="before")
    @classmethod
    def _read_pattern(cls, value: object, info: ValidationInfo) -> LinkPattern:
        return LinkPattern(_text(value), is_exact=info.data.get("exact_link_match", False)).checked()

    @field_validator("links")
    @classmethod
    def _default_links(cls, links: "Recipe | None", info: ValidationInfo) -> "Recipe | None":
        leads_on = info.data.get("page_type") in _NAMING_LINKS
        return Recipe(page_type=PageType.DETAIL) if links is None and leads_on else links

    @field_validator("render")
    @classmethod
    def _needs_browser(cls, render: bool, info: ValidationInfo) -> bool:  # noqa: FBT001 - pydantic's form
        """Return true for steps that only a browser can do, too."""
        return render or bool(info.data.get("setup")) or info.data.get("discovery") is not None

    @cached_property
    def rendering(self) -> RenderingOptions:
        """What a browser does on its pages."""
        return RenderingOptions(**{name: getattr(self, name) for name in RenderingOptions.model_fields})

    @property
    def follows_links(self) -> bool:
        """Whether its pages lead to further ones; a `DETAIL` page never does."""
        return self.page_type not in {PageType.DETAIL, PageType.API_REQUEST}

    @property
    def leads_on(self) -> bool:
        """Whether further pages may follow from its pages, by links or by pagination."""
        return self.follows_links or self.pagination is not None or self.api is not None

    @property
    def target(self) -> "Recipe":
        """The level its links lead to; exploring continues by the same rules."""
        return self if self.page_type is PageType.EXPLORATORY else cast("Recipe", self.links)


def _links_problems(page_type: PageType | None, values: Mapping[str, Any]) -> Iterator[BadField]:
    if "exact_link_match" in values and "link_pattern" not in values:
        yield BadField("exact_link_match", "belongs to link_pattern, which is missing")
    leads_to_pages = page_type in {PageType.DETAIL_LINKS, PageType.CATEGORY_LINKS}
    if leads_to_pages and "link_selector" not in values and "link_pattern" not in values:
        yield BadField("link_selector", "is missing: name it or link_pattern, or both")
    links = values.get("links")
    if links is None and page_type is PageType.CATEGORY_LINKS:
        yield BadField("links", "is missing: say what the categories' pages are")
    linked_type = as_mapping(links).get("page_type")
    if (reason := next((_AT_ROOT[type_] for type_ in _AT_ROOT if type_ == linked_type), None)) is not None:
        yield BadField("links.page_type", reason)
    elif page_type is PageType.DETAIL_LINKS and linked_type not in (None, PageType.DETAIL):
        yield BadField("links.page_type", "DETAIL_LINKS leads to DETAIL; else write CATEGORY_LINKS above")


RENDER = "render"


class _CatalogConfig(FileModel):
    recipe: Any = None
    entity: Any = None
    selectors: Any = None
    api_base: Any = None
    render: Flag = False
    ignore_robots: Flag = False
    weight: Weight = 1.0


def config_problems(config: Mapping[str, Any]) -> list[str]:
    """Return the problems of a catalogue's configuration, except those of record extraction."""
    problems = [f"config.{bad.field}: {bad.message}" for bad in validated(_CatalogConfig, config)[1]]
    if config.get("recipe") is not None:  # else one is detected
        try:
            recipe_of(config)
        except BadRecipe as error:
            problems += error.problems
    return problems


def is_all_rendered(config: Mapping[str, Any]) -> bool:
    """Whether a browser renders every page of the source."""
    return config.get(RENDER) is True


def needs_a_browser(config: Mapping[str, Any]) -> bool:
    """Whether the source has pages that only a browser can render."""
    if is_all_rendered(config):
        return True
    try:
        level: Recipe | None = recipe_of(config)
    except BadRecipe:
        return False
    while level is not None and not level.render:
        level = level.links
    return level is not None


def recipe_of(config: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a source's configuration; raise `BadRecipe` with all problems."""
    if not isinstance(config.get("recipe"), Mapping):
        cure = "write page_type, and link_selector or link_pattern for pages that lead to others;"
        cure += " left out, it is detected"
        raise BadRecipe([f"recipe: is missing or no mapping; {cure}"])
    recipe, bad = validated(Recipe, _within_limit(config["recipe"]))
    if recipe is None:
        raise BadRecipe([f"recipe.{problem.field}: {problem.message}" for problem in bad])
    waits = "load_wait_seconds" in recipe.model_fields_set  # the root's waiting time holds for all levels
    return _waiting(recipe, recipe.load_wait_seconds) if waits else recipe


def _within_limit(raw: object, level: int = 1) -> object:
    """Return the levels of a recipe with a mark in the place of one too many."""
    links = as_mapping(raw).get("links")
    if links is None:
        return raw
    return {**as_mapping(raw), "links": _BEYOND if level == MAX_LEVELS else _within_limit(links, level + 1)}


def _waiting(recipe: Recipe, seconds: float) -> Recipe:
    links = recipe.links and _waiting(recipe.links, seconds)
    return recipe.model_copy(update={"load_wait_seconds": seconds, "links": links})


def content_selectors(recipe: Mapping[str, Any]) -> Iterator[str]:
    """Yield the content selector of each level of a stored recipe."""
    yield str(recipe.get("content_selector") or "")
    if links := as_mapping(recipe.get("links")):
        yield from content_selectors(links)
