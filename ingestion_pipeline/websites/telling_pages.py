"""Which pages of a website tell most about the business, besides its home page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

# One page of each kind, in this order: who they are, where they are, whom they compare with, what
# they sell.
_KINDS = (
    r"about|about-?us|company|who-we-are|our-story|ueber-?uns|über-?uns|unternehmen|a-propos"
    r"|qui-sommes-nous|quienes-somos|sobre(?:-nosotros|-nos)?|nosotros|empresa|chi-siamo|azienda"
    r"|over-?ons|o-nas|o-firmie|o-kompanii|about_us|o-spolecnosti|om-oss|om-os|yritys|会社概要|关于我们",
    r"imprint|impressum|contact(?:-us)?|kontakt|contacto|contatti|contato|mentions-legales"
    r"|aviso-legal|kontakty|yhteystiedot|legal-notice",
    r"(?:[\w-]+-)?(?:vs|versus)-[\w-]+|compare|comparison|alternatives?|vergleich|comparatif"
    r"|[\w-]+-alternative",
    r"products?|services?|solutions?|produkte?|leistungen|produits|productos|servicios|prodotti"
    r"|servizi|produtos|servicos|producten|diensten|produkty|uslugi|features?|pricing|what-we-do",
)
_PATTERNS = tuple(re.compile(rf"\A(?:{kind})(?:\.\w+)?") for kind in _KINDS)
_DEEPEST = 3  # parts of a path; deeper pages are about one thing


def telling_links(links: Iterable[str], home: str, *, most: int) -> list[str]:
    """Addresses of the site, at most one of each kind, the most telling first."""
    here = _host(home)
    by_kind: dict[int, str] = {}
    for link in links:
        if _host(link) != here or urlsplit(link).query:
            continue
        kind = _kind(link)
        known = by_kind.get(kind, "") if kind is not None else ""
        if kind is not None and (not known or len(link) < len(known)):
            by_kind[kind] = link
    return [by_kind[kind] for kind in sorted(by_kind)][:most]


def _kind(link: str) -> int | None:
    parts = [part for part in unquote(urlsplit(link).path).lower().split("/") if part]
    if not 0 < len(parts) <= _DEEPEST:
        return None
    for kind, pattern in enumerate(_PATTERNS):
        if any(pattern.fullmatch(part) for part in parts):
            return kind
    return None


def _host(url: str) -> str:
    return urlsplit(url).netloc.lower().removeprefix("www.")
