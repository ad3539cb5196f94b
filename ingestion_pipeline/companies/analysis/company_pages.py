"""Pages of a company's website: which to fetch, and the facts that they state.

Navigation links come first, then the sitemap; if neither names a page, common paths are tried. Facts come from embedded
data, meta tags and technology names; the cheap model is asked for the rest, and only grounded answers are accepted.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from ingestion_pipeline.companies.job_listing import MACHINE_LEARNING, STACK, is_placeholder_text, stated_company
from ingestion_pipeline.companies.platforms.job_board import one_line
from ingestion_pipeline.reading.evidence.grounding import BY_SOURCE, Grounding, ground
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.links import base_of, feeds_of, linked_page, title_of
from ingestion_pipeline.reading.html.markdown import markdown_of, to_markdown
from ingestion_pipeline.reading.llm import (
    Answered,
    AnswerSchema,
    Billing,
    ModelClient,
    ModelTier,
    PageText,
    Prompt,
    Question,
)
from ingestion_pipeline.reading.structured.embedded import EmbeddedData, Thing
from ingestion_pipeline.reading.structured.organizations import (
    ORGANIZATION_TYPES,
    founding_year,
    is_profile,
    listed,
    stated_description,
    stated_head_count,
    stated_industry,
    stated_legal_name,
    stated_name,
    stated_places,
    stated_seat,
)
from ingestion_pipeline.reading.text.plain_text import phrases_of, without_repeated_blocks
from ingestion_pipeline.tasks.errors import Resource, Transient
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


_PHRASES = phrases_of("ingestion_pipeline.companies.analysis")
_ROLE_OF = {name: role for role in (Role.CAREERS, Role.CULTURE, Role.ABOUT) for name in _PHRASES.each(f"{role}_pages")}
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
    seen = {page_key(home), *(page_key(page.url) for page in existing)}
    room = {role: most - sum(page.role is role for page in existing) for role, most in PAGES_PER_ROLE.items()}
    matches: list[PageToFetch] = []
    for link in links:
        role = role_of(link.url, link.text)
        if role is None or page_key(link.url) in seen or not is_same_site(link.url, home):
            continue
        seen.add(page_key(link.url))
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


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _segments(url: str) -> list[str]:
    return [segment for segment in _parts(url).path.split("/") if segment]


def _host(url: str) -> str:
    return _parts(url).netloc.lower().rpartition("@")[2]


def page_key(url: str) -> str:
    """Return the canonical URL without a trailing slash; text that is no URL stays as it is."""
    try:
        return canonical_url(url).rstrip("/")
    except BadUrl:
        return url


# The fields of C15, in display order.
TEXT_FIELDS = ("about", "culture", "mission", "size", "headquarters", "industry")
FIELDS = (*TEXT_FIELDS, "founded")
LONG_FIELD_CHARACTERS = {"about": 4_000, "culture": 4_000, "mission": 1_000}
SHORT_FIELD_CHARACTERS = 200


class FactMethod(StrEnum):
    """How a value was found: embedded data, the page's head, text rules, or a model."""

    EMBEDDED = "embedded"
    META = "meta"
    TEXT = "text"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyPage:
    """A parsed page with its visible `text`, one line per block, and the URLs in embeds and inline scripts."""

    url: str
    role: Role
    text: str
    headed: tuple[tuple[str, str], ...]
    embedded: EmbeddedData
    anchors: "tuple[SiteLink, ...]"
    embedded_urls: tuple[str, ...]
    script_urls: tuple[str, ...] = ()
    feeds: tuple[str, ...] = ()
    title: str | None = None
    may_ask_models: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A field's value, found on `page` by `method`, with its evidence."""

    value: str | int
    method: FactMethod
    page: str
    grounding: Grounding

    def as_evidence(self) -> dict[str, object]:
        """Return the evidence as it is stored beside the value."""
        grounding = self.grounding
        evidence: dict[str, object] = {"page": self.page, "method": self.method.value, "status": grounding.status.value}
        if grounding.start is not None:
            evidence |= {"start": grounding.start, "end": grounding.end}
        return evidence


Facts = Mapping[str, Fact]


def make_fact(field: str, value: str | int, *, page: CompanyPage, method: FactMethod) -> Fact | None:
    """Return the fact, grounded in the page's text; None if the value states nothing.

    Embedded data and meta tags need not appear in the visible text: the data itself is their
    evidence. Values from rules and models must appear in the text.
    """
    cleaned = value if isinstance(value, int) else clean_value(field, value)
    if cleaned is None:
        return None
    grounding = _grounded(cleaned, page.text)
    if not grounding.is_proof and method in {FactMethod.EMBEDDED, FactMethod.META}:
        grounding = BY_SOURCE
    return Fact(value=cleaned, method=method, page=page.url, grounding=grounding)


def _grounded(value: str | int, text: str) -> Grounding:
    """Ground the value in the text; each paragraph of a longer value is grounded separately."""
    if isinstance(value, int) or "\n" not in value:
        return ground(value, text)
    groundings = [ground(line, text) for line in value.split("\n")]
    unproved = next((grounding for grounding in groundings if not grounding.is_proof), None)
    if unproved is not None:
        return unproved
    return Grounding(groundings[0].status, groundings[0].start, groundings[-1].end)


def clean_value(field: str, value: str) -> str | None:
    """Return the value normalised and of bounded length; None if it is blank or a placeholder."""
    lines = [" ".join(line.split()) for line in value.split("\n")]
    text = "\n".join(line for line in lines if line)
    if is_placeholder_text(text):
        return None
    most = LONG_FIELD_CHARACTERS.get(field, SHORT_FIELD_CHARACTERS)
    if len(text) <= most:
        return text
    # long texts are cut between words; in a short field a long value is a mistake
    return text[:most].rpartition(" ")[0] if field in LONG_FIELD_CHARACTERS else None


MIN_DESCRIPTION_CHARACTERS = 40  # characters; a shorter one is a slogan


def organizations(page: CompanyPage, home: str) -> list[Thing]:
    """Return the organizations in the page's data that are this company.

    They are those whose URL is the home page, else another page of this site; without any, the
    first that names no other site; organizations named like this site come first. An organization
    with a page or an id here and a site of its own is a partner, unless it is named like this site.
    """
    things = [thing for thing in page.embedded.things(*ORGANIZATION_TYPES) if _name(thing)]
    named = sorted(things, key=lambda thing: not is_called_like(_name(thing) or "", home))
    foreign_ids = {id(thing) for thing in named if _has_other_site(thing, home)}
    others = [thing for thing in named if id(thing) not in foreign_ids]
    at_home = [
        thing
        for thing in named
        if any(_is_home(site, home) for site in _addresses(thing, "url"))
        or (id(thing) not in foreign_ids and any(_is_home(site, home) for site in _sites(thing)))
    ]
    here = [thing for thing in others if any(is_same_site(site, home) for site in _sites(thing))]
    return at_home or here or others[:1]


def company_name(pages: list[CompanyPage], home: str) -> tuple[str, str] | None:
    """Return the company's own name for itself and the URL of the page that states it."""
    for page in pages:
        for organization in organizations(page, home):
            if name := _name(organization):
                return name, page.url
    for page in pages:
        site_name = page.embedded.meta_content("og:site_name", "application-name")
        if name := stated_company(one_line(site_name, most=120)):
            return name, page.url
    return None


def embedded_facts(page: CompanyPage, home: str) -> Iterator[tuple[str, Fact]]:
    """Yield the fields that the page's embedded data states."""
    for organization in organizations(page, home):
        for field, value in _values(organization):
            if fact := make_fact(field, value, page=page, method=FactMethod.EMBEDDED):
                yield field, fact


def head_facts(page: CompanyPage) -> Iterator[tuple[str, Fact]]:
    """Yield the description in the head of an about page or home page."""
    if page.role not in {Role.ABOUT, Role.HOME}:
        return
    description = page.embedded.meta_content("description", "og:description", "twitter:description")
    if description and len(description) >= MIN_DESCRIPTION_CHARACTERS:
        fact = make_fact("about", description, page=page, method=FactMethod.META)
        if fact is not None:
            yield "about", fact


def places_of(page: CompanyPage, home: str) -> list[str]:
    """Return the head office and other offices that the organization's data states."""
    return [place for organization in organizations(page, home) for place in stated_places(organization)]


def _values(organization: Thing) -> Iterator[tuple[str, str | int]]:
    description = stated_description(organization)
    if description and len(description) >= MIN_DESCRIPTION_CHARACTERS:
        yield "about", to_markdown(description) if "<" in description else description
    values: dict[str, str | int | None] = {
        "size": stated_head_count(organization),
        "headquarters": stated_seat(organization),
        "industry": stated_industry(organization),
        "founded": founding_year(organization),
    }
    yield from ((name, value) for name, value in values.items() if value is not None)


def _name(organization: Thing) -> str | None:
    name = stated_company(stated_name(organization)) or stated_company(stated_legal_name(organization))
    return name[:120] if name else None


def _has_other_site(thing: Thing, home: str) -> bool:
    """Return whether it has a site that is neither this one nor a social network profile."""
    sites = _sites(thing)
    if sites and not any(is_same_site(site, home) for site in sites):
        return True
    if is_called_like(_name(thing) or "", home):
        return False
    same_as = _addresses(thing, "sameAs")
    return any(not is_same_site(site, home) and not is_profile(site) for site in same_as)


def _is_home(site: str, home: str) -> bool:
    path = urlsplit(site).path.strip("/")
    return is_same_site(site, home) and path in {"", urlsplit(home).path.strip("/")}


def _sites(thing: Thing) -> list[str]:
    return [*_addresses(thing, "url"), *_addresses(thing, "@id")]


def _addresses(thing: Thing, key: str) -> list[str]:
    values = listed(thing.get(key))
    return [value for value in values if isinstance(value, str) and _parts(value).scheme in {"http", "https"}]


MAX_CHARACTERS = 400_000  # of one text; the rest is ignored

_BEFORE = r"(?<![A-Za-z0-9_@#.-])"
_AFTER = r"(?![A-Za-z0-9_#+@]|\.[A-Za-z])"
_FIRM = {name: re.compile(f"{_BEFORE}(?:{technology.pattern}){_AFTER}") for name, technology in STACK.items()}
_WORDS = {
    name: re.compile(f"{_BEFORE}(?:{technology.as_word})(?![A-Za-z0-9_#+@-]|\\.[A-Za-z])")
    for name, technology in STACK.items()
    if technology.as_word
}
_BETWEEN = re.compile(r"[\s,/&|;:\u00b7\u2022()+*-]{1,6}(?:(?:and|or|und|oder|et|y)\s)?")
_LEADING_IN = re.compile(_PHRASES["leading_in"])
_NAMED_FOR = re.compile(_PHRASES["named_for"])
_MAX_CHARACTERS_BETWEEN = 10


def technologies_in(text: str) -> dict[str, list[str]]:
    """Return the technologies that the text names by group, each once, in vocabulary order."""
    text = text[:MAX_CHARACTERS]
    spans = {name: [match.span() for match in rule.finditer(text)] for name, rule in _FIRM.items()}
    _add_words(text, spans)
    groups: dict[str, list[str]] = {}
    for name, technology in STACK.items():
        if spans[name] and technology.group is not None:
            groups.setdefault(technology.group, []).append(name)
    return groups


def _add_words(text: str, spans: dict[str, list[tuple[int, int]]]) -> None:
    """Add names that are also common words where the context shows a technology, repeatedly."""
    unsure = [(name, match.span()) for name, rule in _WORDS.items() for match in rule.finditer(text)]
    while True:
        # Terms of machine learning do not qualify the word beside them: "AI, go further".
        sure = [
            span for name, name_spans in spans.items() for span in name_spans if STACK[name].group != MACHINE_LEARNING
        ]
        taken = [candidate for candidate in unsure if _is_technology(text, candidate[1], sure)]
        if not taken:
            return
        for name, span in taken:
            spans[name].append(span)
        unsure = [candidate for candidate in unsure if candidate not in taken]


def _is_technology(text: str, span: tuple[int, int], sure: list[tuple[int, int]]) -> bool:
    start, end = span
    if _LEADING_IN.search(text[max(0, start - 100) : start]) or _NAMED_FOR.match(text, end):
        return True
    return any(
        (0 < start - other_end <= _MAX_CHARACTERS_BETWEEN and _BETWEEN.fullmatch(text[other_end:start]))
        or (0 < other_start - end <= _MAX_CHARACTERS_BETWEEN and _BETWEEN.fullmatch(text[end:other_start]))
        for other_start, other_end in sure
    )


CALL_SITE = "company"
VERSION = "companies 1"
MAX_PROMPT_CHARACTERS = 40_000
MIN_PROMPT_CHARACTERS = 200  # of all pages together; with less a model is not asked
_TYPES = {name: {"type": ["string", "null"]} for name in FIELDS} | {"founded": {"type": ["integer", "null"]}}
SCHEMA = AnswerSchema(
    name="company",
    schema={"type": "object", "properties": _TYPES, "required": list(FIELDS), "additionalProperties": False},
)
PROMPT = Prompt(
    name="company",
    version=1,
    instructions="""\
The text is of several pages of one company's website. State what it says of that company itself,
word for word as it stands there, not of its customers, products or partners.
about: what the company does, one to four sentences. culture: how it is to work there, its values.
mission: its mission. size: how many people work there, as written. headquarters: the place of its
head office. industry: its industry. founded: the year of its founding.
What the text does not say is null.""",
)


async def ask_model(
    client: ModelClient, pages: Sequence[CompanyPage], missing: Sequence[str], *, source_id: str | None
) -> tuple[Facts, list[str]]:
    """Return grounded facts for the missing fields, and notes on unanswered or ungrounded ones.

    If no model is available now, that is a note: the findings of the rules do not wait for it.
    """
    text = "\n\n".join(without_repeated_blocks(page.text for page in pages if page.may_ask_models))[
        :MAX_PROMPT_CHARACTERS
    ]
    if len(text) < MIN_PROMPT_CHARACTERS or not missing:
        return {}, []
    question = Question(prompt=PROMPT, schema=SCHEMA, page=PageText(text=text), extractor_version=VERSION)
    billing = Billing(call_site=CALL_SITE, source_id=source_id)
    try:
        answer = await client.ask(question, billing, tiers=(ModelTier.CHEAP,))
    except (Resource, Transient) as error:
        return {}, [f"no model: {error.code}"]
    if not isinstance(answer, Answered):
        return {}, ["the model gave no answer"]
    return _proved(answer, pages, missing)


def _proved(answer: Answered, pages: Sequence[CompanyPage], missing: Sequence[str]) -> tuple[Facts, list[str]]:
    facts: dict[str, Fact] = {}
    notes: list[str] = []
    for name in missing:
        value = answer.data.get(name)
        if not isinstance(value, str | int) or isinstance(value, bool):
            continue
        candidates = [make_fact(name, value, page=page, method=FactMethod.MODEL) for page in pages]
        proved = next((fact for fact in candidates if fact is not None and fact.grounding.is_proof), None)
        if proved is not None:
            facts[name] = proved
        else:
            notes.append(f"unproved: {name}")
    return facts, notes


MAX_ADDRESSES = 2_000
MAX_SCRIPT_CHARACTERS = 300_000
_SOURCES = "iframe[src], iframe[data-src], script[src], embed[src], object[data], form[action]"
_IN_SCRIPTS = re.compile(r"https?:\\?/\\?/[\w.-]+\\?/[^\s\"'<>`)\]}]{1,300}")
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*$")
_MARKDOWN = re.compile(r"!\[[^\[\]]*+\]\([^)\[]*+\)|\[([^\[\]]*+)\]\([^)\[]*+\)|[*_`]{1,3}|^\s*(?:[-*+>]|\d+\.)\s+")


def parse_company_page(html: str, *, url: str, role: Role) -> CompanyPage:
    """Parse the page into text, sections, embedded data, links and feeds."""
    document = Document(html, url=url)
    tree = document.tree
    return CompanyPage(
        url=url,
        role=role,
        title=title_of(tree),
        embedded=document.embedded,
        anchors=tuple(anchors_of(tree, url)),
        embedded_urls=tuple(_embedded_urls(tree, url)),
        script_urls=tuple(_script_urls(tree)),
        feeds=tuple(feed.url for feed in feeds_of(tree, url)),
        text=document.visible_utf8.decode(),  # takes the tree over
        headed=tuple(_sections(markdown_of(document.visible_tree, url))),
    )


def _embedded_urls(tree: "LexborHTMLParser", url: str) -> list[str]:
    base = base_of(tree, url)
    names = ("src", "data-src", "data", "action")
    stated = (next(filter(None, map(node.attrs.get, names)), "") for node in tree.css(_SOURCES))
    return list(dict.fromkeys(filter(None, (linked_page(base, url) for url in stated))))[:MAX_ADDRESSES]


def _script_urls(tree: "LexborHTMLParser") -> list[str]:
    """Return the URLs in inline scripts, which often insert the job board."""
    scripts = (script.text()[:MAX_SCRIPT_CHARACTERS] for script in tree.css("script:not([src])"))
    urls = (match[0].replace("\\/", "/") for text in scripts for match in _IN_SCRIPTS.finditer(text))
    return list(dict.fromkeys(urls))[:MAX_ADDRESSES]


def _sections(markdown: str) -> Iterator[tuple[str, str]]:
    """Yield each heading with the text below it; text before the first heading comes first."""
    heading, lines = "", list[str]()
    for line in markdown.split("\n"):
        match = _HEADING.match(line)
        if match is None:
            if plain := _plain(line):
                lines.append(plain)
            continue
        if heading or lines:
            yield heading, "\n".join(lines)
        heading, lines = _plain(match[2]), []
    if heading or lines:
        yield heading, "\n".join(lines)


def _plain(line: str) -> str:
    return " ".join(_MARKDOWN.sub(lambda match: match[1] or "", line).replace("\\", "").split())
