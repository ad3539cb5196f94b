"""Small catalogues as sites write them: each a mapping from path to page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from ingestion_pipeline.catalogs.detection.page_analysis import PageAnalysis, analyze_page
from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, entity_type
from ingestion_pipeline.tasks.errors import Permanent

HOME = "http://a.test"
TOPICS = ("Algebra", "Botany", "Chemistry", "Drawing", "Economics", "French", "Geology", "History")
DEPARTMENTS = ("Biology", "Music", "Physics", "Welding")


def described(number: int) -> str:
    topic = TOPICS[number % len(TOPICS)]
    return (
        f"Students learn the foundations of {topic.lower()} and practise them in weekly sessions,"
        f" with a project of their own that is presented at the end of the term, part {number}."
        " Readings, essays and discussions deepen what the lectures introduce."
    )


def heading(number: int, subject: str = "GEN") -> str:
    return f"{subject} {100 + number} {TOPICS[number % len(TOPICS)]} {number}"


def page(body: str, *, title: str = "Catalogue", head: str = "") -> str:
    """A page with the menu and the footer that every page of the site has."""
    menu = "".join(f"<li><a href='/{name}'>{name.title()}</a></li>" for name in MENU)
    return (
        f"<html><head><title>{title}</title>{head}</head><body><nav><ul>{menu}</ul></nav>"
        f"<main><h1>{title}</h1>{body}</main><footer><a href='/imprint'>Imprint</a></footer></body>"
    )


MENU = ("admissions", "library", "campus", "contact", "news")


def course(number: int, subject: str = "GEN") -> str:
    return f"<div class='course'><h3>{heading(number, subject)} (3 credits)</h3><p>{described(number)}</p></div>"


def detail(number: int, subject: str = "GEN") -> str:
    title = heading(number, subject)
    body = f"<p>3 credits</p><p>{described(number)}</p>"
    return page(body, title=title)


def anchors(links: Mapping[str, str]) -> str:
    return "<ul>" + "".join(f"<li><a href='{to}'>{said}</a></li>" for to, said in links.items()) + "</ul>"


def pager(links: Mapping[str, str]) -> str:
    inside = " ".join(f"<a href='{to}'>{said}</a>" for to, said in links.items())
    return f"<div class='pagination'>{inside}</div>"


def numbered(pages: int = 3, each: int = 4) -> dict[str, str]:
    """A list by page numbers, each entry a link to a course's page."""
    site: dict[str, str] = {}
    others = {f"/courses?page={number}": str(number) for number in range(1, pages + 1)}
    for number in range(1, pages + 1):
        numbers = range((number - 1) * each, number * each)
        links = {f"/courses/{one}": heading(one) for one in numbers}
        text = page(anchors(links) + pager(others), title="Courses")
        site[f"/courses?page={number}"] = text
        site |= {f"/courses/{one}": detail(one) for one in numbers}
    return site | {"/courses": site["/courses?page=1"]}


def by_offset(pages: int = 3, each: int = 4) -> dict[str, str]:
    """Several courses on a page, and the next ones by an offset."""
    others = {f"/list?offset={at * each}": str(at + 1) for at in range(pages)}
    site = {
        f"/list?offset={at * each}": page(
            "".join(course(one) for one in range(at * each, (at + 1) * each)) + pager(others)
        )
        for at in range(pages)
    }
    return site | {"/list": site["/list?offset=0"]}


def categories() -> dict[str, str]:
    """Departments, each with a list of links to courses."""
    site = {"/catalog": page(anchors({f"/catalog/{name.lower()}": name for name in DEPARTMENTS}), title="Departments")}
    for place, name in enumerate(DEPARTMENTS):
        code = name[:4].upper()
        links = {f"/catalog/{name.lower()}/c{one}": heading(one, code) for one in range(4)}
        site[f"/catalog/{name.lower()}"] = page(anchors(links), title=name)
        site |= {f"/catalog/{name.lower()}/c{one}": detail(one + place, code) for one in range(4)}
    return site


def single() -> dict[str, str]:
    """All courses on one page."""
    return {"/all": page("".join(map(course, range(8))))}


def mixed() -> dict[str, str]:
    """Links of one shape that lead to courses and to lists."""
    links = {f"/x/{name}": f"Part {name}" for name in "abcdef"}
    site = {"/x": page(anchors(links), title="Parts")}
    for place, name in enumerate("abcdef"):
        inner = {f"/y/{name}{one}": heading(one) for one in range(5)}
        site[f"/x/{name}"] = detail(place) if place % 2 else page(anchors(inner), title=name)
    return site


def courseleaf() -> dict[str, str]:
    """A list of subjects, each a page of course blocks."""
    head = "<link rel='stylesheet' href='/css/courseleaf.css'>"
    subjects = ("acct", "biol", "chem", "danc", "econ")
    names = {f"/courses/{one}/": f"{one.title()} ({one.upper()})" for one in subjects}
    block = (
        "<div class='courseblock'><p class='courseblocktitle'><strong>{code} {number}. {topic}."
        " 3 Credits.</strong></p><p class='courseblockdesc'>{text}</p></div>"
    )
    site = {"/courses/": page(anchors(names), title="Courses A-Z", head=head)}
    for one in subjects:
        blocks = "".join(
            block.format(code=one.upper(), number=100 + at, topic=TOPICS[at], text=described(at)) for at in range(3)
        )
        site[f"/courses/{one}/"] = page(f"<div class='sc_sccoursedescs'>{blocks}</div>", head=head)
    return site


def acalog() -> dict[str, str]:
    """Numbered pages of links to previews, by the vendor's own parameter."""
    root = "/content.php?catoid=7&navoid=771"
    site: dict[str, str] = {}
    for number in (1, 2, 3):
        links = {f"preview_course_nopop.php?catoid=7&coid={number}{at}": heading(at) for at in range(4)}
        further = {f"{root}&filter[cpage]={other}": str(other) for other in (1, 2, 3)}
        cells = "".join(f"<td><a href='{to}'>{said}</a></td>" for to, said in links.items())
        pages = "Page: " + " | ".join(f"<a href='{to}'>{said}</a>" for to, said in further.items())
        site[f"{root}&filter[cpage]={number}"] = page(f"<table class='acalog'><tr>{cells}</tr></table>{pages}")
        for at in range(4):
            site[f"/preview_course_nopop.php?catoid=7&coid={number}{at}"] = page(
                f"<table><tr><td class='block_content'><h1 id='course_preview_title'>{heading(at)}"
                f"</h1><p>3 credits</p><p>{described(at)}</p></td></tr></table>"
            )
    return site | {root: site[f"{root}&filter[cpage]=1"]}


def banner() -> dict[str, str]:
    """A listing whose titles link to details, with the descriptions below."""
    rows = "".join(
        f"<tr><td class='nttitle'><a href='/prod/bwckctlg.p_disp_course_detail?crse={at}'>"
        f"{heading(at).replace(' ', ' ', 1)[:7]} - {TOPICS[at]}</a></td></tr>"
        f"<tr><td class='ntdefault'>{described(at)}<br>3.000 Credit hours</td></tr>"
        for at in range(6)
    )
    return {"/prod/bwckctlg.p_display_courses?term=1": page(f"<table>{rows}</table>")}


def kuali() -> dict[str, str]:
    """A list of links by opaque ids, as the vendor's pages show it once they are rendered."""
    head = "<script src='https://assets.kuali.co/catalog.js'></script>"
    ids = [f"Nk{at}TgWhjW" for at in range(6)]
    links = {f"/catalog/courses/{one}": TOPICS[at] for at, one in enumerate(ids)}
    site = {"/catalog/courses": page(anchors(links), title="Courses", head=head)}
    return site | {f"/catalog/courses/{one}": detail(at) for at, one in enumerate(ids)}


def coursedog_page(school: str = "demo_school") -> str:
    state = f"<script>window.__NUXT__={{config:{{schoolId:'{school}'}}}}</script>"
    return page(f"<p>{described(1)} Powered by Coursedog.</p>{state}", title="Catalogue")


def coursedog_courses(count: int, skip: int, *, first: int = 0) -> str:
    data: list[dict[str, Any]] = [
        {
            "courseGroupId": f"g{at}",
            "code": f"GEN {100 + at}",
            "longName": f"{TOPICS[at % 8]} {at}",
            "name": "short",
            "description": described(at),
            "credits": {"creditHours": {"min": 3}},
        }
        for at in range(first + skip, first + min(skip + 20, count))
    ]
    return json.dumps({"listLength": count, "data": data})


@dataclass
class SavedLook:
    """Looks at saved pages instead of a host's; it remembers which."""

    site: Mapping[str, str]
    api: Mapping[str, object] = field(default_factory=dict[str, object])
    entity: str = "course"
    kind: EntityType | None = None
    asked: list[str] = field(default_factory=list[str])

    async def page(self, url: str) -> PageAnalysis:
        self.asked.append(url)
        path = url.removeprefix(HOME)
        known = {one.replace("[", "%5B").replace("]", "%5D"): one for one in self.site}
        if path not in self.site and path not in known and f"{path}/" not in self.site:
            raise Permanent(f"{url} answered 404", code="http_404")
        html = self.site.get(path) or self.site.get(known.get(path, "")) or self.site[f"{path}/"]
        return analyze_page(html, url, kind=self.kind or entity_type(self.entity))

    async def data(self, url: str) -> object:
        self.asked.append(url)
        if url not in self.api:
            raise Permanent(f"{url} answered 404", code="http_404")
        return self.api[url]


def as_pages(site: Mapping[str, str]) -> Mapping[str, Sequence[str] | str]:
    """The same for a web on loopback, under any order of a query."""
    return {path.replace("[", "%5B").replace("]", "%5D"): html for path, html in site.items()}


SIZES = {"biology": 5, "music": 12, "physics": 1, "welding": 9, "law": 2, "nursing": 7, "art": 4}


@dataclass(frozen=True, kw_only=True)
class Categorised:
    """A catalogue of categories of different sizes; its addresses are formats.

    `pagers` says how a category of more than one page goes on: `numbers`, `next` or `both`.
    """

    category: str = "/catalog/{name}"
    course: str = "/catalog/{name}/c{number}"
    turned: str = "{category}?page={page}"
    sizes: Mapping[str, int] = field(default_factory=lambda: SIZES)
    each: int = 4
    pagers: Sequence[str] = ("both", "numbers", "next")
    link: str = "{path}"  # how a link is written
    has_codes: bool = True
    holds_records: bool = False

    @property
    def courses(self) -> dict[str, str]:
        """The page of each course, by its path; of a page of records, its heading."""
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
        """Every page of the catalogue, by its path."""
        names = {self._written(self._category(name)): name.title() for name in self.sizes}
        site = {home: page(anchors(names), title="Departments")}
        for place, name in enumerate(self.sizes):
            site |= self._category_pages(name, self.pagers[place % len(self.pagers)])
        return site if self.holds_records else site | self.courses

    def _category(self, name: str) -> str:
        return self.category.format(name=name, code=name[:4].upper())

    def _written(self, path: str) -> str:
        return self.link.format(path=path, last=path.rpartition("/")[2], home=HOME)

    def _category_pages(self, name: str, how: str) -> dict[str, str]:
        size, category = self.sizes[name], self._category(name)
        count = -(-size // self.each)
        site: dict[str, str] = {}
        for at in range(count):
            numbers = range(at * self.each, min(size, (at + 1) * self.each))
            body = self._listed(name, numbers) + self._pager(category, at + 1, count, how)
            html = page(body, title=f"{name.title()} department")
            site[self.turned.format(category=category, page=at + 1)] = html
            if at == 0:
                site[category] = html
        return site

    def _listed(self, name: str, numbers: Sequence[int]) -> str:
        code = name[:4].upper()
        if self.holds_records:
            return "".join(course(one, code) for one in numbers)
        said = {one: heading(one, code) if self.has_codes else TOPICS[one % len(TOPICS)] for one in numbers}
        return anchors({self._written(self.course_path(name, one)): said[one] for one in numbers})

    def _pager(self, category: str, at: int, count: int, how: str) -> str:
        if count == 1:
            return ""
        turned = {one: self.turned.format(category=category, page=one) for one in range(1, count + 1)}
        links = {} if how == "next" else {self._written(to): str(one) for one, to in turned.items()}
        if how != "numbers" and at < count:
            links = {to: said for to, said in links.items() if to != self._written(turned[at + 1])}
            links[self._written(turned[at + 1])] = "Next"
        return pager(links)


def combined(*parts: Categorised, home: str = "/catalog") -> dict[str, str]:
    """One catalogue of several parts, whose first page lists their categories by turns."""
    pages = [part.pages(home) for part in parts]
    site = {path: html for each in pages for path, html in each.items()}
    names = [[(part.category.format(name=name, code=name[:4].upper()), name) for name in part.sizes] for part in parts]
    turns = [one for turn in zip_longest(*names) for one in turn if one is not None]
    return site | {home: page(anchors({to: said.title() for to, said in turns}), title="All")}
