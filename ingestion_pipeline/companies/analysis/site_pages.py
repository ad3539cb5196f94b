"""Chooses the pages of a company's website to fetch, by their names. Pure functions.

Navigation links come first, then the sitemap; if neither names a page, common paths are tried.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ingestion_pipeline.reading.html.links import base_of, linked_page
from ingestion_pipeline.urls import BadUrl, canonical_url, domain_label

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

MAX_ANCHORS = 3_000
MAX_TEXT = 60  # of a link text that names a page; a longer one is a sentence
MAX_SEGMENTS = 4  # deeper pages are about something else
MIN_NAME_CHARACTERS = 4  # characters; too many names start with "go"


class Role(StrEnum):
    """The purpose of a page."""

    HOME = "home"
    ABOUT = "about"
    CULTURE = "culture"
    CAREERS = "careers"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLink:
    """A link's URL and text."""

    url: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageToFetch:
    """A page to fetch, its role, and what named it: navigation, sitemap or guess."""

    url: str
    role: Role
    named_by: str


# The last path segment or the whole link text, in lower case and without punctuation.
_NAMES: dict[Role, str] = {
    Role.CAREERS: (
        "career careers jobs job-openings job-board open-positions open-roles current-openings"
        " openings positions vacancies join-us join-our-team join-the-team work-with-us work-for-us"
        " we-re-hiring we-are-hiring hiring karriere jobs-karriere karriere-jobs stellenangebote"
        " offene-stellen stellen carrieres carriere recrutement nous-rejoindre emplois"
        " offres-emploi empleo empleos trabaja-con-nosotros trabalhe-conosco lavora-con-noi"
        " carriera werken-bij"
        " vacatures karriar lediga-jobb jobb kariera rekrutacja"
    ),
    Role.CULTURE: (
        "culture our-culture culture-and-values values our-values company-values life how-we-work"
        " working-here why-us people-and-culture kultur unternehmenskultur werte unsere-werte"
        " nos-valeurs valeurs cultura valores valori"
    ),
    Role.ABOUT: (
        "about about-us aboutus about-company about-the-company company our-company the-company"
        " who-we-are our-story story our-mission mission what-we-do uber-uns ueber-uns unternehmen"
        " wir-uber-uns a-propos qui-sommes-nous notre-entreprise entreprise sobre sobre-nosotros"
        " quienes-somos nosotros empresa sobre-nos quem-somos chi-siamo azienda over-ons om-oss"
        " om-os o-nas o-firmie"
    ),
}
_ROLE_OF = {name: role for role, names in _NAMES.items() for name in names.split()}
_LIFE_AT = re.compile(r"life-at-[a-z0-9-]+|working-at-[a-z0-9-]+")
_WORK_AT = re.compile(r"(?:careers|jobs|work)-(?:at|bei|with)-[a-z0-9-]+|[a-z0-9]+-careers")
_EXTENSION = re.compile(r"\.(?:html?|php|aspx?|jsp)$")
_MARKS = re.compile(r"[^a-z0-9]+")
_UNLIKE = re.compile(r"[^a-z0-9]")
_FOLDED = str.maketrans("üöäßéèêàâçñóíáúãõøå", "uoaseeeaacnoiauaooa")
# Paths to try if a site links to no such page, most common first.
GUESSES: dict[Role, tuple[str, ...]] = {
    Role.ABOUT: ("/about", "/about-us", "/company"),
    Role.CAREERS: ("/careers", "/jobs"),
}
# Pages to fetch per role.
PAGES_PER_ROLE: dict[Role, int] = {Role.ABOUT: 2, Role.CULTURE: 1, Role.CAREERS: 2}


def anchors_of(tree: "LexborHTMLParser", url: str) -> list[SiteLink]:
    """Return every link of the page to another page, in page order, each URL once."""
    base = base_of(tree, url)
    links: dict[str, SiteLink] = {}
    for node in tree.css("a[href], area[href]")[:MAX_ANCHORS]:
        address = linked_page(base, node.attrs.get("href"))
        if address is None:
            continue
        text = " ".join((node.text() or node.attrs.get("aria-label") or "").split())
        existing = links.get(address)
        if existing is None or (not existing.text and text):
            links[address] = SiteLink(url=address, text=text)
    return list(links.values())


def role_of(url: str, text: str = "") -> Role | None:
    """Return the page's role by the end of its path or its link text; None if neither names one."""
    segments = _segments(url)
    by_path = _role_named(_EXTENSION.sub("", segments[-1])) if segments else None
    if len(segments) > MAX_SEGMENTS:
        return None
    return by_path or (_role_named(text) if 0 < len(text) <= MAX_TEXT else None)


def is_same_site(url: str, home: str) -> bool:
    """Return whether the page is on the company's host or a subdomain of it."""
    host, own = _host(url), _host(home).removeprefix("www.")
    return bool(own) and (host == own or host.endswith(f".{own}"))


def site_label(home: str) -> str:
    """Return `acme` for https://careers.acme.co.uk/."""
    return domain_label(_host(home))


def is_called_like(name: str, home: str) -> bool:
    """Return whether name and domain start alike: "Acme Robotics" at acme.test."""
    called, label = plain_name(name), plain_name(site_label(home))
    least = min(len(called), len(label))
    return least >= MIN_NAME_CHARACTERS and called[:least] == label[:least]


def plain_name(text: str) -> str:
    """Return only letters and digits, in lower case."""
    return _UNLIKE.sub("", text.casefold())


def named_pages(
    links: Iterable[SiteLink], *, home: str, named_by: str, existing: Iterable[PageToFetch] = ()
) -> list[PageToFetch]:
    """Return the site's pages that the links name, those with the shortest paths up to each role's limit."""
    seen = {_key(home), *(_key(page.url) for page in existing)}
    room = {role: most - sum(page.role is role for page in existing) for role, most in PAGES_PER_ROLE.items()}
    matches: list[PageToFetch] = []
    for link in links:
        role = role_of(link.url, link.text)
        if role is None or _key(link.url) in seen or not is_same_site(link.url, home):
            continue
        seen.add(_key(link.url))
        matches.append(PageToFetch(url=link.url, role=role, named_by=named_by))
    shortest = sorted(matches, key=lambda page: len(_segments(page.url)))
    taken: list[PageToFetch] = []
    for role, most in room.items():
        taken += [page for page in shortest if page.role is role][: max(most, 0)]
    return taken


def guessed_pages(home: str, role: Role) -> list[PageToFetch]:
    """Return the common paths of a page with this role."""
    parts = urlsplit(home)
    origin = f"{parts.scheme}://{parts.netloc}"
    return [PageToFetch(url=origin + path, role=role, named_by="guess") for path in GUESSES.get(role, ())]


def missing_roles(roles: Iterable[Role]) -> list[Role]:
    """Return the roles that have common paths and are not among these."""
    there = set(roles)
    return [role for role in GUESSES if role not in there]


def _role_named(text: str) -> Role | None:
    name = _MARKS.sub("-", unquote(text).casefold().translate(_FOLDED)).strip("-")
    if name in _ROLE_OF:
        return _ROLE_OF[name]
    if _WORK_AT.fullmatch(name):
        return Role.CAREERS
    return Role.CULTURE if _LIFE_AT.fullmatch(name) else None


def _segments(url: str) -> list[str]:
    try:
        return [segment for segment in urlsplit(url).path.split("/") if segment]
    except ValueError:
        return []


def _host(url: str) -> str:
    try:
        return (urlsplit(url).netloc or "").lower().rpartition("@")[2]
    except ValueError:
        return ""


def _key(url: str) -> str:
    try:
        return canonical_url(url).rstrip("/")
    except BadUrl:
        return url
