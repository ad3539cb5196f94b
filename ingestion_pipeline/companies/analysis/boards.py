"""Job boards that a company's pages lead to, embed, or are themselves. Pure: nothing is asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from ingestion_pipeline.companies.analysis.facts import CompanyPage
from ingestion_pipeline.companies.analysis.site import (
    LEAST_NAME,
    Role,
    is_same_site,
    plain_name,
    site_label,
)
from ingestion_pipeline.companies.platforms import PLATFORMS
from ingestion_pipeline.companies.states import Confidence
from ingestion_pipeline.sources.platforms import Platform, recognize_platform
from ingestion_pipeline.urls import BadUrl, canonical_url

RSS = "rss"
GENERIC = "generic"
MOST_BOARDS = 5  # of one company; more are the boards of its customers, or of a job portal
_NO_BOARDS = frozenset({"mangadex"})
_JOB_WORDS = re.compile(
    r"(?<![a-z])(?:jobs?|careers?|vacanc(?:y|ies)|openings|positions|karriere|stellen\w*|hiring"
    r"|empleos?|emplois?|recrutement)(?![a-z])",
    re.IGNORECASE,
)
_BEFORE_NAME = re.compile(r"^(?:get|join|try|the|weare|hello|team|use|with|my)(?=[a-z0-9]{4})")
_AFTER_NAME = re.compile(
    r"(?<=[a-z0-9]{4})(?:inc|llc|ltd|gmbh|ag|corp|co|com|io|ai|app|hq|group|labs?|tech|technologies"
    r"|software|global|international|careers?|jobs|hiring|team|eu|us|uk|de|[0-9])$"
)
_MARKS = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBoard:
    """A board, the page that leads to it, and what may be thought of it before it was asked."""

    platform: str
    url: str
    token: str | None
    page: str
    confidence: Confidence
    note: str | None = None

    def as_dict(self) -> Mapping[str, object]:
        """As the company's record keeps it."""
        return asdict(self) | {"confidence": self.confidence.value}

    @property
    def has_reader(self) -> bool:
        """Whether we could read it, if it can be read at all."""
        return self.platform in PLATFORMS or self.platform == GENERIC


def boards_in(
    pages: Sequence[CompanyPage], *, home: str, names: Iterable[str] = ()
) -> list[FoundBoard]:
    """The company's boards, the surest first: recognised ones, then its own careers pages.

    A board is the company's if its own careers page leads to it, one of its pages embeds it, or the
    board's token is the company's name: other pages link to the boards of customers and partners.
    """
    known = {name for name in (*names, site_label(home)) if plain_name(name)}
    found: dict[tuple[str, str], FoundBoard] = {}
    ordered = sorted(pages, key=lambda page: page.role is not Role.CAREERS)
    for page in ordered:
        for board in _recognised(page, known):
            key = (board.platform, (board.token or board.url).casefold())
            found.setdefault(key, board)
    named = _without_halves(list(found.values()))
    return (named or list(_generic(ordered, home)))[:MOST_BOARDS]


def _recognised(page: CompanyPage, known: set[str]) -> Iterator[FoundBoard]:
    for url, is_embedded in _addresses(page):
        platform = recognize_platform(url)
        if platform is None or platform.name in _NO_BOARDS or platform.name == RSS:
            continue
        if page.role is Role.CAREERS or is_embedded or _is_named(platform, known):
            yield _board(platform, url, page)
    if page.role is Role.CAREERS:
        for url in (*page.feeds, *(one.url for one in page.anchors)):
            platform = recognize_platform(url)
            if platform is not None and platform.name == RSS and _JOB_WORDS.search(url):
                yield _board(platform, url, page)


def _addresses(page: CompanyPage) -> Iterator[tuple[str, bool]]:
    """Yield every address on the page, and whether the page embeds it."""
    yield from ((url, True) for url in page.embedded_urls)
    yield from ((url, False) for url in page.script_urls)
    yield from ((anchor.url, False) for anchor in page.anchors)


def _board(platform: Platform, url: str, page: CompanyPage) -> FoundBoard:
    note = None if platform.name in PLATFORMS else f"nothing reads {platform.name} yet"
    return FoundBoard(
        platform=platform.name,
        url=_canonical(url),
        token=platform.token,
        page=page.url,
        confidence=Confidence.MEDIUM,
        note=note,
    )


def _generic(pages: Sequence[CompanyPage], home: str) -> Iterator[FoundBoard]:
    """The company's own pages of jobs, where no platform was recognised."""
    careers = [page for page in pages if page.role is Role.CAREERS]
    stating = [page for page in careers if any(page.embedded.things("JobPosting"))]
    for page in (stating or careers)[-1:] if not stating else stating[:1]:
        yield FoundBoard(
            platform=GENERIC,
            url=_canonical(page.url),
            token=None,
            page=page.url,
            confidence=Confidence.LOW,
            note=None if is_same_site(page.url, home) else "on another host",
        )


def _without_halves(boards: list[FoundBoard]) -> list[FoundBoard]:
    """Without those that name no token, where another board of the same platform does."""
    with_token = {one.platform for one in boards if one.token}
    return [one for one in boards if one.token or one.platform not in with_token]


def _is_named(platform: Platform, known: set[str]) -> bool:
    """Whether the token is the company's name, or one begins with the words of the other.

    Words such as "get" before the name and "inc" behind it do not count: `getacme` is Acme's.
    `meta` is not Metabase's, whose name begins with a part of a word.
    """
    token = plain_name(platform.token or "")
    without_word = _BEFORE_NAME.sub("", token)
    tokens = {token, without_word, _AFTER_NAME.sub("", token), _AFTER_NAME.sub("", without_word)}
    names = {plain_name(name) for name in known}
    parts_of_token = _first_words(platform.token or "")
    parts_of_names = {part for name in known for part in _first_words(name)}
    return bool(tokens & names or parts_of_token & names or tokens & parts_of_names)


def _first_words(text: str) -> set[str]:
    """Return what the text begins with, cut behind each of its words; short ones name nobody."""
    words = _MARKS.sub(" ", text.casefold()).split()
    begun = ("".join(words[:count]) for count in range(1, len(words) + 1))
    return {part for part in begun if len(part) >= LEAST_NAME}


def _canonical(url: str) -> str:
    try:
        return canonical_url(url)
    except BadUrl:
        return url
