"""Links of one shape: the same address but for a number, a name, or the values of its query."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from ingestion_pipeline.catalogs.detection.looked import Anchor, LookedPage
from ingestion_pipeline.catalogs.recipes.patterns import LinkPattern
from ingestion_pipeline.reading.pagination import PageLink

LEAST_LINKS = 2
MOST_CLUSTERS = 6
MAX_SEGMENTS = 12
# A narrower shape is believed more than a wider one that has hardly more links.
_TRUST = {"number": 1.0, "query": 1.0, "name": 0.95, "names": 0.8}
_NUMBER = re.compile(r"[0-9]+")
_NO_PAGE = re.compile(r"\.(?:pdf|docx?|xlsx?|zip|png|jpe?g|gif|svg|css|js|ics|xml|rss)$", re.I)
_VARIABLE = r"[^/?#]+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Links of one shape; `pattern` finds them, and `score` ranks them among the page's others."""

    pattern: str
    shape: str
    anchors: tuple[Anchor, ...]

    @property
    def course_share(self) -> float:
        """How many of the links have a course's words."""
        return sum(one.names_course for one in self.anchors) / len(self.anchors)

    @property
    def aside_share(self) -> float:
        """How many of the links stand in menus."""
        return sum(one.is_aside for one in self.anchors) / len(self.anchors)

    @property
    def score(self) -> float:
        """Many links, in the content, with the words of courses, of a narrow shape."""
        named = sum(bool(one.text) for one in self.anchors) / len(self.anchors)
        quality = (1 + 4 * self.course_share) * (1.05 - self.aside_share) * (0.2 + named)
        return len(self.anchors) * quality * _TRUST[self.shape]

    def __str__(self) -> str:
        """For people."""
        return f"{len(self.anchors)} links such as {self.anchors[0].url}"


def clusters_of(page: LookedPage) -> list[Cluster]:
    """The shapes of the page's links, the most promising first, none within a better one.

    Only pages of its own host, and none that merely goes on with its list.
    """
    host = urlsplit(page.url).netloc
    further = _further(page.following)
    usable = [
        one
        for one in page.anchors
        if one.url not in further
        and urlsplit(one.url).netloc == host
        and not _NO_PAGE.search(urlsplit(one.url).path)
    ]
    by_shape: dict[tuple[str, str], list[Anchor]] = {}
    for one in usable:
        for shape in _shapes(one.url):
            by_shape.setdefault(shape, []).append(one)
    found = [
        Cluster(pattern=pattern, shape=shape, anchors=tuple(anchors))
        for (shape, pattern), anchors in by_shape.items()
        if len(anchors) >= LEAST_LINKS
    ]
    return _best(sorted(found, key=lambda one: (-one.score, one.pattern)))


def _further(following: Iterable[PageLink]) -> set[str]:
    return {one.url for one in following}


def _shapes(url: str) -> Iterator[tuple[str, str]]:
    """The shapes that the address may be an example of, each with its pattern."""
    parts = urlsplit(url)
    origin = f"^{parts.scheme}://{_literal(parts.netloc)}"
    segments = parts.path.strip("/").split("/")
    if len(segments) > MAX_SEGMENTS:
        return
    slash = "/?$"
    path = "".join(f"/{_literal(one)}" for one in segments) if segments != [""] else "/?"
    if parts.query:
        keys = [pair.partition("=")[0] for pair in parts.query.split("&")]
        query = "&".join(f"{_literal(key)}=[^&#]*" for key in keys)
        yield "query", rf"{origin}{path}/?\?{query}$"
        return
    if segments == [""]:
        return
    numbered = "/".join(_numbered(one) for one in segments)
    if "[0-9]+" in numbered:
        yield "number", f"{origin}/{numbered}{slash}"
    before = "".join(f"/{_literal(one)}" for one in segments[:-1])
    yield "name", f"{origin}{before}/{_ending(segments[-1])}{slash}"
    if len(segments) > 2:  # noqa: PLR2004 - else any page of the site would fit
        wider = "".join(f"/{_literal(one)}" for one in segments[:-2])
        yield "names", f"{origin}{wider}/{_VARIABLE}/{_ending(segments[-1])}{slash}"


def _literal(text: str) -> str:
    return re.sub(r"([.+*?()|\[\]{}^$\\])", r"\\\1", text)


def _numbered(segment: str) -> str:
    return "[0-9]+".join(_literal(part) for part in _NUMBER.split(segment))


def _ending(segment: str) -> str:
    """Any name with the same ending."""
    _, dot, ending = segment.rpartition(".")
    is_ending = bool(dot) and ending.isalpha() and len(ending) <= 5  # noqa: PLR2004 - .xhtml
    return rf"[^/?#]+\.{ending}" if is_ending else _VARIABLE


def _best(ranked: Sequence[Cluster]) -> list[Cluster]:
    kept: list[Cluster] = []
    taken: list[set[str]] = []
    for one in ranked:
        urls = {anchor.url for anchor in one.anchors}
        # A wider shape around a better one counts only if it has much that is its own.
        if any(len(urls - other) * 2 < len(urls) for other in taken):
            continue
        kept.append(one)
        taken.append(urls)
        if len(kept) == MOST_CLUSTERS:
            break
    return kept


def is_proved(pattern: str, examples: Iterable[str], found: Iterable[str]) -> bool:
    """Whether the pattern can be used and finds each of its own examples on the page."""
    LinkPattern(pattern).checked()
    there = set(found)
    return bool(there) and set(examples) <= there
