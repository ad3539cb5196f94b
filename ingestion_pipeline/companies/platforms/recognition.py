"""Recognises job lists on careers pages of any layout: repeated blocks with a link to a job.

Links are grouped by position (surrounding tags and classes) and target (the first folder of the
URL). A group counts as jobs if most of its titles are job titles, or most of its URLs are job URLs.
Uncertain pages are not guessed: they are rejected with what they lack.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ingestion_pipeline.companies.platforms.linked_pages import NO_ITEMS, ListedPage, PageReader
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.links import absolute_link, next_page, shows_a_part
from ingestion_pipeline.reading.structured.items import Item
from ingestion_pipeline.reading.text.plain_text import clean_text
from ingestion_pipeline.tasks.errors import Permanent

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode


MAX_LINKS = 3_000  # of one page that are examined
MAX_LEVELS_UP = 6  # steps from a link to its block
MIN_JOBS = 2  # a single link does not show a repetition
MIN_SHARE = 0.6  # of a group's links must look like jobs
MAX_TITLE_CHARACTERS = 150
MAX_PART_CHARACTERS = 80  # characters of a place or a kind of employment; longer is running text

_JOB_TITLE = re.compile(
    r"(?<![a-z])(?=[a-z])(?:engineer|developer|programmer|architect|scientist"
    r"|analyst|manager|designer|director|lead|head of|specialist|consultant|coordinator|assistant"
    r"|administrator|technician|operator|officer|representative|executive|associate|intern"
    r"|internship|trainee|apprentice|recruiter|accountant|controller|nurse|teacher|driver|mechanic"
    r"|electrician|welder|cook|chef|cashier|clerk|buyer|planner|writer|editor|researcher|advisor"
    r"|counsel|attorney|paralegal|supervisor|worker|support|agent|barista|baker|carpenter|painter"
    r"|entwickler(?:in)?|ingenieur(?:in)?|leiter(?:in)?|berater(?:in)?|mitarbeiter(?:in)?"
    r"|sachbearbeiter(?:in)?|fachkraft|werkstudent(?:in)?|praktikant(?:in)?|praktikum|ausbildung"
    r"|kaufmann|kauffrau|techniker(?:in)?|verkäufer(?:in)?|ingénieure?|développeu(?:r|se)"
    r"|responsable|chargée?|stage|alternance|vendeu(?:r|se)|ingeniero|desarrollador|gerente"
    r"|analista|técnico|prácticas|sviluppatore|ingegnere|impiegato|addetto|desenvolvedor"
    r"|engenheiro|medewerker|ontwikkelaar|stagiair|utvecklare|ingenjör|udvikler|kehittäjä)(?:s|en)?"
    r"(?![a-z])|\((?:m|w|f|d|x|h)(?:\s?/\s?(?:m|w|f|d|x|h|gn|div)){1,3}\)|/-?in\b",
    re.IGNORECASE,
)
_JOB_ADDRESS = re.compile(
    r"(?:^|[/_?&=.-])(?:jobs?|job[-_]?id|job[-_]?details?|careers?|positions?|openings?|vacanc(?:y|ies)"
    r"|vacatures?|requisitions?|roles?|stellen?|stellenangebote?|karriere|offre|offres|emploi|empleos?"
    r"|vagas?|lavora|posting|postings|req)(?=$|[/_?&=.-])",
    re.IGNORECASE,
)
_NO_JOB = re.compile(
    r"^(?:apply(?: now| here)?|learn more|read more|more|details?|view(?: job| details| all.*)?"
    r"|see.*|all (?:jobs|openings|positions)|search|home|about.*|contact.*|blog|log ?in"
    r"|sign (?:in|up)"
    r"|next|previous|back|share|jobs?|careers?|benefits|our (?:team|values|culture)|culture|teams?"
    r"|privacy.*|cookie.*|imprint|impressum|bewerben|mehr(?: erfahren)?|en savoir plus|postuler"
    r"|[0-9]+)$",
    re.IGNORECASE,
)
_PLACE = re.compile(
    r"(?:^|[_\s-])(?:job-?)?(?:location|locations|city|place|office|ort|standort|lieu|ubicacion|region)"
    r"(?:$|[_\s-])",
    re.IGNORECASE,
)
_DEPARTMENT = re.compile(r"department|team|category|abteilung|bereich", re.IGNORECASE)
_EMPLOYMENT = re.compile(
    r"^(?:full[\s-]?time|part[\s-]?time|contract(?:or)?|permanent|temporary|internship|freelance"
    r"|vollzeit|teilzeit|befristet|unbefristet|cdi|cdd|temps plein|tiempo completo)\b",
    re.IGNORECASE,
)
_COUNTED = re.compile(r"(?:(?<![0-9])[0-9]++|[-_]?(?:odd|even|first|last))$", re.IGNORECASE)  # row1, row-odd
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
        items = recognised_jobs(Document.of(body, content_type), url=url)
        if not items and not self.may_be_empty:
            raise Permanent(
                "no list of jobs is recognised: fewer than two links in one place whose words or"
                " addresses are those of jobs. Give `items` and `fields` (CSS selectors); a page"
                " that a script fills has none, look for what the script asks for",
                code=NO_ITEMS,
            )
        following = next_page_of(body, url=url)
        return ListedPage(items=items, base_url=url, next_url=following, is_part=shows_part_of_list(body))

    def next_url(self, body: bytes, *, url: str) -> str | None:
        """Return the URL that the page's own pager links to."""
        return next_page_of(body, url=url)


def next_page_of(body: bytes, *, url: str) -> str | None:
    """Return the next page of the list, according to the page's links."""
    return next_page(Document.of(body).tree, url)


def shows_part_of_list(body: bytes) -> bool:
    """Return whether the page has a button that loads more of its list."""
    return shows_a_part(Document.of(body).tree)


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
    """Return the host and the first folder of the URL."""
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
    if words is None or len(words) > MAX_TITLE_CHARACTERS or _NO_JOB.match(words):
        return None
    return words


def _job_count(links: Sequence[_Link]) -> int:
    """Return how many jobs the group lists; 0 unless most of its links look like jobs."""
    distinct = {link.url: link for link in links}
    if len(distinct) < MIN_JOBS or len({link.title for link in links}) < MIN_JOBS:
        return 0
    titles = sum(_JOB_TITLE.search(link.title) is not None for link in distinct.values())
    addresses = sum(_leads_to_a_job(link.url) for link in distinct.values())
    is_sure = titles >= MIN_SHARE * len(distinct) or (addresses >= MIN_SHARE * len(distinct) and titles >= 1)
    return titles + len(distinct) if is_sure else 0


def _leads_to_a_job(url: str) -> bool:
    parts = urlsplit(url)
    return _JOB_ADDRESS.search(f"{parts.path}?{parts.query}") is not None


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
    """Yield the text parts of the element, in order."""
    for line in node.text(separator="\n").split("\n"):
        if (text := clean_text(line)) is not None:
            yield text


def sample_titles(items: Sequence[Item], most: int = 3) -> str:
    """Return a few titles, for a person who decides whether it is a list of jobs."""
    titles = list(Counter(item["title"] for item in items))[:most]
    return ", ".join(repr(title) for title in titles)
