"""Facts about the organization behind a page: names without legal forms, language, keywords, place, size, year.

What is not stated is None. A name is never emptied: one that is nothing but a legal form stays whole. The caller
decides which organization a page belongs to, and what a fact is worth.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, cast
from urllib.parse import urlsplit

from ingestion_pipeline.reading.html.cleaning import remove_unseen, visible_text
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.links import language_of, title_of
from ingestion_pipeline.reading.structured.embedded import EmbeddedData, Thing, types_of
from ingestion_pipeline.reading.text.plain_text import clean_text, packaged_data, without_references

# ruff: noqa: RUF001 - the letters and signs of other scripts are meant

MAX_NAME_CHARACTERS = 120
_WORD_LISTS = packaged_data("ingestion_pipeline.reading.structured", "organizations.yaml")

_QUOTES = "\"'«»“”„‚‘’《》「」『』"
_LEAST_LEFT = 2


def _alternatives(place: str) -> str:
    """Return a pattern of the legal forms at that place, with dots and blanks optional."""
    signs = {".": r"\.?\s?", " ": r"\s*"}
    patterns = (
        "".join(signs.get(sign) or re.escape(sign) for sign in form) + ("" if form.endswith((".", ")")) else r"\.?")
        for form in _WORD_LISTS["legal_forms"][place].split(" | ")
    )
    return "|".join(patterns)


_AFTER_NAME = re.compile(rf"(?<![\s,;])[\s,;]++(?=.{{2,80}}+\Z)(?:{_alternatives('after')})\s*+$", re.IGNORECASE)
_COMPANY = re.compile(
    r"(?:(?:(?<!\s)\s++)?+&\s*+|(?<!\s)\s++and\s++|(?<![\s,])[\s,]++)"
    r"(?:co|company|cie|companhia)\.?\s*+$",
    re.IGNORECASE,
)
_ABBREVIATED = re.compile(r"[^&\s,][\s,]++co\.?\s*+$", re.IGNORECASE)  # not `Tiffany & Co.`
_BEFORE_NAME = re.compile(rf"^(?:{_alternatives('before')})\s+(?=[^\s])", re.IGNORECASE)
_AROUND = _WORD_LISTS["legal_forms"]["around"].replace(" | ", "|")
_AROUND_NAME = re.compile(rf"^(?:{_AROUND})\s*+|(?:(?<!\s)\s++)?+(?:{_AROUND})$")


def bare_name(name: str, *, language: str | None = None) -> str:
    """Return the name as people say it: no legal form, no article of English or of `language`."""
    whole = _trimmed(unicodedata.normalize("NFC", name))[:MAX_NAME_CHARACTERS]
    return without_legal_form(_without_article(whole, language))


def without_legal_form(name: str) -> str:
    """Return the name without its legal form, before or behind; an article stays."""
    while (shorter := _without_form(name)) != name:
        name = shorter
    return name


def _without_form(name: str) -> str:
    for pattern in (_AROUND_NAME, _AFTER_NAME, _BEFORE_NAME, _COMPANY):
        left = _trimmed(pattern.sub("", name, count=1))
        if left != name and len(left) >= _LEAST_LEFT and not _is_part(pattern, name, left):
            return left
    return name


def _is_part(pattern: re.Pattern[str], name: str, left: str) -> bool:
    """Return whether what looks like a form belongs to the name: Pizza Company, As Good As New."""
    if pattern is _BEFORE_NAME:
        return name.startswith(("As ", "as "))
    is_one_word = len(left.split()) < _LEAST_LEFT and "," not in name
    return pattern is _COMPANY and is_one_word and _ABBREVIATED.search(name) is None


def _without_article(name: str, language: str | None) -> str:
    primary = (language or "").partition("-")[0].lower()
    of_every, by_language = _WORD_LISTS["articles"]["every"], _WORD_LISTS["articles"].get(primary, [])
    articles = "|".join([*of_every, *by_language])
    # An article that is elided is part of the word that people say: L'Oréal stays.
    left = re.sub(rf"^(?:{articles})\s+(?=\S{{2}})", "", name, flags=re.IGNORECASE)
    return left if len(left) > _LEAST_LEFT else name


def _trimmed(name: str) -> str:
    """Return the name with single blanks, without surrounding quotes and punctuation."""
    trimmed = " ".join(name.split()).strip(" ,;:|–—-®™©")
    inner = trimmed.strip(_QUOTES)
    return inner if inner and (trimmed[0] in _QUOTES) == (trimmed[-1] in _QUOTES) else trimmed


SAMPLE_CHARACTERS = 20_000  # a language is known long before
MOST_KEYWORDS = 5
_LEAST_CONFIDENCE = 0.5  # names and single words reach 0.15, sentences 0.88
_CODE_CHARACTERS = 2
MAX_KEYWORD_CHARACTERS = 60
_HEADING_WEIGHT = 4
_LEAST_CHARACTERS = 4
_LEAST_TIMES = 2

_STOP_WORDS = {language: frozenset(words.split()) for language, words in _WORD_LISTS["stop_words"].items()}
_EVERYWHERE = frozenset(_WORD_LISTS["words_of_every_site"].split())
_WORD = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*")
_SPLIT_KEYWORDS = re.compile(r"[,;|、，；]")


def guessed_language(text: str) -> str | None:
    """Return the language of a text as a code of two letters; None if it is not clear."""
    language, confidence = _identifier().classify(text[:SAMPLE_CHARACTERS])
    return language if confidence >= _LEAST_CONFIDENCE else None


@cache
def _identifier() -> Any:  # noqa: ANN401 - py3langid has no types
    """Load the model on first use: half a second, a hundred megabytes."""
    langid: Any = import_module("py3langid.langid")
    identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
    # Lists of English names are taken for a language of three letters, Nigerian Pidgin.
    identifier.set_languages([language for language in identifier.labels if len(language) == _CODE_CHARACTERS])
    return identifier


def stated_keywords(content: str | None) -> list[str]:
    """Return the keywords of a meta tag, as written, each once."""
    parts = (" ".join(part.split()) for part in _SPLIT_KEYWORDS.split(content or ""))
    unique = {part.lower(): part for part in parts if 1 < len(part) <= MAX_KEYWORD_CHARACTERS}
    return list(unique.values())


def empty_words(language: str | None) -> frozenset[str]:
    """Return the words that say nothing about a site: stop words of its language, and words of every site."""
    primary = (language or "").partition("-")[0].lower()
    return _STOP_WORDS.get(primary, _STOP_WORDS["en"]) | _EVERYWHERE


def frequent_words(
    text: str, *, headings: Sequence[str] = (), language: str | None = None, most: int = MOST_KEYWORDS
) -> list[str]:
    """Return the most frequent words without stop words; those in headings count four times.

    A pair of words that stands together at least half as often as the commoner one comes as a pair.
    """
    excluded = empty_words(language)
    counts: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for passage, weight in [(text[:SAMPLE_CHARACTERS], 1), *((heading, _HEADING_WEIGHT) for heading in headings)]:
        for line in passage.lower().splitlines():
            words = _WORD.findall(line)
            counts.update({word: weight * times for word, times in Counter(words).items()})
            for pair in pairwise(words):
                pairs[pair] += weight
    significant = {
        word: count
        for word, count in counts.items()
        if word not in excluded and (len(word) >= _LEAST_CHARACTERS or not word.isascii())
    }
    return _joined(Counter(significant), pairs)[:most]


def _joined(counts: Counter[str], pairs: Counter[tuple[str, str]]) -> list[str]:
    """Return the words by frequency, pairs that belong together as one."""
    phrases: list[str] = []
    used: set[str] = set()
    for word, count in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])):
        if word in used or count < _LEAST_TIMES:
            continue
        partner = _partner(word, counts, pairs)
        used |= {word, *(partner or ())}
        phrases.append(" ".join(partner) if partner else word)
    return phrases


def _partner(word: str, counts: Counter[str], pairs: Counter[tuple[str, str]]) -> tuple[str, str] | None:
    candidates = [
        (number, pair)
        for pair, number in pairs.items()
        if word in pair and number >= _LEAST_TIMES and all(member in counts for member in pair)
    ]
    number, pair = max(candidates, default=(0, ("", "")))
    commoner = max(counts[member] for member in pair)
    return pair if number and 2 * number >= commoner and pair[0] != pair[1] else None


MAX_CHARACTERS = 200

_TRADE_TYPES = frozenset(_WORD_LISTS["trades"].split())
ORGANIZATION_TYPES = (*_WORD_LISTS["general_types"].split(), *_WORD_LISTS["trades"].split())
_PROFILE_HOSTS = frozenset(_WORD_LISTS["profile_hosts"].split())

_WORD_STARTS = re.compile(r"(?<=[a-z])(?=[A-Z])")
TRADES = frozenset(_WORD_STARTS.sub(" ", name) for name in _TRADE_TYPES)  # as `trade_of` returns them
_YEAR = re.compile(r"(?<![0-9])(1[6-9][0-9]{2}|20[0-9]{2})(?![0-9])")
_ADDRESS = ("addressLocality", "addressRegion", "addressCountry")


def is_profile(url: str) -> bool:
    """Return whether the address is a page about an organization on a network or a directory."""
    try:
        host = (urlsplit(url).hostname or "").lower()
    except ValueError:
        return False
    labels = host.split(".")
    return any(".".join(labels[start:]) in _PROFILE_HOSTS for start in range(len(labels)))


def stated_name(thing: Thing) -> str | None:
    """Return its name; a name has a letter or a digit."""
    return _named(thing.get("name"))


def stated_legal_name(thing: Thing) -> str | None:
    """Return its legal name."""
    return _named(thing.get("legalName"))


def stated_description(thing: Thing) -> str | None:
    """Return its description as written, which may be markup."""
    description = thing.get("description")
    description = _inside(description).get("@value", description)
    return description if isinstance(description, str) and description.strip() else None


def trade_of(thing: Thing) -> str | None:
    """Return its trade, if its type names one: `RealEstateAgent` is "Real Estate Agent"."""
    types = types_of(thing) & _TRADE_TYPES
    return _WORD_STARTS.sub(" ", sorted(types)[0]) if types else None


def stated_seat(thing: Thing) -> str | None:
    """Return its location."""
    return place_of(thing.get("address")) or place_of(thing.get("location"))


def stated_places(thing: Thing) -> list[str]:
    """Return its locations and those of its parts."""
    names = ("address", "location", "subOrganization", "department")
    return [place for name in names for value in listed(thing.get(name)) if (place := place_of(value))]


def place_of(address: object) -> str | None:
    """Return a town with its region and country, as one line; of several the first."""
    if isinstance(address, list):
        return next(filter(None, map(place_of, cast("list[object]", address))), None)
    if isinstance(address, str):
        return address_line(address)
    stated = _inside(address)
    if (inner := stated.get("address")) is not None:
        return place_of(inner)
    parts = [part for name in _ADDRESS for part in (stated_text(stated.get(name)) or "").split(",")]
    return address_line("\n".join(dict.fromkeys(map(str.strip, parts)))) or stated_text(stated.get("name"))


def address_line(text: str | None) -> str | None:
    """Return an address of several lines as one, without empty parts."""
    line = ", ".join(part.strip() for part in re.split(r"[,\n\r]", text or "") if part.strip())
    return line[:MAX_CHARACTERS] or None


def stated_head_count(thing: Thing) -> str | None:
    """Return the number of employees: a number, a range such as `51-200` or `500+`, or words."""
    for value in listed(thing.get("numberOfEmployees")):
        inside = _inside(value)
        low, high = stated_text(inside.get("minValue")), stated_text(inside.get("maxValue"))
        head_count = stated_text(inside.get("value")) if inside else stated_text(value)
        if head_count is None and (low or high):
            head_count = f"{low or 1}-{high}" if high else f"{low}+"
        if head_count is not None:
            return head_count
    return None


def founding_year(thing: Thing) -> int | None:
    """Return the year in which it was founded."""
    match = _YEAR.search(stated_text(thing.get("foundingDate")) or "")
    return int(match[1]) if match else None


def stated_text(value: object) -> str | None:
    """Return text or number as one line; of a list the first, of a thing its value or name."""
    if isinstance(value, list):
        return next(filter(None, map(stated_text, cast("list[object]", value))), None)
    if isinstance(value, Mapping):
        inside = _inside(cast("object", value))
        return stated_text(inside.get("@value")) or stated_text(inside.get("name"))
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = _written(value)
    text = clean_text(without_references(value)) if isinstance(value, str) else None
    return text[:MAX_CHARACTERS] if text else None


def listed(value: object) -> list[object]:
    """Return the values of a list, or the single value as a list."""
    return cast("list[object]", value) if isinstance(value, list) else [value]


def _written(number: float) -> str | None:
    try:
        return str(int(number)) if number == int(number) else str(number)
    except (ValueError, OverflowError):  # no number, or more digits than Python writes
        return None


def _named(value: object) -> str | None:
    name = stated_text(value)
    return name if name and any(character.isalnum() for character in name) else None


def _inside(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


MAX_DESCRIPTION_CHARACTERS = 1_000
MAX_HEADINGS = 40
MAX_LINKS = 50
_LEAST_DESCRIPTION = 20
_FOOT = 20_000  # characters at the end of a page, where its owner is named

_SITES = ("WebSite", "SoftwareApplication", "WebApplication", "MobileApplication")
_TITLE_PARTS = re.compile(r"(?<!\s)\s++[|–—·•»:-]\s++|(?:(?<!\s)\s++)?+[|｜·•»]\s*+|:\s++")
_COPYRIGHT = re.compile(
    r"(?:(?:©|\(c\)|copyright)\s{0,8}+){1,3}(?:[12][0-9]{3}(?:\s{0,8}[-–—/]\s{0,8}[12][0-9]{3})?\s{0,8},?\s{0,8})?"
    r"(?:by\s{1,8})?([^\n|·•©]{2,80})",
    re.IGNORECASE,
)
_AFTER_COPYRIGHT = re.compile(
    r"(?:[.,;]\s*+|(?<![\s.,;])\s++|(?<!\s))"
    r"(?:版权所有|all rights reserved|alle rechte|tous droits|todos los derechos|tutti i diritti"
    r"|todos os direitos|wszelkie prawa|все права|[12][0-9]{3}\b)(?s:.*)",
    re.IGNORECASE,
)


class Stated(StrEnum):
    """Where a fact was stated, the most trustworthy first."""

    JSON_LD = "json_ld"
    MICRODATA = "microdata"
    META = "meta"
    TITLE = "title"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrganizationFacts:
    """The facts of one page; `stated` says where, by the field's name."""

    name: str | None = None
    legal_name: str | None = None
    other_names: tuple[str, ...] = ()
    description: str | None = None
    location: str | None = None
    industry: str | None = None
    keywords: tuple[str, ...] = ()
    language: str | None = None
    same_as: tuple[str, ...] = ()
    title_parts: tuple[str, ...] = ()
    copyright_name: str | None = None
    headings: tuple[str, ...] = ()
    text: str = ""
    stated: Mapping[str, Stated] = field(default_factory=dict[str, Stated])


def organization_facts(document: Document) -> OrganizationFacts:
    """Return all the page states about its organization."""
    embedded, tree = document.embedded, document.take_tree()
    title, claimed = title_of(tree), language_of(tree)
    remove_unseen(tree)
    text = visible_text(tree)
    gathered = _Gathered()
    for thing, place in _organizations(embedded):
        gathered.take_thing(thing, place)
    for thing in embedded.things(*_SITES):
        gathered.take("name", stated_text(thing.get("name")), Stated.JSON_LD)
        gathered.take("industry", stated_text(thing.get("applicationCategory")), Stated.JSON_LD)
        gathered.take("description", _description(stated_description(thing)), Stated.JSON_LD)
    _take_meta(gathered, embedded)
    headings = tree.css("h1, h2, h3")[:MAX_HEADINGS]
    address = tree.css_first("address, [itemprop='address'], .footer-address")
    if address is not None:
        gathered.take("location", address_line(clean_text(address.text(separator=", "))), Stated.TEXT)
    paragraphs = (clean_text(node.text()) for node in tree.css("main p, article p, body p")[:20])
    long_one = next((text for text in paragraphs if text and len(text) >= 2 * _LEAST_DESCRIPTION), None)
    gathered.take("description", _description(long_one), Stated.TEXT)
    return OrganizationFacts(
        **gathered.texts,
        other_names=tuple(dict.fromkeys(gathered.other_names)),
        keywords=tuple(gathered.keywords),
        language=claimed or guessed_language(text),
        same_as=tuple(dict.fromkeys(gathered.same_as))[:MAX_LINKS],
        title_parts=title_parts(title),
        copyright_name=copyright_name(text),
        headings=tuple(filter(None, ((clean_text(node.text()) or "")[:200] for node in headings))),
        text=text,
        stated=gathered.stated,
    )


class _Gathered:
    """The first value of each fact, and where it was stated."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.stated: dict[str, Stated] = {}
        self.other_names: list[str] = []
        self.keywords: list[str] = []
        self.same_as: list[str] = []

    def take(self, name: str, value: str | None, place: Stated) -> None:
        if value and name not in self.texts:
            self.texts[name] = value
            self.stated[name] = place

    def take_keywords(self, keywords: Sequence[str], place: Stated) -> None:
        if keywords and not self.keywords:
            self.keywords = list(keywords)
            self.stated["keywords"] = place

    def take_thing(self, thing: Thing, place: Stated) -> None:
        self.take("name", stated_name(thing), place)
        self.take("legal_name", stated_legal_name(thing), place)
        self.take("description", _description(stated_description(thing)), place)
        self.take("location", stated_seat(thing), place)
        self.take("industry", stated_text(thing.get("industry")) or trade_of(thing), place)
        keywords = thing.get("keywords")
        stated = stated_keywords(keywords) if isinstance(keywords, str) else _texts(keywords)
        self.take_keywords(_texts(thing.get("knowsAbout")) or stated, place)
        self.other_names += _texts(thing.get("alternateName"))
        self.same_as += [link for link in _texts(thing.get("sameAs")) if "://" in link]


def title_parts(title: str | None) -> tuple[str, ...]:
    """Split a title where titles put a site's name: `Acme | Tools` is two parts."""
    parts = (part.strip() for part in _TITLE_PARTS.split(title or ""))
    return tuple(part[:MAX_NAME_CHARACTERS] for part in parts if part)


def copyright_name(text: str) -> str | None:
    """Return the name in the copyright notice at the foot of the page."""
    matches = list(_COPYRIGHT.finditer(text[-_FOOT:]))
    if not matches:
        return None
    name = _AFTER_COPYRIGHT.sub("", matches[-1][1]).strip(" .,;:-–—")
    return name if any(character.isalpha() for character in name) else None


def _organizations(embedded: EmbeddedData) -> Iterator[tuple[Thing, Stated]]:
    """Yield the organizations that the page belongs to, before those that it only mentions."""
    accepted_types = {*ORGANIZATION_TYPES, "Brand"}
    for things, place in ((embedded.json_ld, Stated.JSON_LD), (embedded.microdata, Stated.MICRODATA)):
        organizations = [thing for thing in _outer(things) if types_of(thing) & accepted_types]
        yield from (
            (thing, place) for thing in sorted(organizations, key=lambda thing: stated_text(thing.get("name")) is None)
        )
    for site in embedded.things("WebSite", "WebPage"):
        publisher = site.get("publisher")
        if isinstance(publisher, Mapping):
            yield cast("Thing", publisher), Stated.JSON_LD


def _outer(things: Iterable[Thing]) -> Iterator[Thing]:
    """Yield the things of the page and of its graph; those inside an article belong to others."""
    for thing in things:
        yield thing
        graph = thing.get("@graph")
        if isinstance(graph, list):
            yield from (cast("Thing", node) for node in cast("list[object]", graph) if isinstance(node, dict))


def _take_meta(gathered: _Gathered, embedded: EmbeddedData) -> None:
    names = ("og:site_name", "application-name", "apple-mobile-web-app-title")
    name = stated_name({"name": embedded.meta_content(*names)})
    gathered.take("name", name, Stated.META)
    description = embedded.meta_content("description", "Description", "og:description")
    gathered.take("description", _description(description), Stated.META)
    place = embedded.meta_content("geo.placename", "og:locality", "business:contact_data:locality")
    gathered.take("location", stated_text(place), Stated.META)
    trade = embedded.meta_content("category", "classification", "industry")
    gathered.take("industry", stated_text(trade), Stated.META)
    words = embedded.meta_content("keywords", "Keywords", "news_keywords")
    gathered.take_keywords(stated_keywords(words), Stated.META)


def _description(value: object) -> str | None:
    text = clean_text(value) if isinstance(value, str) else None
    if not text or len(text) < _LEAST_DESCRIPTION:
        return None
    return text[:MAX_DESCRIPTION_CHARACTERS]


def _texts(value: object) -> list[str]:
    return [text for item in listed(value) if (text := stated_text(item))][:MAX_LINKS]
