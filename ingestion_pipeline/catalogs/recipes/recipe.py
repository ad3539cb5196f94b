"""A catalogue's recipe as `config.recipe` writes it, checked: all problems at once, by key; and its API, Coursedog.

A recipe is a level: the type of its pages, how the list continues (`pagination`), which links are
followed (`link_selector`, `link_pattern`), and in `links` the level they lead to. Coursedog's lists are
requested by `skip` and `limit`, up to the length that the API itself reports; a response of another
shape is an error, never an empty list.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from typing import Any, TypeVar, cast
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from ingestion_pipeline.catalogs.recipes.patterns import BadPattern, LinkPattern
from ingestion_pipeline.pages.visits.page import KEYS, RenderingOptions, rendering_of
from ingestion_pipeline.sources.source import IGNORE_ROBOTS
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.urls import BadUrl, checked_url

API_BASE = "https://app.coursedog.com/api/v1"
PAGE_SIZE = 20
MAX_COURSES = 200_000  # of one catalogue: the largest real ones have a tenth of it


@dataclass(frozen=True, slots=True, kw_only=True)
class CoursedogApi:
    """The school, catalogues and server to read."""

    school_id: str
    catalog_ids: tuple[str, ...]
    api_base: str = API_BASE
    effective_from: str | None = None
    effective_until: str | None = None

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


MAX_CHARACTERS = 500  # of a selector or pattern; a longer one is a mistake

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")

Choice = TypeVar("Choice", bound=StrEnum)


def as_mapping(value: object) -> Mapping[str, Any] | None:
    """Return the value if it is a mapping, else None."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


class ConfigFields:
    """A mapping of the configuration at `path`; its problems are appended to `problems`."""

    def __init__(self, raw: Mapping[str, Any], path: str, problems: list[str]) -> None:
        self._raw = raw
        self._path = path
        self._problems = problems

    def has(self, key: str) -> bool:
        """Whether the key is set."""
        return self._raw.get(key) is not None

    def value(self, key: str) -> object:
        """Return the raw value of the key."""
        return self._raw.get(key)

    def refuse(self, key: str, why: str) -> None:
        """Add a problem under the full key, once."""
        problem = f"{self._path}.{key}: {why}"
        if problem not in self._problems:
            self._problems.append(problem)

    def refuse_key(self, key: str, why: str) -> None:
        """Add a problem if the key is set."""
        if self.has(key):
            self.refuse(key, why)

    def refuse_unknown(self, allowed: Sequence[str]) -> None:
        """Add a problem for each key that is not allowed."""
        for key in self._raw:
            if key not in allowed:
                self.refuse(str(key)[:80], f"unknown key; there are: {', '.join(allowed)}")

    def text(self, key: str) -> str | None:
        """Return a text that is not blank; None if it is not set."""
        value = self._raw.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            self.refuse(key, f"must be text, not {_shown(value)}")
            return None
        if len(value) > MAX_CHARACTERS:
            self.refuse(key, f"has more than {MAX_CHARACTERS} characters")
            return None
        return value.strip()

    def flag(self, key: str) -> bool:
        """Return true or false; false if it is not set."""
        value = self._raw.get(key)
        if value is not None and not isinstance(value, bool):
            self.refuse(key, f"must be true or false, not {_shown(value)}")
        return value is True

    def number(self, key: str, default: float, *, least: float, most: float, above_least: bool = False) -> float:
        """Return a number within bounds; the default if it is not set."""
        value = self._raw.get(key)
        if value is None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most or (above_least and value == least):
            bounds = f"{'more than' if above_least else 'at least'} {least:g}, at most {most:g}"
            self.refuse(key, f"must be a number, {bounds}; not {_shown(value)}")
            return default
        return value

    def choice(self, key: str, choices: type[Choice]) -> Choice | None:
        """Return one of the choices; the key is required."""
        value = self._raw.get(key)
        if value in list(choices):
            return choices(value)
        problem = "is missing" if value is None else f"{_shown(value)} is none"
        self.refuse(key, f"{problem}; there are: {', '.join(choices)}")
        return None

    def selector(self, key: str) -> str | None:
        """Return a CSS selector; None if it is not set."""
        text = self.text(key)
        if text is None:
            return None
        from selectolax.lexbor import LexborHTMLParser, SelectolaxError  # imported only where it is needed

        try:
            LexborHTMLParser("<p>").css(text)
        except SelectolaxError:
            self.refuse(key, f"{text!r} is no CSS selector")
            return None
        return text

    def pattern(self, key: str, *, is_exact: bool) -> LinkPattern | None:
        """Return an RE2 pattern for link targets; None if it is not set."""
        text = self.text(key)
        if text is None:
            return None
        try:
            return LinkPattern(text, is_exact=is_exact).checked()
        except BadPattern as error:
            self.refuse(key, str(error))
            return None

    def url_template(self, key: str, text: str) -> bool:
        """Whether the URL counts by {offset}; add a problem if it has no number placeholder."""
        names = _PLACEHOLDER.findall(text)
        if unknown := [name for name in names if name not in {"page_num", "offset", "limit"}]:
            self.refuse(key, f"{{{unknown[0]}}} is unknown; there are {{page_num}}, {{offset}}")
        counts = [name for name in names if name in {"page_num", "offset"}]
        if len(counts) != 1:
            self.refuse(key, "must have one {page_num} or one {offset} where the number goes")
        if text and not text.startswith(("/", "?")):
            try:
                checked_url(_PLACEHOLDER.sub("1", text))
            except BadUrl as error:
                self.refuse(key, str(error))
        return "offset" in counts

    def inner(self, key: str) -> "ConfigFields | None":
        """Return the mapping under the key; None if it is not set."""
        value = self._raw.get(key)
        if value is None:
            return None
        mapping = as_mapping(value)
        if mapping is None:
            self.refuse(key, f"must be a mapping, not {_shown(value)}")
            return None
        return ConfigFields(mapping, f"{self._path}.{key}", self._problems)


def _shown(value: object) -> str:
    return f"{value!r}"[:80]


MAX_CATALOGS = 100
_API_KEYS = ("provider", "school_id", "catalog_ids", "api_base", "effective_from", "effective_until")
_SCHOOL = re.compile(r"[A-Za-z0-9_.-]{1,120}")


class ApiProvider(StrEnum):
    """The providers whose API is supported."""

    COURSEDOG = "coursedog"


def api_of(fields: ConfigFields | None) -> CoursedogApi | None:
    """Return the API to read; every problem is added to the fields."""
    if fields is None:
        return None
    fields.refuse_unknown(_API_KEYS)
    fields.choice("provider", ApiProvider)
    school = fields.text("school_id")
    if not fields.has("school_id"):
        fields.refuse("school_id", "is missing: the school's id in the API's addresses")
    if school is not None and not _SCHOOL.fullmatch(school):
        fields.refuse("school_id", f"{school!r} is no id: letters, digits, _ . and -")
    catalogs = _catalogs(fields)
    return CoursedogApi(
        school_id=school or "?",
        catalog_ids=catalogs or ("?",),
        api_base=_base(fields),
        effective_from=_day(fields, "effective_from"),
        effective_until=_day(fields, "effective_until"),
    )


def _catalogs(fields: ConfigFields) -> tuple[str, ...]:
    raw = fields.value("catalog_ids")
    if raw is None:
        fields.refuse("catalog_ids", "is missing: a list of the catalogues' ids")
        return ()
    named = cast("list[object]", raw) if isinstance(raw, list) else []
    ids = [item.strip() for item in named if isinstance(item, str) and item.strip()]
    if len(ids) != len(named) or not 0 < len(ids) <= MAX_CATALOGS:
        fields.refuse("catalog_ids", f"must be a list of 1 to {MAX_CATALOGS} ids")
        return ()
    return tuple(dict.fromkeys(ids))


def _base(fields: ConfigFields) -> str:
    text = fields.text("api_base")
    if text is None:
        return API_BASE
    try:
        return checked_url(text).rstrip("/")
    except BadUrl as error:
        fields.refuse("api_base", str(error))
        return API_BASE


def _day(fields: ConfigFields, key: str) -> str | None:
    text = fields.text(key)
    if text is None:
        return None
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        fields.refuse(key, f"{text!r} is no day; write it as 2026-08-31, in quotes")
        return None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """The pages of a list by their URLs: `{page_num}`, or `{offset}` with `limit` records each."""

    url_pattern: str
    total_pages: int
    start_page: int = 1
    limit: int | None = None
    max_pages: int = DEFAULT_LIST_PAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Chained:
    """The pages of a list one after the other: by `rel=next` or similar, or by a selector."""

    selector: str | None
    max_pages: int = DEFAULT_LIST_PAGES


Pagination = Numbered | Chained


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One level of a catalogue; `links` is the level that its links lead to."""

    page_type: PageType
    pagination: Pagination | None = None
    link_selector: str | None = None
    link_pattern: LinkPattern | None = None
    links: "Recipe | None" = None
    api: CoursedogApi | None = None
    render: bool = False
    rendering: RenderingOptions = field(default_factory=RenderingOptions)

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


RENDER = "render"
_KEYS = ("page_type", "pagination", "link_selector", "link_pattern", "exact_link_match", "links", "api", RENDER, *KEYS)
CONFIG_KEYS = ("recipe", "entity", "selectors", "api_base", RENDER, IGNORE_ROBOTS)
_LOAD_WAIT = "load_wait_seconds"
_NAMING_LINKS = frozenset({PageType.DETAIL_LINKS, PageType.CATEGORY_LINKS, PageType.SITEMAP})
_WITH_LINKS = ("link_selector", "link_pattern", "exact_link_match", "links")


def config_problems(config: Mapping[str, Any]) -> list[str]:
    """Return the problems of a catalogue's configuration, except those of record extraction."""
    problems: list[str] = []
    fields = ConfigFields(config, "config", problems)
    fields.refuse_unknown(CONFIG_KEYS)
    for key in (RENDER, IGNORE_ROBOTS):
        fields.flag(key)
    if fields.has("recipe"):  # else one is detected
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
    problems: list[str] = []
    raw = as_mapping(config.get("recipe"))
    if raw is None:
        cure = "write page_type, and link_selector or link_pattern for pages that lead to others;"
        cure += " left out, it is detected"
        raise BadRecipe([f"recipe: is missing or no mapping; {cure}"])
    recipe = _level(ConfigFields(raw, "recipe", problems), level=1)
    if problems:
        raise BadRecipe(problems)
    return recipe


def _level(fields: ConfigFields, *, level: int, root: ConfigFields | None = None) -> Recipe:
    fields.refuse_unknown(_KEYS)
    page_type = fields.choice("page_type", PageType)
    pattern = fields.pattern("link_pattern", is_exact=fields.flag("exact_link_match"))
    selector = fields.selector("link_selector")
    _check_links(fields, page_type)
    _check_api(fields, page_type, level=level)
    if page_type is PageType.SITEMAP:
        _check_sitemap(fields, level=level)
    loading = root or fields  # the root's waiting time holds for all levels
    rendering = _rendering(fields, loading)
    acts = bool(rendering.setup) or rendering.discovery is not None  # only a browser can
    if acts and fields.value(RENDER) is False:
        fields.refuse(RENDER, "setup and click_discovery are done by a browser; remove it")
    return Recipe(
        page_type=page_type or PageType.DETAIL,
        pagination=_pagination(fields),
        link_selector=selector,
        link_pattern=pattern,
        links=_target(fields, page_type, level=level, root=loading),
        api=api_of(fields.inner("api")),
        render=fields.flag(RENDER) or acts,
        rendering=rendering,
    )


def _check_links(fields: ConfigFields, page_type: PageType | None) -> None:
    has_rule = fields.has("link_selector") or fields.has("link_pattern")
    match page_type:
        case PageType.DETAIL | PageType.API_REQUEST:
            for key in _WITH_LINKS:
                fields.refuse_key(key, f"{page_type} pages never follow links; remove it")
        case PageType.DETAIL_LINKS | PageType.CATEGORY_LINKS if not has_rule:
            fields.refuse("link_selector", "is missing: name it or link_pattern, or both")
        case PageType.EXPLORATORY:
            fields.refuse_key("links", "exploring continues by its own rules; remove it")
        case _:
            pass
    if fields.has("exact_link_match") and not fields.has("link_pattern"):
        fields.refuse("exact_link_match", "belongs to link_pattern, which is missing")


def _check_sitemap(fields: ConfigFields, *, level: int) -> None:
    if level > 1:
        fields.refuse("page_type", "a sitemap is read at the root alone; no link leads to one")
    for key in ("link_selector", "exact_link_match", "pagination", RENDER, *KEYS):
        fields.refuse_key(key, "says how a web page is read, and a sitemap is none; remove it")


def _check_api(fields: ConfigFields, page_type: PageType | None, *, level: int) -> None:
    if page_type is not PageType.API_REQUEST:
        fields.refuse_key("api", "belongs to page_type API_REQUEST; remove it")
        return
    if level > 1:
        fields.refuse("page_type", "an API is asked at the root alone; no link leads to one")
    if not fields.has("api"):
        fields.refuse("api", "is missing: name provider, school_id and catalog_ids")
    for key in ("pagination", RENDER, *KEYS):
        fields.refuse_key(key, "says how a web page is read, and an API's answer is none; remove it")


def _target(fields: ConfigFields, page_type: PageType | None, *, level: int, root: ConfigFields) -> Recipe | None:
    if level == MAX_LEVELS:
        fields.refuse_key("links", f"a recipe has at most {MAX_LEVELS} levels; remove it")
        return None
    if page_type not in _NAMING_LINKS:
        return None
    inner = fields.inner("links")
    if inner is None:
        if page_type is PageType.CATEGORY_LINKS:
            fields.refuse("links", "is missing: say what the categories' pages are")
        return Recipe(page_type=PageType.DETAIL)
    target = _level(inner, level=level + 1, root=root)
    if page_type is PageType.DETAIL_LINKS and target.page_type is not PageType.DETAIL:
        inner.refuse("page_type", "DETAIL_LINKS leads to DETAIL; else write CATEGORY_LINKS above")
    return target


_PAGINATION_KEYS = ("url_pattern", "total_pages", "start_page", "limit", "next", "max_pages")


def _pagination(fields: ConfigFields) -> Pagination | None:
    inner = fields.inner("pagination")
    if inner is None:
        return None
    inner.refuse_unknown(_PAGINATION_KEYS)
    max_pages = inner.number("max_pages", DEFAULT_LIST_PAGES, least=1, most=MAX_LIST_PAGES)
    if inner.has("url_pattern") == inner.has("next"):
        inner.refuse("url_pattern", "name it or next, and not both")
        return None
    if inner.has("next"):
        for key in ("total_pages", "start_page", "limit"):
            inner.refuse_key(key, "belongs to url_pattern; remove it")
        text = inner.text("next")
        selector = None if text == "rel" else inner.selector("next")
        return Chained(selector=selector, max_pages=int(max_pages))
    return _numbered(inner, int(max_pages))


def _numbered(inner: ConfigFields, max_pages: int) -> Numbered:
    pattern = inner.text("url_pattern") or ""
    is_offset = inner.url_template("url_pattern", pattern)
    if not inner.has("total_pages"):
        inner.refuse("total_pages", "is missing: how many pages the list has, as far as known")
    if is_offset and not inner.has("limit"):
        inner.refuse("limit", "is missing: how many records a page has, for {offset}")
    if not is_offset:
        inner.refuse_key("limit", "belongs to {offset}; remove it")
    return Numbered(
        url_pattern=pattern,
        total_pages=int(inner.number("total_pages", 1, least=1, most=MAX_LIST_PAGES)),
        start_page=int(inner.number("start_page", 1, least=0, most=1)),
        limit=int(inner.number("limit", 1, least=1, most=10_000)) if is_offset else None,
        max_pages=max_pages,
    )


def _rendering(fields: ConfigFields, loading: ConfigFields) -> RenderingOptions:
    options = {key: fields.value(key) for key in KEYS if fields.has(key)}
    if loading.has(_LOAD_WAIT):
        options[_LOAD_WAIT] = loading.value(_LOAD_WAIT)
    fields.selector("content_selector")  # it cuts out the content of pages without a browser, too
    rendering, problems = rendering_of(options)
    for problem in problems:
        (loading if problem.field == _LOAD_WAIT else fields).refuse(problem.field, problem.message)
    return rendering or RenderingOptions()


def content_selectors(recipe: Mapping[str, Any]) -> Iterator[str]:
    """Yield the content selector of each level of a stored recipe."""
    yield str(recipe.get("content_selector") or "")
    if (links := as_mapping(recipe.get("links"))) is not None:
        yield from content_selectors(links)
