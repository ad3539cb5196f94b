"""The platforms: recognise one by a URL alone (`boards.yaml` has the shapes), and `READERS`, which can be read."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from urllib.parse import parse_qsl, unquote, urlsplit

from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.urls import canonical_url

TOKEN = "{token}"  # noqa: S105  a placeholder, no secret
ANY = "{labels}"  # a host that ends in it is any host
MAX_TOKEN_CHARACTERS = 120  # the longest of some thousand boards has 60

_LABEL = "[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_HOST_PARTS = {TOKEN: f"(?P<token>{_LABEL})", ANY: rf"{_LABEL}(?:\.{_LABEL})*", "*": "[a-z0-9-]*"}
_HOST_PART = re.compile(r"(\{token\}|\{labels\}|\*)")
_LOCALE = re.compile(r"[A-Za-z]{2}(?:[-_][A-Za-z]{2,4})?")
# Names as people give them: words of any language, with what may stand in a company's name.
_TOKEN = re.compile(r"(?=.*[^\W_])[\w-][\w .,&'\u2019()+!~@-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One form of URL: a pattern for the host, segments of the path, at most one parameter."""

    platform: str
    host: re.Pattern[str]
    segments: tuple[str, ...]
    is_whole_path: bool
    parameter: str | None


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform and the token that names the board, series or tenant on it."""

    name: str
    token: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shapes:
    """The file `boards.yaml`."""

    platforms: tuple[str, ...]
    by_domain: Mapping[str, Sequence[Shape]]
    vendor_hosts: frozenset[str]
    no_tokens: frozenset[str]
    parameters: Mapping[str, str]


def board_at(host: str, path: str, query: str) -> Platform | None:
    """Return the board at a canonical URL, if any; its token keeps its case, which some platforms distinguish."""
    shapes = _shapes()
    segments = tuple(unquote(segment) for segment in path.split("/") if segment)
    parameters = dict(parse_qsl(query))
    for shape in (*shapes.by_domain.get(_domain(host), ()), *shapes.by_domain[ANY]):
        if (board := _fits(shape, host, segments, parameters)) is not None:
            return board if _may_be(board.token, shape, shapes) else None
    named = (shapes.parameters[name] for name in parameters if name in shapes.parameters)
    platform = next(named, None)
    return Platform(platform, None) if platform else None


def platforms() -> tuple[str, ...]:
    """Return the platforms that have shapes."""
    return _shapes().platforms


def _fits(shape: Shape, host: str, segments: Sequence[str], parameters: Mapping[str, str]) -> Platform | None:
    on_host = shape.host.fullmatch(host)
    if on_host is None or len(segments) < len(shape.segments):
        return None
    if shape.is_whole_path and len(segments) > len(shape.segments):
        return None
    token = on_host.groupdict().get("token")
    for expected, segment in zip(shape.segments, segments, strict=False):
        if not _is_segment(expected, segment):
            return None
        token = segment if expected == TOKEN else token
    if shape.parameter is not None:
        token = parameters.get(shape.parameter)
        if not token:
            return None
    return Platform(shape.platform, token.strip() if token else None)


def _is_segment(expected: str, segment: str) -> bool:
    if expected == "{locale}":
        return _LOCALE.fullmatch(segment) is not None
    if expected == "{number}":
        return segment[:1].isdigit()
    return expected in {"*", TOKEN} or expected == segment.lower()


def _may_be(token: str | None, shape: Shape, shapes: _Shapes) -> bool:
    if token is None:
        return True
    if len(token) > MAX_TOKEN_CHARACTERS or not _TOKEN.fullmatch(token):
        return False
    is_of_host = "token" in shape.host.groupindex
    return token.lower() not in (shapes.vendor_hosts if is_of_host else shapes.no_tokens)


def _domain(host: str) -> str:
    return ".".join(host.rsplit(".", 2)[-2:])


@cache
def _shapes() -> _Shapes:
    import yaml  # imported here: most importers of this module do not need it

    file = resources.files("ingestion_pipeline.sources") / "boards.yaml"
    boards = yaml.safe_load(file.read_text())
    by_domain: dict[str, list[Shape]] = {}
    for platform, texts in boards["platforms"].items():
        for text in texts:
            host = text.partition("/")[0].partition("?")[0]
            domain = ANY if host.endswith(ANY) else _domain(host)
            by_domain.setdefault(domain, []).append(_shape(platform, text))
    return _Shapes(
        platforms=tuple(boards["platforms"]),
        by_domain=by_domain,
        vendor_hosts=frozenset(boards["vendor_hosts"].split()),
        no_tokens=frozenset(boards["no_tokens"].split()),
        parameters=boards["parameters"],
    )


def _shape(platform: str, text: str) -> Shape:
    address, _, query = text.partition("?")
    host, _, path = address.partition("/")
    patterns = (_HOST_PARTS.get(part, re.escape(part)) for part in _HOST_PART.split(host))
    return Shape(
        platform=platform,
        host=re.compile("".join(patterns)),
        segments=tuple(segment for segment in path.removesuffix("$").split("/") if segment),
        is_whole_path=path.endswith("$"),
        parameter=query.partition("=")[0] or None,
    )


# The platforms with a reader, by kind; each system's registry is compared with this by a test.
READERS: dict[Kind, tuple[str, ...]] = {
    Kind.SERIES: ("mangadex", "rss", "json", "html"),
    Kind.CATALOG: ("catalog", "page"),
    Kind.COMPANY: ("page",),
    Kind.JOB_BOARD: (
        *("greenhouse", "lever", "ashby", "workday", "smartrecruiters", "recruitee", "workable"),
        *("personio", "rippling", "gem", "pinpoint", "breezy", "bamboohr", "teamtailor", "oracle_hcm", "join", "icims"),
        *("jsonld", "sitemap", "rss", "json", "html"),
    ),
    Kind.WEBSITE: ("page",),
}
# If neither declaration nor URL names one; detection finds a catalogue's own platform.
DEFAULTS: dict[Kind, str] = {Kind.CATALOG: "catalog", Kind.COMPANY: "page", Kind.WEBSITE: "page"}


def register_kind(name: str, platforms: tuple[str, ...]) -> Kind:
    """Register a kind of another package with its platforms; the first one is the default."""
    kind = Kind.register(name)
    READERS[kind], DEFAULTS[kind] = platforms, platforms[0]
    return kind


_MANGADEX_HOSTS = {"mangadex.org", "www.mangadex.org", "api.mangadex.org"}
_MANGADEX_ID = re.compile(r"/(?:title|manga)/(?P<token>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_FEED = re.compile(r"(\.(xml|rss|atom|rdf)|/(feed|rss|atom))/?$")
_SITEMAP = re.compile(r"/[^/]*sitemap[^/]*$")  # ends like a feed, but is none


def recognize_platform(url: str) -> Platform | None:
    """Return the platform of the URL, or None; nothing is fetched and nothing is raised."""
    try:
        parts = urlsplit(canonical_url(url))  # without user info, which may look like a host
        host = (parts.hostname or "").removesuffix(".")
    except ValueError:
        return None
    path = parts.path.lower()
    if host in _MANGADEX_HOSTS:
        match = _MANGADEX_ID.search(path)
        return Platform("mangadex", match["token"] if match else None)
    if board := board_at(host, parts.path, parts.query):
        return board
    if _FEED.search(path) and not _SITEMAP.search(path):
        return Platform("rss", None)
    return None
