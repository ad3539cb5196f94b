"""Finds the job boards that a company's pages link to, embed or contain. Makes no requests."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from ingestion_pipeline.companies.analysis.company_facts import CompanyPage
from ingestion_pipeline.companies.analysis.site_pages import (
    MIN_NAME_CHARACTERS,
    Role,
    is_same_site,
    plain_name,
    site_label,
)
from ingestion_pipeline.companies.company_states import Confidence
from ingestion_pipeline.companies.platforms import PLATFORMS
from ingestion_pipeline.sources.platforms import Platform, recognize_platform
from ingestion_pipeline.urls import BadUrl, canonical_url

RSS = "rss"
GENERIC = "generic"
MAX_BOARDS = 5  # of one company; more are the boards of its customers, or of a job portal
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
    """A job board, the page that leads to it, and the confidence before it is probed."""

    platform: str
    url: str
    token: str | None
    page: str
    confidence: Confidence
    note: str | None = None

    def as_dict(self) -> Mapping[str, object]:
        """Return the board as it is stored in the company's record."""
        return asdict(self) | {"confidence": self.confidence.value}

    @property
    def has_reader(self) -> bool:
        """Return whether an adapter for the platform exists."""
        return self.platform in PLATFORMS or self.platform == GENERIC


def boards_in(pages: Sequence[CompanyPage], *, home: str, names: Iterable[str] = ()) -> list[FoundBoard]:
    """Return the company's boards, most certain first: known platforms, else its careers page.

    A board belongs to the company if its careers page links to it, one of its pages embeds it, or
    the board's token is the company's name: other pages link to the boards of customers and
    partners.
    """
    company_names = {name for name in (*names, site_label(home)) if plain_name(name)}
    boards: dict[tuple[str, str], FoundBoard] = {}
    ordered = sorted(pages, key=lambda page: page.role is not Role.CAREERS)
    for page in ordered:
        for board in _recognised(page, company_names):
            key = (board.platform, (board.token or board.url).casefold())
            boards.setdefault(key, board)
    with_token = {board.platform for board in boards.values() if board.token}
    named = [board for board in boards.values() if board.token or board.platform not in with_token]
    return (named or list(_generic(ordered, home)))[:MAX_BOARDS]


def _recognised(page: CompanyPage, company_names: set[str]) -> Iterator[FoundBoard]:
    for url, is_embedded in _addresses(page):
        platform = recognize_platform(url)
        if platform is None or platform.name in _NO_BOARDS or platform.name == RSS:
            continue
        if page.role is Role.CAREERS or is_embedded or _is_named(platform, company_names):
            yield _board(platform, url, page)
    if page.role is Role.CAREERS:
        for url in (*page.feeds, *(anchor.url for anchor in page.anchors)):
            platform = recognize_platform(url)
            if platform is not None and platform.name == RSS and _JOB_WORDS.search(url):
                yield _board(platform, url, page)


def _addresses(page: CompanyPage) -> Iterator[tuple[str, bool]]:
    """Yield every URL on the page, and whether the page embeds it."""
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
    """Yield the company's own careers page; used where no platform was recognised."""
    careers = [page for page in pages if page.role is Role.CAREERS]
    stating = [page for page in careers if any(page.embedded.things("JobPosting"))]
    for page in stating[:1] or careers[-1:]:
        yield FoundBoard(
            platform=GENERIC,
            url=_canonical(page.url),
            token=None,
            page=page.url,
            confidence=Confidence.LOW,
            note=None if is_same_site(page.url, home) else "on another host",
        )


def _is_named(platform: Platform, company_names: set[str]) -> bool:
    """Return whether the token is the company's name, or one starts with words of the other.

    Words such as "get" before the name and "inc" after it are ignored: `getacme` belongs to Acme.
    `meta` does not belong to Metabase, whose name only starts with a part of a word.
    """
    token = plain_name(platform.token or "")
    without_word = _BEFORE_NAME.sub("", token)
    tokens = {token, without_word, _AFTER_NAME.sub("", token), _AFTER_NAME.sub("", without_word)}
    names = {plain_name(name) for name in company_names}
    parts_of_token = _first_words(platform.token or "")
    parts_of_names = {part for name in company_names for part in _first_words(name)}
    return bool(tokens & names or parts_of_token & names or tokens & parts_of_names)


def _first_words(text: str) -> set[str]:
    """Return the prefixes of the text that end at a word boundary; short ones are left out."""
    words = _MARKS.sub(" ", text.casefold()).split()
    prefixes = ("".join(words[:count]) for count in range(1, len(words) + 1))
    return {part for part in prefixes if len(part) >= MIN_NAME_CHARACTERS}


def _canonical(url: str) -> str:
    try:
        return canonical_url(url)
    except BadUrl:
        return url
