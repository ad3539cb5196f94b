"""Phase 1: which business a website belongs to, from its home page and a few others.

Rules find its name, keywords, competitors and informative links; a model is asked for the rest. By rules,
competitors are only those that the site names itself (`alternative to X`, `X vs Y`, `unlike X`).
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import yaml

from ingestion_pipeline.reading.evidence.grounding import BY_SOURCE, ground
from ingestion_pipeline.reading.llm import Answered, AnswerSchema, Billing, ModelClient, PageText, Prompt, Question
from ingestion_pipeline.reading.structured import organizations
from ingestion_pipeline.reading.structured.items import Problem
from ingestion_pipeline.reading.text.plain_text import without_repeated_blocks
from ingestion_pipeline.tasks.errors import Fatal, Permanent, WorkError
from ingestion_pipeline.urls import BadUrl, domain_label, host_of
from ingestion_pipeline.websites.business import (
    MOST_COMPETITORS,
    MOST_KEYWORDS,
    Business,
    FetchedPage,
    Informed,
    NamedBy,
    Visit,
    WebsiteConfig,
    confidence_of,
    home_url,
)
from ingestion_pipeline.websites.mentions import Names, find_mentions, folded_name, own_host

_FILE = resources.files("ingestion_pipeline.websites") / "site_words.yaml"
_WORDS: Mapping[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
# Words are bounded, so that a page of a million capitals does not take an hour.
_WORD = r"(?<!\w)[A-Z0-9À-ÖØ-ÞА-ЯЁ][\w&.+'-]{0,30}"
_NAME = rf"(?:{_WORD})(?:[ ](?:{_WORD})){{0,2}}"
_AFTER = re.compile(
    rf"(?i:{'|'.join(_WORDS['before_a_competitor'])})\s+({_NAME}(?:(?:, | and | und | or | oder | & ){_NAME})*)"
)
_VERSUS = re.compile(rf"({_NAME})\s+(?i:vs\.?|versus)\s+({_NAME})")
_ALTERNATIVE = re.compile(rf"({_NAME})[ -](?i:alternatives?|alternativen?)\b")
_LISTED = re.compile(r", | and | und | or | oder | & ")
_SLUG = re.compile(
    r"/(?:[\w-]*-)?(?:vs|versus)-([a-z0-9-]+)/?$"
    r"|/(?:vs|versus|compare|alternatives?)/([a-z0-9-]+)/?$"
)
_STOP_WORDS = frozenset(_WORDS["not_names"].split())
_MOST_CHARACTERS = 40
_MAX_TEXT_CHARACTERS = 200_000  # of a page
INFORMATIVE_PAGES = 3  # read besides the home page, such as about
PARKED = "parked_domain"
MOST_PARKED_WORDS = 250  # a page with more words is about something
_PARKED = re.compile("|".join(_WORDS["parked"]))
_PARKING_HOSTS = tuple(_WORDS["parking_hosts"].split())


def named_competitors(texts: Iterable[str], links: Iterable[str], own: Names, *, most: int) -> tuple[str, ...]:
    """Return the businesses that texts and links compare the site with, most frequent first."""
    counted: dict[str, list[str]] = {}
    for name in [*_in_texts(texts), *_in_links(links)]:
        bare = _fit(name, own)
        if bare:
            counted.setdefault("".join(folded_name(bare).split()), []).append(bare)
    by_number = sorted(counted.values(), key=lambda spellings: -len(spellings))
    return tuple(names[0] for names in by_number[:most])


def _in_texts(texts: Iterable[str]) -> Iterator[str]:
    for whole in texts:
        text = whole[:_MAX_TEXT_CHARACTERS]
        for match in _AFTER.finditer(text):
            yield from _LISTED.split(match[1])
        for match in (*_VERSUS.finditer(text), *_ALTERNATIVE.finditer(text)):
            yield from match.groups()


def _in_links(links: Iterable[str]) -> Iterator[str]:
    for link in links:
        if match := _SLUG.search(link.partition("?")[0].lower()):
            slug = re.sub(r"-(?:alternatives?|comparison|vs-.*)$", "", match[1] or match[2])
            yield slug.replace("-", " ").title()


def _fit(name: str, own: Names) -> str | None:
    """Return the bare name without words that only begin a sentence; None if unfit, or our own."""
    words = name.strip(" .,'-").split()
    while words and folded_name(words[0]) in _STOP_WORDS:
        words = words[1:]
    while words and folded_name(words[-1]) in _STOP_WORDS:
        words = words[:-1]
    bare = organizations.bare_name(" ".join(words)).strip(" .,")
    if len(bare) <= 1 or len(bare) > _MOST_CHARACTERS or bare.isdigit():
        return None
    # `Acme vs Globex` on the site of Acme Tools: its own name, cut short.
    is_cut = folded_name(own.name).startswith(f"{folded_name(bare)} ")
    return None if is_cut or find_mentions(f"with {bare}", own) else bare


MAX_NAME_WORDS = 6  # a longer one is a slogan
FEW_KEYWORDS = 3
_TOPIC_WORDS = 4
_CHARACTERS_OF_A_WORD = 3  # in scripts without blanks, rather few
_NO_BLANKS = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]")
_NOT_IN_A_TOPIC = re.compile(r"[.!?:;,@©|\"<>=_]|\wApplication\b")
_NOT_TOPICS = frozenset(_WORDS["not_topics"].split())
_LIKE_DOMAIN = 80  # percent
_NAMED_BY = {organizations.Stated.JSON_LD: NamedBy.EMBEDDED, organizations.Stated.MICRODATA: NamedBy.EMBEDDED}
_FIELDS = ("industry", "description", "location")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteResult:
    """The business by rules, and where its name comes from."""

    business: Business
    named_by: NamedBy


def read_site(url: str, pages: Sequence[FetchedPage]) -> SiteResult:
    """Return the business of the pages; the home page has precedence."""
    name, named_by, page = site_name(url, pages)
    language = next((candidate.facts.language for candidate in pages if candidate.facts.language), None)
    bare = organizations.bare_name(name, language=language)
    facts, evidence = _first_facts(pages)
    evidence["name"] = _evidence(name, page, named_by.value)
    own = Names.of(bare, aliases=[name], url=url)
    texts = [text for page in pages for text in (*page.facts.title_parts, page.facts.text)]
    links = dict.fromkeys(link for page in pages for link in page.links)
    competitors = named_competitors(texts, links, own, most=MOST_COMPETITORS)
    keywords = site_keywords(pages, [own, *map(Names.of, competitors)], language)
    others = [alias for page in pages for alias in (page.facts.legal_name, *page.facts.other_names) if alias]
    aliases = [alias for alias in (name, *others) if _is_name(alias)]
    business = Business(
        url=url,
        name=bare,
        aliases=tuple(alias for alias in dict.fromkeys(aliases) if alias != bare),
        industry=facts.get("industry"),
        description=facts.get("description"),
        location=facts.get("location"),
        keywords=keywords,
        language=language.lower() if language else None,
        competitors=competitors,
        unsure=unsure_facts(pages, facts, keywords, evidence, language),
        evidence=evidence,
    )
    return SiteResult(business=with_confidence(business, named_by), named_by=named_by)


def with_confidence(business: Business, named_by: NamedBy) -> Business:
    """Return the business with the confidence computed from its facts."""
    sure = confidence_of(
        named_by=named_by,
        agrees_with_domain=is_like_domain(business.name, business.url),
        facts=(business.industry, business.description, business.location, business.language),
        keywords=len(business.keywords),
    )
    return replace(business, confidence=sure)


def site_name(url: str, pages: Sequence[FetchedPage]) -> tuple[str, NamedBy, FetchedPage | None]:
    """Return the name of the business, its source and its page; the domain is the last resort."""
    for page in pages:
        stated = page.facts.stated.get("name")
        name = page.facts.name
        if name and stated and _is_name(name):
            return name, _NAMED_BY.get(stated, NamedBy.META), page
    for page in pages:
        for part in page.facts.title_parts:
            if is_like_domain(part, url) and _is_name(part):
                return part, NamedBy.TITLE, page
    for page in pages:
        if name := _name_in_text(page, url):
            return name, NamedBy.TEXT, page
    return domain_name(url), NamedBy.DOMAIN, None


def _name_in_text(page: FetchedPage, url: str) -> str | None:
    """Return the name in the notice if a legal form, title or domain confirms that it is one; else the legal name."""
    facts = page.facts
    name = facts.copyright_name
    if name and _is_name(name):
        is_titled = any(folded_name(name) in folded_name(part) for part in facts.title_parts)
        if is_titled or organizations.without_legal_form(name) != name or is_like_domain(name, url):
            return name
    return facts.legal_name if facts.legal_name and _is_name(facts.legal_name) else None


def domain_name(url: str) -> str:
    """Return a name made from the domain: `Acme Tools` of `www.acme-tools.co.uk`."""
    host = own_host(url) or url
    label = domain_label(host) or host
    return " ".join(part.capitalize() for part in label.split("-") if part) or label


def is_like_domain(name: str, url: str) -> bool:
    """Return whether name and domain are alike, or one begins with the other."""
    from rapidfuzz import fuzz

    label = "".join(domain_label(own_host(url) or "").split("-"))
    folded = "".join(character for character in folded_name(organizations.bare_name(name)) if character.isalnum())
    if not label or not folded:
        return False
    label = folded_name(label)
    return folded.startswith(label) or label.startswith(folded) or fuzz.ratio(folded, label) >= _LIKE_DOMAIN


def site_keywords(pages: Sequence[FetchedPage], named: Sequence[Names], language: str | None) -> tuple[str, ...]:
    """Return three to five keywords: those that are stated, else the most frequent words.

    Fewer than three stated ones are filled up to three. Names are never keywords.
    """
    stated = [word for page in pages for word in page.facts.keywords]
    headings = [line for page in pages for line in page.facts.headings]
    text = "\n".join(page.facts.text for page in pages)
    counted = organizations.frequent_words(text, headings=headings, language=language, most=4 * MOST_KEYWORDS)
    keywords: dict[str, str] = {}
    for words, most in ((stated, MOST_KEYWORDS), (counted, FEW_KEYWORDS if stated else MOST_KEYWORDS)):
        for word in words:
            if len(keywords) >= most:
                break
            is_known = any(word.lower() in keyword for keyword in keywords)
            is_fit = len(word) <= organizations.MAX_KEYWORD_CHARACTERS and not is_known
            if is_fit and not any(find_mentions(word.title(), names) for names in named):
                keywords[word.lower()] = word
    return tuple(keywords.values())


def unsure_facts(
    pages: Sequence[FetchedPage],
    facts: Mapping[str, str],
    keywords: Sequence[str],
    evidence: Mapping[str, Mapping[str, Any]],
    language: str | None,
) -> tuple[str, ...]:
    """Return the facts that no prompt should have.

    Sure are an industry and keywords that embedded data states, keywords of a meta tag that the text has in small
    letters (so it is no name), and a location that is stated as data, each if it reads as what it should be.
    """
    sure = {industry} if (industry := facts.get("industry")) else set[str]()
    for page in pages:
        is_data = page.facts.stated.get("keywords") in _NAMED_BY
        sure |= {word for word in page.facts.keywords if is_data or _is_plain_word(word, page.facts.text)}
    unsure = [
        topic
        for topic in filter(None, (industry, *keywords))
        if topic not in sure or topic in facts.get("location", "").split(", ") or not is_topic(topic, language)
    ]
    is_text = evidence.get("location", {}).get("method") == organizations.Stated.TEXT.value
    return (*unsure, facts["location"]) if is_text else tuple(unsure)


def is_topic(text: str, language: str | None) -> bool:
    """Return whether it may be something that one asks for: a few words without signs, not all of them empty."""
    words = text.lower().split()
    length = len(words) if text.isascii() else max(len(words), len(_NO_BLANKS.findall(text)) // _CHARACTERS_OF_A_WORD)
    empty = organizations.empty_words(language) | _NOT_TOPICS
    return 0 < length <= _TOPIC_WORDS and not _NOT_IN_A_TOPIC.search(text) and not empty.issuperset(words)


def _is_plain_word(word: str, text: str) -> bool:
    """Return whether the text has the word in small letters, and not as a part of a word or an address."""
    small = word.lower()
    return small != small.upper() and bool(re.search(rf"(?<![\w.@/#-]){re.escape(small)}(?![\w@/-]|\.\w)", text))


def _is_name(text: str) -> bool:
    return 0 < len(text.split()) <= MAX_NAME_WORDS and any(character.isalpha() for character in text)


def _first_facts(pages: Sequence[FetchedPage]) -> tuple[dict[str, str], dict[str, Mapping[str, Any]]]:
    """Return each fact from the first page that states it best, and its evidence."""
    places = list(organizations.Stated)
    facts: dict[str, str] = {}
    evidence: dict[str, Mapping[str, Any]] = {}
    for name in _FIELDS:
        stated = [
            (places.index(page.facts.stated[name]), number)
            for number, page in enumerate(pages)
            if name in page.facts.stated
        ]
        if stated:
            page = pages[min(stated)[1]]
            facts[name] = str(getattr(page.facts, name))
            evidence[name] = _evidence(facts[name], page, page.facts.stated[name].value)
    return facts, evidence


def _evidence(value: str, page: FetchedPage | None, method: str) -> Mapping[str, Any]:
    """Return where the page shows the value; metadata is its own proof."""
    if page is None:
        return {"method": method}
    grounding = ground(value, page.facts.text)
    proof = grounding if grounding.is_proof else BY_SOURCE
    return {"page": page.url, "method": method, "status": proof.status.value, "start": proof.start, "end": proof.end}


# Links of the site with a part of its path that names their kind.
_PATTERNS = tuple(re.compile(rf"\A(?:{'|'.join(kind)})(?:\.\w+)?") for kind in _WORDS["page_kinds"])
_DEEPEST = 3  # parts of a path; deeper pages are about details


def informative_links(links: Iterable[str], home: str, *, most: int) -> list[str]:
    """Return links of the site, at most one of each kind, the most informative first."""
    here = _host(home)
    by_kind: dict[int, str] = {}
    for link in links:
        if _host(link) != here or urlsplit(link).query or (kind := _kind(link)) is None:
            continue
        by_kind[kind] = min(by_kind.get(kind, link), link, key=len)
    return [by_kind[kind] for kind in sorted(by_kind)][:most]


def _kind(link: str) -> int | None:
    parts = [part for part in unquote(urlsplit(link).path).lower().split("/") if part]
    if not 0 < len(parts) <= _DEEPEST:
        return None
    kinds = (kind for kind, pattern in enumerate(_PATTERNS) if any(map(pattern.fullmatch, parts)))
    return next(kinds, None)


def _host(url: str) -> str:
    return urlsplit(url).netloc.lower().removeprefix("www.")


VERSION = "website 1"
TEXT_CHARS = 2_000  # of each page that a model is shown
CALL_SITE = "website_info"
_TEXT = {"type": ["string", "null"]}
_TEXTS = {"type": "array", "items": {"type": "string"}}
SCHEMA = AnswerSchema.of(
    "business",
    {
        **dict.fromkeys(("name", "industry", "description", "location"), _TEXT),
        **dict.fromkeys(("keywords", "competitors"), _TEXTS),
    },
)
PROMPT = Prompt(
    name="website_info",
    version=1,
    instructions="""\
The text is from the home page of a business' website and a few of its other pages. Say what the
business is. name: as it calls itself, without article and legal form. industry: in a few words.
description: one sentence of the text that says what it does. location: town, region and country of
its seat. keywords: three to five words for what it offers. competitors: other businesses that the
text compares it with. Copy every value from the text, word for word.""",
)
# Sources of a name that the model's may replace: it was not stated anywhere.
_WEAK = frozenset({NamedBy.DOMAIN, NamedBy.TEXT})


async def read_with_model(
    reading: SiteResult, pages: Sequence[FetchedPage], client: ModelClient, *, source_id: str | None
) -> tuple[SiteResult, list[Problem]]:
    """Fill gaps of the reading by the model, as far as the text proves the answer.

    If the model cannot be asked now, the reading is returned as it is, with a problem; its
    confidence says how good it is.

    Raises:
        Fatal: the environment fails (database, disk, memory).
    """
    texts = [page.facts.text for page in pages if page.may_ask_models]
    if not _gaps(reading) or not texts:
        return reading, []
    text = "\n".join(text[:TEXT_CHARS] for text in without_repeated_blocks(texts))
    question = Question(prompt=PROMPT, schema=SCHEMA, page=PageText(text=text), extractor_version=VERSION)
    try:
        answer = await client.ask(question, Billing(call_site=CALL_SITE, source_id=source_id))
    except Fatal:
        raise
    except WorkError as error:
        return reading, [_problem(error.text, error.code)]
    if not isinstance(answer, Answered):
        return reading, [_problem(str(answer), "model_unanswered")]
    return filled(reading, answer.data, question.page.text)


def filled(reading: SiteResult, answer: Mapping[str, object], text: str) -> tuple[SiteResult, list[Problem]]:
    """Return the reading with each gap filled that the answer fills and the text proves."""
    business, named_by = reading.business, reading.named_by
    evidence = dict(business.evidence)
    dropped: list[str] = []
    changes: dict[str, Any] = {}
    for name in _gaps(reading):
        if proved := _proved(answer.get(name), text):
            changes[name], evidence[name] = proved
        elif answer.get(name):
            dropped.append(name)
    if "name" in changes:
        named_by = NamedBy.MODEL
        changes["name"] = organizations.bare_name(changes["name"], language=business.language)
    for name, most in (("keywords", MOST_KEYWORDS), ("competitors", MOST_COMPETITORS)):
        if name in changes:
            changes[name] = tuple(dict.fromkeys((*getattr(business, name), *changes[name])))[:most]
    sure = {*changes.get("keywords", ()), changes.get("industry")}
    changes["unsure"] = tuple(fact for fact in business.unsure if fact not in sure)
    better = with_confidence(replace(business, **changes, evidence=evidence), named_by)
    problems = [_problem(f"not proved by the text: {', '.join(dropped)}", "ungrounded")] if dropped else []
    return SiteResult(business=better, named_by=named_by), problems


def _gaps(reading: SiteResult) -> list[str]:
    business = reading.business
    gaps = [name for name in ("industry", "description", "location") if not getattr(business, name)]
    gaps += ["name"] if reading.named_by in _WEAK else []
    gaps += ["keywords"] if len(business.keywords) < MOST_KEYWORDS else []
    return gaps + (["competitors"] if not business.competitors else [])


def _proved(value: object, text: str) -> tuple[Any, Mapping[str, Any]] | None:
    """Return the value and its evidence; of a list the proved items; None if nothing is proved."""
    if isinstance(value, list):
        listed = [str(item).strip() for item in cast("list[object]", value)]
        grounded = [item for item in listed if ground(item, text).is_proof]
        return (grounded, {"method": NamedBy.MODEL.value, "status": "exact"}) if grounded else None
    if not isinstance(value, str) or not value.strip():
        return None
    grounding = ground(value, text)
    if not grounding.is_proof:
        return None
    proof = {
        "method": NamedBy.MODEL.value,
        "status": grounding.status.value,
        "start": grounding.start,
        "end": grounding.end,
    }
    return value.strip(), proof


def _problem(message: str, code: str) -> Problem:
    return Problem(where="the model's reading of the website", message=message, code=code)


async def information(
    url: str, *, visit: Visit, model: ModelClient | None, config: WebsiteConfig, source_id: str | None
) -> Informed:
    """Return the business; nothing is fetched if the operator has configured its name.

    Pages but the home page may fail, with a problem. `model` is None where none is configured: then only
    rules are applied.

    Raises:
        WorkError: the home page cannot be fetched, or is a parked domain's.
    """
    try:
        home = home_url(url)
    except BadUrl as error:
        raise Permanent(str(error), code="bad_url") from error
    if config.is_manual:
        return Informed(business=_configured_business(home, config))
    problems: list[Problem] = []
    pages = await _fetch_pages(home, visit, INFORMATIVE_PAGES, problems)
    reading = await asyncio.to_thread(read_site, home, pages)
    if model is not None:
        reading, more = await read_with_model(reading, pages, model, source_id=source_id)
        problems += more
    return Informed(
        business=_with_config(reading.business, config),
        pages=tuple(page.url for page in pages),
        problems=tuple(problems),
    )


async def _fetch_pages(home: str, visit: Visit, most: int, problems: list[Problem]) -> Sequence[FetchedPage]:
    """Fetch the home page and those of the informative pages that succeed."""
    first = await visit(home)
    if is_parked(first):
        raise Permanent(f"{first.url} is a parked domain: nobody's business", code=PARKED)
    pages = [first]
    for link in informative_links(first.links, first.url, most=most):
        try:
            pages.append(await visit(link))
        except Fatal:
            raise
        except WorkError as error:
            problems.append(Problem(where=link, message=error.text, code=error.code))
    return pages


def is_parked(page: FetchedPage) -> bool:
    """Return whether the page is a seller's of domains, or has few words, with which a domain is offered."""
    host = f".{host_of(page.url)}"
    if any(host.endswith(f".{seller}") for seller in _PARKING_HOSTS):
        return True
    text = " ".join((*page.facts.title_parts, page.facts.text))
    return len(text.split()) <= MOST_PARKED_WORDS and _PARKED.search(text.lower()) is not None


def _configured_business(home: str, config: WebsiteConfig) -> Business:
    business = Business(url=home, name=config.name or "", confidence=100)
    names = ("name", "aliases", "industry", "description", "location", "keywords", "competitors")
    evidence = {name: {"method": NamedBy.OPERATOR.value} for name in names if getattr(config, name)}
    return replace(_with_config(business, config), evidence=evidence)


def _with_config(business: Business, config: WebsiteConfig) -> Business:
    """Apply the operator's config: a text replaces, a list comes first; what it states is sure."""
    stated = {config.industry, config.location, *config.keywords}
    return replace(
        business,
        aliases=tuple(dict.fromkeys((*config.aliases, *business.aliases))),
        industry=config.industry or business.industry,
        description=config.description or business.description,
        location=config.location or business.location,
        language=(config.language or business.language or "").lower() or None,
        keywords=tuple(dict.fromkeys((*config.keywords, *business.keywords)))[:MOST_KEYWORDS],
        competitors=tuple(dict.fromkeys((*config.competitors, *business.competitors)))[:MOST_COMPETITORS],
        unsure=tuple(fact for fact in business.unsure if fact not in stated),
    )
