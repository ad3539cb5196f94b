"""Which pages of a company's website are worth a look: by what they are called. Pure.

The site's own navigation names the real ones, then its sitemap; where neither does, the usual
addresses are tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ingestion_pipeline.reading.html.links import base_of, linked_page
from ingestion_pipeline.urls import BadUrl, canonical_url

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

MAX_ANCHORS = 3_000
MAX_TEXT = 60  # of a link that names a page; a longer one is a sentence
MAX_SEGMENTS = 4  # deeper pages are about something else
LEAST_NAME = 4  # letters; "go" begins too many names


class Role(StrEnum):
    """What a page is for."""

    HOME = "home"
    ABOUT = "about"
    CULTURE = "culture"
    CAREERS = "careers"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLink:
    """A link: where it leads, and what it says."""

    url: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageToFetch:
    """A page to look at, what for, and what named it: navigation, sitemap or guess."""

    url: str
    role: Role
    named_by: str


# The last segment of a path, or the whole text of a link, without case and marks.
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
_ENDING = re.compile(r"\.(?:html?|php|aspx?|jsp)$")
_MARKS = re.compile(r"[^a-z0-9]+")
_UNLIKE = re.compile(r"[^a-z0-9]")
_FOLDED = str.maketrans("üöäßéèêàâçñóíáúãõøå", "uoaseeeaacnoiauaooa")
# The addresses that are tried where a site names none, the usual first.
GUESSES: dict[Role, tuple[str, ...]] = {
    Role.ABOUT: ("/about", "/about-us", "/company"),
    Role.CAREERS: ("/careers", "/jobs"),
}
# How many pages of each role are looked at.
MOST: dict[Role, int] = {Role.ABOUT: 2, Role.CULTURE: 1, Role.CAREERS: 2}


def anchors_of(tree: LexborHTMLParser, url: str) -> list[SiteLink]:
    """Every link of the page to another one, in page order, each address once."""
    base = base_of(tree, url)
    found: dict[str, SiteLink] = {}
    for node in tree.css("a[href], area[href]")[:MAX_ANCHORS]:
        address = linked_page(base, node.attrs.get("href"))
        if address is None:
            continue
        said = " ".join((node.text() or node.attrs.get("aria-label") or "").split())
        known = found.get(address)
        if known is None or (not known.text and said):
            found[address] = SiteLink(url=address, text=said)
    return list(found.values())


def role_of(url: str, text: str = "") -> Role | None:
    """What the page is for, by the end of its address or the words of its link; None if no word."""
    segments = _segments(url)
    by_path = _role_named(_ENDING.sub("", segments[-1])) if segments else None
    if len(segments) > MAX_SEGMENTS:
        return None
    return by_path or (_role_named(text) if 0 < len(text) <= MAX_TEXT else None)


def is_same_site(url: str, home: str) -> bool:
    """Whether the page is on the company's own host, or on one under it."""
    host, own = _host(url), _host(home).removeprefix("www.")
    return bool(own) and (host == own or host.endswith(f".{own}"))


def site_label(home: str) -> str:
    """Return `acme` for https://www.acme.co.uk/."""
    return _host(home).removeprefix("www.").partition(".")[0]


def is_called_like(name: str, home: str) -> bool:
    """Return whether the name and the site's own begin alike: "Acme Robotics" at acme.test."""
    called, label = plain_name(name), plain_name(site_label(home))
    least = min(len(called), len(label))
    return least >= LEAST_NAME and called[:least] == label[:least]


def plain_name(text: str) -> str:
    """Return letters and digits alone, in small letters."""
    return _UNLIKE.sub("", text.casefold())


def named_pages(
    links: Iterable[SiteLink], *, home: str, named_by: str, known: Iterable[PageToFetch] = ()
) -> list[PageToFetch]:
    """The pages of the site that the links name, at most as many of each role as are wanted.

    Of several of one role the shortest addresses are taken: the page itself, not one below it.
    """
    seen = {_key(home), *(_key(one.url) for one in known)}
    room = {role: most - sum(one.role is role for one in known) for role, most in MOST.items()}
    found: list[PageToFetch] = []
    for link in links:
        role = role_of(link.url, link.text)
        if role is None or _key(link.url) in seen or not is_same_site(link.url, home):
            continue
        seen.add(_key(link.url))
        found.append(PageToFetch(url=link.url, role=role, named_by=named_by))
    shortest = sorted(found, key=lambda one: len(_segments(one.url)))
    taken: list[PageToFetch] = []
    for role, most in room.items():
        taken += [one for one in shortest if one.role is role][: max(most, 0)]
    return taken


def guessed_pages(home: str, role: Role) -> list[PageToFetch]:
    """The usual addresses of such a page."""
    parts = urlsplit(home)
    origin = f"{parts.scheme}://{parts.netloc}"
    return [
        PageToFetch(url=origin + path, role=role, named_by="guess")
        for path in GUESSES.get(role, ())
    ]


def missing_roles(roles: Iterable[Role]) -> list[Role]:
    """The roles that have usual addresses, and are not among these."""
    there = set(roles)
    return [role for role in GUESSES if role not in there]


def _role_named(said: str) -> Role | None:
    name = _MARKS.sub("-", unquote(said).casefold().translate(_FOLDED)).strip("-")
    if name in _ROLE_OF:
        return _ROLE_OF[name]
    if _WORK_AT.fullmatch(name):
        return Role.CAREERS
    return Role.CULTURE if _LIFE_AT.fullmatch(name) else None


def _segments(url: str) -> list[str]:
    try:
        return [one for one in urlsplit(url).path.split("/") if one]
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
