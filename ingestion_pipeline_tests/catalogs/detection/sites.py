"""Small catalog sites, each a mapping from path to page, and detection runs on them."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from ingestion_pipeline.catalogs.detection.detection_tasks import DetectionCounts, run_detection
from ingestion_pipeline.catalogs.detection.page_analysis import PageAnalysis, analyze_page
from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, entity_type
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import outbox, recipes
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.catalog_extractions import LiveCatalog, a_catalog
from ingestion_pipeline_tests.polling_runs import a_fetcher, add_sources, rows

HOME = "http://a.test"
TOPICS = ("Algebra", "Botany", "Chemistry", "Drawing", "Economics", "French", "Geology", "History")
DEPARTMENTS = ("Biology", "Music", "Physics", "Welding")


def description(number: int) -> str:
    topic = TOPICS[number % len(TOPICS)]
    return (
        f"Students learn the foundations of {topic.lower()} and practise them in weekly sessions,"
        f" with a project of their own that is presented at the end of the term, part {number}."
        " Readings, essays and discussions deepen what the lectures introduce."
    )


def heading(number: int, subject: str = "GEN") -> str:
    return f"{subject} {100 + number} {TOPICS[number % len(TOPICS)]} {number}"


def page(body: str, *, title: str = "Catalogue", head: str = "") -> str:
    """Return a page with the menu and the footer of the site."""
    menu = "".join(f"<li><a href='/{name}'>{name.title()}</a></li>" for name in MENU)
    return (
        f"<html><head><title>{title}</title>{head}</head><body><nav><ul>{menu}</ul></nav>"
        f"<main><h1>{title}</h1>{body}</main><footer><a href='/imprint'>Imprint</a></footer></body>"
    )


MENU = ("admissions", "library", "campus", "contact", "news")


def course(number: int, subject: str = "GEN") -> str:
    return f"<div class='course'><h3>{heading(number, subject)} (3 credits)</h3><p>{description(number)}</p></div>"


def detail(number: int, subject: str = "GEN") -> str:
    title = heading(number, subject)
    body = f"<p>3 credits</p><p>{description(number)}</p>"
    return page(body, title=title)


def anchors(links: Mapping[str, str]) -> str:
    return "<ul>" + "".join(f"<li><a href='{to}'>{text}</a></li>" for to, text in links.items()) + "</ul>"


def pager(links: Mapping[str, str]) -> str:
    inside = " ".join(f"<a href='{to}'>{text}</a>" for to, text in links.items())
    return f"<div class='pagination'>{inside}</div>"


def numbered(pages: int = 3, each: int = 4) -> dict[str, str]:
    """Return a list with page numbers whose entries link to the pages of courses."""
    site: dict[str, str] = {}
    others = {f"/courses?page={number}": str(number) for number in range(1, pages + 1)}
    for number in range(1, pages + 1):
        numbers = range((number - 1) * each, number * each)
        links = {f"/courses/{course_number}": heading(course_number) for course_number in numbers}
        text = page(anchors(links) + pager(others), title="Courses")
        site[f"/courses?page={number}"] = text
        site |= {f"/courses/{course_number}": detail(course_number) for course_number in numbers}
    return site | {"/courses": site["/courses?page=1"]}


def by_offset(pages: int = 3, each: int = 4) -> dict[str, str]:
    """Return a list of courses, paged by offset."""
    others = {f"/list?offset={at * each}": str(at + 1) for at in range(pages)}
    site = {
        f"/list?offset={at * each}": page("".join(map(course, range(at * each, (at + 1) * each))) + pager(others))
        for at in range(pages)
    }
    return site | {"/list": site["/list?offset=0"]}


def categories() -> dict[str, str]:
    """Return departments, each a list of links to courses."""
    site = {"/catalog": page(anchors({f"/catalog/{name.lower()}": name for name in DEPARTMENTS}), title="Departments")}
    for place, name in enumerate(DEPARTMENTS):
        code = name[:4].upper()
        links = {f"/catalog/{name.lower()}/c{number}": heading(number, code) for number in range(4)}
        site[f"/catalog/{name.lower()}"] = page(anchors(links), title=name)
        site |= {f"/catalog/{name.lower()}/c{number}": detail(number + place, code) for number in range(4)}
    return site


def single() -> dict[str, str]:
    """Return all courses on one page."""
    return {"/all": page("".join(map(course, range(8))))}


def mixed() -> dict[str, str]:
    """Return links of one shape that lead both to courses and to lists."""
    links = {f"/x/{name}": f"Part {name}" for name in "abcdef"}
    site = {"/x": page(anchors(links), title="Parts")}
    for place, name in enumerate("abcdef"):
        inner = {f"/y/{name}{number}": heading(number) for number in range(5)}
        site[f"/x/{name}"] = detail(place) if place % 2 else page(anchors(inner), title=name)
    return site


def courseleaf() -> dict[str, str]:
    """Return a list of subjects, each a page of course blocks."""
    head = "<link rel='stylesheet' href='/css/courseleaf.css'>"
    subjects = ("acct", "biol", "chem", "danc", "econ")
    names = {f"/courses/{subject}/": f"{subject.title()} ({subject.upper()})" for subject in subjects}
    block = (
        "<div class='courseblock'><p class='courseblocktitle'><strong>{code} {number}. {topic}."
        " 3 Credits.</strong></p><p class='courseblockdesc'>{text}</p></div>"
    )
    site = {"/courses/": page(anchors(names), title="Courses A-Z", head=head)}
    for subject in subjects:
        blocks = "".join(
            block.format(code=subject.upper(), number=100 + at, topic=TOPICS[at], text=description(at))
            for at in range(3)
        )
        site[f"/courses/{subject}/"] = page(f"<div class='sc_sccoursedescs'>{blocks}</div>", head=head)
    return site


def acalog() -> dict[str, str]:
    """Return numbered pages of links to previews, paged by the vendor's own parameter."""
    root = "/content.php?catoid=7&navoid=771"
    site: dict[str, str] = {}
    for number in (1, 2, 3):
        links = {f"preview_course_nopop.php?catoid=7&coid={number}{at}": heading(at) for at in range(4)}
        further = {f"{root}&filter[cpage]={other}": str(other) for other in (1, 2, 3)}
        cells = "".join(f"<td><a href='{to}'>{text}</a></td>" for to, text in links.items())
        pages = "Page: " + " | ".join(f"<a href='{to}'>{text}</a>" for to, text in further.items())
        site[f"{root}&filter[cpage]={number}"] = page(f"<table class='acalog'><tr>{cells}</tr></table>{pages}")
        for at in range(4):
            site[f"/preview_course_nopop.php?catoid=7&coid={number}{at}"] = page(
                f"<table><tr><td class='block_content'><h1 id='course_preview_title'>{heading(at)}"
                f"</h1><p>3 credits</p><p>{description(at)}</p></td></tr></table>"
            )
    return site | {root: site[f"{root}&filter[cpage]=1"]}


def banner() -> dict[str, str]:
    """Return a list whose titles link to details, with the descriptions below."""
    rows = "".join(
        f"<tr><td class='nttitle'><a href='/prod/bwckctlg.p_disp_course_detail?crse={at}'>"
        f"{heading(at).replace(' ', ' ', 1)[:7]} - {TOPICS[at]}</a></td></tr>"
        f"<tr><td class='ntdefault'>{description(at)}<br>3.000 Credit hours</td></tr>"
        for at in range(6)
    )
    return {"/prod/bwckctlg.p_display_courses?term=1": page(f"<table>{rows}</table>")}


def kuali() -> dict[str, str]:
    """Return links with opaque ids, as the vendor's pages have them once rendered."""
    head = "<script src='https://assets.kuali.co/catalog.js'></script>"
    ids = [f"Nk{at}TgWhjW" for at in range(6)]
    links = {f"/catalog/courses/{id_}": TOPICS[at] for at, id_ in enumerate(ids)}
    site = {"/catalog/courses": page(anchors(links), title="Courses", head=head)}
    return site | {f"/catalog/courses/{id_}": detail(at) for at, id_ in enumerate(ids)}


def coursedog_page(school: str = "demo_school") -> str:
    state = f"<script>window.__NUXT__={{config:{{schoolId:'{school}'}}}}</script>"
    return page(f"<p>{description(1)} Powered by Coursedog.</p>{state}", title="Catalogue")


def coursedog_courses(count: int, skip: int, *, first: int = 0) -> str:
    data: list[dict[str, Any]] = [
        {
            "courseGroupId": f"g{at}",
            "code": f"GEN {100 + at}",
            "longName": f"{TOPICS[at % 8]} {at}",
            "name": "short",
            "description": description(at),
            "credits": {"creditHours": {"min": 3}},
        }
        for at in range(first + skip, first + min(skip + 20, count))
    ]
    return json.dumps({"listLength": count, "data": data})


@dataclass
class SavedPages:
    """Serves saved pages in place of a host, and records the URLs requested."""

    site: Mapping[str, str]
    api: Mapping[str, object] = field(default_factory=dict[str, object])
    entity: str = "course"
    kind: EntityType | None = None
    requested_urls: list[str] = field(default_factory=list[str])

    async def page(self, url: str) -> PageAnalysis:
        self.requested_urls.append(url)
        path = url.removeprefix(HOME)
        escaped = {saved.replace("[", "%5B").replace("]", "%5D"): saved for saved in self.site}
        if path not in self.site and path not in escaped and f"{path}/" not in self.site:
            raise Permanent(f"{url} answered 404", code="http_404")
        html = self.site.get(path) or self.site.get(escaped.get(path, "")) or self.site[f"{path}/"]
        return analyze_page(html, url, kind=self.kind or entity_type(self.entity))

    async def data(self, url: str) -> object:
        self.requested_urls.append(url)
        if url not in self.api:
            raise Permanent(f"{url} answered 404", code="http_404")
        return self.api[url]


SIZES = {"biology": 5, "music": 12, "physics": 1, "welding": 9, "law": 2, "nursing": 7, "art": 4}


@dataclass(frozen=True, kw_only=True)
class CategorizedSite:
    """A catalog of categories of different sizes; its addresses are format strings.

    `pagers` is how a category of several pages links to the next ones: `numbers`, `next` or `both`.
    """

    category: str = "/catalog/{name}"
    course: str = "/catalog/{name}/c{number}"
    list_page: str = "{category}?page={page}"
    sizes: Mapping[str, int] = field(default_factory=lambda: SIZES)
    each: int = 4
    pagers: Sequence[str] = ("both", "numbers", "next")
    link: str = "{path}"  # how the site writes a link
    has_codes: bool = True
    holds_records: bool = False

    @property
    def courses(self) -> dict[str, str]:
        """Return the page of each course, by path."""
        return {
            path: detail(number, name[:4].upper())
            for name, size in self.sizes.items()
            for number in range(size)
            for path in [self.course_path(name, number)]
        }

    def course_path(self, name: str, number: int) -> str:
        topic = TOPICS[number % len(TOPICS)].lower()
        return self.course.format(name=name, code=name[:4].upper(), number=number, slug=f"{topic}-in-{name}-{number}")

    def pages(self, home: str = "/catalog") -> dict[str, str]:
        """Return every page of the catalog, by path."""
        names = {self._href(self._category_path(name)): name.title() for name in self.sizes}
        site = {home: page(anchors(names), title="Departments")}
        for place, name in enumerate(self.sizes):
            site |= self._category_pages(name, self.pagers[place % len(self.pagers)])
        return site if self.holds_records else site | self.courses

    def _category_path(self, name: str) -> str:
        return self.category.format(name=name, code=name[:4].upper())

    def _href(self, path: str) -> str:
        return self.link.format(path=path, last=path.rpartition("/")[2], home=HOME)

    def _category_pages(self, name: str, pager_kind: str) -> dict[str, str]:
        size, category = self.sizes[name], self._category_path(name)
        count = -(-size // self.each)
        site: dict[str, str] = {}
        for at in range(count):
            numbers = range(at * self.each, min(size, (at + 1) * self.each))
            body = self._list_body(name, numbers) + self._pager(category, at + 1, count, pager_kind)
            html = page(body, title=f"{name.title()} department")
            site[self.list_page.format(category=category, page=at + 1)] = html
            if at == 0:
                site[category] = html
        return site

    def _list_body(self, name: str, numbers: Sequence[int]) -> str:
        code = name[:4].upper()
        if self.holds_records:
            return "".join(course(number, code) for number in numbers)
        texts = {
            number: heading(number, code) if self.has_codes else TOPICS[number % len(TOPICS)] for number in numbers
        }
        return anchors({self._href(self.course_path(name, number)): texts[number] for number in numbers})

    def _pager(self, category: str, at: int, count: int, pager_kind: str) -> str:
        if count == 1:
            return ""
        paths = {number: self.list_page.format(category=category, page=number) for number in range(1, count + 1)}
        links = {} if pager_kind == "next" else {self._href(path): str(number) for number, path in paths.items()}
        if pager_kind != "numbers" and at < count:
            next_href = self._href(paths[at + 1])
            links = {href: text for href, text in links.items() if href != next_href}
            links[next_href] = "Next"
        return pager(links)


def combined(*parts: CategorizedSite, home: str = "/catalog") -> dict[str, str]:
    """Return one catalog of several parts, whose first page lists their categories in turn."""
    pages = [part.pages(home) for part in parts]
    site = {path: html for part_pages in pages for path, html in part_pages.items()}
    names = [[(part.category.format(name=name, code=name[:4].upper()), name) for name in part.sizes] for part in parts]
    in_turn = [category for turn in zip_longest(*names) for category in turn if category is not None]
    return site | {home: page(anchors({path: name.title() for path, name in in_turn}), title="All")}


def declare(live: LiveCatalog, path: str, *, site: Mapping[str, str] | None = None, **config: Any) -> None:
    """Serve the site, and register its catalog, whose recipe has to be detected."""
    live.web.routes |= dict(site or {})
    add_sources(live.store, a_catalog(url=f"http://a.test{path}", config=config))


def detect(live: LiveCatalog, ctx: RunContext | None = None) -> DetectionCounts:
    return asyncio.run(_detect(ctx or live.ctx, live.web.port))


async def _detect(ctx: RunContext, port: int) -> DetectionCounts:
    worker = Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds)
    async with a_fetcher(ctx.settings, port) as fetcher:
        return await run_detection(ctx, worker, fetcher)


def recipe_row(store: Store) -> Any:
    [row] = rows(store, recipes)
    return row


def recipe_notices(store: Store) -> list[tuple[str, str]]:
    return [(row.subject_kind, row.payload["status"]) for row in rows(store, outbox) if row.subject_kind == "recipe"]
