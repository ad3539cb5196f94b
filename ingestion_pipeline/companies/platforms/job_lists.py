"""Job lists on any site: recognised by their layout, by places that the source's config names, or by JobPosting data.

A list is recognised by repeated blocks with a link to a job. Links are grouped by position (surrounding tags and
classes) and target (the first folder of the URL). A group counts as jobs if most of its titles are job titles, or most
of its URLs are job URLs. Uncertain pages are not guessed: they are rejected with what they lack. Feeds, JSON and HTML
are read by the paths and selectors of the config; schema.org/JobPosting data may be JSON-LD, microdata or JSON.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit

import orjson

from ingestion_pipeline.companies.job_listing import Listing, Salary, stated_salary
from ingestion_pipeline.companies.platforms.job_board import (
    MAX_PLACE_CHARACTERS,
    MAX_TITLE_CHARACTERS,
    JobBoard,
    JobPlatform,
    ListingFields,
    as_list,
    date_of,
    description_of,
    joined,
    one_line,
    other_places,
    remote_in,
)
from ingestion_pipeline.companies.platforms.linked_pages import (
    FIELDS,
    MAX_PAGES,
    NO_ITEMS,
    Auth,
    BoardConfig,
    ListedBoard,
    ListedPage,
    PageReader,
    Paging,
    PagingKind,
    RequestBuilder,
)
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.links import absolute_link, next_page, shows_a_part
from ingestion_pipeline.reading.structured.embedded import BadJson, read_json, things_in, types_of
from ingestion_pipeline.reading.structured.feeds import FeedEntry, read_feed
from ingestion_pipeline.reading.structured.items import (
    MAX_PROBLEMS,
    FieldSelector,
    HtmlReader,
    Item,
    ItemReader,
    JsonPath,
    JsonReader,
    ParsedFeed,
    Problem,
    checked_css,
)
from ingestion_pipeline.reading.structured.organizations import is_profile
from ingestion_pipeline.reading.structured.sitemaps import read_sitemap
from ingestion_pipeline.reading.text.plain_text import clean_text, phrases_of
from ingestion_pipeline.reading.text.values import DateReader
from ingestion_pipeline.sources.declarations import BadField, as_mapping
from ingestion_pipeline.sources.platform_config import Text, TrueOrFalse, accepted, field_map, parsed_by, refusal
from ingestion_pipeline.sources.source import BadConfig
from ingestion_pipeline.tasks.errors import Permanent, Transient

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

MAX_LINKS = 3_000  # of one page that are examined
MAX_LEVELS_UP = 6  # steps from a link to its block
MIN_JOBS = 2  # a single link does not show a repetition
MIN_SHARE = 0.6  # of a group's links must look like jobs
_MAX_LINK_TITLE_CHARACTERS = 150
MAX_PART_CHARACTERS = 80  # characters of a place or a kind of employment; longer is running text

_PHRASES = phrases_of("ingestion_pipeline.companies.platforms")
_JOB_TITLE = re.compile(_PHRASES["job_title"], re.IGNORECASE)
_JOB_ADDRESS = re.compile(_PHRASES["job_address"], re.IGNORECASE)
_NO_JOB = re.compile(_PHRASES["no_job"], re.IGNORECASE)
_PLACE = re.compile(_PHRASES["place"], re.IGNORECASE)
_DEPARTMENT = re.compile(r"department|team|category|abteilung|bereich", re.IGNORECASE)
_EMPLOYMENT = re.compile(_PHRASES["employment"], re.IGNORECASE)
_COUNTED = re.compile(r"(?:(?<![0-9])[0-9]++|[-_]?(?:odd|even|first|last))$", re.IGNORECASE)  # row1, row-odd
_SLUG_MARKS = re.compile(r"[-_+\s]+")
_HEADINGS = "h1, h2, h3, h4, h5, h6"
_ASIDE = "nav, header, footer, aside, form, [role=navigation], [role=banner], [role=contentinfo]"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    node: LexborNode
    block: LexborNode
    url: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecognisedReader(PageReader):
    """Reader of any page that lists jobs; `may_be_empty` if it may list none at times."""

    may_be_empty: bool = False

    def read(self, body: bytes, *, url: str, content_type: str | None) -> ListedPage:
        """Return the jobs of the page; raise if nothing on it is certainly a list of jobs."""
        document = Document.of(body, content_type, url=url)
        following, is_part = next_page(document.tree, url), shows_a_part(document.tree)
        items = recognised_jobs(document, url=url)  # last: it takes the tree over
        if not items and not self.may_be_empty:
            raise Permanent(
                "no list of jobs is recognised: fewer than two links in one place whose words or"
                " addresses are those of jobs. Give `items` and `fields` (CSS selectors); a page"
                " that a script fills has none, look for what the script asks for",
                code=NO_ITEMS,
            )
        return ListedPage(items=items, base_url=url, next_url=following, is_part=is_part)

    def next_url(self, body: bytes, *, url: str) -> str | None:
        """Return the URL that the page's own pager links to."""
        return next_page_of(body, url=url)


def next_page_of(body: bytes, *, url: str) -> str | None:
    """Return the next page of the list, according to the page's links."""
    return next_page(Document.of(body).tree, url)


def recognised_jobs(document: Document, *, url: str) -> list[Item]:
    """Return the jobs that the page certainly lists, in order, with title and URL; else none."""
    tree = document.take_visible_tree()
    for node in tree.css(_ASIDE):
        node.decompose()
    groups = _groups(tree, url)
    best = max(groups, key=_job_count, default=None)
    if best is None or _job_count(best) == 0:
        return []
    firsts = {link.url: link for link in reversed(best)}
    return [_item(link) for link in dict.fromkeys(firsts[link.url] for link in best)]


def _groups(tree: LexborHTMLParser, url: str) -> list[list[_Link]]:
    groups: dict[tuple[str, ...], list[LexborNode]] = {}
    for node in tree.css("a[href]")[:MAX_LINKS]:
        address = absolute_link(url, node.attrs.get("href"))
        if address is not None and address.partition("#")[0] != url.partition("#")[0]:
            groups.setdefault((*_around(node), *_folder(address)), []).append(node)
    return [list(_links(nodes, url)) for nodes in groups.values() if len(nodes) >= MIN_JOBS]


def _around(node: LexborNode) -> Iterator[str]:
    """Yield tags and first classes of the link and its ancestors, a few steps up."""
    for _ in range(4):
        yield f"{node.tag}.{_COUNTED.sub('', (node.attrs.get('class') or '').partition(' ')[0])}"
        if node.parent is None or node.tag == "body":
            return
        node = node.parent


def _folder(address: str) -> tuple[str, str]:
    parts = urlsplit(address)
    first, _, rest = parts.path.strip("/").partition("/")
    return parts.netloc, first if rest else ""


def _links(nodes: Sequence[LexborNode], url: str) -> Iterator[_Link]:
    node_ids = {node.mem_id for node in nodes}
    for node in nodes:
        block = _block(node, node_ids)
        title = _title(node, block)
        address = absolute_link(url, node.attrs.get("href"))
        if title is not None and address is not None:
            yield _Link(node=node, block=block, url=address, title=title)


def _block(node: LexborNode, node_ids: set[int]) -> LexborNode:
    """Return the largest element around the link without another link of its group."""
    block = node
    for _ in range(MAX_LEVELS_UP):
        parent = block.parent
        if parent is None or parent.tag in {"body", "html"}:
            break
        if sum(link.mem_id in node_ids for link in parent.css("a[href]")) > 1:
            break
        block = parent
    return block


def _title(node: LexborNode, block: LexborNode) -> str | None:
    """Return the heading inside the link, its text, or the heading of its block."""
    inner = node.css_first(_HEADINGS)
    outer = block.css_first(_HEADINGS)
    words = clean_text(node.text(separator=" "))
    if inner is not None:
        words = clean_text(inner.text(separator=" ")) or words
    elif outer is not None and (words is None or _NO_JOB.match(words)):
        words = clean_text(outer.text(separator=" "))
    elif words is not None and node.css_first("div, span, p"):
        words = next(_parts(node), words)
    if words is None or len(words) > _MAX_LINK_TITLE_CHARACTERS or _NO_JOB.match(words):
        return None
    return words


def _job_count(links: Sequence[_Link]) -> int:
    """Return how many jobs the group lists; 0 unless most of its links look like jobs."""
    distinct = {link.url: link for link in links}
    if len(distinct) < MIN_JOBS or len({link.title for link in links}) < MIN_JOBS:
        return 0
    titles = sum(_JOB_TITLE.search(link.title) is not None for link in distinct.values())
    parts = [urlsplit(url) for url in distinct]
    addresses = sum(_JOB_ADDRESS.search(f"{part.path}?{part.query}") is not None for part in parts)
    is_sure = titles >= MIN_SHARE * len(distinct) or (addresses >= MIN_SHARE * len(distinct) and titles >= 1)
    return titles + len(distinct) if is_sure else 0


def _item(link: _Link) -> dict[str, str]:
    item = {"title": link.title, "url": link.url}
    seen = {link.title}
    for node in link.block.css("[class], [itemprop], [data-field], time"):
        text = clean_text(node.text(separator=" "))
        if text is None or len(text) > MAX_PART_CHARACTERS or text in seen:
            continue
        name = _field(node)
        if name is not None and name not in item:
            item[name] = (node.attrs.get("datetime") or text) if node.tag == "time" else text
            seen.add(text)
    for part in _parts(link.block):
        if _EMPLOYMENT.match(part) and len(part) <= MAX_PART_CHARACTERS:
            item.setdefault("employment_type", part)
    return item


def _field(node: LexborNode) -> str | None:
    """Return the field that the element holds, by its class or tag."""
    if node.tag == "time":
        return "posted_at"
    marks = " ".join(filter(None, map(node.attrs.get, ("class", "itemprop", "data-field"))))
    if _PLACE.search(marks):
        return "location"
    return "department" if _DEPARTMENT.search(marks) else None


def _parts(node: LexborNode) -> Iterator[str]:
    for line in node.text(separator="\n").split("\n"):
        if (text := clean_text(line)) is not None:
            yield text


def sample_titles(items: Sequence[Item], most: int = 3) -> str:
    """Return a few titles, for a person who decides whether it is a list of jobs."""
    titles = list(Counter(item["title"] for item in items))[:most]
    return ", ".join(repr(title) for title in titles)


RECOGNISE = "recognise"  # config key for lists without selectors
FEED_ACCEPT = "application/rss+xml, application/atom+xml, application/xml;q=0.9, */*;q=0.5"
JSON_ACCEPT = "application/json, */*;q=0.5"
HTML_ACCEPT = "text/html, application/xhtml+xml, */*;q=0.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedReader(PageReader):
    """Reader of an RSS or Atom feed; an entry without a title is a problem.

    `fields` name elements of an entry that replace or complete the standard ones.
    """

    fields: Mapping[str, Sequence[str]]

    def read(self, body: bytes, *, url: str, content_type: str | None) -> ListedPage:
        """Return every entry that has a title; raise if none has."""
        elements = [name for names in self.fields.values() for name in names]
        reading = read_feed(body, content_type=content_type, elements=elements)
        named = [entry for entry in reading.records if entry.title]
        if reading.records and not named:
            raise Permanent("no entry of the feed has a title", code="no_fields")
        untitled = [
            Problem(where=f"entry {n}", message="it has no title; the rest counts")
            for n, entry in enumerate(reading.records)
            if not entry.title
        ]
        return ListedPage(
            items=[self._item(entry) for entry in named], base_url=url, problems=[*reading.problems, *untitled]
        )

    def _item(self, entry: FeedEntry) -> Item:
        own = {
            name: text
            for name, elements in self.fields.items()
            if (text := next(filter(None, map(entry.elements.get, elements)), None))
        }
        stated = {
            "title": entry.title,
            "url": entry.url,
            "external_id": entry.id,
            "posted_at": entry.published_at.isoformat() if entry.published_at else None,
            "description": entry.summary,
            "department": next(iter(entry.categories), None),
        }
        return {name: text for name, text in stated.items() if text} | own


@dataclass(frozen=True, slots=True, kw_only=True)
class GenericReader(PageReader):
    """Reader of pages by paths or selectors; `script` names the data inside a page to use.

    `follows_pager` if the config does not say how to find the next page: the page's own links do.
    """

    items: ItemReader
    script: str | None = None
    follows_pager: bool = False

    def read(self, body: bytes, *, url: str, content_type: str | None) -> ListedPage:
        """Return every item of the page."""
        if self.script is not None:
            body, content_type = script_data(body, content_type, self.script), None
        page = self.items.read(body, url=url, content_type=content_type)
        listed = ListedPage(
            items=page.reading.records,
            base_url=page.base_url,
            problems=page.reading.problems,
            next_url=page.next_url,
        )
        if not self.follows_pager:
            return listed
        tree = Document.of(body, content_type).tree
        return replace(listed, next_url=next_page(tree, url), is_part=shows_a_part(tree))

    def next_url(self, body: bytes, *, url: str) -> str | None:
        """Return the URL of the next page, as the page states it."""
        if self.script is not None:
            body = script_data(body, None, self.script)
        return next_page_of(body, url=url) if self.follows_pager else self.items.next_url(body, url=url)


def script_data(body: bytes, content_type: str | None, name: str) -> bytes:
    """Return the data that a script of the page assigns to that name, as JSON."""
    states = Document.of(body, content_type).embedded.states
    match = next((state for state in states if state.name == name), None)
    if match is None:
        names = ", ".join(dict.fromkeys(state.name[:60] for state in states[:10])) or "none"
        raise Permanent(f"no script of the page sets {name!r}; the page has: {names}", code="no_items")
    try:
        return orjson.dumps(match.data)
    except TypeError as error:  # a lone surrogate, or a number beyond 64 bits
        raise Permanent(f"the data of {name!r} is no JSON: {error}", code="not_json") from error


def _incomplete(fields: object) -> Iterator[BadField]:
    """Yield the problem of fields without those that make an item a listing: a title, and its URL or id."""
    names = as_mapping(fields)
    if "title" not in names or not ("url" in names or "external_id" in names):
        yield BadField("fields", "needed: title, and url or external_id")


def _required(fields: Collection[str]) -> tuple[str, ...]:
    return ("title", "url" if "url" in fields else "external_id")


class _RssConfig(BoardConfig):
    complete: TrueOrFalse | None = False
    fields: Annotated[Mapping[str, Sequence[str]], field_map(FIELDS, str)] = {}
    auth: Auth | None = None


class _RequestConfig(BoardConfig):
    body: Annotated[dict[str, Any], accepted("a map")] | None = None
    auth: Auth | None = None
    pagination: Paging | None = None

    def requests(self, accept: str) -> RequestBuilder:
        """Return the builder of the requests of its pages."""
        secret = self.auth.secret if self.auth else None
        return RequestBuilder(accept=accept, body=self.body, secret=secret, paging=self.pagination)


class _JsonConfig(_RequestConfig):
    complete: TrueOrFalse | None = False
    items: Annotated[JsonPath | None, parsed_by(JsonPath.of)] = None
    fields: Annotated[Mapping[str, Sequence[JsonPath]], field_map(FIELDS, JsonPath.of)] = {}
    next: Annotated[JsonPath | None, parsed_by(JsonPath.of)] = None
    script: Text = None

    @classmethod
    def mistakes(cls, values: Mapping[str, Any]) -> Iterator[BadField]:
        """Yield the problem of fields that make no listing."""
        return _incomplete(values.get("fields"))


class _HtmlConfig(_RequestConfig):
    recognise: TrueOrFalse = False
    may_be_empty: TrueOrFalse = False
    items: Annotated[str | None, parsed_by(checked_css)] = None
    fields: Annotated[Mapping[str, Sequence[FieldSelector]], field_map(FIELDS, FieldSelector.of)] = {}
    next: Annotated[str | None, parsed_by(checked_css)] = None

    @classmethod
    def mistakes(cls, values: Mapping[str, Any]) -> Iterator[BadField]:
        """Yield the problems of selectors that are missing, or have no use."""
        if as_mapping(values.get("pagination")).get("kind") == PagingKind.CURSOR:
            others = ", ".join(kind for kind in PagingKind if kind is not PagingKind.CURSOR)
            yield BadField("pagination.kind", refusal("kind", PagingKind.CURSOR.value, others))
        if values.get(RECOGNISE) is True:
            unused = (key for key in ("items", "fields", "next") if key in values)
            yield from (BadField(key, f"has no use with {RECOGNISE}: true; remove it") for key in unused)
            return
        if not values.get("items"):
            yield BadField("items", f"needed: a CSS selector, one match for each job; or {RECOGNISE}: true")
        yield from _incomplete(values.get("fields"))


def configure_feed(url: str, config: Mapping[str, object]) -> ListedBoard:
    """Configure the feed at `url` or `api_base`; without either it only parses bodies."""
    entry = _RssConfig.of("rss", url, config)
    requests = RequestBuilder(accept=FEED_ACCEPT, secret=entry.auth.secret if entry.auth else None)
    return ListedBoard(platform="rss", requests=requests, defaults=entry, reader=FeedReader(fields=entry.fields))


def configure_json(url: str, config: Mapping[str, object]) -> ListedBoard:
    """Configure the list at `items` and its `fields`; `script` if it is inside a page."""
    entry = _JsonConfig.of("json", url, config)
    items = JsonReader(
        items=entry.items or JsonPath.of(""), fields=entry.fields, required=_required(entry.fields), next=entry.next
    )
    return ListedBoard(
        platform="json",
        requests=entry.requests(HTML_ACCEPT if entry.script else JSON_ACCEPT),
        defaults=entry,
        reader=GenericReader(items=items, script=entry.script),
    )


def configure_html(url: str, config: Mapping[str, object]) -> ListedBoard:
    """Configure the elements of `items` and their `fields`, or a list that is recognised by its repetition."""
    entry = _HtmlConfig.of("html", url, config)
    page_reader = RecognisedReader(may_be_empty=entry.may_be_empty) if entry.recognise else _selected(entry)
    return ListedBoard(platform="html", requests=entry.requests(HTML_ACCEPT), defaults=entry, reader=page_reader)


def _selected(entry: _HtmlConfig) -> GenericReader:
    html_reader = HtmlReader(
        items=entry.items or "",
        fields=entry.fields,
        required=_required(entry.fields),
        next=entry.next,
        may_be_empty=entry.may_be_empty,
    )
    return GenericReader(items=html_reader, follows_pager=entry.next is None and entry.pagination is None)


RSS = JobPlatform(name="rss", version=2, honours_robots=True, configure=configure_feed)
JSON = JobPlatform(name="json", version=2, honours_robots=True, configure=configure_json)
HTML = JobPlatform(name="html", version=3, honours_robots=True, configure=configure_html)


ACCEPT = "text/html, application/ld+json;q=0.9, */*;q=0.5"
POSTING = "JobPosting"
_MARKS = ("@value", "name", "value", "@id")


class _JsonLdConfig(BoardConfig):
    may_be_empty: TrueOrFalse = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLdBoard(JobBoard):
    """A page, or a JSON-LD document."""

    defaults: _JsonLdConfig

    def first_request(self) -> Request:
        """Return the request for the page itself."""
        if not self.defaults.requested_url:
            raise BadConfig("a source of jsonld needs an address; without one it reads bodies only")
        return Request(url=self.defaults.requested_url, accept=ACCEPT)

    def next_request(self, body: bytes, *, previous: Request, url: str = "") -> Request | None:
        """Return the page that the page's own pager links to; None at the end or limit."""
        document = Document.of(body)
        address = _following(document, url or previous.url)
        if address is None or previous.page >= MAX_PAGES:
            return None
        if previous.page > 1 and not self._postings(document, [], is_first=False):
            return None
        return Request(url=address, accept=ACCEPT, page=previous.page + 1)

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),
        now: datetime | None = None,
    ) -> ParsedFeed[Listing]:
        """Return one listing per posting, in page order; duplicates on a page count once."""
        where = list(urls) or [self.defaults.url] * len(bodies)
        return self.read_documents(map(Document.of, bodies, content_types), urls=where, now=now)

    def read_documents(
        self, documents: Iterable[Document], *, urls: Sequence[str], now: datetime | None
    ) -> ParsedFeed[Listing]:
        """Return what `read` does, of pages that others read, too; their trees stay as they are."""
        dates = DateReader(now=now, day_first=self.defaults.day_first)
        listings: list[Listing] = []
        problems: list[Problem] = []
        is_last_empty = False
        document = Document("")
        for n, (document, url) in enumerate(zip(documents, urls, strict=True)):
            postings = self._postings(document, problems, is_first=n == 0)
            page_url = url if len(postings) == 1 else None
            parsed = [self._listing(ListingFields(posting), url, page_url, dates) for posting in postings]
            if parsed and all(listing is None for listing in parsed):
                raise Permanent(f"none of {len(parsed)} job postings has a title", code="no_fields")
            problems += [
                Problem(where=f"posting {n}", message="it has no title; the rest counts")
                for n, listing in enumerate(parsed)
                if listing is None
            ]
            listings += [listing for listing in parsed if listing is not None]
            is_last_empty = n > 0 and not parsed
        return ParsedFeed(
            records=list(dict.fromkeys(listings)),
            problems=problems[:MAX_PROBLEMS],
            is_complete=(
                bool(urls)
                and not problems
                and not is_last_empty  # a linked page may have failed
                and (_is_json(document) or not shows_a_part(document.tree))
                and _following(document, urls[-1]) in {None, *urls}
                and self.defaults.holds_all(listings)
            ),
        )

    def _postings(self, document: Document, problems: list[Problem], *, is_first: bool) -> list[Mapping[str, object]]:
        if not document.html.strip():
            raise Transient("the body is empty; it is fetched again", code="truncated")
        if _is_json(document):
            postings = list(_stated(document.html))
        else:
            postings = list(document.embedded.things(POSTING))
            problems += document.embedded.problems
        if not postings and is_first and not self.defaults.may_be_empty:
            broken = f"; {problems[0].where}: {problems[0].message}" if problems else ""
            raise Permanent(
                f"the page states no {POSTING}{broken}; read it with the platform html, or set may_be_empty"
                " if it lists jobs only at times",
                code="no_job_posting",
            )
        return postings

    def _listing(self, item: ListingFields, url: str, page_url: str | None, dates: DateReader) -> Listing | None:
        title = one_line(_text(item, "title", "name"), most=MAX_TITLE_CHARACTERS)
        if title is None:
            return None
        address = absolute_link(url, _text(item, "url", "@id", "sameAs")) or page_url
        places = [place for entry in _listed(item, "jobLocation") if (place := _place(entry))]
        location = next(iter(places), None)
        return Listing(
            external_id=_text(item, "identifier") or address,
            title=title,
            url=address,
            location=location,
            posted_at=date_of(_text(item, "datePosted"), dates),
            description=description_of(item.markup("description", "description.@value")),
            company=_text(item, "hiringOrganization") or self.defaults.company,
            department=_text(item, "employmentUnit", "occupationalCategory", "industry"),
            employment_type=joined(*item.texts("employmentType")),
            remote=remote_in(*item.texts("jobLocationType"), location),
            salary=_salary(item),
            other_locations=other_places(location, places[1:]),
            # No board states a deadline relative to now.
            valid_until=date_of(_text(item, "validThrough"), DateReader(now=None, day_first=self.defaults.day_first)),
            company_website=_website(item, url),
        )


def _is_json(document: Document) -> bool:
    """Return whether it is a JSON-LD document and no page: it has no pager."""
    return document.html.lstrip("\ufeff \t\r\n")[:1] in {"{", "["}


def _following(document: Document, url: str) -> str | None:
    """Return the next page of a list."""
    return None if _is_json(document) else next_page(document.tree, url)


def _stated(text: str) -> Iterator[Mapping[str, object]]:
    try:
        document = read_json(text)
    except BadJson as error:
        raise Permanent(f"neither a page nor JSON-LD: {error}", code="not_json") from error
    things = things_in(as_list(document))
    yield from (thing for thing in things if POSTING in types_of(thing))


def _text(item: ListingFields, *names: str) -> str | None:
    """Return the first non-empty value: text, a number, a list of them, or a thing with a name."""
    for name in names:
        for value in as_list(item.values.get(name)):
            inside = ListingFields.of(value)
            marks = ("value", "name", "@id") if name == "identifier" else _MARKS
            text = inside.text(*marks) if inside.values else one_line(value)
            if text:
                return text
    return None


def _listed(item: ListingFields, name: str) -> list[ListingFields]:
    return [ListingFields.of(value) for value in as_list(item.values.get(name)) if value]


def _place(place: ListingFields) -> str | None:
    address = place.value("address")
    if isinstance(address, str):
        return one_line(address, most=MAX_PLACE_CHARACTERS)
    fields = ListingFields.of(next(iter(as_list(address)), None))
    stated = (_text(fields, name) for name in ("addressLocality", "addressRegion", "addressCountry"))
    return joined(*stated) or _text(place, "name")


def _website(item: ListingFields, url: str) -> str | None:
    """Return the hiring company's website: `url` before `sameAs`, without network profiles."""
    companies = _listed(item, "hiringOrganization")
    stated = (_text(company, name) for company in companies for name in ("url", "sameAs"))
    sites = (absolute_link(url, address) for address in stated)
    return next((site for site in sites if site and not is_profile(site)), None)


def _salary(item: ListingFields) -> Salary | None:
    for entry in _listed(item, "baseSalary"):
        value = ListingFields.of(entry.value("value"))
        inside = value if value.values else entry
        low = _text(inside, "minValue") or _text(inside, "value")
        salary = stated_salary(
            low,
            _text(inside, "maxValue"),
            currency=_text(entry, "currency") or _text(inside, "currency"),
            period=_text(inside, "unitText") or _text(entry, "unitText"),
        )
        if salary:
            return salary
    return None


def configure_json_ld(url: str, config: Mapping[str, object]) -> JsonLdBoard:
    """Configure the page at `url`, or at `api_base` if that is set."""
    return JsonLdBoard(defaults=_JsonLdConfig.of("jsonld", url, config))


class _SitemapConfig(BoardConfig):
    pattern: Annotated[re.Pattern[str] | None, parsed_by(re.compile)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SitemapReader(PageReader):
    """Reader of a sitemap whose job pages state JobPosting data, which is read when a listing is evaluated.

    A page is a job's if the path matches `pattern`, by default if a segment says so and another follows. Until its page
    was read a job has the title that its URL spells. An index leads to its sitemap of jobs.
    """

    pattern: re.Pattern[str] | None

    def read(self, body: bytes, *, url: str, content_type: str | None) -> ListedPage:
        """Return an item for each job page; a sitemap index has none."""
        sitemap = read_sitemap(body, url=url, content_type=content_type)
        pages = () if sitemap.is_index else (entry.url for entry in sitemap.entries)
        items = [{"title": title, "url": page} for page in pages if self._is_job(page) and (title := _slug_title(page))]
        return ListedPage(items=items, base_url=url, problems=sitemap.problems)

    def next_url(self, body: bytes, *, url: str) -> str | None:
        """Return the sitemap of jobs that an index names; raise if it is uncertain which one that is."""
        sitemap = read_sitemap(body, url=url)
        if not sitemap.is_index:
            return None
        inner = [entry.url for entry in sitemap.entries]
        named = [page for page in inner if _JOB_ADDRESS.search(urlsplit(page).path)] or inner
        if len(named) == 1:
            return named[0]
        names = ", ".join(named[:10]) or "none"
        raise Permanent(f"the index names several sitemaps; give the one of jobs as source: {names}", code="no_items")

    def _is_job(self, page: str) -> bool:
        path = urlsplit(page).path
        if self.pattern is not None:
            return self.pattern.search(page) is not None
        match = _JOB_ADDRESS.search(path)
        return match is not None and bool(path[match.end() :].strip("/"))


def _slug_title(page: str) -> str | None:
    """Return the words of the last segment that has some, without ids."""
    for segment in reversed(unquote(urlsplit(page).path).split("/")):
        words = [word for word in _SLUG_MARKS.split(segment.rpartition(".")[0] or segment) if word]
        named = [word for word in words if not any(character.isdigit() for character in word)]
        if named and not _JOB_ADDRESS.fullmatch(f"/{segment}"):
            return " ".join(named).capitalize()
    return None


def configure_sitemap(url: str, config: Mapping[str, object]) -> ListedBoard:
    """Configure the sitemap at `url`, or at `api_base` if that is set."""
    entry = _SitemapConfig.of("sitemap", url, config)
    requests = RequestBuilder(accept="application/xml, text/xml;q=0.9, */*;q=0.5")
    return ListedBoard(
        platform="sitemap", requests=requests, defaults=entry, reader=SitemapReader(pattern=entry.pattern)
    )


SITEMAP = JobPlatform(name="sitemap", version=1, honours_robots=True, configure=configure_sitemap)
JSON_LD = JobPlatform(name="jsonld", version=3, honours_robots=True, configure=configure_json_ld)
